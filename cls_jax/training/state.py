"""Everything that a run carries from step to step, as one pytree."""

from collections.abc import Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from cls_jax.data.sampling import stream_key
from cls_jax.methods import InitContext, Method
from cls_jax.models.ensemble import init_networks, take_network
from cls_jax.models.weights.layout import Arrays, Layout, from_torch
from cls_jax.parallel.mesh import NETWORK_AXIS, to_global_arrays

PyTree = Any


class TrainState(flax.struct.PyTreeNode):
    """The state after `step` steps.

    Every leaf that is not a scalar, except `key`, has a leading axis of N networks: that is how
    `get_state_specs` knows what to spread over the mesh axis "network".

    Attributes:
        step: int32 scalar.
        key: uint32 [2], raw data of the seed's random key. It never changes: `stream_key` derives
            all others from it. It is part of the state and not a constant of the step, so that runs
            that differ only in the seed share a compiled program. It is raw, because checkpoints
            and donated buffers are plain arrays.
        params: float32.
        batch_stats: BatchNorm's running mean and variance, float32. The EMA networks use these too,
            not averages of them (authors' code).
        ema_params: exponential moving average of `params`, float32.
        opt_state: momentum, and the schedule's step count.
        method_state: the method's own state; empty for most.
    """

    step: jax.Array
    key: jax.Array
    params: PyTree
    batch_stats: PyTree
    ema_params: PyTree
    opt_state: PyTree
    method_state: PyTree


def init_networks_and_key(
    model: nn.Module, seed: int, round_index: int, num_networks: int, image_shape: Sequence[int]
) -> tuple[jax.Array, PyTree, PyTree]:
    """Draws the initial parameters of N networks.

    Args:
        model: the architecture.
        seed: of the run.
        round_index: of a method with several rounds, each of which starts from new parameters.
        num_networks: N.
        image_shape: (H, W, C).

    Returns:
        The seed's random key, and parameters and BatchNorm statistics, each leaf [N, ...].
    """
    key = jax.random.key(seed)
    init_key = stream_key(key, "init", round_index)
    return key, *init_networks(model, init_key, num_networks, image_shape)


def start_from_weights(
    arrays: Arrays,
    layout: Layout,
    heads: Sequence[str],
    params: PyTree,
    batch_stats: PyTree,
) -> tuple[PyTree, PyTree]:
    """Replaces all but the heads of N networks by pretrained weights.

    Args:
        arrays: the weights by PyTorch's names.
        layout: of the architecture.
        heads: names of the modules that keep their values.
        params: stacked, each leaf [N, ...].
        batch_stats: stacked likewise.

    Returns:
        Parameters and BatchNorm statistics, stacked, in NumPy.

    Raises:
        WeightsError: if the weights are those of another architecture.
    """
    stacked = jax.device_get({"params": params, "batch_stats": batch_stats})
    num_networks = jax.tree.leaves(stacked)[0].shape[0]
    networks = [
        from_torch(arrays, take_network(stacked, i), layout, tuple(heads))
        for i in range(num_networks)
    ]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *networks)
    return stacked["params"], stacked["batch_stats"]


def start_state(
    key: jax.Array,
    params: PyTree,
    batch_stats: PyTree,
    optimizer: optax.GradientTransformation,
    method: Method,
    init_context: InitContext,
) -> TrainState:
    """The state before the first step; pure, to be traced.

    Args:
        key: the seed's random key.
        params: stacked, each leaf [N, ...].
        batch_stats: stacked likewise.
        optimizer: from `create_optimizer`.
        method: gives the initial `method_state`.
        init_context: inputs of `Method.init_state`.
    """
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        key=jax.random.key_data(key),
        params=params,
        batch_stats=batch_stats,
        ema_params=params,
        opt_state=optimizer.init(params),
        method_state=method.init_state(init_context),
    )


def get_state_specs(state: TrainState) -> TrainState:
    """Partition specs of a state or of its shapes: leaves with an axis of networks are spread."""
    specs = jax.tree.map(lambda leaf: P(NETWORK_AXIS) if leaf.ndim else P(), state)
    return specs.replace(key=P())


def set_step(mesh: Mesh, state: TrainState, step: int) -> TrainState:
    """The state with another step count, on the mesh; also under a transfer guard."""
    # Not `jax.device_put`, which counts as an implicit transfer where there are several processes.
    return state.replace(step=to_global_arrays(np.int32(step), mesh, P()))
