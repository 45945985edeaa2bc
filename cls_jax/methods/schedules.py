"""Weights and thresholds that change over a run, as functions of progress = step / num_steps.

Lengths are shares of the run, so that short runs keep their meaning.
"""

import jax
import jax.numpy as jnp


def choose_decay(num_steps: int) -> float:
    """The decay of a running mean over a training, or over a round of it, of so many steps.

    For the weights' average, BatchNorm's statistics and the methods' own. The mean is taken over
    about 1 / (1 - decay) steps: a twentieth of the training, from 100 to 1,000, and never more than
    a third of the training, so that less than 5% of the start value remains at its end.
    """
    length = min(max(num_steps / 20, 100), 1000, num_steps / 3)
    return 1 - 1 / max(length, 1)


def ramp_up(progress: jax.Array, length: float) -> jax.Array:
    """Rises linearly from 0 to 1 over the first `length` of the run, then stays. float32."""
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
