"""The update rule: SGD with Nesterov momentum, a cosine, and weight decay on kernels."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from cls_jax.methods.schedules import get_round_length

PyTree = Any


def create_learning_rate_schedule(
    learning_rate: float, num_steps: int, cycles: float
) -> optax.Schedule:
    """learning_rate · cos(π · cycles · k / K) at step k of K; FixMatch has 7/16 and no warm-up."""

    def schedule(step: jax.Array) -> jax.Array:
        return learning_rate * jnp.cos(jnp.pi * cycles * step / num_steps)

    return schedule


def create_optimizer(config: ConfigDict) -> optax.GradientTransformation:
    """SGD with Nesterov momentum, the cosine, and weight decay on kernels only.

    PyTorch's form, as in the authors' code: decay is added to the gradient before the momentum.
    All is elementwise, so it acts on stacked networks as on one.
    """
    optimizer = config.optimizer
    # Each round trains new networks from a new optimizer state, so its schedule starts over.
    schedule = create_learning_rate_schedule(
        optimizer.learning_rate, get_round_length(config), optimizer.cosine_cycles
    )
    return optax.chain(
        optax.add_decayed_weights(optimizer.weight_decay, mask=_is_kernel),
        optax.sgd(schedule, momentum=optimizer.momentum, nesterov=True),
    )


def _is_kernel(params: PyTree) -> PyTree:
    # By name, not by rank: the axis of networks gives a stacked bias the rank of a dense kernel.
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)
