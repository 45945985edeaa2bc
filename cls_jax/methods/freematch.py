"""FreeMatch (Wang et al., 2023): a threshold that follows the network's own confidence."""

import jax
import jax.numpy as jnp

from cls_jax.methods import self_adaptive
from cls_jax.methods.base import Context, Hyperparameter
from cls_jax.methods.trunk import Teaching, create_method


def compute_fairness(
    target_K: jax.Array, mean_K: jax.Array, histogram_K: jax.Array, running_histogram_K: jax.Array
) -> jax.Array:
    """Σ q · log r with q = Norm(target / running histogram), r = Norm(mean / histogram), [N].

    As published, it is *added* to the loss. It is largest at r = q, so descent moves the mean
    prediction away from q instead of toward the uniform distribution (questioned in USB's issues
    182 and 231, where the authors confirm it). A class that is missing from a histogram contributes
    0, and with an empty histogram the whole term is 0.

    Args:
        target_K: float32 [N, K], running mean of the predictions.
        mean_K: float32 [N, K], of strong predictions of taught images, with gradient; any scale.
        histogram_K: float32 [N, K], of their most probable classes; any scale.
        running_histogram_K: float32 [N, K], of weak labels.
    """
    q_K = _normalize(_divide(target_K, running_histogram_K))
    r_K = _normalize(_divide(mean_K, histogram_K))
    fairness = jnp.sum(q_K * jnp.log(r_K + 1e-12), axis=-1)
    return jnp.where(jnp.sum(histogram_K, axis=-1) > 0, fairness, 0.0)


def add_fairness(
    context: Context, teaching: Teaching, logits_strong: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """λ_f · fairness over the taught images of all devices; see `trunk.create_method`."""
    p = jax.nn.softmax(logits_strong)
    top = jax.nn.one_hot(jnp.argmax(logits_strong, axis=-1), p.shape[-1], dtype=p.dtype)
    weights = teaching.weights[..., None]
    # Means over all images instead of the taught ones: the common factor cancels in r, and these
    # means may be averaged over devices before the division, unlike means over taught images.
    mean, histogram = jax.tree.map(
        lambda value: context.ensemble.average_over_data(jnp.mean(weights * value, axis=1)),
        (p, jax.lax.stop_gradient(top)),
    )
    state = teaching.state
    fairness = compute_fairness(state["predicted"], mean, histogram, state["histogram"])
    return context.hparams["lambda_fairness"] * fairness, {"train/loss_fairness": fairness}


def _divide(numerator_K: jax.Array, denominator_K: jax.Array) -> jax.Array:
    is_known_K = denominator_K > 0
    return jnp.where(is_known_K, numerator_K / jnp.where(is_known_K, denominator_K, 1.0), 0.0)


def _normalize(values_K: jax.Array) -> jax.Array:
    return _divide(values_K, jnp.sum(values_K, axis=-1, keepdims=True))


METHODS = {
    "freematch": create_method(
        self_adaptive.choose,
        self_adaptive.init_state,
        {
            **self_adaptive.HYPERPARAMETERS,
            # Paper: .05 for most budgets. TorchSSL: .01. USB: .001.
            "lambda_fairness": Hyperparameter(0.01, 0.0, 1e3, "TorchSSL, the authors' configs"),
        },
        extra_term=add_fairness,
    )
}
