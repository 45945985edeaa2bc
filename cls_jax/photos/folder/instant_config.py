"""The configuration of an instant classifier: those of a run's keys that it has.

They say which images it has, how these are decoded, and whose features it uses. Nothing is trained,
so there is no method, no optimizer and no step.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from cls_jax.config import (
    check_values,
    explain_reading,
    flatten,
    list_options,
    read_values,
    restore_config,
    restore_values,
)
from cls_jax.io import PARSE_ERRORS
from cls_jax.photos.folder.options import FolderOptions
from cls_jax.runs.folder import CONFIG

_KEYS = (
    "seed",
    "num_labels",
    "data.name",
    "data.data_dir",
    *(f"data.{name}" for name in FolderOptions._fields),
    "data.image_size",
    "data.channels",
    "data.resize",
    "data.bit_depth",
    "data.cache_gigabytes",
    "data.validation",
    "data.unlabeled_includes_labeled",
    "data.imbalance",
    "data.unlabeled_imbalance",
    "data.mean",
    "data.std",
    "model.name",
    "model.init",
    "model.init_head",
    "model.inferred_images",
    "model.inferred_by",
    "model.tag_precision",
    "model.stem",
    "model.depth",
    "model.width",
)
INSTANT_OPTIONS = {key: list_options()[key] for key in _KEYS}


def create_instant_config(config: ConfigDict) -> ConfigDict:
    """The keys of an instant classifier from a run's configuration, with its values."""
    return restore_values(flatten(config.to_dict()), INSTANT_OPTIONS)


def read_instant_config(workdir: pathlib.Path) -> ConfigDict:
    """Reads these keys in the folder of an instant classifier or of a run, which has them, too.

    Raises a UserError if there is no configuration, or it is damaged.
    """
    path = workdir / CONFIG
    with explain_reading(path):
        return _restore_instant(read_values(path))


def read_run_config(workdir: pathlib.Path) -> ConfigDict:
    """The configuration of a run, or of an instant classifier, which has no section `method`.

    Raises a UserError if it is neither, or damaged.
    """
    path = workdir / CONFIG
    with explain_reading(path):
        values = read_values(path)
        return _restore_instant(values) if _are_instant(values) else restore_config(values)


def is_instant(workdir: pathlib.Path) -> bool:
    """Whether a folder has an instant classifier, and no networks that were trained."""
    try:
        return _are_instant(read_values(workdir / CONFIG))
    except PARSE_ERRORS:
        return False


def get_method_name(config: ConfigDict) -> str:
    """The method of a run, or "instant classifier"."""
    return str(config.method.name) if "method" in config else "instant classifier"


def _restore_instant(values: Mapping[str, Any]) -> ConfigDict:
    if "data.name" not in values:  # Other programs write a config.json, too.
        raise ValueError("it names no dataset")
    config = restore_values(values, INSTANT_OPTIONS)
    check_values(flatten(config.to_dict()), INSTANT_OPTIONS)
    return config


def _are_instant(values: Mapping[str, Any]) -> bool:
    return "model.init_head" in values and "method.name" not in values
