"""UDA (Xie et al., 2020): train strong views to match sharpened predictions of weak ones."""

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch
from cls_jax.methods.base import Context, Hyperparameter, LossOutput, Method
from cls_jax.methods.losses import positive_cross_entropy, soft_cross_entropy
from cls_jax.methods.schedules import tsa_threshold


def compute_loss(logits: list[jax.Array], batch: Batch, context: Context) -> LossOutput:
    """L = L_sup + λ · mean(1[max p ≥ threshold] · CE(softmax(weak / T), strong)).

    The threshold applies to the probabilities before sharpening. With training-signal annealing,
    L_sup leaves out labeled images whose true class already has a probability above a rising
    threshold. Signature: see `Method.loss`.
    """
    hparams = context.hparams
    logits_x, logits_weak, logits_strong = logits
    target = jax.nn.softmax(logits_weak / hparams["temperature"])
    mask = jnp.max(jax.nn.softmax(logits_weak), axis=-1) >= hparams["threshold"]
    loss_x = positive_cross_entropy(logits_x, batch.y)
    loss_supervised = tsa_loss(loss_x, hparams["annealing"], logits_x.shape[-1], context)
    loss_consistency = jnp.mean(mask * soft_cross_entropy(logits_strong, target), axis=-1)
    monitors = {
        "train/loss_supervised": loss_supervised,
        "train/loss_consistency": loss_consistency,
        "monitors/mask_ratio": jnp.mean(mask, axis=-1),
    }
    losses = loss_supervised + hparams["lambda_u"] * loss_consistency
    return LossOutput(losses, monitors, jnp.argmax(target, axis=-1))


def tsa_loss(loss_x: jax.Array, annealing: str, num_classes: int, context: Context) -> jax.Array:
    """Mean over the labeled images whose probability exp(-loss) is not yet above the threshold.

    Args:
        loss_x: float32 [N, B], cross-entropies.
        annealing: "off", "linear", "log" or "exp".
        num_classes: K.
        context: for progress and devices.
    """
    if annealing == "off":
        return jnp.mean(loss_x, axis=-1)
    threshold = tsa_threshold(annealing, context.progress, num_classes)
    is_kept = jax.lax.stop_gradient(jnp.exp(-loss_x)) <= threshold
    return context.ensemble.masked_mean(loss_x, is_kept)


METHODS = {
    "uda": Method(
        compute_loss,
        hyperparameters={
            "lambda_u": Hyperparameter(1.0, 0.0, 1e3, "UDA, CIFAR-10"),
            "temperature": Hyperparameter(0.4, 1e-2, 10.0, "UDA, CIFAR-10; TorchSSL"),
            "threshold": Hyperparameter(0.8, 0.0, 1.0, "UDA, CIFAR-10; TorchSSL"),
            "annealing": Hyperparameter(
                "off", source="TorchSSL", choices=("off", "linear", "log", "exp")
            ),
        },
        target_view=0,
    )
}
