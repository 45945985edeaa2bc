"""AdaMatch (Berthelot et al., 2022): threshold and alignment relative to the labeled images.

In the form of USB, from which its published CIFAR figures come: Google's code, for domain
adaptation, has further parts (random logit interpolation, a second labeled view, its own
optimizer) that are not here.
"""

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch
from cls_jax.methods import alignment
from cls_jax.methods.base import Context, Hyperparameter, InitContext
from cls_jax.methods.fixmatch_variants import Targets, create_method


def init_state(init: InitContext) -> dict[str, jax.Array]:
    """Class means [N, K] as from `alignment.init_class_means`."""
    return alignment.init_class_means(init, init.hparams["align_to"])


def adamatch_targets(
    context: Context, batch: Batch, logits_x: jax.Array, logits_weak: jax.Array
) -> Targets:
    """Pseudo-labels with argmax p̂ where max p̂ ≥ c · (mean confidence of the labeled batch).

    p̂ is the aligned prediction. With `ramp`, the weight rises along a cosine over that share of the
    run. Signature: see `fixmatch_variants.MakeTargets`.
    """
    hparams = context.hparams
    means = alignment.update_class_means(
        context, context.method_state, logits_weak, logits_x, hparams["align_to"]
    )
    # USB: the mean of predictions starts at the first batch's.
    first = context.ensemble.average_over_data(jnp.mean(jax.nn.softmax(logits_weak), axis=1))
    means["predicted"] = jnp.where(context.progress == 0, first, means["predicted"])
    p = jax.nn.softmax(alignment.align(logits_weak, means["predicted"], means["target"]))
    labeled_confidence = jnp.mean(jnp.max(jax.nn.softmax(logits_x), axis=-1), axis=-1)
    threshold = hparams["confidence"] * context.ensemble.average_over_data(labeled_confidence)
    weights = (jnp.max(p, axis=-1) >= threshold[:, None]).astype(p.dtype)
    if hparams["ramp"] > 0:
        weights *= 0.5 - 0.5 * jnp.cos(jnp.pi * jnp.minimum(context.progress / hparams["ramp"], 1))
    monitors = {
        "monitors/threshold": threshold,
        "monitors/class_balance": alignment.compute_class_balance(means["predicted"]),
    }
    return Targets(jnp.argmax(p, axis=-1), weights, means, monitors)


METHODS = {
    "adamatch": create_method(
        adamatch_targets,
        init_state,
        {
            "confidence": Hyperparameter(0.95, 0.0, 1.0, "USB; Google's code: 0.9"),
            "ramp": Hyperparameter(0.0, 0.0, 1.0, "USB; Google's code: 0.5, share of the run"),
            "statistics_decay": alignment.STATISTICS_DECAY,
            "align_to": Hyperparameter(
                "predicted", source="AdaMatch, both codes", choices=alignment.TARGETS
            ),
        },
    )
}
