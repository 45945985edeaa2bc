"""Builds the `TrainSetup` of a run from its configuration.

The train step, evaluation and prediction take everything that they need from it.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from cls_jax.batch import DatasetSpec, TrainingSplit, create_even_split, normalize
from cls_jax.errors import UserError
from cls_jax.methods import InitContext, Method, get_method
from cls_jax.models import MODELS, resolve_stem
from cls_jax.models.ensemble import Ensemble
from cls_jax.models.layers import Architecture
from cls_jax.models.weights.layout import Weights, WeightsError, explain_mismatch
from cls_jax.parallel.distributed import check_same_weights
from cls_jax.parallel.mesh import DATA_AXIS, NETWORK_AXIS, create_mesh, to_shardings
from cls_jax.training.optimizer import create_optimizer
from cls_jax.training.state import (
    TrainState,
    get_state_specs,
    init_networks_and_key,
    start_from_weights,
    start_state,
)


@dataclasses.dataclass(frozen=True)
class TrainSetup:
    """The method of a run, its networks, the update rule, and the devices.

    Attributes:
        config: the run's configuration.
        method: how the networks are trained.
        ensemble: their forward passes.
        optimizer: the update rule.
        mesh: the devices.
        dataset_spec: sizes of the dataset.
        init_context: what the method's initial state depends on.
        state_shapes: shapes, dtypes and shardings of the train state, as a `TrainState` of
            `jax.ShapeDtypeStruct`. Enough to restore a checkpoint or to compile the step.
        state_specs: how the state is partitioned, as a `TrainState` of partition specs.
        read_weights: reads the weights of `config.model.init`. A function, because a run that
            resumes from a checkpoint needs none.
    """

    config: ConfigDict
    method: Method
    ensemble: Ensemble
    optimizer: optax.GradientTransformation
    mesh: Mesh
    dataset_spec: DatasetSpec
    init_context: InitContext
    state_shapes: TrainState
    state_specs: TrainState
    read_weights: Callable[[], Weights] | None = None

    def init_state(self, round_index: int = 0) -> TrainState:
        """Initializes the state on the mesh.

        Args:
            round_index: of a method with several rounds, each of which starts from new parameters.

        Raises:
            UserError: if the pretrained weights cannot be read or do not fit, or processes have
                different ones.
        """
        inputs = init_networks_and_key(
            self.ensemble.model,
            self.config.seed,
            round_index,
            self.method.num_networks,
            self.dataset_spec.image_shape,
        )
        if self.read_weights is not None and self.config.model.init:
            inputs = (inputs[0], *self._load_weights(*inputs[1:]))
        check_same_weights(inputs[1:])
        # Compiled, so that parameters and their average are two buffers: the step donates both.
        start = jax.jit(self._start_state, out_shardings=to_shardings(self.mesh, self.state_specs))
        return start(*inputs)

    def _load_weights(self, params: Any, batch_stats: Any) -> tuple[Any, Any]:
        """The networks with the weights of `config.model.init`."""
        assert self.read_weights is not None
        model = self.config.model
        arrays, layout = self.read_weights().arrays, MODELS[model.name].layout
        heads = ["head", *dict(self.method.extra_heads)]
        try:
            return start_from_weights(arrays, layout, heads, params, batch_stats)
        except WeightsError as error:
            remedy = explain_mismatch(arrays, layout, params)
            raise UserError(
                f"model.init={model.init:.200} does not fit {describe_model(self.config)} "
                f"({error}): {remedy}."
            ) from error

    def _start_state(self, key: jax.Array, params: Any, batch_stats: Any) -> TrainState:
        return start_state(key, params, batch_stats, self.optimizer, self.method, self.init_context)

    def normalize(self, images: jax.Array) -> jax.Array:
        """Normalizes uint8 [..., C] with the mean and deviation of the training images."""
        return normalize(images, self.config.data.mean, self.config.data.std)


def create_train_setup(
    config: ConfigDict,
    dataset_spec: DatasetSpec,
    devices: Sequence[jax.Device] | None = None,
    split: TrainingSplit | None = None,
    read_weights: Callable[[], Weights] | None = None,
) -> TrainSetup:
    """Builds the program of a configuration; allocates nothing on the devices.

    Args:
        config: a validated configuration in which mean and deviation are numbers.
        dataset_spec: sizes of the dataset.
        devices: to run on; all of the default backend's by default.
        split: the labeled and unlabeled set, for the method's initial state; by default classes
            are equally frequent. It changes no shapes, so only a new run needs it.
        read_weights: reads the weights of `config.model.init`; without it, networks start from
            random ones.

    Raises:
        UserError: if the devices cannot be arranged as `config.mesh` says.
    """
    method = get_method(config.method.name)
    mesh = _create_mesh(config, method, devices)
    model = create_model(config, method, dataset_spec.num_classes)
    optimizer = create_optimizer(config, model)
    init_context = _create_init_context(
        config, method, dataset_spec, split or create_even_split(dataset_spec)
    )

    def create_state() -> TrainState:
        inputs = init_networks_and_key(
            model, config.seed, 0, method.num_networks, dataset_spec.image_shape
        )
        return start_state(*inputs, optimizer, method, init_context)

    shapes, specs = _trace_state(create_state, mesh)
    ensemble = Ensemble(
        model,
        config.model.lowering,
        mesh.shape[NETWORK_AXIS],
        config.model.matmul_precision,
    )
    return TrainSetup(
        config,
        method,
        ensemble,
        optimizer,
        mesh,
        dataset_spec,
        init_context,
        shapes,
        specs,
        read_weights,
    )


def _create_mesh(config: ConfigDict, method: Method, devices: Sequence[jax.Device] | None) -> Mesh:
    batch_sizes = [config.batch_size // config.accumulate_steps]
    if method.unlabeled_views:
        batch_sizes.append(batch_sizes[0] * config.mu)
    return create_mesh(
        method.num_networks, batch_sizes, config.mesh.network, config.mesh.data, devices
    )


def _create_init_context(
    config: ConfigDict, method: Method, dataset_spec: DatasetSpec, split: TrainingSplit
) -> InitContext:
    return InitContext(
        hparams=config.method,
        num_networks=method.num_networks,
        num_classes=dataset_spec.num_classes,
        num_images=dataset_spec.num_images,
        num_unlabeled=split.num_unlabeled,
        class_frequencies=split.class_frequencies,
    )


def _trace_state(
    create_state: Callable[[], TrainState], mesh: Mesh
) -> tuple[TrainState, TrainState]:
    """Shapes with shardings, and partition specs, of a state; computes none of its values."""
    abstract = jax.eval_shape(create_state)
    specs = get_state_specs(abstract)
    shapes = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        abstract,
        to_shardings(mesh, specs),
    )
    return shapes, specs


def create_model(config: ConfigDict, method: Method, num_classes: int) -> Architecture:
    """Builds the architecture that `config.model` describes, with the heads the method asks for.

    Raises:
        UserError: if images of `data.image_size` cannot be divided into its patches.
    """
    model_config = config.model
    entry, image_size = MODELS[model_config.name], config.data.image_size
    if image_size % entry.patch:
        raise UserError(
            f"{entry.title} cuts images into patches of {entry.patch} pixels, which do not divide "
            f"data.image_size={image_size}: choose a multiple of {entry.patch}."
        )
    settings = {key: model_config[key] for key in entry.keys}
    if "stem" in settings:
        settings["stem"] = resolve_stem(model_config.stem, image_size)
    return entry.create(
        num_classes=num_classes,
        dtype=jnp.dtype(model_config.dtype),
        bn_momentum=model_config.bn_momentum,
        bn_frozen=model_config.bn_frozen,
        dropout_rate=method.dropout_rate(config.method),
        extra_heads=method.extra_heads,
        data_axis=DATA_AXIS if model_config.bn_statistics == "batch" else None,
        remat=model_config.remat,
        **settings,
    )


def describe_model(config: ConfigDict) -> str:
    """The architecture's usual name."""
    return MODELS[config.model.name].title.format(**config.model)
