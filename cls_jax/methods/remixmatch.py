"""ReMixMatch (Berthelot et al., 2020): MixMatch with aligned guesses, strong views, rotations."""

import jax
import jax.numpy as jnp

from cls_jax.methods.alignment import align, init_uniform, update_mean
from cls_jax.methods.base import Hyperparameter, InitContext, LossOutput, Method
from cls_jax.methods.losses import positive_cross_entropy, soft_cross_entropy
from cls_jax.methods.mixup import mixup, sharpen
from cls_jax.methods.schedules import ramp_up


def compute_loss(params, batch_stats, batch, context):
    """L = CE(mixed labelled) + ramp · (w_m CE(mixed) + w_s CE(strong) + w_r CE(rotated)).

    The guess for the weak view, aligned to the labels' class distribution and sharpened, teaches
    two strong views, mixed and (the first) not mixed. A second head tells by which multiple of 90
    degrees the first strong view was turned. BatchNorm's running statistics come from the mixed
    labelled images only. Signature: see `Method.compute_loss`.
    """
    ensemble, hparams = context.ensemble, context.hparams
    key_mix, key_rotate = jax.random.split(context.key)
    weak, strong, _ = batch.u

    def forward(images, **kwargs):
        return ensemble.forward(params, batch_stats, images, train=True, **kwargs)

    logits_weak = jax.lax.stop_gradient(forward(weak)[0])
    truth = jax.nn.one_hot(batch.y, logits_weak.shape[-1])
    truth = jnp.broadcast_to(truth, (len(logits_weak), *truth.shape))
    per_image = {"predicted": jax.nn.softmax(logits_weak), "labeled": truth}
    means = {
        name: update_mean(context, context.method_state[name], values, hparams["class_mean_decay"])
        for name, values in per_image.items()
    }
    aligned = align(logits_weak, means["predicted"], means["labeled"])
    guess = sharpen(jax.nn.softmax(aligned), hparams["temperature"])

    groups = [(batch.x, truth), *((view, guess) for view in batch.u)]
    (x, target_x), *mixed = mixup(key_mix, groups, hparams["alpha"])
    logits_x, new_batch_stats = forward(x)
    loss_supervised = jnp.mean(soft_cross_entropy(logits_x, target_x), axis=-1)
    loss_mixed = sum(
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


def init_state(init: InitContext) -> dict[str, jax.Array]:
    """Running class means of predictions and labels, float32 [N, K]: uniform at first."""
    return {"predicted": init_uniform(init), "labeled": init_uniform(init)}


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
