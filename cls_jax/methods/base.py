"""What a training method is: a row of the paper's Table 1.

A method is data and one pure function. The train step, the input stream and the loop know this
type and none of its instances.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from cls_jax.batch import Batch
from cls_jax.models.ensemble import Ensemble

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Hyperparameter:
    """A value that a user may set as `--config.method.NAME=VALUE`.

    Attributes:
        default: its value if the user sets none; its type is the type that is accepted.
        low: of the closed interval of numbers that make sense.
        high: likewise.
        source: where the default comes from.
        choices: of a word, the words that are known.
    """

    default: float | int | str
    low: float = -math.inf
    high: float = math.inf
    source: str = ""
    choices: tuple[str, ...] = ()


class Context(NamedTuple):
    """What a loss may need beside parameters and batch.

    Attributes:
        ensemble: forward passes and label exchange.
        hparams: the method's hyper-parameters by name.
        ema_params: averaged parameters of all networks.
        method_state: what the method carries from step to step, stacked by network.
        key: random key of this step.
        progress: float32 in [0, 1), step / num_steps.
    """

    ensemble: Ensemble
    hparams: Mapping[str, Any]
    ema_params: Any
    method_state: Any
    key: jax.Array
    progress: jax.Array


class LossOutput(NamedTuple):
    """What a loss gives back. N networks (those on this device).

    Attributes:
        losses: float32 [N], each the mean over this device's images.
        batch_stats: BatchNorm statistics after the step.
        monitors: name → float32 scalar or [N], written as a mean over networks and devices.
        pseudo_labels: int32 [N, U] what the networks took the unlabelled images for, or None.
        method_state: what the method carries to the next step.
    """

    losses: jax.Array
    batch_stats: Any
    monitors: dict[str, jax.Array]
    pseudo_labels: jax.Array | None = None
    method_state: Any = ()


def no_state(num_networks: int, num_classes: int, num_images: int) -> tuple[()]:
    """The `init_state` of a method that carries nothing."""
    return ()


@dataclasses.dataclass(frozen=True)
class Method:
    """One way to train.

    Attributes:
        compute_loss: (params, batch_stats, batch, context) → LossOutput; pure.
        hyperparameters: by name; they become `config.method.*`.
        num_networks: how many networks train side by side.
        mu: unlabelled images for each labelled one.
        labeled_view: "weak" or "strong".
        unlabeled_views: each "weak" or "strong"; empty if the method ignores unlabelled images.
        init_state: (number of networks, of classes, of training images) → initial
            `method_state`, each leaf with a leading axis of networks.
        extra_heads: name and size of outputs beside the classes.
        select_labels: for a method of several rounds (`config.method.rounds`): what to carry into
            a round, from what the networks predicted at the end of the one before. See
            `cls_jax.training.rounds`.
    """

    compute_loss: Callable[[Any, Any, Batch, Context], LossOutput]
    hyperparameters: Mapping[str, Hyperparameter] = dataclasses.field(default_factory=dict)
    num_networks: int = 1
    mu: int = 7
    labeled_view: str = "weak"
    unlabeled_views: tuple[str, ...] = ("weak", "strong")
    init_state: Callable[[int, int, int], Any] = no_state
    extra_heads: tuple[tuple[str, int], ...] = ()
    select_labels: Callable[..., Any] | None = None
