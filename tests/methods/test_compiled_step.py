"""Every method through the real step, compiled for several meshes: results and communication."""

import functools
import math
import re

import jax
import numpy as np
import pytest

from cls_jax.batch import RawBatch
from cls_jax.methods import METHODS
from cls_jax.parallel.mesh import BATCH_SPECS, to_shardings
from cls_jax.training import state as state_lib
from cls_jax.training.setup import create_train_setup
from cls_jax.training.step import create_train_step
from tests.conftest import DATASET_SPEC, create_raw_batch, create_tiny_config

NUM_STEPS = 3
# Each device mixes or drops out within its part of the batch, with the same draws.
DRAWS_PER_DEVICE = ("mixmatch", "remixmatch", "ups")
TWO_NETWORKS = [name for name in METHODS if METHODS[name].num_networks == 2]
MESHES = [
    *((name, (1, 2)) for name in METHODS),
    *((name, mesh) for name in TWO_NETWORKS for mesh in ((2, 1), (2, 2))),
]
# Untrained networks are rarely confident, and masks of zeros would hide half of a loss.
REACHED = {"threshold": 0.12, "tau": 0.02}
# Compiles in a third of the time; the program is the same.
COMPILER_OPTIONS = {"xla_cpu_use_fusion_emitters": False}
LABELS_PER_IMAGE = 5  # Exchanged: pseudo, complementary, weight, confidence, masked weight.


@pytest.fixture(autouse=True, scope="module")
def _initialize_once(one_block):
    """The same initial networks for all methods of the same architecture, computed once.

    They have one block: the step and its communication are the same for each layer.
    """
    init, networks = state_lib.init_networks, {}

    def init_once(model, key, num_networks, image_shape):
        if isinstance(key, jax.core.Tracer):  # Only shapes are asked for.
            return init(model, key, num_networks, image_shape)
        architecture = (num_networks, model.extra_heads)
        if architecture not in networks:
            networks[architecture] = jax.device_get(init(model, key, num_networks, image_shape))
        return networks[architecture]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_lib, "init_networks", init_once)
        yield
    compile_step.cache_clear()
    run.cache_clear()


@functools.cache
def compile_step(name: str, mesh: tuple[int, int], batch_size: int = 4, dtype: str = "float32"):
    """(configuration, program, initial state, compiled step)."""
    config = create_tiny_config(
        f"20,{name}",
        mesh__network=mesh[0],
        mesh__data=mesh[1],
        batch_size=batch_size,
        model__dtype=dtype,
        # Without a kink. An activation within rounding of LeakyReLU's has either gradient: that of
        # some batches then differs by 1e-3 between meshes (measured), which would hide an error.
        model__leaky_slope=1.0,
    )
    for key in REACHED.keys() & METHODS[name].hyperparameters.keys():
        config.method[key] = REACHED[key]
    setup = create_train_setup(config, DATASET_SPEC)
    state = setup.init_state()
    if name == "ups":  # As if a round had chosen labels.
        rng = np.random.default_rng(0)
        label = rng.integers(-1, 10, (1, DATASET_SPEC.num_images)).astype(np.int32)
        negative = (label == -1)[..., None] & (rng.uniform(size=(*label.shape, 10)) < 0.3)
        chosen = {"label": label, "negative": negative}
        shardings = to_shardings(setup.mesh, setup.state_specs.method_state)
        state = state.replace(method_state=jax.device_put(chosen, shardings))
    batch = create_batch(config, 0)
    step = create_train_step(setup).lower(state, put(setup, batch))
    return config, setup, jax.device_get(state), step.compile(compiler_options=COMPILER_OPTIONS)


def create_batch(config, seed: int) -> RawBatch:
    return create_raw_batch(config, len(METHODS[config.method.name].unlabeled_views), seed)


def put(setup, batch: RawBatch) -> RawBatch:
    return jax.device_put(batch, to_shardings(setup.mesh, BATCH_SPECS))


def repeat_twice(batch: RawBatch) -> RawBatch:
    """A batch of which two devices get the same part."""
    twice = {
        field: np.concatenate([value, value], axis=1 if field == "u" else 0)
        for field, value in batch._asdict().items()
    }
    return RawBatch(**twice)


