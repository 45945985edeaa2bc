"""Writes and reads `config.json`, and compares two configurations."""

import json
import pathlib
from typing import Any

import ml_collections

from cls_jax.config.build import flatten, show_value, unflatten, validate_config
from cls_jax.config.keys import OPTIONS, get_options
from cls_jax.config.retired import drop_retired
from cls_jax.errors import UserError
from cls_jax.io import PARSE_ERRORS, describe_error, read_json


def to_json(config: ml_collections.ConfigDict) -> str:
    """The whole configuration as indented JSON."""
    return json.dumps(config.to_dict(), indent=2) + "\n"


def read_config(path: pathlib.Path) -> ml_collections.ConfigDict:
    """Reads and validates the `config.json` of a run's folder.

    A run that is older than a key lacks it and gets the default, because a new key's default
    changes nothing. Keys that are gone are dropped if their value changed nothing
    (`cls_jax.config.retired`).

    Raises:
        UserError: if the file is missing, damaged, or has a key or a value that this version does
            not know.
    """
    try:
        return _from_stored(read_json(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(
            f"{path.parent} is not the folder of a run (it has no {path.name}): name the folder "
            "that training printed."
        ) from error
    except (UserError, *PARSE_ERRORS) as error:  # type: ignore[misc] # A tuple of classes.
        raise UserError(
            f"{path} is not the configuration of a run of this version "
            f"({describe_error(error).rstrip('.')}): name the folder of another run."
        ) from error


def _from_stored(stored: Any) -> ml_collections.ConfigDict:
    """Builds and validates the configuration that `to_json` wrote."""
    values = flatten(stored) if isinstance(stored, dict) else {}
    if "method.name" not in values:
        raise ValueError("it has no method.name")
    keys = get_options(values["method.name"])
    values = drop_retired(values, keys)
    if unknown := sorted(set(values) - set(keys)):
        raise ValueError(f"{unknown[0]:.100} is not a key")
    restored = {
        key: _restore_type(values[key], row.default) if key in values else row.default
        for key, row in keys.items()
    }
    config = ml_collections.ConfigDict(unflatten(restored)).lock()
    validate_config(config)
    return config


def _restore_type(value: Any, default: Any) -> Any:
    """Undoes what JSON does to a tuple, and what an editor may do to a float."""
    if isinstance(value, list):
        return tuple(value)
    return float(value) if type(value) is int and isinstance(default, float) else value


def describe_differences(
    config: ml_collections.ConfigDict, other: ml_collections.ConfigDict
) -> list[str]:
    """Lists where two configurations differ, as "key: other's value → value".

    Runtime keys, which may change when a run resumes, are left out.
    """
    ours, theirs = flatten(config.to_dict()), flatten(other.to_dict())
    return [
        f"{key}: {show_value(theirs.get(key))} → {show_value(ours.get(key))}"
        for key in sorted(ours | theirs)
        if not (key in OPTIONS and OPTIONS[key].is_runtime)
        and show_value(ours.get(key)) != show_value(theirs.get(key))
    ]
