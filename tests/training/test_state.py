"""The optimizer against PyTorch's formula in NumPy, and the initial state."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cls_jax.training.optimizer import create_learning_rate_schedule, create_optimizer
from cls_jax.training.program import create_program
from tests.conftest import DATASET_SPEC, create_tiny_config


def test_cosine_begins_at_the_rate_and_ends_at_a_fifth_of_it():
    schedule = create_learning_rate_schedule(0.03, 1000, 7 / 16)
    np.testing.assert_allclose(schedule(0), 0.03)
    np.testing.assert_allclose(schedule(500), 0.03 * np.cos(7 * np.pi / 32), rtol=1e-6)
    np.testing.assert_allclose(schedule(1000), 0.03 * np.cos(7 * np.pi / 16), rtol=1e-5)


def test_updates_equal_pytorchs_nesterov_sgd_with_decay_on_kernels_only():
    config = create_tiny_config(optimizer__weight_decay=0.1, num_steps=100)
    optimizer = create_optimizer(config)
    rng = np.random.default_rng(0)
    params = {
        "conv": {"kernel": rng.normal(size=(2, 3, 3, 1, 4))},
        "norm": {"scale": rng.normal(size=(2, 4)), "bias": rng.normal(size=(2, 4))},
    }
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)
    ours, opt_state = params, optimizer.init(params)
    theirs = jax.tree.map(np.float64, params)
    momentum = jax.tree.map(np.zeros_like, theirs)
    for step in range(5):
        gradients = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), params)
        updates, opt_state = optimizer.update(gradients, opt_state, ours)
        ours = optax.apply_updates(ours, updates)
        rate = 0.03 * np.cos(7 * np.pi * step / (16 * 100))
        for layer, name in (("conv", "kernel"), ("norm", "scale"), ("norm", "bias")):
            decay = 0.1 if name == "kernel" else 0.0
            gradient = gradients[layer][name] + decay * theirs[layer][name]
            momentum[layer][name] = 0.9 * momentum[layer][name] + gradient
            theirs[layer][name] -= rate * (gradient + 0.9 * momentum[layer][name])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), ours, theirs)


@pytest.mark.parametrize(("argument", "num_networks"), [("20", 2), ("20,fixmatch", 1)])
def test_every_leaf_of_the_state_carries_the_networks(argument, num_networks):
    config = create_tiny_config(argument)
    state = create_program(config, DATASET_SPEC).init_state()
    stacked = (state.params, state.batch_stats, state.ema_params)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(stacked)} == {num_networks}
    np.testing.assert_array_equal(state.step, 0)
    jax.tree.map(np.testing.assert_array_equal, state.params, state.ema_params)


def test_seed_decides_the_initial_weights():
    def kernel(seed):
        state = create_program(create_tiny_config(seed=seed), DATASET_SPEC).init_state()
        return np.asarray(state.params["stem"]["kernel"])

    np.testing.assert_array_equal(kernel(0), kernel(0))
    assert np.all(kernel(0) != kernel(1))