@functools.cache
def run(name, mesh, dtype="float32", repeats=False):
    """Losses of three steps, and parameters, statistics and EMA after them."""
    _, setup, state, step = compile_step(name, mesh, 8 if repeats else 4, dtype)
    half_config = compile_step(name, (1, 1), 4, dtype)[0]
    state = jax.device_put(state, to_shardings(setup.mesh, setup.state_specs))
    losses = []
    for seed in range(NUM_STEPS):
        batch = create_batch(half_config, seed)
        state, monitors = step(state, put(setup, repeat_twice(batch) if repeats else batch))
        losses.append({k: float(v) for k, v in monitors.items() if k.startswith("train/")})
    return losses, jax.device_get((state.params, state.batch_stats, state.ema_params))


def assert_same_run(actual, expected, tolerance: float):
    """Losses to a relative tolerance; arrays likewise, by the largest entry of each."""
    for ours, theirs in zip(actual[0], expected[0], strict=True):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            assert ours[key] == pytest.approx(value, rel=tolerance, abs=tolerance), key

    def assert_close(path, a, b):
        scale = max(np.abs(b).max(), 0.1)
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale, err_msg=name)

    jax.tree_util.tree_map_with_path(assert_close, actual[1], expected[1])


@pytest.mark.parametrize(("name", "mesh"), MESHES)
def test_training_does_not_depend_on_the_number_of_devices(name, mesh):
    """Of methods that draw per device: two devices with the same part train as one with it."""
    repeats = name in DRAWS_PER_DEVICE
    actual = run(name, mesh, repeats=repeats)
    losses, _ = expected = run(name, (1, 1))
    # What the method adds to the supervised loss takes part from the second step at the latest.
    parts = [key for key in losses[-1] if key not in ("train/loss", "train/gradient_norm")]
    assert all(losses[-1][key] != 0 for key in parts)
    assert_same_run(actual, expected, 1e-5)


@pytest.mark.parametrize(("name", "mesh"), [("fixmatch", (1, 2)), ("cls", (2, 2))])
def test_training_in_bfloat16_does_not_depend_on_the_number_of_devices(name, mesh):
    """To bfloat16's precision: where a statistic differs by rounding, an activation may by 1/256.

    Networks are initialized in float32 and stay so.
    """
    actual, expected = (run(name, m, "bfloat16") for m in (mesh, (1, 1)))
    assert_same_run(actual, expected, 5e-2)
    assert {leaf.dtype for leaf in jax.tree.leaves(actual[1])} == {np.dtype(np.float32)}


def find_collectives(text: str) -> list[tuple[str, list[int]]]:
    """(operation, sizes of its results) of every collective in optimized HLO."""
    found = re.findall(
        r"= (\(.*?\)|\S+) "
        r"(all-\w+|collective-\w+|reduce-scatter|ragged-\S+)(?:-start)?\(",
        text,
    )
    return [(operation, count_elements(types)) for types, operation in found]


def count_elements(types: str) -> list[int]:
    """Sizes of the arrays of an HLO type such as "(f32[3,4]{1,0}, s32[])"."""
    shapes = re.findall(r"\w+\[([\d,]*)\]", types)
    return [math.prod(map(int, filter(None, shape.split(",")))) for shape in shapes]


@pytest.mark.parametrize("name", METHODS)
def test_devices_exchange_labels_statistics_and_gradients_alone(name):
    """No images or activations, in whatever form the partitioner might choose."""
    mesh = (2, 2) if name in TWO_NETWORKS else (1, 2)
    batch_size = 8 if name in DRAWS_PER_DEVICE else 4
    config, _, state, compiled = compile_step(name, mesh, batch_size)
    networks_per_device = METHODS[name].num_networks // mesh[0]
    parameters = networks_per_device * sum(p[0].size for p in jax.tree.leaves(state.params))
    moments = 2 * max(stats.shape[-1] for stats in jax.tree.leaves(state.batch_stats))
    labels = LABELS_PER_IMAGE * config.batch_size * config.mu // mesh[1]
    collectives = find_collectives(compiled.as_text())
    gradients = [sizes for _, sizes in collectives if parameters in sizes]
    assert len(gradients) == 1
    for operation, sizes in collectives:
        for size in sizes:
            if operation == "all-reduce":
                assert size == parameters or size <= moments, (operation, sizes)
            else:
                assert operation == "collective-permute", (operation, sizes)
                assert sum(sizes) <= labels, (operation, sizes)
    operations = {operation for operation, _ in collectives}
    assert ("collective-permute" in operations) == (mesh[0] == 2)
