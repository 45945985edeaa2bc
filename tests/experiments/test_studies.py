"""The runs of the studies, and what the soak test sees of a run that it stops."""

import argparse
import os
import signal

import numpy as np
import pytest

from cls_jax.errors import UserError
from experiments.studies import transfer
from experiments.studies.soak import Stop, count_created, describe_stops, locate
from tests.outcomes import describe_difference, read_end


def parse(tmp_path, **changes):
    defaults = {"data": str(tmp_path), "pixels": 32, "imbalance": 1.0, "runs": "runs/transfer"}
    defaults |= {"config": "configs/folder.py", "overrides": {}}
    return argparse.Namespace(**(defaults | changes))


def test_every_row_of_transfer_is_a_valid_run_of_its_method(tmp_path):
    arguments = parse(tmp_path, overrides={"num_steps": "77"}, imbalance=10.0)
    for name, row in transfer.ROWS.items():
        cell = transfer.create_cell(arguments, name, 40, seed=3)
        assert cell.workdir.name == f"{name}-32px-40-10to1-seed3"
        assert cell.config.method.name == (row.method or "supervised")
        assert (cell.config.num_labels, cell.config.seed, cell.config.num_steps) == (40, 3, 77)
        # Once resolved, so that the folder of a finished run is recognized.
        expected = "wide_resnet" if name == "scratch" else "efficientnet_lite0"
        assert cell.config.model.name == expected
    with pytest.raises(UserError, match=r"There is no --config\.nothing"):
        transfer.create_cell(parse(tmp_path, overrides={"nothing": "1"}), "cls", 40, 0)


def test_every_difference_between_two_runs_is_seen(trained_run):
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
    touch(tmp_path / "labeled_indices.json.partial", at=103)
    assert (locate(tmp_path, 100), count_created(tmp_path, 100)) == ("creation", 4)
    touch(tmp_path / "dataset.json", at=104)
    assert locate(tmp_path, 100) == "training"
    touch(tmp_path / "checkpoints" / "8.orbax-checkpoint-tmp", at=105)
    assert locate(tmp_path, 100) == "save"


def test_every_stop_has_a_row():
    stops = [Stop("creation", "creation", -9, 0.1), Stop("save", "save", -9, 0.3)]
    text = describe_stops(stops, ["equal", "state"], signal.SIGKILL)
    assert "2 times SIGKILL: 1 within creation, 1 within save" in text
    assert "| 2 | save | save | -9 |" in text
    assert "run 1 differs: state" in text
