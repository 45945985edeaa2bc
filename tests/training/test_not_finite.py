"""A loss that is NaN or infinite stops the run. One that only grows is flagged."""

import dataclasses
import json
import re

import jax
import numpy as np
import pytest

from cls_jax.data.datasets import load_dataset
from cls_jax.data.pipelines import create_pipeline
from cls_jax.errors import UserError
from cls_jax.runs.checkpoint import Checkpointer
from cls_jax.runs.metrics import read_metrics
from cls_jax.training.loop import train
from cls_jax.training.setup import create_train_setup, set_step
from cls_jax.training.start import prepare_run
from cls_jax.training.step import create_train_step, make_batch_fn
from tests.conftest import DATASET_SPEC, create_tiny_config
from tests.methods.tiny_model import tiny_model

__all__ = ["tiny_model"]
pytestmark = pytest.mark.usefixtures("tiny_model")


def test_a_step_that_is_not_finite_can_be_reproduced_from_the_folder(tmp_path):
    config = create_tiny_config(
        "20,fixmatch", optimizer__learning_rate=100.0, num_steps=40, data__pipeline="device"
    )
    workdir = tmp_path / "run"
    with pytest.raises(UserError, match=r"stopped at step \d+: train/.* last good checkpoint"):
        train(config, workdir)

    (path,) = (workdir / "not_finite").iterdir()
    bad_step = int(re.fullmatch(r"step_(\d+)\.npz", path.name)[1])
    with np.load(path, allow_pickle=False) as dump:
        monitors = json.loads(str(dump["monitors"]))
        batch = {name: dump[name] for name in ("x", "y", "u", "u_index", "u_truth")}
    watched = ("train/loss", "train/gradient_norm")
    assert {"nan", "inf"} & {monitors[name] for name in watched}

    # The newest checkpoint and the stream lead to the same batch and the same loss.
    setup, dataset, spec, _ = prepare_run(config, workdir, load_dataset)
    first_step, state, _ = Checkpointer(workdir).restore_newest(setup.state_shapes)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(state.params))
    inputs, specs, create_batch = create_pipeline(
        spec, dataset, setup.mesh, first_step, config.num_steps
    )
    train_step = create_train_step(setup, create_batch, specs)
    for step in range(first_step, bad_step + 1):
        step_input = next(inputs)
        if step == bad_step:
            again = make_batch_fn(setup, create_batch, specs)(state, step_input)
        state, again_monitors = train_step(state, step_input)
    inputs.close()
    for name, values in batch.items():
        np.testing.assert_array_equal(getattr(again, name), values)
    for name in watched:
        assert repr(float(again_monitors[name])) == monitors[name]


def test_the_operation_that_makes_the_first_nan_is_named(tmp_path):
    config = create_tiny_config(
        "20,supervised", optimizer__learning_rate=100.0, num_steps=40, debug_nans=True
    )
    with pytest.raises(UserError, match=r"NaN or Inf produced in cls_jax/.*, line \d+: "):
        train(config, tmp_path / "run")


def test_debug_nans_lets_a_run_without_known_classes_go_on(tmp_path):
    dataset = load_dataset(create_tiny_config())
    labels = np.full_like(dataset.train_labels, -1)
    labels[:100] = dataset.train_labels[:100]
    dataset = dataclasses.replace(dataset, train_labels=labels)
    config = create_tiny_config(
        "20,fixmatch", num_steps=2, debug_nans=True, data__unlabeled_includes_labeled=False
    )
    config.batch_size = 2
    assert train(config, tmp_path / "run", lambda config: dataset)["step"] == 2
    rows = read_metrics(tmp_path / "run")
    assert None in [row.get("monitors/pseudo_label_accuracy") for row in rows]


def test_two_processes_can_ask_for_an_earlier_batch_while_transfers_are_guarded(monkeypatch):
    """Of several processes, `jax.device_put` transfers implicitly, which the guard refuses."""
    setup = create_train_setup(create_tiny_config(), DATASET_SPEC)
    state = setup.init_state()
    monkeypatch.setattr(jax, "device_put", lambda *_: pytest.fail("an implicit transfer"))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with jax.transfer_guard("disallow"):
        earlier = set_step(setup.mesh, state, 3)
    assert int(earlier.step) == 3
    assert earlier.step.sharding == state.step.sharding
