"""Labels from a network's predictions, and cross-entropies to labels.

A label says "this class" (positive) or "not this class" (negative). Cross-entropies work on logits,
stay finite for saturated predictions and return one value per image, except for the mean over
images at the end. Equation numbers refer to "CLS: Cross Labeling Supervision for Semi-Supervised
Learning". Shape suffixes: B images, K classes. Leading axes are free.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

# The authors' code clamps 1 - p to [1e-7, 1] before the logarithm.
MIN_PROBABILITY = 1e-7
NO_LABEL = -1  # In a method's table of training images.


class PseudoLabels(NamedTuple):
    """Labels that one network derives from its own predictions."""

    pseudo: jax.Array  # int32 [..., B], the most probable class (Eq. 2).
    complementary: jax.Array  # int32 [..., B], the least probable class (Eq. 5).
    weight: jax.Array  # float32 [..., B] in [0, 1], how confident the network is (Eq. 6).
    confidence: jax.Array  # float32 [..., B], the probability of the most probable class.


def make_pseudo_labels(logits_BK: jax.Array) -> PseudoLabels:
    """ỹ = argmax p, ȳ = argmin p, w = 1 - H(p) / log K of float32 [..., B, K], without gradient."""
    log_p_BK = jax.nn.log_softmax(jax.lax.stop_gradient(logits_BK))
    weight_B = 1.0 - compute_entropy(log_p_BK) / jnp.log(logits_BK.shape[-1])
    return PseudoLabels(
        pseudo=jnp.argmax(log_p_BK, axis=-1).astype(jnp.int32),
        complementary=jnp.argmin(log_p_BK, axis=-1).astype(jnp.int32),
        # Rounding may leave the interval by an ulp.
        weight=jnp.clip(weight_B, 0.0, 1.0),
        confidence=jnp.exp(jnp.max(log_p_BK, axis=-1)),
    )


def compute_entropy(log_p_BK: jax.Array) -> jax.Array:
    """Entropy in nats, float32 [..., B], of log-probabilities float32 [..., B, K].

    Finite, with finite gradients, also where a probability underflows to 0 (its term is 0): the
    authors' code computes p · log₂ p there, which is NaN, and silently skips the step.
    """
    p_BK = jnp.exp(log_p_BK)
    finite_log_p_BK = jnp.where(p_BK > 0, log_p_BK, 0.0)
    return -jnp.sum(p_BK * finite_log_p_BK, axis=-1)


def positive_cross_entropy(logits_BK: jax.Array, labels_B: jax.Array) -> jax.Array:
    """-log f(x)[label], float32 [..., B] (Eq. 7 without its weight, Eq. 1 for true labels).

    The labels, int32 [..., B], broadcast against the leading axes of the logits [..., B, K].
    """
    return -_take_class(jax.nn.log_softmax(logits_BK), labels_B)


def soft_cross_entropy(logits_BK: jax.Array, targets_BK: jax.Array) -> jax.Array:
    """-Σ target · log f(x), float32 [..., B], for targets that are probabilities [..., B, K]."""
    return -jnp.sum(targets_BK * jax.nn.log_softmax(logits_BK), axis=-1)


def negative_cross_entropy(logits_BK: jax.Array, labels_B: jax.Array) -> jax.Array:
    """-log(1 - f(x)[label]), float32 [..., B] (Eq. 8 without its weight).

    1 - p is clamped from below at MIN_PROBABILITY, where the gradient ends: -log(1e-7) = 16.1
    is the largest value, as in the authors' code.
    """
    return -_take_class(log_one_minus_softmax(logits_BK), labels_B)


def log_one_minus_softmax(logits_BK: jax.Array) -> jax.Array:
    """The logarithm of max(1 - softmax(logits), MIN_PROBABILITY), with gradients finite everywhere.

    For p < ½ it is log1p(-p). For p ≥ ½, 1 - p has lost digits, so it is the logarithm of the sum
    of the other classes' probabilities.
    """
    log_p_BK = jax.nn.log_softmax(logits_BK)
    p_BK = jnp.exp(log_p_BK)
    is_small_BK = p_BK < 0.5
    # Both branches of a `where` get gradients, so the one not taken must stay off its singularity.
    small_side_BK = jnp.log1p(-jnp.where(is_small_BK, p_BK, 0.0))
    # At most one class has p >= 1/2, the most probable one, so the rest is all the others.
    top_BK = jax.nn.one_hot(jnp.argmax(logits_BK, axis=-1), logits_BK.shape[-1], dtype=bool)
    rest_BK = jnp.sum(jnp.where(top_BK, 0.0, p_BK), axis=-1, keepdims=True)
    large_side_BK = jnp.log(jnp.maximum(rest_BK, MIN_PROBABILITY))
    return jnp.where(is_small_BK, small_side_BK, large_side_BK)


def compute_labeling_loss(
    logits_BK: jax.Array, labels_B: PseudoLabels, weight_B: jax.Array, negative: bool
) -> jax.Array:
    """The mean over images of weight · (L_P + [L_N]), float32 [...] (Eq. 7-9).

    The logits float32 [..., B, K] belong to the strong views, the labels to the same network or
    another. If `negative`, complementary labels teach, too.
    """
    loss_B = positive_cross_entropy(logits_BK, labels_B.pseudo)
    if negative:
        loss_B += negative_cross_entropy(logits_BK, labels_B.complementary)
    return jnp.mean(weight_B * loss_B, axis=-1)


def _take_class(values_BK: jax.Array, labels_B: jax.Array) -> jax.Array:
    labels_B = jnp.broadcast_to(labels_B, values_BK.shape[:-1])
    return jnp.take_along_axis(values_BK, labels_B[..., None], axis=-1)[..., 0]
