"""Puts together, from a configuration, what training and evaluation run."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from cls_jax.batch import DatasetSpec
from cls_jax.methods import Method, get_method
from cls_jax.models import ResNet18, WideResNet, resolve_stem
from cls_jax.models.ensemble import Ensemble
from cls_jax.parallel.mesh import DATA_AXIS, NETWORK_AXIS, create_mesh
from cls_jax.training.optimizer import create_optimizer
from cls_jax.training.state import TrainState, create_train_state


@dataclasses.dataclass(frozen=True)
class Program:
    """The parts of a run that follow from its configuration alone.

    Attributes:
        config: the run's configuration.
        method: how it trains.
        ensemble: its forward passes.
        optimizer: its update rule.
        mesh: its devices.
        dataset_spec: sizes of its dataset.
        state_specs: how its state is spread over them.
    """

    config: Any
    method: Method
    ensemble: Ensemble
    optimizer: optax.GradientTransformation
    mesh: Mesh
    dataset_spec: DatasetSpec
    state_specs: TrainState


def create_program(
    config, dataset_spec: DatasetSpec, devices: Sequence[jax.Device] | None = None
) -> tuple[Program, TrainState]:
    """Builds the program and its initial state.

    Args:
        config: a validated configuration.
        dataset_spec: sizes of the dataset.
        devices: to run on; all of the default backend's by default.

    Raises:
        UserError: if the devices cannot be arranged as `config.mesh` says.
    """
    method = get_method(config.method.name)
    batch_sizes = [config.batch_size]
    if method.unlabeled_views:
        batch_sizes.append(config.batch_size * config.mu)
    mesh = create_mesh(
        method.num_networks, batch_sizes, config.mesh.network, config.mesh.data, devices
    )
    model = create_model(config, method, dataset_spec.num_classes)
    ensemble = Ensemble(model, config.model.lowering, mesh.shape[NETWORK_AXIS], config.model.remat)
    optimizer = create_optimizer(config)
    state, specs = create_train_state(config, model, method, optimizer, dataset_spec, mesh)
    return Program(config, method, ensemble, optimizer, mesh, dataset_spec, specs), state


# Architecture → the module, and which keys of `config.model` it alone has.
MODELS: dict[str, tuple[type[nn.Module], tuple[str, ...]]] = {
    "wide_resnet": (WideResNet, ("depth", "width", "leaky_slope")),
    "resnet18": (ResNet18, ()),
}


def create_model(config, method: Method, num_classes: int) -> nn.Module:
    """Builds the architecture that `config.model` describes, with what the method asks of it."""
    model_config = config.model
    module, keys = MODELS[model_config.name]
    return module(
        num_classes=num_classes,
        stem=resolve_stem(model_config.stem, config.data.image_size),
        dtype=jnp.dtype(model_config.dtype),
        bn_momentum=model_config.bn_momentum,
        bn_epsilon=model_config.bn_epsilon,
        dropout_rate=config.method.get("dropout", 0.0),
        extra_heads=method.extra_heads,
        data_axis=DATA_AXIS,
        **{key: model_config[key] for key in keys},
    )


def describe_model(config) -> str:
    """The architecture's usual name."""
    model_config = config.model
    if model_config.name == "wide_resnet":
        return f"WRN-{model_config.depth}-{model_config.width}"
    return "ResNet-18"
