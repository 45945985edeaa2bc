"""Nested mappings seen as one mapping of dotted keys such as "method.tau"."""

from collections.abc import Mapping
from typing import Any

from flax.traverse_util import flatten_dict, unflatten_dict


def flatten(tree: dict[str, Any]) -> dict[str, Any]:
    """Nested dicts → values by dotted key; an empty dict leaves no trace."""
    return flatten_dict(tree, sep=".")


def unflatten(flat: dict[str, Any]) -> dict[str, Any]:
    """Values by dotted key → nested dicts."""
    return unflatten_dict(flat, sep=".")


def get_value(tree: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key; raises a KeyError if there is no such key."""
    node: Any = tree
    for part in key.split("."):
        node = node[part]
    return node


def show_value(value: Any) -> str:
    """A value as the command line takes it."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
