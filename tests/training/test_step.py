"""The compiled step: what it computes, the same on 1, 2 and 4 devices, and the memory it needs."""

import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.errors import UserError
from cls_jax.parallel.mesh import BATCH_SPECS, to_shardings
from cls_jax.training.setup import create_train_setup
from cls_jax.training.step import (
    check_step_memory,
    compute_distances,
    create_context,
    create_train_step,
    get_device_memory,
    measure_step_memory,
    to_scalars,
)
from tests.conftest import DATASET_SPEC, create_raw_batch, create_tiny_config
from tests.methods.tiny_model import use_tiny_model
from tests.outcomes import assert_close


class Step:
    """A compiled step of a configuration, with its initial state."""

    def __init__(self, config, num_views=2):
        self.config, self.num_views = config, num_views
        self.setup = create_train_setup(config, DATASET_SPEC)
        self._state = self.setup.init_state()
        batch = self.put(create_raw_batch(config, num_views))
        self.lowered = create_train_step(self.setup).lower(self._state, batch)
        self.compiled = self.lowered.compile()
        self.text = self.compiled.as_text()

    def initial_state(self):
        """A copy: the step donates what it is given."""
        return jax.tree.map(jnp.copy, self._state)

    def put(self, raw_batch):
        return jax.device_put(raw_batch, to_shardings(self.setup.mesh, BATCH_SPECS))

    def run(self, num_steps=2, state=None):
        state = self.initial_state() if state is None else jax.tree.map(jnp.copy, state)
        history = []
        for i in range(num_steps):
            batch = self.put(create_raw_batch(self.config, self.num_views, seed=i))
            state, monitors = self.compiled(state, batch)
            history.append(to_scalars(monitors))
        return state, history


@pytest.fixture(scope="module")
def step():
    # With a threshold that untrained networks reach for some images.
    return Step(create_tiny_config(method__tau=0.035))


def test_golden_monitors_after_one_step(step):
    """If you did not mean to change what CLS computes, this failure is a bug.

    If you did, run the test and put the new numbers here.
    """
    _, (monitors,) = step.run(num_steps=1)
    golden = {
        "train/loss": 2.671375,
        "train/loss_supervised": 2.456216,
        "train/loss_self": 0.07229343,
        "train/loss_co": 0.07057151,
        "train/gradient_norm": 1.532838,
        "monitors/confidence_weight": 0.03714725,
        "monitors/exchange_ratio": 0.625,
        "monitors/pseudo_label_overlap": 0.0625,
        "monitors/complementary_label_overlap": 0.0625,
        "monitors/pseudo_label_accuracy": 0.0625,
    }
    assert set(monitors) == set(golden)
    for name, value in golden.items():
        np.testing.assert_allclose(monitors[name], value, rtol=1e-3, atol=1e-6, err_msg=name)


def test_progress_is_the_share_of_steps_that_are_done(step):
    state = step.initial_state()
    contexts = [
        create_context(step.setup, state.replace(step=jnp.int32(done))) for done in (0, 3, 6)
    ]
    assert [float(context.progress) for context in contexts] == [0.0, 0.5, 1.0]


def test_every_step_and_every_seed_has_its_own_random_key(step):
    other = create_train_setup(create_tiny_config(seed=1), DATASET_SPEC).init_state()
    states = [
        state.replace(step=jnp.int32(done))
        for state in (step.initial_state(), other)
        for done in range(3)
    ]
    keys = [create_context(step.setup, state).key for state in states]
    assert len({jax.random.key_data(key).tobytes() for key in keys}) == 6


def test_four_devices_compute_what_one_does_and_gather_nothing(step):
    """Networks exchange labels point to point. Gradients and statistics are all-reduced."""
    spread = Step(create_tiny_config(mesh__network=2, mesh__data=2, method__tau=0.035))
    (state, history), (expected_state, expected_history) = spread.run(), step.run()
    assert_close(history, expected_history, rtol=1e-3, atol=1e-5)
    for name in ("params", "batch_stats", "ema_params", "opt_state"):
        expected = getattr(expected_state, name)
        assert_close(getattr(state, name), expected, rtol=1e-3, atol=1e-4)
    collectives = set(re.findall(r"(all-\w+|collective-permute|reduce-scatter)\(", spread.text))
    assert collectives == {"all-reduce", "collective-permute"}
    for leaf in jax.tree.leaves((state.params, state.opt_state, state.ema_params)):
        if leaf.ndim:  # Every device holds only its networks.
            assert {shard.data.shape[0] for shard in leaf.addressable_shards} == {1}


def test_gradients_are_put_into_one_array_once_and_travel_in_one_message():
    step = Step(create_tiny_config("20,fixmatch", mesh__network=1, mesh__data=4))
    state = step.initial_state()
    num_parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    rows = rf"stablehlo\.concatenate.*-> tensor<(?:1x)?{num_parameters}xf32>"
    assert len(re.findall(rows, step.lowered.as_text())) == 1
    messages = re.findall(r"= (.*) all-reduce(?:-start)?\(", step.text)
    assert sum(f"f32[1,{num_parameters}]" in message for message in messages) == 1
    # Beside it travel BatchNorm's statistics and monitors: nothing with the shape of a kernel.
    assert not any(re.search(r"f32\[(\d+,)?3,3,", message) for message in messages)


def test_average_moves_towards_the_parameters_by_one_minus_decay(step):
    before = step.initial_state().params
    after, _ = step.run(num_steps=1)
    assert int(after.step) == 1  # Keys, progress and batches follow from it.
    expected = jax.tree.map(lambda old, new: 0.99 * old + 0.01 * new, before, after.params)
    assert_close(after.ema_params, expected, atol=1e-6)


