"""Supervised baseline: cross-entropy on strongly augmented labeled images only.

"Supervised w/ RA" in the paper's Table 1: the accuracy without unlabeled images.
"""

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch
from cls_jax.methods.base import Context, LossOutput, Method
from cls_jax.methods.losses import positive_cross_entropy


def compute_loss(logits: list[jax.Array], batch: Batch, context: Context) -> LossOutput:
    """L = mean cross-entropy of the labeled images. Signature: see `Method.loss`."""
    (logits_x,) = logits
    losses = jnp.mean(positive_cross_entropy(logits_x, batch.y), axis=-1)
    return LossOutput(losses, {"train/loss_supervised": losses})


METHODS = {
    "supervised": Method(compute_loss, labeled_view="strong", unlabeled_views=()),
}
