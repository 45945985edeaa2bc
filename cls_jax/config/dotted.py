"""Nested mappings seen as one mapping of dotted keys such as "method.tau"."""

from collections.abc import Mapping
from typing import Any


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings → values by dotted key; an empty mapping leaves no trace."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted key → nested dicts."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = value
    return tree


def get_value(tree: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key; raises a KeyError if there is no such key."""
    node: Any = tree
    for part in key.split("."):
        node = node[part]
    return node


def show_value(value: Any) -> str:
    """A value as the command line takes it."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
