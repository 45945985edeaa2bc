"""Everything that a run carries from step to step, as one pytree."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from cls_jax.batch import DataShape
from cls_jax.mesh import NETWORK_AXIS, to_shardings
from cls_jax.networks import init_networks
from cls_jax.schedules import get_round_length

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


def create_learning_rate_schedule(learning_rate: float, num_steps: int, cycles: float):
    """learning_rate · cos(π · cycles · k / K): FixMatch's cosine is 7/16 of a cycle, no warm-up."""

    def schedule(step):
        return learning_rate * jnp.cos(jnp.pi * cycles * step / num_steps)

    return schedule


def create_optimizer(config) -> optax.GradientTransformation:
    """SGD with Nesterov momentum, the cosine, and weight decay on kernels only.

    PyTorch's form, as in the authors' code: decay is added to the gradient before the momentum.
    All is elementwise, so it acts on stacked networks as on one.
    """
    optimizer = config.optimizer
    # A round is a training of its own, and its optimiser begins anew.
    schedule = create_learning_rate_schedule(
        optimizer.learning_rate, get_round_length(config), optimizer.cosine_cycles
    )
    return optax.chain(
        optax.add_decayed_weights(optimizer.weight_decay, mask=_is_kernel),
        optax.sgd(schedule, momentum=optimizer.momentum, nesterov=True),
    )


def _is_kernel(params: PyTree) -> PyTree:
    # By name: a stacked bias has as many dimensions as a kernel has without its networks.
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)


def create_train_state(
    config, model, method, optimizer, data_shape: DataShape, mesh: Mesh, round_index: int = 0
) -> tuple[TrainState, TrainState]:
    """Initialises the state on the mesh.

    Args:
        config: the run's configuration; `config.seed` decides the initial parameters.
        model: the architecture.
        method: the method, which names the number of networks and its own state.
        optimizer: from `create_optimizer`.
        data_shape: sizes of the dataset.
        mesh: from `create_mesh`.
        round_index: every round of a method with several begins from other parameters.

    Returns:
        The state, and its partition specs as a `TrainState` of the same structure.
    """
    key = jax.random.key(config.seed)
    num_networks = method.num_networks
    params, batch_stats = init_networks(
        model, jax.random.fold_in(key, round_index), num_networks, data_shape.image_shape
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
                num_networks, data_shape.num_classes, data_shape.num_images
            ),
        )

    abstract = jax.eval_shape(init, key, params, batch_stats)
    # What has an axis of networks is spread over the mesh axis of that name.
    specs = jax.tree.map(lambda leaf: P(NETWORK_AXIS) if leaf.ndim else P(), abstract)
    specs = specs.replace(key=P())
    # Compiled, so that parameters and their average are two buffers: the step donates both.
    state = jax.jit(init, out_shardings=to_shardings(mesh, specs))(key, params, batch_stats)
    return state, specs
