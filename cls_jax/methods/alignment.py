"""Class balance: running class means of the predictions, and alignment to a target.

A network that is taught by its own labels drifts toward the classes that it already favors.
Distribution alignment (Berthelot et al., 2020) divides its predictions by their running mean and
multiplies them by the class frequencies that it should have. Nothing here carries a gradient.

Shape suffixes: N networks, B images, K classes.
"""

import jax
import jax.numpy as jnp

from cls_jax.batch import DatasetSpec
from cls_jax.methods.base import Context, hyperparameter
from cls_jax.parallel import collectives

# Added to both means of the ratio (ReMixMatch, AdaMatch, USB), which is then always finite.
EPSILON = 1e-6

# "labels": class frequencies of the labeled set. "uniform": 1 / K. "predicted": the running mean
# of the network's own predictions for labeled images (AdaMatch).
TARGETS = ("labels", "uniform", "predicted")

STATISTICS_DECAY = hyperparameter(0.999, 0.0, 0.99999, "TorchSSL and USB (runs of 2^20 steps)")


def init_uniform(spec: DatasetSpec) -> jax.Array:
    """Class means 1 / K, float32 [K]."""
    return jnp.full(spec.num_classes, 1 / spec.num_classes)


def init_class_means(target: str, spec: DatasetSpec) -> dict[str, jax.Array]:
    """Class means to align from ("predicted") and to ("target"), float32 [K], at first the same."""
    means = init_uniform(spec)
    if target == "labels":
        means = jnp.asarray(spec.class_frequencies, means.dtype)
    return {"predicted": means, "target": means}


def update_mean(context: Context, mean: jax.Array, values: jax.Array) -> jax.Array:
    """A running mean [N] or [N, K], moved toward the mean of the values, see `Context.move_mean`.

    The values are float32 [N, B] or [N, B, K] for this device's images. All devices' count.
    """
    return context.move_mean(mean, collectives.average_over_data(jnp.mean(values, axis=1)))


def update_class_means(
    context: Context, means: dict[str, jax.Array], logits_u: jax.Array, logits_x: jax.Array
) -> dict[str, jax.Array]:
    """Moves "predicted" toward softmax(logits_u) and a "predicted" target toward softmax(logits_x).

    For methods with the hyperparameters `statistics_decay` and `align_to`. The logits are float32
    [N, U, K] of weak views of unlabeled images, and [N, B, K] of labeled images.
    """
    means = dict(means)
    p_u, p_x = jax.nn.softmax(logits_u), jax.nn.softmax(logits_x)
    means["predicted"] = update_mean(context, means["predicted"], p_u)
    if context.hparams["align_to"] == "predicted":
        means["target"] = update_mean(context, means["target"], p_x)
    return means


def align(logits_BK: jax.Array, predicted_K: jax.Array, target_K: jax.Array) -> jax.Array:
    """Logits [N, B, K] whose softmax is Norm(p · target / predicted), for means [N, K].

    Computed as a sum of logarithms, so that probabilities that underflow keep their order.
    """
    log_ratio_K = jnp.log(target_K + EPSILON) - jnp.log(predicted_K + EPSILON)
    return logits_BK + log_ratio_K[:, None, :]


def compute_class_balance(means_K: jax.Array) -> jax.Array:
    """The rarest predicted class over the most frequent one, [N]: 1 is balance, 0 collapse."""
    return jnp.min(means_K, axis=-1) / jnp.max(means_K, axis=-1)
