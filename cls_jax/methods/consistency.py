"""Π-Model and Mean Teacher: two weak views of an image should get the same probabilities.

They differ in what predicts the second view, the target: the network itself (Laine & Aila, 2017)
or its exponential moving average (Tarvainen & Valpola, 2017).
"""

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch
from cls_jax.methods.base import Context, Hyperparameter, LossOutput, Method
from cls_jax.methods.losses import positive_cross_entropy
from cls_jax.methods.schedules import ramp_up


def compute_loss(logits: list[jax.Array], batch: Batch, context: Context) -> LossOutput:
    """L = L_sup + λ · ramp · mean over images and classes of (softmax student - softmax target)².

    Signature: see `Method.loss`.
    """
    hparams = context.hparams
    logits_x, student, target = logits
    loss_supervised = jnp.mean(positive_cross_entropy(logits_x, batch.y), axis=-1)
    difference = jax.nn.softmax(student) - jax.nn.softmax(target)
    loss_consistency = jnp.mean(jnp.square(difference), axis=(-2, -1))
    weight = hparams["lambda_u"] * ramp_up(context.progress, hparams["ramp"])
    monitors = {
        "train/loss_supervised": loss_supervised,
        "train/loss_consistency": loss_consistency,
    }
    losses = loss_supervised + weight * loss_consistency
    return LossOutput(losses, monitors, jnp.argmax(target, axis=-1))


def create_method(is_ema_teacher: bool, lambda_u: float) -> Method:
    """Π-Model or Mean Teacher, with λ's default."""
    return Method(
        compute_loss,
        hyperparameters={
            "lambda_u": Hyperparameter(lambda_u, 0.0, 1e4, "Google FixMatch's baselines, TorchSSL"),
            "ramp": Hyperparameter(0.4, 1e-6, 1.0, "TorchSSL: share of the run"),
        },
        mu=1,
        unlabeled_views=("weak", "weak"),
        target_view=1,
        is_ema_teacher=is_ema_teacher,
        separate_passes=True,
    )


METHODS = {
    "pi_model": create_method(is_ema_teacher=False, lambda_u=10.0),
    "mean_teacher": create_method(is_ema_teacher=True, lambda_u=50.0),
}
