"""Everything that a run carries from step to step, as one pytree."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from cls_jax.networks import NETWORK_AXIS, init_networks, to_shardings

PyTree = Any


class TrainState(flax.struct.PyTreeNode):
    """The state after `step` steps. Leaves of the first four carry an axis of N networks.

    Attributes:
        step: int32 scalar.
        params: float32.
        batch_stats: BatchNorm's running mean and variance, float32. The averaged networks use
            these too, not averages of them (authors' code).
        ema_params: exponential moving average of `params`, float32.
        opt_state: momentum, and the schedule's step count.
        method_state: what the method carries, () for most.
    """

    step: jax.Array
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
    schedule = create_learning_rate_schedule(
        optimizer.learning_rate, config.num_steps, optimizer.cosine_cycles
    )
    return optax.chain(
        optax.add_decayed_weights(optimizer.weight_decay, mask=_is_kernel),
        optax.sgd(schedule, momentum=optimizer.momentum, nesterov=True),
    )


def _is_kernel(params: PyTree) -> PyTree:
    # By name: a stacked bias has as many dimensions as a kernel has without its networks.
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)


def create_train_state(config, model, method, optimizer, num_classes, image_shape, mesh: Mesh):
    """Initialises the state on the mesh.

    Args:
        config: the run's configuration; `config.seed` decides the initial parameters.
        model: the architecture.
        method: the method, which names the number of networks and its own state.
        optimizer: from `create_optimizer`.
        num_classes: K.
        image_shape: (H, W, C).
        mesh: from `create_mesh`.

    Returns:
        The state, and its partition specs as a `TrainState` of the same structure.
    """
    params, batch_stats = init_networks(
        model, jax.random.key(config.seed), method.num_networks, image_shape
    )

    def init(params, batch_stats) -> TrainState:
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            batch_stats=batch_stats,
            ema_params=params,
            opt_state=optimizer.init(params),
            method_state=method.init_state(num_classes),
        )

    specs = get_partition_specs(jax.eval_shape(init, params, batch_stats))
    # Compiled, so that parameters and their average are two buffers: the step donates both.
    return jax.jit(init, out_shardings=to_shardings(mesh, specs))(params, batch_stats), specs


def get_partition_specs(state: TrainState) -> TrainState:
    """Spreads everything with an axis of networks over the mesh axis "network"."""

    def stacked(tree):
        return jax.tree.map(lambda leaf: P(NETWORK_AXIS) if leaf.ndim else P(), tree)

    def replicated(tree):
        return jax.tree.map(lambda leaf: P(), tree)

    return TrainState(
        step=P(),
        params=stacked(state.params),
        batch_stats=stacked(state.batch_stats),
        ema_params=stacked(state.ema_params),
        opt_state=stacked(state.opt_state),
        method_state=replicated(state.method_state),
    )
