"""The newer methods through the compiled step: the same on every mesh, and exact resumption."""

import functools

import jax
import numpy as np
import pytest

from cls_jax.data.datasets import load_dataset
from cls_jax.runs.checkpoint import Checkpointer
from cls_jax.runs.folder import write_labeled_indices
from cls_jax.training.loop import train
from cls_jax.training.setup import create_train_setup
from tests.conftest import DATASET_SPEC, create_tiny_config, train_interrupted
from tests.methods.rule_cases import RULES
from tests.methods.tiny_model import run_steps, tiny_model

__all__ = ["tiny_model"]
pytestmark = pytest.mark.usefixtures("tiny_model")

# So that in a few steps the state moves far and masks are neither empty nor full.
CHANGES = {name: {"statistics_decay": 0.5} for name in RULES} | {
    "flexmatch": {"tau": 0.6, "warmup": "off"},
    "cls_plus": {"weak_pass": "fast", "statistics_decay": 0.5, "tau": 0.1},
}


def create_method_config(name, **changes):
    hparams = {f"method__{key}": value for key, value in CHANGES[name].items()}
    return create_tiny_config(f"20,{name}", **hparams, **changes)


@pytest.fixture(scope="module")
def expected():
    """Name → the end on one device, compiled once for each."""
    return functools.cache(lambda name: run_steps(create_method_config(name)))


@pytest.mark.parametrize(
    ("name", "network", "data"),
    [*((name, 1, 2) for name in RULES), ("cls_plus", 1, 2), ("cls_plus", 2, 1), ("cls_plus", 2, 2)],
)
def test_result_does_not_depend_on_the_number_of_devices(expected, name, network, data):
    """Parameters, monitors and every leaf of the method's state, FlexMatch's table too."""
    config = create_method_config(name, mesh__network=network, mesh__data=data)
    state, history = run_steps(config)
    expected_state, expected_history = expected(name)
    close = {"rtol": 1e-3, "atol": 1e-4}
    for monitors, wanted in zip(history, expected_history, strict=True):
        assert set(monitors) == set(wanted)
        for key, value in wanted.items():
            np.testing.assert_allclose(monitors[key], value, **close, err_msg=key)
    for part in ("params", "batch_stats", "method_state"):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, **close),
            getattr(state, part),
            getattr(expected_state, part),
        )


@pytest.mark.parametrize("name", [*RULES, "cls_plus"])
def test_steps_move_the_state_and_teach_some_images_and_not_others(expected, name):
    """Else the test above would compare nothing."""
    config = create_method_config(name)
    start = jax.device_get(create_train_setup(config, DATASET_SPEC).init_state())
    state, history = expected(name)
    moved = jax.tree.map(lambda a, b: np.any(a != b), start.method_state, state.method_state)
    assert sum(jax.tree.leaves(moved)) >= len(moved) - 1  # The target, or what is outside, stays.
    ratio = "monitors/exchange_ratio" if name == "cls_plus" else "monitors/mask_ratio"
    if name == "softmatch":
        ratio = "monitors/confidence_weight"
    assert any(0 < monitors[ratio] < 1 for monitors in history), history


def test_resumed_run_equals_an_uninterrupted_one(tmp_path):
    """Killed after 3 of 6 steps; the newest checkpoint is of step 2."""
    config = create_method_config("flexmatch", data__pipeline="device")
    train_interrupted(config, tmp_path / "killed", 3)
    states = []
    for folder in ("killed", "whole"):
        assert train(config, tmp_path / folder)["step"] == 6
        state = create_train_setup(config, DATASET_SPEC).init_state()
        states.append(Checkpointer(tmp_path / folder).restore_newest(state).state)
    assert jax.tree.leaves(states[0].method_state)
    jax.tree.map(np.testing.assert_array_equal, *states)


def test_run_aligns_to_the_frequencies_of_its_labeled_images(tmp_path):
    config = create_method_config("softmatch", data__pipeline="device", num_steps=1)
    dataset = load_dataset(config)
    is_chosen = dataset.train_labels < 3
    is_chosen[np.flatnonzero(dataset.train_labels == 0)[5:]] = False
    config.num_labels = int(is_chosen.sum())
    write_labeled_indices(tmp_path, np.flatnonzero(is_chosen), dataset)
    train(config, tmp_path)
    state = create_train_setup(config, DATASET_SPEC).init_state()
    target = Checkpointer(tmp_path).restore_newest(state).state.method_state["target"]
    counts = np.bincount(dataset.train_labels[is_chosen], minlength=10)
    assert counts[0] == 5
    np.testing.assert_allclose(target, [counts / counts.sum()], rtol=1e-6)
