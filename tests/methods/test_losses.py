"""Eq. 2, 6 and 8 where a probability is 0 or 1 in single precision.

Elsewhere losses equal NumPy's in `test_oracles.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.methods.losses import (
    MIN_PROBABILITY,
    compute_entropy,
    log_one_minus_softmax,
    make_pseudo_labels,
)
from tests.methods.oracles import softmax


@pytest.mark.parametrize("gap", [0.0, 1.0, 10.0, 15.0, 20.0, 100.0, 1e4])
def test_log_one_minus_p_is_exact_and_its_gradient_finite_up_to_saturation(gap):
    logits = np.array([gap, 0.0, -1.0])
    rest = softmax(logits)[1:].sum()  # 1 - p without cancellation.
    value = log_one_minus_softmax(jnp.asarray(logits, jnp.float32))
    np.testing.assert_allclose(value[0], np.log(max(rest, MIN_PROBABILITY)), rtol=1e-5)
    gradient = jax.jacobian(log_one_minus_softmax)(jnp.asarray(logits, jnp.float32))
    assert jnp.all(jnp.isfinite(value))
    assert jnp.all(jnp.isfinite(gradient))


def test_entropy_is_finite_with_finite_gradients_where_a_probability_underflows():
    logits = jnp.array([200.0, 0.0, -200.0])  # exp(-200) is 0 in float32.

    def entropy(logits):
        return compute_entropy(jax.nn.log_softmax(logits))

    assert jnp.exp(jax.nn.log_softmax(logits))[1] == 0
    assert entropy(logits) == 0
    assert jnp.all(jnp.isfinite(jax.grad(entropy)(logits)))


def test_weight_of_a_label_spans_zero_to_one_and_has_no_gradient():
    differentiate = jax.grad(lambda logits: make_pseudo_labels(logits).weight.sum())
    assert not np.any(differentiate(jnp.array([[2.0, 1.0, 0.0]])))
    assert make_pseudo_labels(jnp.array([[1000.0, 0.0, 0.0]])).weight == 1.0
    assert 0 <= make_pseudo_labels(jnp.zeros((1, 3))).weight < 1e-6  # Rounding goes below 0.
