"""The type of a training method: which groups of images it wants, and a loss on their logits.

The train step, the input stream and the loop know this type but none of its instances.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch
from cls_jax.data.sampling import stream_key
from cls_jax.methods import balanced_head
from cls_jax.methods.cutmix import cutmix
from cls_jax.methods.losses import PseudoLabels, compute_labeling_loss
from cls_jax.models.ensemble import Ensemble
from cls_jax.models.layers import ALL_HEADS

PyTree = Any
Hyperparameters = Mapping[str, Any]  # By name.


@dataclasses.dataclass(frozen=True)
class Hyperparameter:
    """A value that a user may set as `--config.method.NAME=VALUE`, of the type of its default."""

    default: float | int | str | bool
    low: float = -math.inf  # The smallest and the largest number accepted.
    high: float = math.inf
    source: str = ""  # Where the default comes from.
    choices: tuple[str, ...] = ()  # The words accepted, if it is a word.


# How a method's target view passes through the networks: see `Method.target_view`.
WEAK_PASS = Hyperparameter("joint", source="authors' code", choices=("joint", "fast"))
# Weight of the labels that spread along a graph of similar images, see `Method.compute_loss`.
GRAPH = Hyperparameter(0.0, 0.0, 1e3, "0: not in the papers")
# Whether a second classifier predicts, which learns from equally many labels of each class.
OPTION_STATES = ("shares", "graph")  # What these two add to a method's state.
BALANCED_HEAD = Hyperparameter(False, 0, 1, "False: not in the methods' papers")


class Context(NamedTuple):
    """Inputs of a loss in addition to logits and batch."""

    ensemble: Ensemble  # Forward passes and label exchange.
    hparams: Hyperparameters
    ema_params: PyTree  # EMA parameters of all networks, stacked.
    method_state: PyTree  # What the method carries from step to step, stacked by network.
    # Random key of this step, the same on all devices: each draws the same masks, permutations and
    # so on for its own shard of the batch.
    key: jax.Array
    progress: jax.Array  # float32 in [0, 1), step / num_steps.

    def ramp_up(self, length: float) -> jax.Array:
        """Rises linearly from 0 to 1 over the first `length` of the run, then stays. float32."""
        return jnp.clip(self.progress / length, 0.0, 1.0)


class LossOutput(NamedTuple):
    """The result of a loss, for N networks (those on this device)."""

    # float32 [N], whose means over the devices that share the batch are the losses of the whole
    # batch. A mean over all of this device's images qualifies. For a mean over those that pass a
    # mask, of which devices have different numbers, use `Ensemble.masked_mean`.
    losses: jax.Array
    # float32 scalars or [N], of which means over networks and devices are written.
    monitors: dict[str, jax.Array]
    pseudo_labels: jax.Array | None = None  # int32 [N, U], classes of the unlabeled images.
    method_state: PyTree = ()  # What the method carries to the next step.


def add_up(
    loss_supervised: jax.Array,
    terms: Mapping[str, tuple[jax.Array, jax.Array]],
    monitors: Mapping[str, jax.Array],
    pseudo_labels: jax.Array,
    method_state: PyTree = (),
) -> LossOutput:
    """L = L_sup + Σ weight · loss over terms, (weight, loss [N]) by name, and monitors of each."""
    losses, parts = loss_supervised, {"train/loss_supervised": loss_supervised}
    for name, (weight, loss) in terms.items():
        losses += weight * loss
        parts[f"train/loss_{name}"] = loss
    return LossOutput(losses, {**parts, **monitors}, pseudo_labels, method_state)


class InitContext(NamedTuple):
    """Inputs of `Method.init_state`."""

    hparams: Hyperparameters
    num_networks: int  # N.
    num_classes: int  # K.
    num_images: int  # Training images, which `Batch.u_index` counts.
    num_unlabeled: int  # How many of them the unlabeled stream shows.
    class_frequencies: Sequence[float]  # Shares of the K classes in the labeled set.


@dataclasses.dataclass(frozen=True)
class Rounds:
    """How a method trains in rounds, each of which starts from new networks."""

    count: Callable[[Hyperparameters], int]
    num_passes: Callable[[Hyperparameters], int]  # With dropout, over each image after a round.
    # (logits [passes, images, K], hyperparameters, round) → these images' rows of the method's
    # state for the next round. See `cls_jax.training.rounds`.
    select_labels: Callable[..., PyTree]


@dataclasses.dataclass(frozen=True)
class Method:
    """One way to train: groups of images for the networks, and a loss on their logits.

    The groups are the labeled images, each unlabeled view and, if wanted, a CutMix of the first
    view. They pass jointly: BatchNorm normalizes them by their joint statistics.
    """

    # Pure function (logits, batch, context) → `LossOutput`. The logits are a list, float32
    # [N, images, K] for each group.
    loss: Callable[[list[jax.Array], Batch, Context], LossOutput] | None = None
    # What a user may set, by name. They become `config.method.*`.
    hyperparameters: Mapping[str, Hyperparameter] = dataclasses.field(default_factory=dict)
    num_networks: int = 1
    mu: int = 7  # Unlabeled images per labeled one.
    labeled_view: str = "weak"  # Or "strong".
    unlabeled_views: tuple[str, ...] = ("weak", "strong")  # Empty: it ignores unlabeled images.
    # Index of the view whose logits are targets, constants in the loss. Where views pass jointly,
    # such a method has the hyperparameter `weak_pass`: "fast" leaves this view out of BatchNorm's
    # statistics, and so out of the gradient. Without batch statistics (BatchNorm frozen or absent)
    # that changes nothing, so it is always done.
    target_view: int | None = None
    is_ema_teacher: bool = False  # The EMA networks predict the target view, in separate passes.
    # Whether each group is a forward pass of its own, with its own statistics. Only the labeled
    # images then update the running ones (TorchSSL).
    separate_passes: bool = False
    # Whether there is a group of mixed images, `Batch.mix`.
    wants_cutmix: Callable[[Hyperparameters], bool] = lambda hparams: False
    # What replaces `loss` in a method that needs predictions before it can make its groups. The
    # same arguments and results as `compute_loss`.
    drive: Callable[[PyTree, PyTree, Batch, Context], tuple[LossOutput, PyTree]] | None = None
    # The first `method_state`, each leaf with a leading axis of networks.
    init_state: Callable[[InitContext], PyTree] = lambda init: ()
    # (name, size) of the networks' outputs in addition to the classes.
    extra_heads: tuple[tuple[str, int], ...] = ()
    # Share of activations dropped where dropout is asked for.
    dropout_rate: Callable[[Hyperparameters], float] = lambda hparams: 0.0
    # How it trains in several rounds. Its state then has a row per training image.
    rounds: Rounds | None = None

    def __post_init__(self) -> None:
        hyperparameters = dict(self.hyperparameters)
        if self.target_view is not None and not self.separate_passes:
            hyperparameters["weak_pass"] = WEAK_PASS
        if self.loss is not None and "strong" in self.unlabeled_views:
            hyperparameters["graph"] = GRAPH
            if "weak" in self.unlabeled_views:
                hyperparameters["balanced_head"] = BALANCED_HEAD
        object.__setattr__(self, "hyperparameters", hyperparameters)

    def create_state(self, init: InitContext) -> PyTree:
        """The state before the first step: the method's own and what the two options below add.

        With a balanced head "shares", float32 [N, K], of the classes that it sees. With a graph
        "graph", its labels, `PseudoLabels` of arrays [N, num_images], which are zeros until
        training, which knows the images, replaces them. Both are the same for all networks, but the
        state is stacked by network.
        """
        own, added = self.init_state(init), dict[str, Any]()
        if init.hparams.get("balanced_head"):
            shares = balanced_head.compute_shares(init.class_frequencies)
            added["shares"] = jnp.broadcast_to(shares, (init.num_networks, *shares.shape))
        if init.hparams.get("graph"):
            shape = init.num_networks, init.num_images
            classes, weights = jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32)
            added["graph"] = PseudoLabels(classes, classes, weights, weights)
        return {**dict(own), **added} if added else own

    def get_extra_heads(
        self, hparams: Hyperparameters, num_classes: int
    ) -> tuple[tuple[str, int], ...]:
        """Names and sizes of the networks' outputs in addition to the classes."""
        has_balanced = hparams.get("balanced_head")
        return ((balanced_head.METHOD_HEAD, num_classes),) if has_balanced else self.extra_heads

    def compute_loss(
        self, params: PyTree, batch_stats: PyTree, batch: Batch, context: Context
    ) -> tuple[LossOutput, PyTree]:
        """Runs the networks and computes their losses. A pure function.

        With the hyperparameter `graph` > 0, labels that were propagated along a graph of similar
        images are one more target of the strong views: to the loss is added
        graph · (1 - progress) · mean(w · (L_P + L_N)), CLS's losses by labels that stay the same.

        With the hyperparameter `balanced_head`, all of that is a loss on the outputs of another
        head, and the networks' own head learns by ABC's loss (`cls_jax.methods.balanced_head`), for
        which a weak view labels a strong one. Neither key belongs to methods that drive the
        networks themselves, which may show them only mixtures.

        Parameters and BatchNorm statistics belong to the networks on this device, each leaf
        [N, ...], and the batch is this device's shard. Returns the losses, and the BatchNorm
        statistics after the pass.
        """
        if self.drive is not None:
            return self.drive(params, batch_stats, batch, context)
        assert self.loss is not None, "a method has a loss or drives the networks itself"
        if self.wants_cutmix(context.hparams):
            batch = batch._replace(mix=cutmix(context.key, batch.u[0], batch.u_index))
        graph_weight, state = context.hparams.get("graph", 0.0), context.method_state
        added = {name: state[name] for name in OPTION_STATES if name in state}
        if added:
            own = {name: value for name, value in state.items() if name not in added}
            context = context._replace(method_state=own)
        logits, batch_stats = self._forward_groups(params, batch_stats, batch, context)
        if context.hparams.get("balanced_head"):
            output, logits = self._add_balanced_head(logits, batch, context, added["shares"])
        else:
            output = self.loss(logits, batch, context)
        if graph_weight:
            labels = jax.tree.map(lambda leaf: leaf[:, batch.u_index], added["graph"])
            strong = logits[1 + self.unlabeled_views.index("strong")]
            loss = compute_labeling_loss(strong, labels, labels.weight, negative=True)
            output = output._replace(
                losses=output.losses + graph_weight * (1 - context.progress) * loss,
                monitors={**output.monitors, "train/loss_graph": loss},
            )
        if added:
            output = output._replace(method_state={**dict(output.method_state), **added})
        return output, batch_stats

    def _add_balanced_head(
        self, logits: list[jax.Array], batch: Batch, context: Context, shares: jax.Array
    ) -> tuple[LossOutput, list[jax.Array]]:
        """The losses of both heads, from their logits [N, images, 2 K], and the method's logits."""
        assert self.loss is not None, "a method that drives the networks has no balanced head"
        halves = [jnp.split(group, 2, axis=-1) for group in logits]
        balanced, logits = [half[0] for half in halves], [half[1] for half in halves]
        output = self.loss(logits, batch, context)
        weak, strong = (balanced[1 + self.unlabeled_views.index(v)] for v in ("weak", "strong"))
        draws = [
            context.ensemble.draw_uniform(stream_key(context.key, "balanced_head", i), num_images)
            for i, num_images in enumerate((batch.y.size, batch.u_index.size))
        ]
        groups = balanced[0], weak, strong
        loss = balanced_head.compute_loss(groups, batch.y, shares, draws, context.progress)
        output = output._replace(
            losses=output.losses + loss,
            monitors={**output.monitors, "train/loss_balanced": loss},
        )
        return output, logits

    def _forward_groups(
        self, params: PyTree, batch_stats: PyTree, batch: Batch, context: Context
    ) -> tuple[list[jax.Array], PyTree]:
        """Logits of every group, and the BatchNorm statistics after the pass."""
        ensemble, hparams = context.ensemble, context.hparams
        head = ALL_HEADS if hparams.get("balanced_head") else "head"
        groups = [batch.x, *(batch.u[i] for i in range(len(self.unlabeled_views)))]
        if batch.mix is not None:
            groups.append(batch.mix.images)
        target = None if self.target_view is None else 1 + self.target_view
        if self.separate_passes:
            teacher = context.ema_params if self.is_ema_teacher else params
            forward = functools.partial(ensemble.forward, train=True, head=head)
            passes = [
                forward(teacher if i == target else params, batch_stats, images)
                for i, images in enumerate(groups)
            ]
            # Running statistics of the unlabeled images' passes are dropped.
            logits, batch_stats = [logits for logits, _ in passes], passes[0][1]
        elif target is not None and (
            hparams["weak_pass"] == "fast" or not ensemble.has_batch_statistics(batch_stats)
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
