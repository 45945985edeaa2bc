"""Pseudo labels, complementary labels and weights from a network's predictions.

Equations are those of "CLS: Cross Labeling Supervision for Semi-Supervised Learning".
Shape suffixes: N networks, B images, K classes.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class PseudoLabels(NamedTuple):
    """Labels that one network derives from its own predictions.

    Attributes:
        pseudo: int32 [..., B], the most probable class (Eq. 2).
        complementary: int32 [..., B], the least probable class (Eq. 5).
        weight: float32 [..., B] in [0, 1], how confident the network is (Eq. 6).
        confidence: float32 [..., B], the probability of the most probable class.
    """

    pseudo: jax.Array
    complementary: jax.Array
    weight: jax.Array
    confidence: jax.Array


def make_pseudo_labels(logits_BK: jax.Array) -> PseudoLabels:
    """Derives labels from logits float32 [..., B, K]. No gradient flows back.

    ỹ = argmax p, ȳ = argmin p, w = 1 - H(p) / log K.
    """
    log_p_BK = jax.nn.log_softmax(jax.lax.stop_gradient(logits_BK))
    num_classes = logits_BK.shape[-1]
    weight_B = 1.0 - compute_entropy(log_p_BK) / jnp.log(num_classes)
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
