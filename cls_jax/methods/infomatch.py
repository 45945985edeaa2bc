"""InfoMatch (Han et al., 2024): FreeMatch's threshold, two strong views and CutMix."""

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch
from cls_jax.methods import self_adaptive
from cls_jax.methods.base import Context, Hyperparameter, LossOutput, Method, PyTree
from cls_jax.methods.cutmix import cutmix, cutmix_loss
from cls_jax.methods.losses import positive_cross_entropy
from cls_jax.methods.trunk import LAMBDA_U, apply_rule


def compute_loss(params: PyTree, batch_stats: PyTree, batch: Batch, context: Context) -> LossOutput:
    """L = L_sup + λ_u · ½ (L_strong + L_strong') + λ_c · L_cutmix + λ_a · MSE(strong, strong').

    The weak view's labels, where FreeMatch's threshold lets them, teach two strong views and a
    CutMix of weak views; the MSE is that of the strong views' logits, standardized over classes.
    The authors' code writes 2 · (½ L_cutmix + ¼ L_strong + ¼ L_strong' + .001 MSE), which is the
    same, and draws both strong views on one crop; here each has its own. Signature: see
    `Method.compute_loss`.
    """
    hparams = context.hparams
    mix = cutmix(context.key, batch.u[0], batch.u_index)
    (logits_x, logits_weak, *logits_strong, logits_mix), batch_stats = (
        context.ensemble.forward_concatenated(params, batch_stats, (batch.x, *batch.u, mix.images))
    )
    teaching = apply_rule(self_adaptive.choose, context, batch, logits_x, logits_weak)
    loss_supervised = jnp.mean(positive_cross_entropy(logits_x, batch.y), axis=-1)
    losses_strong = [positive_cross_entropy(logits, teaching.labels) for logits in logits_strong]
    loss_self = jnp.mean(teaching.weights * jnp.stack(losses_strong), axis=(0, -1))
    loss_cutmix = cutmix_loss(mix, logits_mix, teaching.labels, teaching.weights)
    first, second = map(standardize, logits_strong)
    loss_alike = jnp.mean((first - second) ** 2, axis=(1, 2))
    losses = (
        loss_supervised
        + hparams["lambda_u"] * loss_self
        + hparams["lambda_cutmix"] * loss_cutmix
        + hparams["lambda_alike"] * loss_alike
    )
    monitors = {
        "train/loss_supervised": loss_supervised,
        "train/loss_self": loss_self,
        "train/loss_cutmix": loss_cutmix,
        "train/loss_consistency": loss_alike,
        **teaching.monitors,
    }
    return LossOutput(losses, batch_stats, monitors, teaching.labels, teaching.state)


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
            "lambda_alike": Hyperparameter(0.002, 0.0, 1e3, "authors' code"),
            **self_adaptive.HYPERPARAMETERS,
        },
        unlabeled_views=("weak", "strong", "strong"),
        init_state=self_adaptive.init_state,
    )
}
