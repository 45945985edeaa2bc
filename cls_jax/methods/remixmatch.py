"""ReMixMatch (Berthelot et al., 2020): MixMatch with aligned guesses, strong views, rotations."""

from typing import Any

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch
from cls_jax.methods.base import Context, Hyperparameter, LossOutput, Method, PyTree
from cls_jax.methods.losses import positive_cross_entropy, soft_cross_entropy
from cls_jax.methods.mixup import mixup, sharpen
from cls_jax.methods.schedules import ramp_up


def compute_loss(params: PyTree, batch_stats: PyTree, batch: Batch, context: Context) -> LossOutput:
    """L = CE(mixed labelled) + ramp · (w_m CE(mixed) + w_s CE(strong) + w_r CE(rotated)).

    The guess for the weak view, aligned to the labels' class distribution and sharpened, teaches
    two strong views, mixed and (the first) not mixed. A second head tells by which multiple of 90
    degrees the first strong view was turned. BatchNorm's running statistics come from the mixed
    labelled images only. Signature: see `Method.compute_loss`.
    """
    ensemble, hparams = context.ensemble, context.hparams
    key_mix, key_rotate = jax.random.split(context.key)
    weak, strong, _ = batch.u

    def forward(images: jax.Array, **kwargs: Any) -> tuple[jax.Array, PyTree]:
        return ensemble.forward(params, batch_stats, images, train=True, **kwargs)

    probabilities = jax.lax.stop_gradient(jax.nn.softmax(forward(weak)[0]))
    truth = jax.nn.one_hot(batch.y, probabilities.shape[-1])
    truth = jnp.broadcast_to(truth, (len(probabilities), *truth.shape))
    means = update_class_means(context, probabilities, truth)
    guess = sharpen(align(probabilities, means), hparams["temperature"])

    groups = [(batch.x, truth), *((view, guess) for view in batch.u)]
    (x, target_x), *mixed = mixup(key_mix, groups, hparams["alpha"])
    logits_x, new_batch_stats = forward(x)
    loss_supervised = jnp.mean(soft_cross_entropy(logits_x, target_x), axis=-1)
    loss_mixed: Any = sum(
        jnp.mean(soft_cross_entropy(forward(u)[0], target), axis=-1) for u, target in mixed
    ) / len(mixed)
    loss_strong = jnp.mean(soft_cross_entropy(forward(strong)[0], guess), axis=-1)
    rotated, turns = rotate_randomly(key_rotate, strong)
    logits_turns, _ = forward(rotated, head="rotation")
    loss_rotation = jnp.mean(positive_cross_entropy(logits_turns, turns), axis=-1)

    loss_unlabeled = (
        hparams["weight_mixed"] * loss_mixed
        + hparams["weight_strong"] * loss_strong
        + hparams["weight_rotation"] * loss_rotation
    )
    losses = loss_supervised + ramp_up(context.progress, hparams["ramp"]) * loss_unlabeled
    monitors = {
        "train/loss_supervised": loss_supervised,
        "train/loss_consistency": loss_mixed,
        "train/loss_strong": loss_strong,
        "train/loss_rotation": loss_rotation,
    }
    return LossOutput(losses, new_batch_stats, monitors, jnp.argmax(guess, axis=-1), means)


def init_state(num_networks: int, num_classes: int, num_images: int) -> dict[str, jax.Array]:
    """Running class means of predictions and labels, float32 [N, K]: uniform at first."""
    uniform = jnp.full((num_networks, num_classes), 1 / num_classes)
    return {"predicted": uniform, "labeled": uniform}


def update_class_means(
    context: Context, probabilities: jax.Array, truth: jax.Array
) -> dict[str, jax.Array]:
    """Moves the running class means towards those of this batch."""
    decay = context.hparams["class_mean_decay"]
    batch_means = {"predicted": probabilities.mean(axis=1), "labeled": truth.mean(axis=1)}
    batch_means = jax.tree.map(context.ensemble.average_over_data, batch_means)
    return jax.tree.map(
        lambda mean, new: decay * mean + (1 - decay) * new, context.method_state, batch_means
    )


def align(probabilities: jax.Array, means: dict[str, jax.Array]) -> jax.Array:
    """Distribution alignment: p · labelled mean / predicted mean, summing to one again."""
    ratio = (means["labeled"] + 1e-6) / (means["predicted"] + 1e-6)
    aligned = probabilities * ratio[:, None, :]
    return aligned / jnp.sum(aligned, axis=-1, keepdims=True)


def rotate_randomly(key: jax.Array, images: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Turns square images [B, H, H, C] by 0 to 3 quarters; returns them and the turns int32 [B]."""
    turns = jax.random.randint(key, (len(images),), 0, 4)
    every_turn = jnp.stack([jnp.rot90(images, k, axes=(1, 2)) for k in range(4)])
    return every_turn[turns, jnp.arange(len(images))], turns


METHODS = {
    "remixmatch": Method(
        compute_loss,
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
