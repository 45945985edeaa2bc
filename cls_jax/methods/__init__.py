"""The methods by name. An eleventh is one file with a `METHODS` entry and one line here."""

from cls_jax.errors import UserError
from cls_jax.methods import cls, supervised
from cls_jax.methods.base import Context, Hyperparameter, LossOutput, Method

METHODS: dict[str, Method] = {**supervised.METHODS, **cls.METHODS}


def get_method(name: str) -> Method:
    """Returns the method of that name.

    Raises:
        UserError: if there is none.
    """
    if name not in METHODS:
        raise UserError(f"Unknown method {name!r}: choose one of {', '.join(METHODS)}.")
    return METHODS[name]


__all__ = [
    "METHODS",
    "Context",
    "Hyperparameter",
    "LossOutput",
    "Method",
    "get_method",
]
