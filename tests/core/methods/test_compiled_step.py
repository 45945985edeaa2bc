"""Methods through the compiled step: the same on every mesh, and exact resumption.

Their losses are in `test_oracles.py`; this file covers every way in which devices cooperate.
"""

import functools

import jax
import numpy as np
import pytest

from cls_jax.batch import RawBatch
from cls_jax.methods import METHODS
from cls_jax.methods.options import INFERRED_LABELS
from cls_jax.parallel.mesh import BATCH_SPECS, to_shardings
from cls_jax.training.setup import create_train_setup
from cls_jax.training.step import create_train_step
from tests.conftest import DATASET_SPEC, create_raw_batch, create_tiny_config
from tests.outcomes import assert_close

pytestmark = pytest.mark.usefixtures("tiny_model")

NUM_STEPS = 3
# Each device mixes or drops out within its part of the batch, with the same draws.
DRAWS_PER_DEVICE = ("remixmatch", "ups")
# Each has something that the others lack: sums (SimPro), gathered values (SoftMatch) and a gathered
# table (FlexMatch), thresholds and a fairness term (FreeMatch), a mean over some of the images
# (UPS), a mixed batch and two heads (ReMixMatch), the averaged network (Mean Teacher), and with
# CLS+ exchanged labels and boxes that belong to images.
REPRESENTATIVES = ("flexmatch", "freematch", "mean_teacher", "remixmatch", "simpro", "softmatch")
MESHES = [(name, (1, 2)) for name in (*REPRESENTATIVES, "ups")]
MESHES.append(("cls_plus", (2, 2)))  # In both ways in which two devices cooperate.
# So that in a few steps states move far, and masks are neither empty nor full.
CHANGES = {"threshold": 0.5, "tau": 0.3, "statistics_decay": 0.5, "class_mean_decay": 0.5}
CHANGES_BY_METHOD = {"flexmatch": {"tau": 0.6, "warmup": "off"}}


def create_config(name, **changes):
    config = create_tiny_config(f"20,{name}", **changes)
    for key, value in (CHANGES | CHANGES_BY_METHOD.get(name, {})).items():
        if key in config.method:
            config.method[key] = value
    return config


@functools.cache
def compile_step(name: str, mesh: tuple[int, int], batch_size: int, settings: tuple = ()):
    """(configuration, setup, initial state, compiled step)."""
    config = create_config(
        name, mesh__network=mesh[0], mesh__data=mesh[1], batch_size=batch_size, **dict(settings)
    )
    labels = np.repeat(np.arange(10), np.arange(10, 0, -1))
    setup = create_train_setup(config, DATASET_SPEC.split(labels, DATASET_SPEC.num_images))
    state, rng = setup.init_state(), np.random.default_rng(0)
    chosen = state.method_state
    if name == "ups":  # As if a round had chosen labels.
        label = rng.integers(-1, 10, (1, DATASET_SPEC.num_images)).astype(np.int32)
        negative = (label == -1)[..., None] & (rng.uniform(size=(*label.shape, 10)) < 0.3)
        chosen = {"label": label, "negative": negative}
    if "inferred" in config.method and config.method.inferred:  # As if there were one.
        fill = lambda leaf: rng.integers(0, 3, leaf.shape).astype(leaf.dtype)  # noqa: E731
        chosen = chosen | {INFERRED_LABELS: jax.tree.map(fill, chosen[INFERRED_LABELS])}
    shardings = to_shardings(setup.mesh, setup.state_specs.method_state)
    state = state.replace(method_state=jax.device_put(chosen, shardings))
    batch = put(setup, create_batch(config, 0))
    step = create_train_step(setup).lower(state, batch, setup.put_schedule())
    return config, setup, jax.device_get(state), step.compile()


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    yield
    compile_step.cache_clear()
    run.cache_clear()


def create_batch(config, seed: int) -> RawBatch:
    return create_raw_batch(config, len(METHODS[config.method.name].unlabeled_views), seed)


def put(setup, batch: RawBatch) -> RawBatch:
    return jax.device_put(batch, to_shardings(setup.mesh, BATCH_SPECS))


def repeat_twice(batch: RawBatch) -> RawBatch:
    """A batch of which two devices get the same part."""
    fields = batch._asdict().items()
    return RawBatch(**{k: np.concatenate([v, v], axis=1 if k == "u" else 0) for k, v in fields})


@functools.cache
def run(name, mesh, repeats=False, settings=()):
    """Monitors of a few steps, and the state after them."""
    _, setup, state, step = compile_step(name, mesh, 16 if repeats else 8, settings)
    config = create_config(name, batch_size=8)
    state, history = jax.device_put(state, to_shardings(setup.mesh, setup.state_specs)), []
    schedule = setup.put_schedule()
    for seed in range(NUM_STEPS):
        batch = create_batch(config, seed)
        batch = put(setup, repeat_twice(batch) if repeats else batch)
        state, monitors = step(state, batch, schedule)
        # Without counts, which are larger where the batch is repeated.
        history.append({key: float(value) for key, value in monitors.items() if "/" in key})
    return history, jax.device_get(state)


def assert_same_run(actual, expected):
    """Monitors and every leaf of the state, FlexMatch's table too."""
    for ours, theirs in zip(actual[0], expected[0], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-4, nan_ok=True)
    for part in ("params", "batch_stats", "ema_params", "method_state"):
        ours, theirs = (getattr(state, part) for _, state in (actual, expected))
        assert_close(ours, theirs, rtol=1e-4, atol=1e-4, err_msg=part)


@pytest.mark.parametrize(("name", "mesh"), MESHES)
def test_training_does_not_depend_on_the_number_of_devices(name, mesh):
    """Of methods that draw per device: two devices with the same part train as one with it."""
    expected = run(name, (1, 1))
    assert_same_run(run(name, mesh, repeats=name in DRAWS_PER_DEVICE), expected)


FAST = ("method__weak_pass", "fast")


def test_options_do_not_depend_on_the_number_of_devices():
    settings = FAST, ("method__balanced_head", True), ("method__inferred", 1.0)
    expected = run("cls_plus", (1, 1), settings=settings)
    assert_same_run(run("cls_plus", (2, 2), settings=settings), expected)
    assert all(value != 0 for key, value in expected[0][-1].items() if "train/loss_" in key)


def test_a_fast_pass_of_weak_images_costs_no_gradient():
    fast, joint = (
        compile_step("fixmatch", (1, 1), 8, options)[3].cost_analysis()["flops"]
        for options in ((FAST,), ())
    )
    assert fast < 0.85 * joint
