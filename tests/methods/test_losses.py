"""Eq. 7 and 8 against NumPy in double precision, and at saturated predictions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.methods.losses import (
    MIN_PROBABILITY,
    log_one_minus_softmax,
    negative_cross_entropy,
    positive_cross_entropy,
)


def softmax(logits):
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_cross_entropies_equal_numpy_in_double_precision():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(0, 4, (2, 64, 10)), rng.integers(0, 10, (2, 64))
    p = np.take_along_axis(softmax(logits), labels[..., None], -1)[..., 0]
    logits = jnp.asarray(logits, jnp.float32)
    positive = positive_cross_entropy(logits, labels)
    negative = negative_cross_entropy(logits, labels)
    np.testing.assert_allclose(positive, -np.log(p), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(negative, -np.log(np.maximum(1 - p, 1e-7)), rtol=1e-5, atol=1e-6)


def test_labels_without_an_axis_of_networks_serve_every_network():
    logits, labels = jnp.ones((3, 5, 4)).at[0].set(jnp.arange(4.0)), jnp.array([0, 1, 2, 3, 0])
    together = positive_cross_entropy(logits, labels)
    apart = [positive_cross_entropy(logits[i], labels) for i in range(3)]
    np.testing.assert_array_equal(together, np.stack(apart))


@pytest.mark.parametrize("gap", [0.0, 1.0, 10.0, 15.0, 20.0, 100.0, 1e4])
def test_log_one_minus_p_is_exact_and_its_gradient_finite_up_to_saturation(gap):
    logits = np.array([gap, 0.0, -1.0])
    rest = softmax(logits)[1:].sum()  # 1 - p without cancellation.
    value = log_one_minus_softmax(jnp.asarray(logits, jnp.float32))
    np.testing.assert_allclose(value[0], np.log(max(rest, MIN_PROBABILITY)), rtol=1e-5)
    gradient = jax.jacobian(log_one_minus_softmax)(jnp.asarray(logits, jnp.float32))
    assert jnp.all(jnp.isfinite(value))
    assert jnp.all(jnp.isfinite(gradient))


def test_both_classes_of_a_tie_at_one_half_get_log_one_half():
    np.testing.assert_allclose(log_one_minus_softmax(jnp.zeros(2)), np.log(0.5), rtol=1e-6)


def test_largest_negative_loss_is_the_clamp():
    loss = negative_cross_entropy(jnp.array([[1e4, 0.0]]), jnp.array([0]))
    np.testing.assert_allclose(loss, -np.log(MIN_PROBABILITY), rtol=1e-6)
