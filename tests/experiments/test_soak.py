"""What the long-running checks measure and compare."""

import os
import signal

import numpy as np
import pytest

from experiments.studies.long_run import Sample, compute_slopes, take_sample
from experiments.studies.soak import (
    Stop,
    count_created,
    count_saves,
    describe_difference,
    describe_stops,
    locate,
    read_end,
)


def test_slopes_are_changes_per_minute():
    samples = [Sample(m, 1000 + 2 * m, 5, 30 - m, 1.0) for m in (5.0, 6.0, 8.0)]
    assert compute_slopes(samples) == pytest.approx(Sample(1.0, 2.0, 0.0, -1.0, 0.0), abs=1e-9)


def test_a_sample_is_of_the_process_and_its_folder(tmp_path):
    (tmp_path / "file").write_bytes(bytes(2**20))
    sample = take_sample(os.getpid(), tmp_path, 1.5)
    assert sample.folder_mb == 1.0
    assert sample.resident_mb > 10
    assert sample.threads >= 1


def test_every_difference_between_two_ends_is_seen(trained_run):
    end, expected = read_end(trained_run), read_end(trained_run)
    assert describe_difference(end, expected) is None
    changed = end["state"][3].copy()
    changed.view(np.uint8).flat[0] ^= 1
    state = [*end["state"][:3], changed, *end["state"][4:]]
    assert describe_difference({**end, "state": state}, expected) == "state"
    assert describe_difference({**end, "metrics": end["metrics"][:-1]}, expected) == "metrics"
    assert describe_difference({**end, "result": {}}, expected) == "result"


def touch(path, at):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (at, at))


def test_a_stop_is_located_by_what_its_own_session_has_written(tmp_path):
    """The session began at 100 and resumes a run whose files are all there."""
    names = ("config.json", "labeled_indices.json", "dataset.json")
    for name in (*names, "checkpoints/4.orbax-checkpoint-tmp"):
        touch(tmp_path / name, at=50)
    assert locate(tmp_path, 100) == "start"
    touch(tmp_path / ".lock", at=101)
    assert (locate(tmp_path, 100), count_created(tmp_path, 100)) == ("creation", 1)
    touch(tmp_path / "config.json", at=102)
    touch(tmp_path / "labeled_indices.json.partial", at=103)
    assert (locate(tmp_path, 100), count_created(tmp_path, 100)) == ("creation", 4)
    touch(tmp_path / "dataset.json", at=104)
    assert locate(tmp_path, 100) == "training"
    touch(tmp_path / "checkpoints" / "8.orbax-checkpoint-tmp", at=105)
    assert (locate(tmp_path, 100), count_saves(tmp_path, 100)) == ("save", 1)


def test_every_stop_has_a_row():
    stops = [
        Stop(0, "creation", "creation", 3, 0, -9, 0.1),
        Stop(0, "save", "save", 7, 40, -9, 0.3),
    ]
    text = describe_stops(stops, ["equal"], signal.SIGKILL)
    assert "2 times SIGKILL: 1 within creation, 1 within save" in text
    assert "| 1 | 0 | creation | creation, stage 3 of 7 | 0 | -9 |" in text
    assert "| 2 | 0 | save | save | 40 | -9 |" in text
    assert "differs" not in text
    assert "run 1 differs: state" in describe_stops(stops, ["equal", "state"], signal.SIGKILL)
