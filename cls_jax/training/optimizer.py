"""The update rule: SGD or AdamW, the schedule, weight decay on kernels, and rates per layer.

Updates are elementwise, so stacked networks do not affect each other. Layers are recognized by
name.

For fine-tuning, early layers of a pretrained network should change less than the last ones, or not
at all. The rate of layer l at step k of K is

    learning_rate · layer_decay^(L - l) · rise · cos(π · cosine_cycles · max(0, k - W) / (K - W))

with L the number of the head, W `warmup_steps`, and rise = clip((k - s) / W, 0, 1), or 1 if W is 0.
s is 0 for the head and `head_steps` for all other layers, which do not change before step s. The
head has `head_learning_rate` instead of `learning_rate` if it is set.
"""

import functools
import re
from collections.abc import Collection
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from cls_jax.batch import Leaf, PyTree
from cls_jax.errors import UserError
from cls_jax.methods import get_round_length
from cls_jax.models.layers import Architecture
from cls_jax.training.schedule import Schedule

# "stage2_block1", or "block7" of an architecture without stages.
_BLOCK = re.compile(r"(?:stage(\d+)_)?block(\d+)")


def compute_learning_rate(
    step: Leaf,
    learning_rate: float,
    num_steps: Leaf,
    cycles: float,
    warmup_steps: Leaf = 0,
    start: int = 0,
    xp: ModuleType = jnp,
) -> jax.Array:
    """learning_rate · cos(π · cycles · k / K) at step k of K. FixMatch has 7/16 and no warm-up.

    With a warm-up of W steps the cosine begins at step W and spans K - W steps, as in USB, and the
    rate rises linearly from 0 at step `start` to the cosine's value at step `start` + W. `xp` is
    `jax.numpy` or `numpy`.
    """
    progress = xp.maximum(step - warmup_steps, 0) / (num_steps - warmup_steps)
    rise = xp.clip((step - start) / xp.maximum(warmup_steps, 1), 0, 1)
    rise = xp.where(warmup_steps > 0, rise, 1.0)
    rate: jax.Array = rise * learning_rate * xp.cos(xp.pi * cycles * progress)
    return rate


def get_learning_rate(config: ConfigDict, step: int) -> float:
    """The rate of a step for all layers but the head, without `layer_decay`."""
    settings, length = config.optimizer, get_round_length(config)
    step %= length  # Each round's schedule starts over.
    if step < settings.head_steps:
        return 0.0
    rate = compute_learning_rate(
        step,
        settings.learning_rate,
        num_steps=length,
        cycles=settings.cosine_cycles,
        warmup_steps=settings.warmup_steps,
        start=settings.head_steps,
        xp=np,
    )
    return float(rate)


def create_optimizer(
    config: ConfigDict, model: Architecture
) -> optax.GradientTransformationExtraArgs:
    """The update rule of `config.optimizer` for this architecture's parameters.

    SGD is PyTorch's with Nesterov momentum, as in the authors' code: weight decay is added to the
    gradient before the momentum. AdamW is Loshchilov & Hutter's (2019) in PyTorch's form: decay is
    added after, and scaled by the learning rate. Either way, only kernels decay.

    `init` takes all parameters, `update` those that `split_frozen` calls trained, and as `schedule`
    a `Schedule` whose steps count from the start of a round.
    """
    optimizer = config.optimizer
    decay = optax.add_decayed_weights(optimizer.weight_decay, mask=_is_kernel)
    rates = scale_by_layer_rates(config, model)
    if optimizer.name == "adamw":
        rule = optax.chain(optax.scale_by_adam(), decay, rates)
    else:  # Nested like `optax.sgd`, for older checkpoints.
        momentum = optax.trace(optimizer.momentum, nesterov=True)
        rule = optax.chain(decay, optax.chain(momentum, rates))

    def init(params: PyTree) -> PyTree:
        trained, _ = split_frozen(params, optimizer.frozen_stages, model)
        return rule.init(trained)

    return optax.GradientTransformationExtraArgs(init, rule.update)


