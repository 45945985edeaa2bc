"""The type of a training method: the groups of images that it needs, and a loss on their logits.

The train step, the input stream and the loop depend on this type and on none of its instances.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch, DatasetSpec, PyTree
from cls_jax.methods.cutmix import cutmix
from cls_jax.models.ensemble import Ensemble
from cls_jax.models.layers import ALL_HEADS
from cls_jax.options import YES_OR_NO, Option, between, one_of

Hyperparameters = Mapping[str, Any]  # By name.


def hyperparameter(
    default: float | int | str | bool,
    low: float = -math.inf,
    high: float = math.inf,
    source: str = "",
    choices: tuple[str, ...] = (),
) -> Option:
    """A value that a user may set as `--config.method.NAME=VALUE`, of the type of its default.

    It is a number from `low` to `high`, or one of the words to choose from. `source` is the
    origin of the default.
    """
    rule = one_of(*choices) if choices else between(low, high)
    return Option(default, YES_OR_NO if isinstance(default, bool) else rule, "", source)


def move_means(means: PyTree, new: PyTree, share: jax.Array) -> PyTree:
    """Running means after new values: old + share · (new - old), for a share of 1 exactly the new.

    The weights of old and new add up to 1, as those of share and float32(1 - share) do not: for a
    share of 1e-4, the mean of a constant would settle at 0.99983 of it. And a mean that equals its
    new value, such as a frozen one, keeps its bits.
    """

    def move(old: jax.Array, new: jax.Array) -> jax.Array:
        return jnp.where(share == 1, new, old + share * (new - old))

    return jax.tree.map(move, means, new)


class Context(NamedTuple):
    """Inputs of a loss in addition to logits and batch."""

    ensemble: Ensemble  # Forward passes.
    hparams: Hyperparameters
    ema_params: PyTree  # EMA parameters of all networks, stacked.
    method_state: PyTree  # The method's state, stacked by network.
    # Random key of this step, the same on all devices, which therefore draw the same masks,
    # permutations and so on for their shards of the batch.
    key: jax.Array
    progress: jax.Array  # float32 in [0, 1), step / num_steps.
    # By which the method's running means move, see `Schedule.mean_share`. A float32 scalar.
    mean_share: jax.Array
    part: jax.Array | int = 0  # int32 scalar, index of a part of the batch, see `accumulate_steps`.

    def move_mean(self, mean: jax.Array, value: jax.Array) -> jax.Array:
        """A running mean of the method after a part of a step, see `move_means`.

        The decay of a whole step is the hyperparameter `statistics_decay` or `class_mean_decay`.
        """
        moved: jax.Array = move_means(mean, value, self.mean_share)
        return moved

    def ramp_up(self, length: float) -> jax.Array:
        """Rises linearly from 0 to 1 over the first `length` of the run, then stays. float32."""
        return jnp.clip(self.progress / length, 0.0, 1.0)


class LossOutput(NamedTuple):
    """The result of a loss, for N networks (those on this device)."""

    # float32 [N]. The mean over the devices that share the batch must be the loss of the whole
    # batch. This holds for a mean over all of this device's images. For a mean over those that pass
    # a mask, use `collectives.masked_mean`.
    losses: jax.Array
    # float32 scalars or [N]. Means over networks and devices are written.
    monitors: dict[str, jax.Array]
    pseudo_labels: jax.Array | None = None  # int32 [N, U], classes of the unlabeled images.
    method_state: PyTree = ()  # The method's state after the step.


def add_up(
    loss_supervised: jax.Array,
    terms: Mapping[str, tuple[jax.Array, jax.Array]],
    monitors: Mapping[str, jax.Array],
    pseudo_labels: jax.Array,
    method_state: PyTree = (),
) -> LossOutput:
    """L = L_sup + Σ weight · loss over terms, (weight, loss [N]) by name, and monitors of each."""
    losses = loss_supervised
    parts = {"train/loss_supervised": loss_supervised}
    for name, (weight, loss) in terms.items():
        losses += weight * loss
        parts[f"train/loss_{name}"] = loss
    return LossOutput(losses, {**parts, **monitors}, pseudo_labels, method_state)


@dataclasses.dataclass(frozen=True)
class Method:
    """A training method: groups of images for the networks, and a loss on their logits.

    The groups are the labeled images, each unlabeled view and, if requested, a CutMix of the first
    view. They pass jointly: BatchNorm normalizes them by their joint statistics.
    """

    # Pure function (logits, batch, context) → `LossOutput`. The logits are a list, float32
    # [N, images, K] for each group.
    loss: Callable[[list[jax.Array], Batch, Context], LossOutput] | None = None
    # Hyperparameters by name, which become `config.method.*`.
    hyperparameters: Mapping[str, Option] = dataclasses.field(default_factory=dict)
    num_networks: int = 1
    mu: int = 7  # Unlabeled images per labeled one.
    labeled_view: str = "weak"  # Or "strong".
    unlabeled_views: tuple[str, ...] = ("weak", "strong")  # Empty: it ignores unlabeled images.
    # Index of the view whose logits are targets, constants in the loss. If views pass jointly, such
    # a method has the hyperparameter `weak_pass`: "fast" leaves this view out of BatchNorm's
    # statistics, and so out of the gradient. Without batch statistics (BatchNorm frozen or absent)
    # that changes nothing and is always done.
    target_view: int | None = None
    # How the groups pass through the networks. "joint": in one pass. "separate": each with its own
    # statistics, and only the labeled images update the running ones (TorchSSL). "teacher": the
    # same, and the EMA networks predict the target view.
    passes: str = "joint"
    # Whether to add a group of mixed images, `Batch.mix`.
    wants_cutmix: Callable[[Hyperparameters], bool] = lambda hparams: False
    # Replaces `loss` in a method that needs predictions before it can form its groups. Same
    # arguments and results as `forward_and_loss`.
    drive: Callable[[PyTree, PyTree, Batch, Context], tuple[LossOutput, PyTree]] | None = None
    # Every network's initial `method_state`. Tables have a row per training image.
    create_state: Callable[[Hyperparameters, DatasetSpec], PyTree] = lambda hparams, spec: ()
    # (name, size) of additional heads. The loss gets the logits of all heads side by side.
    extra_heads: tuple[tuple[str, int], ...] = ()
    # For a method that trains in `rounds` (a hyperparameter), each of which starts from new
    # networks: (logits [passes, images, K] with dropout, hyperparameters, round) → these images'
    # rows of the method's state for the next round. See `cls_jax.training.rounds`.
    select_labels: Callable[..., PyTree] | None = None

    def forward_and_loss(
        self, params: PyTree, batch_stats: PyTree, batch: Batch, context: Context
    ) -> tuple[LossOutput, PyTree]:
        """Runs the networks and computes their losses. A pure function.

        Parameters and BatchNorm statistics belong to the networks on this device, each leaf
        [N, ...], and the batch is this device's shard. Returns the losses, and the BatchNorm
        statistics toward which the running ones move.
        """
        if self.drive is not None:
            return self.drive(params, batch_stats, batch, context)
        assert self.loss is not None, "a method has a loss or drives the networks itself"
        if self.wants_cutmix(context.hparams):
            batch = batch._replace(mix=cutmix(context.key, batch.u[0], batch.u_index))
        logits, batch_stats = self._forward_groups(params, batch_stats, batch, context)
        return self.loss(logits, batch, context), batch_stats

    def _forward_groups(
        self, params: PyTree, batch_stats: PyTree, batch: Batch, context: Context
    ) -> tuple[list[jax.Array], PyTree]:
        """Logits of every group, and the BatchNorm statistics of the pass."""
        ensemble = context.ensemble
        head = ALL_HEADS if self.extra_heads else "head"
        groups = [batch.x, *(batch.u[i] for i in range(len(self.unlabeled_views)))]
        if batch.mix is not None:
            groups.append(batch.mix.images)
        target = None if self.target_view is None else 1 + self.target_view
        if self.passes != "joint":
            teacher = context.ema_params if self.passes == "teacher" else params
            forward = functools.partial(ensemble.forward, train=True, head=head)
            passes = [
                forward(teacher if i == target else params, batch_stats, images)
                for i, images in enumerate(groups)
            ]
            logits = [group_logits for group_logits, _ in passes]
            batch_stats = passes[0][1]  # The unlabeled images' running statistics are dropped.
        elif target is not None and (
            context.hparams.get("weak_pass") == "fast"
            or not jax.tree.leaves(batch_stats)
            or ensemble.model.bn_frozen
        ):
            images = groups.pop(target)
            logits, logits_target, batch_stats = ensemble.forward_with_frozen_group(
                params, batch_stats, groups, images, head
            )
            logits.insert(target, logits_target)
        else:
            logits, batch_stats = ensemble.forward_concatenated(params, batch_stats, groups, head)
        if target is not None:
            logits[target] = jax.lax.stop_gradient(logits[target])
        return logits, batch_stats
