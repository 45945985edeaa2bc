"""FreeMatch (Wang et al., 2023): a threshold that follows the network's own confidence.

The running mean τ of the confidence is the threshold of the most frequent class. Classes that are
predicted rarely get a lower one (Eq. 5-8). InfoMatch has the same threshold.
"""

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch
from cls_jax.methods.alignment import (
    STATISTICS_DECAY,
    compute_class_balance,
    init_uniform,
    scale_by_class,
    update_mean,
)
from cls_jax.methods.base import Context, Hyperparameter, InitContext
from cls_jax.methods.fixmatch_variants import Targets, create_method


def init_state(init: InitContext) -> dict[str, jax.Array]:
    """Running means: of confidence (`threshold` [N]), predictions and label histogram [N, K]."""
    uniform = init_uniform(init)
    return {"threshold": uniform[:, 0], "predicted": uniform, "histogram": uniform}


def freematch_targets(
    context: Context, batch: Batch, logits_x: jax.Array, logits_weak: jax.Array
) -> Targets:
    """Pseudo-labels with argmax p where max p ≥ τ · p̃(label) / max p̃.

    All running means move before they are used (both released codes). Signature: see
    `fixmatch_variants.MakeTargets`.
    """
    old, decay = context.method_state, context.hparams["statistics_decay"]
    p = jax.nn.softmax(logits_weak)
    confidence, labels = jnp.max(p, axis=-1), jnp.argmax(p, axis=-1)
    one_hot = jax.nn.one_hot(labels, p.shape[-1], dtype=p.dtype)
    state = {
        "threshold": update_mean(context, old["threshold"], confidence, decay),
        "predicted": update_mean(context, old["predicted"], p, decay),
        "histogram": update_mean(context, old["histogram"], one_hot, decay),
    }
    mask = confidence >= scale_by_class(state["threshold"], state["predicted"], labels)
    monitors = {
        "monitors/threshold": state["threshold"],
        "monitors/class_balance": compute_class_balance(state["predicted"]),
    }
    return Targets(labels, mask.astype(p.dtype), state, monitors)


def compute_fairness(
    target_K: jax.Array, mean_K: jax.Array, histogram_K: jax.Array, running_histogram_K: jax.Array
) -> jax.Array:
    """Σ q · log r with q = Norm(target / running histogram), r = Norm(mean / histogram), [N].

    As published, it is *added* to the loss. It is largest at r = q, so descent moves the mean
    prediction away from q instead of toward the uniform distribution (questioned in USB's issues
    182 and 231, where the authors confirm it). TorchSSL and USB put 0 in place of 1 / 0, and so a
    class that no strong prediction favors has r = 0 and adds the constant q · log 1e-12. With an
    empty histogram the whole term is 0 (both).

    Args:
        target_K: float32 [N, K], running mean of the predictions.
        mean_K: float32 [N, K], of strong predictions of the images that are trained on, with
            gradient. Any scale.
        histogram_K: float32 [N, K], of their most probable classes. Any scale.
        running_histogram_K: float32 [N, K], of weak labels.
    """
    q_K = _normalize(_divide(target_K, running_histogram_K))
    r_K = _normalize(_divide(mean_K, histogram_K))
    fairness = jnp.sum(q_K * jnp.log(r_K + 1e-12), axis=-1)
    return jnp.where(jnp.sum(histogram_K, axis=-1) > 0, fairness, 0.0)


def add_fairness(
    context: Context, targets: Targets, logits_strong: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """λ_f · fairness over the images of all devices that are trained on.

    An extra term as in `fixmatch_variants.create_method`.
    """
    p = jax.nn.softmax(logits_strong)
    top = jax.nn.one_hot(jnp.argmax(logits_strong, axis=-1), p.shape[-1], dtype=p.dtype)
    weights = targets.weights[..., None]
    # Means over all images instead of those that are trained on: the common factor cancels in r,
    # and unlike masked means these may be averaged over devices before the division.
    mean, histogram = jax.tree.map(
        lambda value: context.ensemble.average_over_data(jnp.mean(weights * value, axis=1)),
        (p, jax.lax.stop_gradient(top)),
    )
    state = targets.state
    fairness = compute_fairness(state["predicted"], mean, histogram, state["histogram"])
    return context.hparams["lambda_fairness"] * fairness, {"train/loss_fairness": fairness}


def _divide(numerator_K: jax.Array, denominator_K: jax.Array) -> jax.Array:
    is_known_K = denominator_K > 0
    return jnp.where(is_known_K, numerator_K / jnp.where(is_known_K, denominator_K, 1.0), 0.0)


def _normalize(values_K: jax.Array) -> jax.Array:
    return _divide(values_K, jnp.sum(values_K, axis=-1, keepdims=True))


METHODS = {
    "freematch": create_method(
        freematch_targets,
        init_state,
        {
            "statistics_decay": STATISTICS_DECAY,
            # Paper: 0.05 for most budgets. TorchSSL: 0.01. USB: 0.001.
            "lambda_fairness": Hyperparameter(0.01, 0.0, 1e3, "TorchSSL, the authors' configs"),
        },
        extra_term=add_fairness,
    )
}
