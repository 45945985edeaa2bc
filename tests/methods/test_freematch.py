"""FreeMatch's fairness term, where its formula is delicate. The loss is in `test_oracles.py`."""

import jax
import jax.numpy as jnp
import numpy as np

from cls_jax.methods.fixmatch_variants import compute_fairness

Q = np.array([[0.1, 0.5, 0.2, 0.15, 0.05]])
ONES = jnp.ones((1, 5))


def test_gradient_in_the_mean_is_q_minus_r():
    logits = jnp.array([[0.3, -1.0, 0.7, 0.0, 0.2]])
    r = jax.nn.softmax(logits)

    def compute(logits, q):
        return compute_fairness(q, jax.nn.softmax(logits), ONES, ONES).sum()

    np.testing.assert_allclose(jax.grad(compute)(logits, Q), Q - r, atol=1e-6)
    np.testing.assert_allclose(jax.grad(compute)(logits, r), 0, atol=1e-6)


def test_a_class_that_no_prediction_favors_adds_what_the_released_code_adds():
    """TorchSSL and USB: q · log 1e-12, not 0, and no gradient by its own probability."""
    uniform, histogram = jnp.full((1, 3), 1 / 3), jnp.array([[0.5, 0.5, 0.0]])
    value, gradient = jax.value_and_grad(
        lambda mean: compute_fairness(uniform, mean, histogram, jnp.ones((1, 3))).sum()
    )(uniform)
    np.testing.assert_allclose(value, (2 * np.log(0.5) + np.log(1e-12)) / 3, rtol=1e-5)
    assert gradient[0, 2] == 0
    assert np.all(np.isfinite(gradient))


def test_without_any_image_the_term_and_its_gradient_are_zero():
    value, gradient = jax.value_and_grad(
        lambda mean: compute_fairness(Q, mean, jnp.zeros((1, 5)), ONES).sum()
    )(jnp.zeros((1, 5)))
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)
