"""Depthwise and pointwise convolutions against those of XLA. See also `test_parity.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from cls_jax.models.convolutions import convolve_grouped, convolve_shifted, depthwise_conv
from cls_jax.parallel.mesh import create_mesh
from tests.outcomes import assert_close


@pytest.mark.parametrize(
    ("kernel", "stride", "size"), [(3, 1, (7, 8)), (3, 2, (2, 3)), (5, 1, (2, 3)), (5, 2, (7, 8))]
)
def test_lowerings_and_their_gradients_agree(kernel, stride, size):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, *size, 4)).astype(np.float32)
    filters = rng.normal(size=(kernel, kernel, 1, 4)).astype(np.float32)

    def evaluate(convolve):
        def compute_loss(x, filters):
            y = convolve(x, filters, stride)
            return jnp.sum(jnp.sin(y)), y

        gradients, y = jax.jit(jax.grad(compute_loss, argnums=(0, 1), has_aux=True))(x, filters)
        return y, *gradients

    assert_close(evaluate(convolve_shifted), evaluate(convolve_grouped), rtol=1e-5, atol=1e-5)


def test_products_of_bfloat16_are_summed_in_float32():
    """As a grouped convolution's. Sums in bfloat16 would be off by 0.6%."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.uniform(size=(2, 9, 9, 8)), jnp.bfloat16)
    filters = jnp.asarray(rng.uniform(size=(5, 5, 1, 8)), jnp.bfloat16)
    exact = convolve_grouped(*(a.astype(jnp.float32) for a in (x, filters)), 1)
    found = jax.jit(convolve_shifted, static_argnums=2)(x, filters, 1)
    assert found.dtype == jnp.bfloat16
    error = jnp.linalg.norm(found.astype(jnp.float32) - exact) / jnp.linalg.norm(exact)
    assert error < 0.0025


def test_gradient_exists_for_stacked_rematerialized_and_spread_networks():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 4, 5, 6, 3)).astype(np.float32)
    filters = rng.normal(size=(2, 3, 3, 1, 3)).astype(np.float32)

    def compute_gradients(convolve, x, filters):
        apply = jax.checkpoint(lambda x, filters: convolve(x, filters, 2))
        loss = lambda x, filters: jnp.sum(jnp.sin(jax.vmap(apply)(x, filters)))  # noqa: E731
        return jax.grad(loss, argnums=(0, 1))(x, filters)

    spread = jax.shard_map(
        lambda x, filters: compute_gradients(depthwise_conv, x, filters),
        mesh=create_mesh(2, [4], network=2, data=2),
        in_specs=(P("network", "data"), P("network")),  # As in a step.
        out_specs=(P("network", "data"), P("network")),
    )
    expected = compute_gradients(convolve_grouped, x, filters)
    for gradients in (compute_gradients(depthwise_conv, x, filters), jax.jit(spread)(x, filters)):
        assert_close(gradients, expected, rtol=1e-4, atol=1e-5)


def test_an_exported_convolution_takes_the_form_of_the_machine_that_runs_it():
    def has_groups(platforms):
        filters = jnp.ones((3, 3, 1, 4))
        convolve = jax.jit(lambda x: depthwise_conv(x, filters, 1))
        shape = jax.ShapeDtypeStruct((2, 5, 5, 4), jnp.float32)
        exported = jax.export.export(convolve, platforms=platforms)(shape)
        return "feature_group_count = 4" in exported.mlir_module()

    assert not has_groups(["cpu"])
    assert has_groups(["cuda"])
    assert has_groups(["cpu", "cuda"])
