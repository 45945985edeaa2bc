"""ABC (Lee et al., NeurIPS 2021): a second classifier for which all classes are equally frequent.

It shares the features with the method's own classifier, which keeps learning from all images. It
learns from a random part of the frequent classes and makes its own pseudo-labels. Predictions come
from it. Its gradients reach the features (USB's `abc.py`).

Shape suffixes: N networks, B images, K classes.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from cls_jax.methods.losses import make_pseudo_labels, positive_cross_entropy

# The method's own classifier. The balanced one is "head", which evaluation and prediction read.
METHOD_HEAD = "method_head"
_THRESHOLD = 0.95  # ABC and USB.


def compute_shares(class_frequencies: Sequence[float]) -> np.ndarray:
    """The share of each class that the classifier sees, float32 [K]: the rarest count over its own.

    Classes without labels count as the rarest class with labels.
    """
    frequencies = np.asarray(class_frequencies, np.float32)
    smallest = frequencies[frequencies > 0].min()
    shares: np.ndarray = smallest / np.maximum(frequencies, smallest)
    return shares


def compute_loss(
    logits: Sequence[jax.Array],
    y_B: jax.Array,
    shares_NK: jax.Array,
    draws: Sequence[jax.Array],
    progress: jax.Array,
) -> jax.Array:
    """The mean of 1[u < b_y] · CE(x, y) + the mean of 1[max p ≥ 0.95] · 1[u < s_ŷ] · CE(strong, ŷ).

    ŷ = argmax p for p = softmax(weak), a constant, and s = 1 - progress · (1 - b): all confident
    pseudo-labels teach at first, and equally many of each class at the end. The three `logits`,
    float32 [N, B, K], belong to labeled images, weak views and strong views. The two `draws` u,
    float32 [B] and uniform in [0, 1), belong to labeled and unlabeled images. The labels y are
    int32 [B], b comes from `compute_shares`, and progress is step / num_steps. Returns float32 [N].
    """
    logits_x, logits_weak, logits_strong = logits
    draws_x, draws_u = draws
    labels = make_pseudo_labels(logits_weak)
    shares_u = 1 - progress * (1 - jnp.take_along_axis(shares_NK, labels.pseudo, axis=-1))
    is_taught = (labels.confidence >= _THRESHOLD) & (draws_u < shares_u)
    loss_x = (draws_x < shares_NK[:, y_B]) * positive_cross_entropy(logits_x, y_B)
    loss_u = is_taught * positive_cross_entropy(logits_strong, labels.pseudo)
    return jnp.mean(loss_x, axis=-1) + jnp.mean(loss_u, axis=-1)
