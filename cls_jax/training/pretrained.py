"""What `model.init` means for a run: its architecture, its weights, and their normalization."""

import dataclasses
import pathlib

import jax
from ml_collections import ConfigDict

from cls_jax.config import OPTIONS
from cls_jax.data.types import Dataset
from cls_jax.errors import UserError
from cls_jax.models import MODELS
from cls_jax.models.ensemble import take_network
from cls_jax.models.weights.layout import Weights, to_torch
from cls_jax.models.weights.sources import BUILTIN, read_init
from cls_jax.runs.folder import CONFIG, DATASET, read_mean_and_std
from cls_jax.training.restore import restore_run
from cls_jax.training.setup import TrainSetup
from cls_jax.training.state import TrainState


def resolve_model(config: ConfigDict) -> ConfigDict:
    """The configuration with the `model.name` that its `model.init` implies, as "builtin:…" does.

    Raises:
        UserError: if `model.name` was set to another architecture.
    """
    init, name = config.model.init, config.model.name
    implied = init.removeprefix(BUILTIN)
    if implied in (init, name):
        return config
    if name != OPTIONS["model.name"].default:
        raise UserError(
            f"model.init={init:.100} has the weights of another architecture than "
            f"model.name={name}: set only one of the two."
        )
    config = config.copy_and_resolve_references()
    config.model.name = implied
    return config


def read_weights(config: ConfigDict) -> Weights:
    """Reads the weights of `model.init`.

    Raises:
        UserError: if they cannot be read.
    """
    path = pathlib.Path(config.model.init).expanduser()
    if (path / CONFIG).exists():
        setup, state, _ = restore_run(path)
        return collect_weights(setup, state)
    return read_init(config.model.init)


def collect_weights(setup: TrainSetup, state: TrainState) -> Weights:
    """Network 1 of a run with its EMA parameters, without additional heads."""
    networks = {"params": state.ema_params, "batch_stats": state.batch_stats}
    variables = jax.device_get(take_network(networks, 0))
    for head, _ in setup.method.extra_heads:
        del variables["params"][head]
    data = setup.config.data
    layout = MODELS[setup.config.model.name].layout
    return Weights(to_torch(variables, layout), (tuple(data.mean), tuple(data.std)))


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
        own = read_weights(config).normalization
        mean, std = own or MODELS[config.model.name].layout.normalization
    return dataclasses.replace(dataset, mean=mean, std=std)
