"""The train state, and the `TrainSetup` shared by step, evaluation and prediction."""

import dataclasses
from collections.abc import Callable, Sequence

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from cls_jax.batch import DatasetSpec, PyTree, normalize
from cls_jax.data.sampling import stream_key
from cls_jax.errors import UserError
from cls_jax.methods import Method, get_method
from cls_jax.methods.options import apply_options
from cls_jax.models import MODELS, resolve_stem
from cls_jax.models.ensemble import Ensemble, get_network_shapes, init_networks, take_network
from cls_jax.models.layers import Architecture
from cls_jax.models.weights.layout import (
    Arrays,
    Weights,
    WeightsError,
    explain_mismatch,
    from_torch,
)
from cls_jax.parallel import compilation
from cls_jax.parallel.distributed import check_same_weights
from cls_jax.parallel.mesh import (
    DATA_AXIS,
    NETWORK_AXIS,
    create_mesh,
    to_global_arrays,
    to_shardings,
)
from cls_jax.training.optimizer import create_optimizer, split_frozen
from cls_jax.training.schedule import SCHEDULE_SPECS, Schedule, create_schedule


class TrainState(flax.struct.PyTreeNode):
    """The state after `step` steps.

    Every leaf that is not a scalar, except `key`, has a leading axis of N networks, which
    `create_train_setup` spreads over the mesh axis "network".

    Parameters, statistics and averages are float32.
    """

    step: jax.Array  # int32 scalar.
    # uint32 [2], raw data of the seed's random key, from which `stream_key` derives all others.
    # Part of the state and not a constant of the step, so that runs that differ only in the seed
    # share a compiled program. Raw, because checkpoints and donated buffers are plain arrays.
    key: jax.Array
    params: PyTree
    # BatchNorm's running mean and variance. The EMA networks use these too, not averages of them
    # (authors' code).
    batch_stats: PyTree
    # Exponential moving average of `params`. `model.final_head` refits its heads at the end.
    ema_params: PyTree
    opt_state: PyTree  # Momentum, and the schedule's step count.
    method_state: PyTree  # A dictionary, see `Method.create_state`, empty for most methods.


def set_step(mesh: Mesh, state: TrainState, step: int) -> TrainState:
    """The state with another step count, on the mesh. Works under a transfer guard."""
    # Not `jax.device_put`, which counts as an implicit transfer with several processes.
    return state.replace(step=to_global_arrays(np.int32(step), mesh, P()))


@dataclasses.dataclass(frozen=True)
class TrainSetup:
    """The method of a run, its networks, the update rule, and the devices."""

    config: ConfigDict  # Validated, with numbers as mean and deviation.
    method: Method  # With the options that the configuration enables.
    ensemble: Ensemble
    optimizer: optax.GradientTransformationExtraArgs
    mesh: Mesh
    dataset_spec: DatasetSpec
    # (The seed's key, parameters, BatchNorm statistics) → the state before the first step. Pure.
    state_from_networks: Callable[[jax.Array, PyTree, PyTree], TrainState]
    # `jax.ShapeDtypeStruct`s with shardings, to restore a checkpoint or compile the step.
    state_shapes: TrainState
    state_specs: TrainState  # Partition specs.
    # Reads the weights of `model.init`, which a resumed run does not need.
    read_weights: Callable[[], Weights] | None = None

    def init_state(self, round_index: int = 0) -> TrainState:
        """Initializes the state on the mesh, with new parameters for each round of a method.

        Raises a UserError if weights cannot be read, do not fit, or differ between processes.
        """
        model = self.ensemble.model
        read_weights = self.read_weights if self.config.model.init else None
        key = jax.random.key(self.config.seed)
        params, batch_stats = init_networks(
            model,
            key=stream_key(key, "init", round_index),
            num_networks=self.method.num_networks,
            image_shape=self.dataset_spec.image_shape,
            drawn=model.head_names if read_weights else None,
        )
        if read_weights:
            params, batch_stats = self._load_weights(read_weights().arrays, params, batch_stats)
        check_same_weights((params, batch_stats))
        # Compiled, so that parameters and their average have separate buffers: the step donates
        # both.
        start = compilation.jit(
            self.state_from_networks,
            runs=1,
            out_shardings=to_shardings(self.mesh, self.state_specs),
        )
        state: TrainState = start(key, params, batch_stats)
        return state

    def put_schedule(self) -> Schedule:
        """The run's schedule, on the mesh."""
        schedule: Schedule = to_global_arrays(
            create_schedule(self.config), self.mesh, SCHEDULE_SPECS
        )
        return schedule

    def _load_weights(
        self, arrays: Arrays, params: PyTree, batch_stats: PyTree
    ) -> tuple[PyTree, PyTree]:
        """The networks, in NumPy, with these weights in all modules but the heads."""
        model = self.config.model
        layout = MODELS[model.name].layout
        heads = self.ensemble.model.head_names
        stacked = jax.device_get({"params": params, "batch_stats": batch_stats})
        try:
            networks = [
                from_torch(arrays, take_network(stacked, i), layout, heads)
                for i in range(self.method.num_networks)
            ]
        except WeightsError as error:
            remedy = explain_mismatch(arrays, layout, params)
            raise UserError(
                f"model.init={model.init:.200} does not fit {describe_model(self.config)} "
                f"({error}): {remedy}."
            ) from error
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *networks)
        return stacked["params"], stacked["batch_stats"]

    def infer(
        self, params: PyTree, batch_stats: PyTree, images: jax.Array, head: str = "head"
    ) -> jax.Array:
        """Runs stacked networks on clean images uint8 [B, H, W, C], as training's evaluation does.

        Returns logits float32 [N, B, K], or with `head=FEATURES` the heads' inputs [N, B, C].
        """
        images = self.normalize(images)
        return self.ensemble.forward(params, batch_stats, images, train=False, head=head)[0]

    def normalize(self, images: jax.Array) -> jax.Array:
        """Normalizes uint8 [..., C] with the mean and deviation of the training images."""
        return normalize(images, self.config.data.mean, self.config.data.std)


