"""Pseudo-Label (Lee, 2013): train on the network's own predictions where they are confident."""

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch
from cls_jax.methods.base import Context, Hyperparameter, LossOutput, Method
from cls_jax.methods.labeling import make_pseudo_labels
from cls_jax.methods.losses import positive_cross_entropy
from cls_jax.methods.schedules import ramp_up


def compute_loss(logits: list[jax.Array], batch: Batch, context: Context) -> LossOutput:
    """L = L_sup + λ · ramp · mean(1[max p ≥ threshold] · CE(p, argmax p)).

    The same weak view yields the label and is trained on it. Signature: see `Method.loss`.
    """
    hparams = context.hparams
    logits_x, logits_u = logits
    labels = make_pseudo_labels(logits_u)
    mask = labels.confidence >= hparams["threshold"]
    loss_supervised = jnp.mean(positive_cross_entropy(logits_x, batch.y), axis=-1)
    loss_self = jnp.mean(mask * positive_cross_entropy(logits_u, labels.pseudo), axis=-1)
    weight = hparams["lambda_u"] * ramp_up(context.progress, hparams["ramp"])
    monitors = {
        "train/loss_supervised": loss_supervised,
        "train/loss_self": loss_self,
        "monitors/mask_ratio": jnp.mean(mask, axis=-1),
    }
    losses = loss_supervised + weight * loss_self
    return LossOutput(losses, monitors, labels.pseudo)


METHODS = {
    "pseudo_label": Method(
        compute_loss,
        hyperparameters={
            "lambda_u": Hyperparameter(1.0, 0.0, 1e3, "Google FixMatch, TorchSSL"),
            "ramp": Hyperparameter(0.4, 1e-6, 1.0, "TorchSSL: share of the run"),
            "threshold": Hyperparameter(0.95, 0.0, 1.0, "TorchSSL"),
        },
        mu=1,
        unlabeled_views=("weak",),
        separate_passes=True,
    )
}
