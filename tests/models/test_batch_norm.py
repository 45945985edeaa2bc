"""Our BatchNorm is Flax's, with fewer sums in its gradient."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from cls_jax.models.layers import BatchNorm
from cls_jax.parallel.mesh import DATA_AXIS, create_mesh
from tests.outcomes import assert_close

OURS = BatchNorm(momentum=0.9, epsilon=1e-5)
FLAX = nn.BatchNorm(momentum=0.9, epsilon=1e-5)
X = 2.0 + 3.0 * jax.random.normal(jax.random.key(0), (6, 4, 4, 5))


@pytest.fixture(scope="module")
def variables():
    variables, theirs = (norm.init(jax.random.key(1), X, False) for norm in (OURS, FLAX))
    assert_close(variables, theirs)
    # Away from ones and zeros, which would hide a factor.
    return jax.tree.map(lambda leaf: leaf + jnp.linspace(0.5, 1.0, 5), variables)


def compute(norm, variables, x, use_running_average):
    """Output, running statistics, and the gradients of a loss by parameters and images."""

    def loss(params, x):
        y, updated = norm.apply(
            {**variables, "params": params},
            x,
            use_running_average=use_running_average,
            mutable=["batch_stats"],
        )
        return jnp.sum(jnp.sin(y)), (y, updated)

    (_, rest), gradients = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(
        variables["params"], x
    )
    return rest, gradients


@pytest.mark.parametrize("use_running_average", [False, True])
def test_output_statistics_and_gradients_are_flaxs(variables, use_running_average):
    ours, theirs = (compute(norm, variables, X, use_running_average) for norm in (OURS, FLAX))
    assert_close(ours, theirs, rtol=1e-5, atol=5e-6)


def test_frozen_statistics_normalize_in_training_and_stay(variables):
    frozen = compute(OURS.clone(frozen=True), variables, X, False)
    jax.tree.map(np.testing.assert_array_equal, frozen, compute(OURS, variables, X, True))
    _, updated = frozen[0]
    jax.tree.map(np.testing.assert_array_equal, updated["batch_stats"], variables["batch_stats"])


def test_devices_share_their_statistics(variables):
    """Two devices with half of the images each compute what one does with all."""
    shared = OURS.clone(axis_name=DATA_AXIS)
    mesh = create_mesh(1, [6], network=1, data=2)

    def apply(variables, x):
        return shared.apply(variables, x, use_running_average=False, mutable=["batch_stats"])

    spread = jax.jit(
        jax.shard_map(apply, mesh=mesh, in_specs=(P(), P(DATA_AXIS)), out_specs=(P(DATA_AXIS), P()))
    )
    (expected, _) = compute(OURS, variables, X, False)
    assert_close(spread(variables, X), expected, rtol=1e-5, atol=1e-5)
