"""The runs of the studies, and how two runs are compared."""

import argparse

import numpy as np
import pytest

from cls_jax.errors import UserError
from experiments.studies import transfer
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
