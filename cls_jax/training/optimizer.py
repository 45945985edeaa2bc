"""The update rule: SGD or AdamW, the schedule, weight decay on kernels, and rates per layer.

Everything is elementwise, so it acts on stacked networks as on one. What is not, such as clipping
by a global norm, would let networks influence each other.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from cls_jax.errors import UserError
from cls_jax.methods import get_round_length
from cls_jax.models.layer_order import Layer, order_layers
from cls_jax.models.layers import Architecture

PyTree = Any


def create_learning_rate_schedule(
    learning_rate: float, num_steps: int, cycles: float, warmup_steps: int = 0, start: int = 0
) -> optax.Schedule:
    """learning_rate · cos(π · cycles · k / K) at step k of K; FixMatch has 7/16 and no warm-up.

    With a warm-up of W steps the cosine begins at step W and spans K - W steps, as in USB, and the
    rate rises linearly from 0 at step `start` to the cosine's value at step `start` + W.
    """

    def schedule(step: jax.Array) -> jax.Array:
        if not warmup_steps:
            return learning_rate * jnp.cos(jnp.pi * cycles * step / num_steps)
        progress = jnp.maximum(step - warmup_steps, 0) / (num_steps - warmup_steps)
        rise = jnp.clip((step - start) / warmup_steps, 0, 1)
        return rise * learning_rate * jnp.cos(jnp.pi * cycles * progress)

    return schedule


def create_optimizer(config: ConfigDict, model: Architecture) -> optax.GradientTransformation:
    """The update rule of `config.optimizer` for this architecture's parameters.

    SGD is PyTorch's with Nesterov momentum, as in the authors' code: weight decay is added to the
    gradient before the momentum. AdamW is Loshchilov & Hutter's (2019) in PyTorch's form: decay is
    added after, and scaled by the learning rate. Either way kernels alone decay.
    """
    optimizer = config.optimizer
    decay = optax.add_decayed_weights(optimizer.weight_decay, mask=_is_kernel)
    rates = scale_by_layer_rates(config, model)
    if optimizer.name == "adamw":
        adam = optax.scale_by_adam(optimizer.beta1, optimizer.beta2, optimizer.epsilon)
        return optax.chain(adam, decay, rates)
    # Nested like `optax.sgd`, whose state older checkpoints hold.
    momentum = optax.trace(optimizer.momentum, nesterov=True)
    return optax.chain(decay, optax.chain(momentum, rates))


def scale_by_layer_rates(config: ConfigDict, model: Architecture) -> optax.GradientTransformation:
    """`optax.scale_by_learning_rate` with a rate for each layer; its state is the step count.

    A layer's rate is the schedule times `layer_decay` to the power of the layers between it and the
    head. Other layers than the head wait for `head_steps`, and begin with a warm-up of their own.
    """
    settings = config.optimizer
    # Each round trains new networks from a new optimizer state, so its schedule starts over.
    num_steps = get_round_length(config)

    def create_schedule(learning_rate: float, start: int) -> optax.Schedule:
        return create_learning_rate_schedule(
            learning_rate, num_steps, settings.cosine_cycles, settings.warmup_steps, start
        )

    head = create_schedule(settings.head_learning_rate or settings.learning_rate, start=0)
    others = create_schedule(settings.learning_rate, start=settings.head_steps)

    def update(
        updates: PyTree, state: optax.ScaleByScheduleState, params: PyTree = None
    ) -> tuple[PyTree, optax.ScaleByScheduleState]:
        """Each leaf times its layer's negative rate; the interface is optax's."""
        step = state.count
        head_rate, rate = head(step), others(step)
        if settings.head_steps:
            rate = jnp.where(step < settings.head_steps, 0.0, rate)
        layers = _get_layers(updates, model)
        head_position = max(layer.position for layer in layers.values())

        def scale(path: Any, leaf: jax.Array) -> jax.Array:
            layer = layers[path[0].key]
            if _is_frozen(layer, settings.frozen_stages):
                return jnp.zeros_like(leaf)
            if layer.position == head_position:
                return -head_rate * leaf
            return -rate * settings.layer_decay ** (head_position - layer.position) * leaf

        count = optax.safe_increment(step)
        return jax.tree_util.tree_map_with_path(scale, updates), optax.ScaleByScheduleState(count)

    def init(params: PyTree) -> optax.ScaleByScheduleState:
        _check_stages(_get_layers(params, model), settings.frozen_stages)
        return optax.ScaleByScheduleState(jnp.zeros((), jnp.int32))

    return optax.GradientTransformation(init, update)


def create_freeze(config: ConfigDict, model: Architecture) -> Callable[[PyTree], PyTree]:
    """Parameters → the same, without a gradient where `optimizer.frozen_stages` says so.

    XLA then leaves out their part of the backward pass: frozen stages save time. Parameters that
    merely wait for `head_steps` keep their gradients, from which their momentum is estimated.
    """

    def freeze(params: PyTree) -> PyTree:
        layers = _get_layers(params, model)
        return {
            name: jax.lax.stop_gradient(leaves)
            if _is_frozen(layers[name], config.optimizer.frozen_stages)
            else leaves
            for name, leaves in params.items()
        }

    return freeze


def _get_layers(params: PyTree, model: Architecture) -> dict[str, Layer]:
    return order_layers(params, model.stem_names, model.head_names)


def _is_frozen(layer: Layer, frozen_stages: int) -> bool:
    return frozen_stages > 0 and layer.stage is not None and layer.stage <= frozen_stages


def _check_stages(layers: dict[str, Layer], frozen_stages: int) -> None:
    """Raises a UserError if there are fewer stages than are to be frozen."""
    num_stages = max(layer.stage or 0 for layer in layers.values())
    if frozen_stages > num_stages:
        raise UserError(
            f"optimizer.frozen_stages={frozen_stages} is more than the network has: choose at most "
            f"{num_stages}."
        )


def _is_kernel(params: PyTree) -> PyTree:
    # By name, not by rank: the axis of networks gives a stacked bias the rank of a dense kernel.
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)
