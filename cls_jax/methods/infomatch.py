"""InfoMatch (Han et al., 2024): FreeMatch's threshold, two strong views and CutMix."""

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch
from cls_jax.methods.alignment import STATISTICS_DECAY
from cls_jax.methods.base import Context, Hyperparameter, LossOutput, Method
from cls_jax.methods.cutmix import cutmix_loss
from cls_jax.methods.fixmatch_variants import LAMBDA_U, compute_targets
from cls_jax.methods.freematch import freematch_targets, init_state
from cls_jax.methods.losses import positive_cross_entropy


def compute_loss(logits: list[jax.Array], batch: Batch, context: Context) -> LossOutput:
    """L = L_sup + λ_u · ½ (L_strong + L_strong') + λ_c · L_cutmix + λ_a · MSE(strong, strong').

    Two strong views and a CutMix of the weak views are trained on the weak view's labels, where
    these pass FreeMatch's threshold. The MSE compares the strong views' logits, standardized over
    classes. The authors' code writes 2 · (½ L_cutmix + ¼ L_strong + ¼ L_strong' + 0.001 MSE), which
    is the same, and draws both strong views on one crop. Here each has its own. Signature: see
    `Method.loss`.
    """
    hparams = context.hparams
    logits_x, logits_weak, *logits_strong, logits_mix = logits
    targets = compute_targets(freematch_targets, context, batch, logits_x, logits_weak)
    loss_supervised = jnp.mean(positive_cross_entropy(logits_x, batch.y), axis=-1)
    losses_strong = [positive_cross_entropy(z, targets.labels) for z in logits_strong]
    loss_self = jnp.mean(targets.weights * jnp.stack(losses_strong), axis=(0, -1))
    loss_cutmix = cutmix_loss(batch.mix, logits_mix, targets.labels, targets.weights)
    first, second = map(standardize, logits_strong)
    loss_consistency = jnp.mean((first - second) ** 2, axis=(1, 2))
    losses = (
        loss_supervised
        + hparams["lambda_u"] * loss_self
        + hparams["lambda_cutmix"] * loss_cutmix
        + hparams["lambda_consistency"] * loss_consistency
    )
    monitors = {
        "train/loss_supervised": loss_supervised,
        "train/loss_self": loss_self,
        "train/loss_cutmix": loss_cutmix,
        "train/loss_consistency": loss_consistency,
        **targets.monitors,
    }
    return LossOutput(losses, monitors, targets.labels, targets.state)


def standardize(logits: jax.Array) -> jax.Array:
    """Logits [..., K] less their mean over classes, over their unbiased standard deviation."""
    centered = logits - jnp.mean(logits, axis=-1, keepdims=True)
    variance = jnp.sum(centered**2, axis=-1, keepdims=True) / (logits.shape[-1] - 1)
    # The summand keeps the gradient finite where all logits are equal.
    return centered * jax.lax.rsqrt(variance + 1e-6)


METHODS = {
    "infomatch": Method(
        compute_loss,
        hyperparameters={
            "lambda_u": LAMBDA_U,
            "lambda_cutmix": Hyperparameter(1.0, 0.0, 1e3, "authors' code"),
            "lambda_consistency": Hyperparameter(0.002, 0.0, 1e3, "authors' code"),
            "statistics_decay": STATISTICS_DECAY,
        },
        unlabeled_views=("weak", "strong", "strong"),
        target_view=0,
        wants_cutmix=lambda hparams: True,
        init_state=init_state,
    )
}