def create_train_setup(
    config: ConfigDict,
    dataset_spec: DatasetSpec,
    devices: Sequence[jax.Device] | None = None,
    read_weights: Callable[[], Weights] | None = None,
) -> TrainSetup:
    """Builds a `TrainSetup`. Allocates nothing on the devices, by default all of the backend's.

    The dataset's split affects no shapes, so only a new run needs it. By default, classes are
    equally frequent and every image is in the stream. Without `read_weights`, networks start from
    random weights. Raises a UserError if the devices cannot be arranged as `config.mesh` says.
    """
    hparams = config.method
    method = apply_options(get_method(hparams.name), hparams, dataset_spec.num_classes)
    if not dataset_spec.class_frequencies:
        even = np.arange(dataset_spec.num_classes)
        dataset_spec = dataset_spec.split(even, dataset_spec.num_images)
    mesh = _arrange_devices(config, method, devices)
    model = create_model(config, method, dataset_spec.num_classes)
    params, batch_stats = get_network_shapes(model, method.num_networks, dataset_spec.image_shape)
    # Networks that start from the same weights share those that are not trained.
    _, frozen = split_frozen(params, config.optimizer.frozen_stages, model)
    is_pretrained = bool(config.model.init and read_weights)
    ensemble = Ensemble(
        model,
        matmul_precision=config.model.matmul_precision,
        shared=frozenset(frozen if is_pretrained else ()),
    )
    optimizer = create_optimizer(config, model)

    def state_from_networks(key: jax.Array, params: PyTree, batch_stats: PyTree) -> TrainState:
        """The state before the first step, with the parameters as their average."""
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            key=jax.random.key_data(key),
            params=params,
            batch_stats=batch_stats,
            ema_params=params,
            opt_state=optimizer.init(params),
            method_state=jax.tree.map(
                lambda leaf: jnp.broadcast_to(leaf, (method.num_networks, *leaf.shape)),
                method.create_state(hparams, dataset_spec),
            ),
        )

    key = jax.eval_shape(lambda: jax.random.key(config.seed))
    state = jax.eval_shape(state_from_networks, key, params, batch_stats)
    shapes, specs = _spread_state(state, mesh)
    return TrainSetup(
        config=config,
        method=method,
        ensemble=ensemble,
        optimizer=optimizer,
        mesh=mesh,
        dataset_spec=dataset_spec,
        state_from_networks=state_from_networks,
        state_shapes=shapes,
        state_specs=specs,
        read_weights=read_weights,
    )


def _arrange_devices(
    config: ConfigDict, method: Method, devices: Sequence[jax.Device] | None
) -> Mesh:
    """The mesh that `config.mesh` describes, for the batches of this method."""
    batch_sizes = [config.batch_size // config.accumulate_steps]
    if method.unlabeled_views:
        batch_sizes.append(batch_sizes[0] * config.mu)
    return create_mesh(
        method.num_networks,
        batch_sizes,
        network=config.mesh.network,
        data=config.mesh.data,
        devices=devices,
    )


def _spread_state(state: TrainState, mesh: Mesh) -> tuple[TrainState, TrainState]:
    """The shapes of a state with their shardings, and its partition specs, from its shapes."""
    specs = jax.tree.map(lambda leaf: P(NETWORK_AXIS) if leaf.ndim else P(), state)
    specs = specs.replace(key=P())
    shapes = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        state,
        to_shardings(mesh, specs),
    )
    return shapes, specs


def create_model(config: ConfigDict, method: Method, num_classes: int) -> Architecture:
    """Builds the architecture that `config.model` describes, with the heads the method asks for.

    Raises a UserError if images of `data.image_size` cannot be divided into its patches.
    """
    settings = config.model
    image_size = config.data.image_size
    spec = MODELS[settings.name]
    if image_size % spec.patch:
        raise UserError(
            f"{spec.title} cuts images into patches of {spec.patch} pixels, which do not divide "
            f"data.image_size={image_size}: choose a multiple of {spec.patch}."
        )
    return spec.create(
        num_classes=num_classes,
        dtype=jnp.dtype(settings.dtype),
        bn_frozen=settings.bn_frozen,
        dropout_rate=config.method.get("dropout", 0.0),
        extra_heads=method.extra_heads,
        data_axis=DATA_AXIS,
        remat=settings.remat,
        **get_model_settings(config),
    )


def get_model_settings(config: ConfigDict) -> dict[str, object]:
    """The keys of `config.model` that only some architectures have, with "auto" resolved."""
    settings = {key: config.model[key] for key in MODELS[config.model.name].keys}
    if "stem" in settings:
        settings["stem"] = resolve_stem(config.model.stem, config.data.image_size)
    return settings


def describe_model(config: ConfigDict) -> str:
    """The architecture's usual name."""
    return MODELS[config.model.name].title.format(**config.model)
