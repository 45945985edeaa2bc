"""The methods by name. To add one: a file with a `METHODS` entry, imported and listed here."""

from ml_collections import ConfigDict

from cls_jax.errors import UserError
from cls_jax.methods import (
    adamatch,
    cls,
    cls_plus,
    consistency,
    flexmatch,
    freematch,
    infomatch,
    mixmatch,
    pseudo_label,
    remixmatch,
    simpro,
    softmatch,
    supervised,
    uda,
    ups,
)
from cls_jax.methods.base import Context, Hyperparameter, InitContext, LossOutput, Method

METHODS: dict[str, Method] = {
    **supervised.METHODS,
    **pseudo_label.METHODS,
    **ups.METHODS,
    **consistency.METHODS,
    **uda.METHODS,
    **mixmatch.METHODS,
    **remixmatch.METHODS,
    **flexmatch.METHODS,
    **adamatch.METHODS,
    **freematch.METHODS,
    **softmatch.METHODS,
    **infomatch.METHODS,
    **simpro.METHODS,
    **cls.METHODS,
    **cls_plus.METHODS,
}


def get_method(name: str) -> Method:
    """Returns the method of that name.

    Raises:
        UserError: if there is no such method.
    """
    if name not in METHODS:
        raise UserError(f"Unknown method {name!r:.100}: choose one of {', '.join(METHODS)}.")
    return METHODS[name]


def get_round_length(config: ConfigDict) -> int:
    """Steps of a round: all, unless the method has several rounds. The last may be shorter."""
    rounds = get_method(config.method.name).rounds
    num_rounds = rounds.count(config.method) if rounds else 1
    return -(-config.num_steps // num_rounds)


__all__ = [
    "METHODS",
    "Context",
    "Hyperparameter",
    "InitContext",
    "LossOutput",
    "Method",
    "get_method",
    "get_round_length",
]