def test_without_self_and_co_labeling_no_network_sees_the_other():
    with use_tiny_model():
        step = Step(create_tiny_config(method__lambda_self=0.0, method__lambda_co=0.0))
    start = step.initial_state()
    changed = start.replace(params=jax.tree.map(lambda p: p.at[1].multiply(1.5), start.params))
    ours, _ = step.run(state=start)
    theirs, _ = step.run(state=changed)
    for a, b in zip(jax.tree.leaves(ours.params), jax.tree.leaves(theirs.params), strict=True):
        np.testing.assert_array_equal(a[0], b[0])


def test_pseudo_label_accuracy_counts_only_images_of_known_class(step):
    def accuracy(u_truth):
        batch = create_raw_batch(step.config)._replace(u_truth=np.asarray(u_truth, np.int32))
        _, monitors = step.compiled(step.initial_state(), step.put(batch))
        return to_scalars(monitors)["monitors/pseudo_label_accuracy"]

    assert np.isnan(accuracy(np.full(16, -1)))
    # Only the first image is known: each network is right for exactly one of the ten classes.
    only_first = [accuracy(np.where(np.arange(16) == 0, k, -1)) for k in range(10)]
    assert sum(only_first) == 1.0
    assert set(only_first) <= {0.0, 0.5, 1.0}


def test_distances_are_those_of_figure_4(step):
    state, _ = step.run(num_steps=1)
    distances = compute_distances(state)
    params, average = jax.device_get((state.params, state.ema_params))

    def norm(differences):
        return np.sqrt(sum(np.sum(np.square(d)) for d in jax.tree.leaves(differences)))

    to_average = norm(jax.tree.map(lambda p, a: p[0] - a[0], params, average))
    to_other = norm(jax.tree.map(lambda p: p[0] - p[1], params))
    np.testing.assert_allclose(distances["monitors/distance_ema"], to_average, rtol=1e-4)
    np.testing.assert_allclose(distances["monitors/distance_networks"], to_other, rtol=1e-4)


def test_a_method_with_one_network_and_no_unlabeled_images_steps():
    with use_tiny_model():
        state, history = Step(create_tiny_config("20,supervised"), num_views=0).run()
    assert np.isfinite(history[-1]["train/loss"])
    assert set(compute_distances(state)) == {"monitors/distance_ema"}


def test_accumulated_parts_give_the_step_of_the_whole_batch():
    """Where no BatchNorm mixes images: here its statistics are frozen."""
    states, losses = [], []
    for mesh_data, parts in ((1, 1), (2, 4)):
        config = create_tiny_config("20,fixmatch", mesh__data=mesh_data, accumulate_steps=parts)
        config.model.bn_frozen, config.method.threshold = True, 0.1
        state, (metrics,) = Step(config).run(num_steps=1)
        states.append(state.params)
        losses.append(metrics)
    assert_close(losses[1], losses[0], rtol=1e-4)
    assert_close(states[1], states[0], rtol=1e-4, atol=1e-6)


def test_statistics_per_device_save_the_exchange_of_every_layer():
    texts, states = {}, {}
    for statistics in ("batch", "device"):
        config = create_tiny_config("20,fixmatch", mesh__data=2, model__bn_statistics=statistics)
        step = Step(config)
        states[statistics], _ = step.run(num_steps=1)
        texts[statistics] = step.text
    pattern = r" all-reduce(?:-start)?\("
    count = {name: len(re.findall(pattern, text)) for name, text in texts.items()}
    assert count["device"] < count["batch"] / 2, count
    # Each device normalizes its own part of the batch, and the running statistics are averaged.
    for leaf in jax.tree.leaves(states["device"].batch_stats):
        assert np.all(np.isfinite(leaf))


def compile_sum(num_bytes: int) -> jax.stages.Compiled:
    """A program whose argument takes so many bytes."""
    return jax.jit(jnp.sum).lower(jnp.zeros(num_bytes, jnp.uint8)).compile()


def test_arguments_and_results_count():
    small, large = measure_step_memory(compile_sum(1000)), measure_step_memory(compile_sum(9000))
    assert large - small >= 8000


def test_donated_arguments_count_once():
    def add_one(x):
        return x + 1

    x = jnp.zeros(100_000)
    kept = jax.jit(add_one).lower(x).compile()
    donated = jax.jit(add_one, donate_argnums=0).lower(x).compile()
    assert measure_step_memory(kept) - measure_step_memory(donated) >= 400_000


def test_a_step_that_does_not_fit_is_named_before_it_runs():
    device = types.SimpleNamespace(memory_stats=lambda: {"bytes_limit": 2**30})
    line = check_step_memory(compile_sum(2**20), device)
    assert "of 1.0 GiB on each device" in line
    sizes = {f"{name}_size_in_bytes": 2**30 for name in ("argument", "output", "alias")}
    analysis = types.SimpleNamespace(**sizes, temp_size_in_bytes=2**31)
    needs_more = types.SimpleNamespace(memory_analysis=lambda: analysis)
    with pytest.raises(UserError, match=r"needs 3\.0 GiB of memory on each device, which has 1\.0"):
        check_step_memory(needs_more, device)


def test_unknown_memory_does_not_stop_training():
    silent = types.SimpleNamespace(memory_analysis=lambda: None)
    assert measure_step_memory(silent) is None
    assert "does not report" in check_step_memory(silent, jax.devices()[0])


def test_cpus_share_the_machine():
    whole = get_device_memory(jax.devices()[0]) * jax.local_device_count()
    assert 2**28 < whole < 2**50
