"""Eq. 2, 5 and 6 against NumPy, and where a probability is exactly 0."""

import jax
import jax.numpy as jnp
import numpy as np

from cls_jax.methods.losses import compute_entropy, make_pseudo_labels


def test_labels_and_weight_equal_a_numpy_reading_of_the_paper():
    logits = np.random.default_rng(0).normal(0, 3, (2, 50, 7))
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    labels = make_pseudo_labels(jnp.asarray(logits, jnp.float32))
    np.testing.assert_array_equal(labels.pseudo, p.argmax(-1))
    np.testing.assert_array_equal(labels.complementary, p.argmin(-1))
    np.testing.assert_allclose(labels.confidence, p.max(-1), rtol=1e-5)
    weight = 1 + (p * np.log(p)).sum(-1) / np.log(7)
    np.testing.assert_allclose(labels.weight, weight, atol=1e-6)


def test_weight_spans_zero_to_one():
    certain = make_pseudo_labels(jnp.array([[1000.0, 0.0, 0.0]]))
    ignorant = make_pseudo_labels(jnp.zeros((1, 3)))
    assert certain.weight == 1.0
    np.testing.assert_allclose(ignorant.weight, 0.0, atol=1e-6)
    assert ignorant.weight >= 0


def test_entropy_is_finite_with_finite_gradients_where_a_probability_underflows():
    logits = jnp.array([200.0, 0.0, -200.0])  # exp(-200) is 0 in float32.

    def entropy(logits):
        return compute_entropy(jax.nn.log_softmax(logits))

    assert jnp.exp(jax.nn.log_softmax(logits))[1] == 0
    assert entropy(logits) == 0
    assert jnp.all(jnp.isfinite(jax.grad(entropy)(logits)))


def test_no_gradient_flows_into_labels():
    gradient = jax.grad(lambda z: make_pseudo_labels(z).weight.sum())(jnp.ones((4, 3)))
    np.testing.assert_array_equal(gradient, 0)
