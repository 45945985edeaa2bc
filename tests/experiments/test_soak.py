"""What the long-running checks measure and compare."""

import os

import numpy as np
import pytest

from experiments.long_run import Sample, compute_slopes, take_sample
from experiments.soak import describe_difference, is_saving, read_end


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


def test_a_save_under_way_is_recognized_by_its_temporary_folder(tmp_path):
    assert not is_saving(tmp_path)
    (tmp_path / "checkpoints" / "4.orbax-checkpoint-tmp").mkdir(parents=True)
    assert is_saving(tmp_path)
