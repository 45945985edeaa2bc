"""The type of a training method: data and one pure function.

The train step, the input stream and the loop know this type and none of its instances.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from cls_jax.batch import Batch
from cls_jax.models.ensemble import Ensemble

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Hyperparameter:
    """A value that a user may set as `--config.method.NAME=VALUE`.

    Attributes:
        default: its value unless the user sets another, which must be of the same type.
        low: the smallest number accepted.
        high: the largest number accepted.
        source: where the default comes from.
        choices: the words accepted, if it is a word.
    """

    default: float | int | str
    low: float = -math.inf
    high: float = math.inf
    source: str = ""
    choices: tuple[str, ...] = ()


def with_defaults(
    hyperparameters: Mapping[str, Hyperparameter], preset: Mapping[str, float | int | str]
) -> dict[str, Hyperparameter]:
    """The same hyperparameters, some with other defaults.

    Raises:
        KeyError: if the preset has one that is not among them.
    """
    return dict(hyperparameters) | {
        name: dataclasses.replace(hyperparameters[name], default=value, source="our choice")
        for name, value in preset.items()
    }


class Context(NamedTuple):
    """Inputs of a loss in addition to parameters and batch.

    Attributes:
        ensemble: forward passes and label exchange.
        hparams: the method's hyperparameters by name.
        ema_params: EMA parameters of all networks, stacked.
        method_state: the state that the method carries from step to step, stacked by network.
        key: random key of this step, the same on all devices: each draws the same masks,
            permutations and so on for its own shard of the batch.
        progress: float32 in [0, 1), step / num_steps.
    """

    ensemble: Ensemble
    hparams: Mapping[str, Any]
    ema_params: Any
    method_state: Any
    key: jax.Array
    progress: jax.Array


class LossOutput(NamedTuple):
    """The result of a loss, for N networks (those on this device).

    Attributes:
        losses: float32 [N], whose means over the devices that share the batch are the losses of the
            whole batch. A mean over all of this device's images qualifies. A mean over only those
            that pass a mask does not, because devices differ in how many pass: see `uda.tsa_loss`.
        batch_stats: BatchNorm statistics after the step.
        monitors: name → float32 scalar or [N], written as a mean over networks and devices.
        pseudo_labels: int32 [N, U], the networks' classes for the unlabeled images, or None.
        method_state: the state that the method carries to the next step.
    """

    losses: jax.Array
    batch_stats: Any
    monitors: dict[str, jax.Array]
    pseudo_labels: jax.Array | None = None
    method_state: Any = ()


class InitContext(NamedTuple):
    """Inputs of `Method.init_state`.

    Attributes:
        hparams: the method's hyperparameters by name.
        num_networks: N.
        num_classes: K.
        num_images: training images, which `Batch.u_index` counts.
        num_unlabeled: how many of them the unlabeled stream shows.
        class_frequencies: of the labeled set, K numbers that sum to 1.
    """

    hparams: Mapping[str, Any]
    num_networks: int
    num_classes: int
    num_images: int
    num_unlabeled: int
    class_frequencies: Sequence[float]


def no_state(init: InitContext) -> tuple[()]:
    """The `init_state` of a method that carries nothing from step to step."""
    return ()


@dataclasses.dataclass(frozen=True)
class Method:
    """One way to train.

    Attributes:
        compute_loss: (params, batch_stats, batch, context) → LossOutput; pure.
        hyperparameters: by name; they become `config.method.*`.
        num_networks: how many networks train side by side.
        mu: unlabeled images per labeled one.
        labeled_view: "weak" or "strong".
        unlabeled_views: each "weak" or "strong"; empty if the method ignores unlabeled images.
        init_state: `InitContext` → initial `method_state`, each leaf with a leading axis of
            networks.
        extra_heads: name and size of outputs in addition to the classes.
        select_labels: for a method of several rounds (`config.method.rounds`), whose state has a
            row per training image: (logits [passes, images, K], hyperparameters, round) → these
            images' rows for the next round. See `cls_jax.training.rounds`.
    """

    compute_loss: Callable[[Any, Any, Batch, Context], LossOutput]
    hyperparameters: Mapping[str, Hyperparameter] = dataclasses.field(default_factory=dict)
    num_networks: int = 1
    mu: int = 7
    labeled_view: str = "weak"
    unlabeled_views: tuple[str, ...] = ("weak", "strong")
    init_state: Callable[[InitContext], Any] = no_state
    extra_heads: tuple[tuple[str, int], ...] = ()
    select_labels: Callable[..., Any] | None = None
