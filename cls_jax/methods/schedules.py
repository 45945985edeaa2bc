"""Weights and thresholds that change over a run, as functions of progress = step / num_steps.

Lengths are shares of the run, so that short runs keep their meaning.
"""

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict


def get_round_length(config: ConfigDict) -> int:
    """Steps of a round: all, unless the method has several rounds; the last may be shorter."""
    return -(-config.num_steps // config.method.get("rounds", 1))


def ramp_up(progress: jax.Array, length: float) -> jax.Array:
    """Rises linearly from 0 to 1 over the first `length` of the run, then stays; float32."""
    return jnp.clip(progress / length, 0.0, 1.0)


def tsa_threshold(kind: str, progress: jax.Array, num_classes: int) -> jax.Array:
    """UDA's training-signal annealing threshold: from 1/K to 1 (Xie et al., 2020, section 2.3).

    α · (1 - 1/K) + 1/K with α linear, or rising early ("log") or late ("exp"), with scale 5.

    Raises:
        KeyError: if `kind` is not "linear", "log" or "exp".
    """
    alpha = {
        "linear": progress,
        "log": 1 - jnp.exp(-5 * progress),
        "exp": jnp.exp(5 * (progress - 1)),
    }[kind]
    return alpha * (1 - 1 / num_classes) + 1 / num_classes
