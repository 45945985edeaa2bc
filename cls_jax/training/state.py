"""Everything that a run carries from step to step, as one pytree."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from cls_jax.batch import DatasetSpec
from cls_jax.models.ensemble import init_networks
from cls_jax.parallel.mesh import NETWORK_AXIS, to_shardings

PyTree = Any


class TrainState(flax.struct.PyTreeNode):
    """The state after `step` steps. All leaves but key and counts carry an axis of N networks.

    Attributes:
        step: int32 scalar.
        key: uint32 [2], what the seed gave; never changes, each step derives its own from it. Here
            and not a constant of the step, so that runs that differ in the seed share a program.
        params: float32.
        batch_stats: BatchNorm's running mean and variance, float32. The averaged networks use
            these too, not averages of them (authors' code).
        ema_params: exponential moving average of `params`, float32.
        opt_state: momentum, and the schedule's step count.
        method_state: what the method carries, nothing for most.
    """

    step: jax.Array
    key: jax.Array
    params: PyTree
    batch_stats: PyTree
    ema_params: PyTree
    opt_state: PyTree
    method_state: PyTree


def create_train_state(
    config, model, method, optimizer, dataset_spec: DatasetSpec, mesh: Mesh, round_index: int = 0
) -> tuple[TrainState, TrainState]:
    """Initialises the state on the mesh.

    Args:
        config: the run's configuration; `config.seed` decides the initial parameters.
        model: the architecture.
        method: the method, which names the number of networks and its own state.
        optimizer: from `create_optimizer`.
        dataset_spec: sizes of the dataset.
        mesh: from `create_mesh`.
        round_index: every round of a method with several begins from other parameters.

    Returns:
        The state, and its partition specs as a `TrainState` of the same structure.
    """
    key = jax.random.key(config.seed)
    num_networks = method.num_networks
    params, batch_stats = init_networks(
        model, jax.random.fold_in(key, round_index), num_networks, dataset_spec.image_shape
    )

    def init(key, params, batch_stats) -> TrainState:
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            key=jax.random.key_data(key),
            params=params,
            batch_stats=batch_stats,
            ema_params=params,
            opt_state=optimizer.init(params),
            method_state=method.init_state(
                num_networks, dataset_spec.num_classes, dataset_spec.num_images
            ),
        )

    abstract = jax.eval_shape(init, key, params, batch_stats)
    # What has an axis of networks is spread over the mesh axis of that name.
    specs = jax.tree.map(lambda leaf: P(NETWORK_AXIS) if leaf.ndim else P(), abstract)
    specs = specs.replace(key=P())
    # Compiled, so that parameters and their average are two buffers: the step donates both.
    state = jax.jit(init, out_shardings=to_shardings(mesh, specs))(key, params, batch_stats)
    return state, specs
