"""MixMatch (Berthelot et al., 2019): guess labels, then mix labeled and guessed images."""

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch
from cls_jax.methods.base import Context, Hyperparameter, LossOutput, Method, PyTree
from cls_jax.methods.losses import soft_cross_entropy
from cls_jax.methods.mixup import forward_interleaved, label_rows, mixup, sharpen
from cls_jax.methods.schedules import ramp_up


def compute_loss(
    params: PyTree, batch_stats: PyTree, batch: Batch, context: Context
) -> tuple[LossOutput, PyTree]:
    """L = CE(mixed labeled) + λ_u · ramp · mean over images and classes of (p - target)².

    The guess is the sharpened mean of two weak views' probabilities, each view its own pass.
    BatchNorm's running statistics come from the first interleaved chunk of the mixed groups
    (Google's code). Signature: see `Method.drive`.
    """
    ensemble, hparams = context.ensemble, context.hparams
    views = [ensemble.forward(params, batch_stats, view, train=True)[0] for view in batch.u]
    mean = jnp.mean(jax.nn.softmax(jnp.stack(views)), axis=0)
    guess = jax.lax.stop_gradient(sharpen(mean, hparams["temperature"]))
    groups = [(batch.x, label_rows(batch.y, guess)), *((view, guess) for view in batch.u)]
    images, (target_x, *targets_u) = zip(*mixup(context.key, groups, hparams["alpha"]), strict=True)

    (logits_x, *logits_u), batch_stats = forward_interleaved(
        ensemble, params, batch_stats, images, stats_from=0
    )
    loss_supervised = jnp.mean(soft_cross_entropy(logits_x, target_x), axis=-1)
    errors = jax.nn.softmax(jnp.stack(logits_u)) - jnp.stack(targets_u)
    loss_unlabeled = jnp.mean(jnp.square(errors), axis=(0, 2, 3))
    weight = hparams["lambda_u"] * ramp_up(context.progress, hparams["ramp"])
    monitors = {
        "train/loss_supervised": loss_supervised,
        "train/loss_consistency": loss_unlabeled,
    }
    losses = loss_supervised + weight * loss_unlabeled
    return LossOutput(losses, monitors, jnp.argmax(guess, axis=-1)), batch_stats


METHODS = {
    "mixmatch": Method(
        drive=compute_loss,
        hyperparameters={
            "alpha": Hyperparameter(0.75, 1e-3, 100.0, "MixMatch"),
            "temperature": Hyperparameter(0.5, 1e-2, 10.0, "MixMatch"),
            "lambda_u": Hyperparameter(75.0, 0.0, 1e4, "MixMatch, CIFAR-10; 150 on CIFAR-100"),
            "ramp": Hyperparameter(16_384 / 307_200, 1e-6, 1.0, "MixMatch: 16,384 steps"),
        },
        mu=1,
        unlabeled_views=("weak", "weak"),
    )
}
