"""ReMixMatch (Berthelot et al., 2020): MixMatch with aligned guesses, strong views, rotations."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cls_jax.batch import Batch
from cls_jax.methods.alignment import align, init_uniform, update_mean
from cls_jax.methods.base import Context, Hyperparameter, InitContext, LossOutput, Method, PyTree
from cls_jax.methods.losses import positive_cross_entropy, soft_cross_entropy
from cls_jax.methods.mixup import forward_interleaved, label_rows, mixup, sharpen
from cls_jax.methods.schedules import ramp_up


def compute_loss(
    params: PyTree, batch_stats: PyTree, batch: Batch, context: Context
) -> tuple[LossOutput, PyTree]:
    """L = CE(mixed labeled) + ramp · (w_m CE(mixed) + w_s CE(strong)) + w_r CE(rotated).

    The guess for the weak view, aligned to the labels' class distribution and sharpened, is the
    target of all three views where they are mixed, and of the first strong view unmixed. A second
    head learns by which multiple of 90 degrees that view was rotated. Its loss has no ramp.
    BatchNorm's running statistics come from the last interleaved chunk of the mixed groups
    (Google's code). Signature: see `Method.drive`.
    """
    ensemble, hparams = context.ensemble, context.hparams
    weak, strong, _ = batch.u

    def forward(images: jax.Array, **kwargs: Any) -> jax.Array:
        return ensemble.forward(params, batch_stats, images, train=True, **kwargs)[0]

    logits_weak = jax.lax.stop_gradient(forward(weak))
    truth = label_rows(batch.y, logits_weak)
    per_image = {"predicted": jax.nn.softmax(logits_weak), "labeled": truth}
    means = {
        name: update_mean(context, context.method_state[name], values, hparams["class_mean_decay"])
        for name, values in per_image.items()
    }
    aligned = align(logits_weak, means["predicted"], means["labeled"])
    guess = sharpen(jax.nn.softmax(aligned), hparams["temperature"])

    groups = [(batch.x, truth), *((view, guess) for view in batch.u)]
    images, (target_x, *targets_u) = zip(*mixup(context.key, groups, hparams["alpha"]), strict=True)
    (logits_x, *logits_u), new_batch_stats = forward_interleaved(
        ensemble, params, batch_stats, images, stats_from=-1
    )
    loss_supervised = jnp.mean(soft_cross_entropy(logits_x, target_x), axis=-1)
    losses_mixed = soft_cross_entropy(jnp.stack(logits_u), jnp.stack(targets_u))
    loss_mixed = jnp.mean(losses_mixed, axis=(0, 2))
    loss_strong = jnp.mean(soft_cross_entropy(forward(strong), guess), axis=-1)
    rotated, turns = rotate_quarters(strong)
    logits_turns = forward(rotated, head="rotation")
    loss_rotation = jnp.mean(positive_cross_entropy(logits_turns, turns), axis=-1)

    ramp = ramp_up(context.progress, hparams["ramp"])
    losses = (
        loss_supervised
        + ramp * hparams["weight_mixed"] * loss_mixed
        + ramp * hparams["weight_strong"] * loss_strong
        + hparams["weight_rotation"] * loss_rotation
    )
    monitors = {
        "train/loss_supervised": loss_supervised,
        "train/loss_consistency": loss_mixed,
        "train/loss_strong": loss_strong,
        "train/loss_rotation": loss_rotation,
    }
    return LossOutput(losses, monitors, jnp.argmax(guess, axis=-1), means), new_batch_stats


def init_state(init: InitContext) -> dict[str, jax.Array]:
    """Running class means of predictions and labels, float32 [N, K]: uniform at first."""
    return {"predicted": init_uniform(init), "labeled": init_uniform(init)}


def rotate_quarters(images: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rotates a quarter of the square images [B, H, H, C] by each of 0, 90, 180 and 270 degrees.

    The quarters are consecutive (Google's code): the stream has already shuffled the images.

    Returns:
        The rotated images and their numbers of quarter turns, int32 [B].
    """
    parts = jnp.array_split(images, 4)
    rotated = [jnp.rot90(part, turns, axes=(1, 2)) for turns, part in enumerate(parts)]
    turns = np.repeat(np.arange(4, dtype=np.int32), [len(part) for part in parts])
    return jnp.concatenate(rotated), jnp.asarray(turns)


METHODS = {
    "remixmatch": Method(
        drive=compute_loss,
        hyperparameters={
            "alpha": Hyperparameter(0.75, 1e-3, 100.0, "ReMixMatch"),
            "temperature": Hyperparameter(0.5, 1e-2, 10.0, "ReMixMatch"),
            "weight_mixed": Hyperparameter(1.5, 0.0, 1e3, "ReMixMatch, --w_match"),
            "weight_strong": Hyperparameter(0.5, 0.0, 1e3, "ReMixMatch, --w_kl"),
            "weight_rotation": Hyperparameter(0.5, 0.0, 1e3, "ReMixMatch, --w_rot"),
            "ramp": Hyperparameter(
                1 / 64, 1e-6, 1.0, "ReMixMatch: --warmup_kimg, share of the run"
            ),
            "class_mean_decay": Hyperparameter(0.999, 0.0, 0.99999, "TorchSSL"),
        },
        mu=1,
        unlabeled_views=("weak", "strong", "strong"),
        init_state=init_state,
        extra_heads=(("rotation", 4),),
    )
}
