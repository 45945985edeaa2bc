"""Both lowerings of the depthwise convolution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.models.depthwise import convolve_grouped, convolve_shifted


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(7, 8), (2, 3)])
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

    for shifted, grouped in zip(
        evaluate(convolve_shifted), evaluate(convolve_grouped), strict=True
    ):
        assert shifted.shape == grouped.shape
        np.testing.assert_allclose(shifted, grouped, rtol=1e-5, atol=1e-5)
