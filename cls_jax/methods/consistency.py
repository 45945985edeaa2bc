"""Π-Model and Mean Teacher: two weak views of an image should get the same probabilities.

They differ in what predicts the second view, the target: the network itself (Laine & Aila, 2017)
or its exponential moving average (Tarvainen & Valpola, 2017).
"""

import functools

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch
from cls_jax.methods.base import Context, Hyperparameter, LossOutput, Method, PyTree
from cls_jax.methods.losses import positive_cross_entropy
from cls_jax.methods.schedules import ramp_up


def compute_loss(
    teacher: str, params: PyTree, batch_stats: PyTree, batch: Batch, context: Context
) -> LossOutput:
    """L = L_sup + λ · ramp · mean over images and classes of (softmax student - softmax teacher)².

    No gradient flows into the teacher. Signature after `teacher`, "self" or "ema": see
    `Method.compute_loss`.
    """
    ensemble, hparams = context.ensemble, context.hparams
    # Three passes, each normalized by its own batch. Only the labeled one updates the running
    # statistics (TorchSSL); which ones the others get makes no difference, because a training pass
    # normalizes by its batch and does not read them.
    logits_x, batch_stats = ensemble.forward(params, batch_stats, batch.x, train=True)
    student, _ = ensemble.forward(params, batch_stats, batch.u[0], train=True)
    teacher_params = context.ema_params if teacher == "ema" else params
    target, _ = ensemble.forward(teacher_params, batch_stats, batch.u[1], train=True)
    target = jax.lax.stop_gradient(target)
    loss_supervised = jnp.mean(positive_cross_entropy(logits_x, batch.y), axis=-1)
    difference = jax.nn.softmax(student) - jax.nn.softmax(target)
    loss_consistency = jnp.mean(jnp.square(difference), axis=(-2, -1))
    weight = hparams["lambda_u"] * ramp_up(context.progress, hparams["ramp"])
    monitors = {
        "train/loss_supervised": loss_supervised,
        "train/loss_consistency": loss_consistency,
    }
    losses = loss_supervised + weight * loss_consistency
    return LossOutput(losses, batch_stats, monitors, jnp.argmax(target, axis=-1))


def create_method(teacher: str, lambda_u: float) -> Method:
    """Π-Model (teacher "self") or Mean Teacher ("ema") with λ's default."""
    return Method(
        functools.partial(compute_loss, teacher),
        hyperparameters={
            "lambda_u": Hyperparameter(lambda_u, 0.0, 1e4, "Google FixMatch's baselines, TorchSSL"),
            "ramp": Hyperparameter(0.4, 1e-6, 1.0, "TorchSSL: share of the run"),
        },
        mu=1,
        unlabeled_views=("weak", "weak"),
    )


METHODS = {
    "pi_model": create_method(teacher="self", lambda_u=10.0),
    "mean_teacher": create_method(teacher="ema", lambda_u=50.0),
}
