"""SoftMatch (Chen et al., 2023): no threshold, a Gaussian weight of the aligned confidence."""

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch
from cls_jax.methods import alignment
from cls_jax.methods.base import Context, Hyperparameter, InitContext
from cls_jax.methods.fixmatch_variants import Targets, create_method


def init_state(init: InitContext) -> dict[str, jax.Array]:
    """Mean 1 / K and variance 1 of the confidence, [N], and the class means, [N, K]."""
    means = alignment.init_class_means(init, init.hparams["align_to"])
    start = jnp.ones_like(means["predicted"][:, 0])
    return {"mean": start / init.num_classes, "variance": start, **means}


def softmatch_targets(
    context: Context, batch: Batch, logits_x: jax.Array, logits_weak: jax.Array
) -> Targets:
    """Pseudo-labels with argmax p, weighted by exp(-min(ĉ - μ, 0)² · n² / (2 v)).

    ĉ is the confidence after alignment, μ and v the running mean and variance of the confidence
    before it (paper, TorchSSL) or after it (USB). Only the weight sees the alignment, not the
    label. All running means move before they are used. Signature: see
    `fixmatch_variants.MakeTargets`.
    """
    old, hparams = context.method_state, context.hparams
    means = {name: old[name] for name in ("predicted", "target")}
    means = alignment.update_class_means(context, means, logits_weak, logits_x, hparams["align_to"])
    aligned = alignment.align(logits_weak, means["predicted"], means["target"])
    aligned_confidence = jnp.max(jax.nn.softmax(aligned), axis=-1)
    confidence = jnp.max(jax.nn.softmax(logits_weak), axis=-1)
    if hparams["statistics"] == "aligned":
        confidence = aligned_confidence
    # Over all devices' images: the variance is unbiased, so a mean of the devices' variances would
    # be a different number.
    everywhere = context.ensemble.gather_over_data(confidence)
    batch_mean = jnp.mean(everywhere, axis=-1)
    squares = jnp.sum((everywhere - batch_mean[:, None]) ** 2, axis=-1)
    batch_variance = squares / max(everywhere.shape[-1] - 1, 1)
    decay = hparams["statistics_decay"]
    mean = decay * old["mean"] + (1 - decay) * batch_mean
    variance = decay * old["variance"] + (1 - decay) * batch_variance
    below = jnp.minimum(aligned_confidence - mean[:, None], 0.0)
    # A floor, because the variance vanishes if all images have the same confidence for long.
    spread = 2 * jnp.maximum(variance, 1e-12)[:, None] / hparams["sharpness"] ** 2
    weights = jnp.exp(-(below**2) / spread)
    monitors = {
        "monitors/confidence_weight": jnp.mean(weights, axis=-1),
        "monitors/threshold": mean,
        "monitors/class_balance": alignment.compute_class_balance(means["predicted"]),
    }
    state = {"mean": mean, "variance": variance, **means}
    return Targets(jnp.argmax(logits_weak, axis=-1), weights, state, monitors)


METHODS = {
    "softmatch": create_method(
        softmatch_targets,
        init_state,
        {
            "statistics_decay": alignment.STATISTICS_DECAY,
            # On balanced labels this is the paper's and USB's "uniform" alignment.
            "align_to": Hyperparameter(
                "labels",
                source="SoftMatch; released TorchSSL: predicted",
                choices=alignment.TARGETS,
            ),
            "statistics": Hyperparameter(
                "raw", source="SoftMatch, TorchSSL; USB: aligned", choices=("raw", "aligned")
            ),
            "sharpness": Hyperparameter(2.0, 0.01, 100.0, "TorchSSL and USB, n"),
        },
    )
}
