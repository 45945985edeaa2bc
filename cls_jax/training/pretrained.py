"""What `model.init` means for a run: its architecture, its weights, and their normalization."""

import dataclasses
import pathlib

from ml_collections import ConfigDict

from cls_jax.config import KEYS
from cls_jax.data.types import Dataset
from cls_jax.errors import UserError
from cls_jax.models import MODELS
from cls_jax.models.weights.layout import Arrays
from cls_jax.models.weights.sources import get_implied_name, read_builtin
from cls_jax.runs.folder import DATASET, read_mean_and_std


def resolve_model(config: ConfigDict) -> ConfigDict:
    """The configuration with the `model.name` that its `model.init` implies.

    Raises:
        UserError: if `model.name` was set to another architecture.
    """
    implied, name = get_implied_name(config.model.init), config.model.name
    if implied is None or implied == name:
        return config
    if name != KEYS["model.name"].default:
        raise UserError(
            f"model.init={config.model.init:.100} has the weights of another architecture than "
            f"model.name={name}: set only one of the two."
        )
    config = config.copy_and_resolve_references()
    config.model.name = implied
    return config


def read_weights(config: ConfigDict) -> Arrays:
    """Reads the weights of `model.init`.

    Raises:
        UserError: if they cannot be read.
    """
    return read_builtin(config.model.name)


def use_own_normalization(config: ConfigDict, dataset: Dataset, workdir: pathlib.Path) -> Dataset:
    """The dataset with the mean and deviation that the pretrained weights expect.

    They replace those computed from the images, not those that the user sets. A run that resumes
    has them in its folder.
    """
    if not config.model.init or config.data.mean:
        return dataset
    if (workdir / DATASET).exists():
        mean, std = read_mean_and_std(workdir)
    else:
        layout = MODELS[config.model.name].layout
        assert layout is not None, config.model.name
        mean, std = layout.normalization
    return dataclasses.replace(dataset, mean=mean, std=std)
