"""The methods by name.

`base` defines the type of a method. Each file has a family of methods, and shared parts are in
`losses`, `alignment` and `cutmix`. To add a method, write its loss (signature: `Method.loss`) and
its entry in the `METHODS` of its file, and list a new file here.
"""

from ml_collections import ConfigDict

from cls_jax.errors import UserError
from cls_jax.methods import baselines, cls, cls_plus, fixmatch_variants, mixmatch, simpro, ups
from cls_jax.methods.base import (
    Context,
    Hyperparameters,
    LossOutput,
    Method,
    hyperparameter,
    move_means,
)
from cls_jax.methods.options import add_options

__all__ = [
    "METHODS",
    "Context",
    "LossOutput",
    "Method",
    "choose_decay",
    "get_mean_decay",
    "get_method",
    "get_round_length",
    "hyperparameter",
    "list_mean_decays",
    "move_means",
]
# Hyperparameters of running means, of which a method has at most one.
_MEAN_DECAYS = ("statistics_decay", "class_mean_decay")

_FAMILIES = {
    **baselines.METHODS,
    **ups.METHODS,
    **mixmatch.METHODS,
    **fixmatch_variants.METHODS,
    **simpro.METHODS,
    **cls.METHODS,
    **cls_plus.METHODS,
}
METHODS: dict[str, Method] = {name: add_options(method) for name, method in _FAMILIES.items()}


def get_method(name: str) -> Method:
    """Returns the method of that name, or raises a UserError if there is none."""
    if name not in METHODS:
        raise UserError(f"Unknown method {name!r:.100}: choose one of {', '.join(METHODS)}.")
    return METHODS[name]


def get_round_length(config: ConfigDict) -> int:
    """Steps of a round: all, unless the method has several rounds. The last may be shorter."""
    length: int = -(-config.num_steps // config.method.get("rounds", 1))
    return length


def get_mean_decay(hparams: Hyperparameters) -> float:
    """The decay per step of a method's running means, see `Context.move_mean`. 0 without any."""
    return next(iter(list_mean_decays(hparams).values()), 0.0)


def list_mean_decays(hparams: Hyperparameters) -> dict[str, float]:
    """The decays per step of a method's running means by the name of the hyperparameter."""
    return {name: hparams[name] for name in _MEAN_DECAYS if name in hparams}


def choose_decay(num_steps: int) -> float:
    """The decay of a running mean in a training, or round, of this many steps.

    For the weights' average, BatchNorm's statistics and the methods' own. The mean extends over
    about 1 / (1 - decay) steps: a twentieth of the training, from 100 to 1,000, and never more than
    a third of it, so that less than 5% of the start value remains at the end.
    """
    length = min(max(num_steps / 20, 100), 1000, num_steps / 3)
    return 1 - 1 / max(length, 1)