def scale_by_layer_rates(
    config: ConfigDict, model: Architecture
) -> optax.GradientTransformationExtraArgs:
    """`optax.scale_by_learning_rate` with a rate for each layer. Its state is the step count.

    The formula is at the top of this file. Layers that wait have their own warm-up.
    """
    settings = config.optimizer

    def update(
        updates: PyTree,
        state: optax.ScaleByScheduleState,
        params: PyTree = None,
        *,
        schedule: Schedule,
    ) -> tuple[PyTree, optax.ScaleByScheduleState]:
        """Each leaf times its layer's negative rate. The interface is optax's."""
        step = state.count  # Each round starts from a new optimizer state, so it starts over.
        compute = functools.partial(
            compute_learning_rate,
            step,
            num_steps=schedule.round_length,
            cycles=settings.cosine_cycles,
            warmup_steps=schedule.warmup_steps,
        )
        head_rate = compute(settings.head_learning_rate or settings.learning_rate)
        rate = compute(settings.learning_rate, start=settings.head_steps)
        if settings.head_steps:
            rate = jnp.where(step < settings.head_steps, 0.0, rate)
        positions, _ = order_layers(updates, model.stem_names, model.head_names)
        head_position = max(positions.values())

        def scale(path: tuple[jax.tree_util.DictKey, ...], leaf: jax.Array) -> jax.Array:
            distance = head_position - positions[path[0].key]
            if distance == 0:
                scaled: jax.Array = -head_rate * leaf
            else:
                scaled = -rate * settings.layer_decay**distance * leaf
            return scaled

        count = optax.safe_increment(step)
        return jax.tree_util.tree_map_with_path(scale, updates), optax.ScaleByScheduleState(count)

    def init(params: PyTree) -> optax.ScaleByScheduleState:
        return optax.ScaleByScheduleState(jnp.zeros((), jnp.int32))

    return optax.GradientTransformationExtraArgs(init, update)


def split_frozen(
    params: dict[str, PyTree], frozen_stages: int, model: Architecture
) -> tuple[dict[str, PyTree], dict[str, PyTree]]:
    """Splits parameters into trained ones and those frozen by `optimizer.frozen_stages`.

    Only trained ones have gradients, optimizer state and a moving average. They include parameters
    that wait for `head_steps`, whose momentum is estimated from the start. Raises a UserError if
    there are fewer stages than `optimizer.frozen_stages`.
    """
    _, stages = order_layers(params, model.stem_names, model.head_names)
    num_stages = max(stages.values(), default=0)
    if frozen_stages > num_stages:
        raise UserError(
            f"optimizer.frozen_stages={frozen_stages} is more than the network has: choose at most "
            f"{num_stages}."
        )
    # With 0, not even the stem is frozen, which is stage 0.
    chosen = range(frozen_stages + 1 if frozen_stages else 0)
    frozen = {name: leaves for name, leaves in params.items() if stages.get(name) in chosen}
    return {name: leaves for name, leaves in params.items() if name not in frozen}, frozen


def order_layers(
    names: Collection[str], stem: Collection[str], heads: Collection[str]
) -> tuple[dict[str, int], dict[str, int]]:
    """The layers of an architecture, counted as timm does (its `group_matcher`), by name.

    The names are the modules' directly below the network. The stem's modules come before the first
    block, and the heads compute the logits. Any other module, such as a last normalization, belongs
    to the last block's layer.

    Returns the positions, 0 for the stem, then one number per residual or transformer block, the
    largest for the heads. And the stages, 0 for the stem, then the number of the stage, or of the
    block where there are no stages. Heads, and what lies between them and the last block, are in
    none.
    """
    places: dict[str, tuple[int, int]] = {}  # Stage and block. Without stages, each block is one.
    for name in names:
        if match := _BLOCK.fullmatch(name):
            stage, block = match.groups()
            places[name] = int(stage or block), int(block)
    blocks = sorted(set(places.values()))
    numbers = sorted({stage for stage, _ in blocks})
    positions = dict.fromkeys(names, len(blocks))
    stages: dict[str, int] = {}
    for name in names:
        if name in stem:
            positions[name] = stages[name] = 0
        elif name in heads:
            positions[name] = len(blocks) + 1
        elif place := places.get(name):
            positions[name] = blocks.index(place) + 1
            stages[name] = numbers.index(place[0]) + 1
    return positions, stages


def _is_kernel(params: PyTree) -> PyTree:
    # By name, not by rank: a stacked bias has the rank of a dense kernel.
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)
