"""Stacked networks as a function of images: those of a trained run, or of an instant classifier.

Shape suffixes: N networks, B images, C features, K classes.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from cls_jax.batch import normalize
from cls_jax.data.resize import DecodeOptions, get_decode_options
from cls_jax.data.types import ImageSource
from cls_jax.models.ensemble import Ensemble, take_network
from cls_jax.models.layers import WITH_FEATURES
from cls_jax.models.weights.layout import Normalization
from cls_jax.parallel import compilation
from cls_jax.parallel.mesh import (
    DATA_AXIS,
    NETWORK_AXIS,
    create_mesh,
    get_process_shard,
    to_global_arrays,
)
from cls_jax.photos.features.graph import join_features
from cls_jax.photos.features.instant import InstantClassifier, TaggedClassifier
from cls_jax.photos.features.network import choose_num_at_once
from cls_jax.photos.inference.heat_maps import compute_heat_maps
from cls_jax.training.prepare import RunEnd

_HEAT_MAPS_AT_ONCE = 16
# Larger batches are no faster, so more images use the program compiled for this many.
_ENOUGH_IMAGES = 1024
_EVAL_PIXELS = 2**20  # In a batch of an instant classifier.


class ImageFormat(NamedTuple):
    """How networks want their images."""

    shape: tuple[int, int, int]  # (H, W, C).
    decoding: DecodeOptions
    normalization: Normalization


class Networks:
    """Trained networks, or a frozen one with an instant classifier's heads, on the devices at hand.

    Threads that compute at the same time take turns.

    Attributes:
        name: The architecture, one of `MODELS`.
        ensemble: The architecture's forward pass.
        variables: "params" and "batch_stats" of all networks, stacked.
        format: How the networks want their images.
        num_networks: N.
        num_features: N C, of all networks together.
        num_classes: K.
        batch_size: The number of images per forward pass.
        activation: From logits to probabilities, along the last axis: of classes, which exclude
            each other, or of tags.
    """

    def __init__(
        self,
        name: str,
        ensemble: Ensemble,
        variables: dict[str, Any],
        format: ImageFormat,
        mesh: Mesh,
        batch_size: int,
        activation: Callable[[jax.Array], jax.Array] = jax.nn.softmax,
    ):
        """Wraps variables that are on the mesh. `batch_size` is that of each shard."""
        self.name = name
        self.ensemble = ensemble
        self.variables = variables
        self.format = format
        self.num_networks, num_features, self.num_classes = variables["params"]["head"][
            "kernel"
        ].shape
        self.num_features = self.num_networks * num_features
        self.batch_size = batch_size * mesh.shape[DATA_AXIS]
        self.activation = activation
        self._mesh = mesh
        self._compiled_size = 0
        # Programs that exchange data must start in the same order on all devices.
        self._lock = threading.Lock()

    def predict_with_features(self, images: ImageSource) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities of all classes by every network, and features, of B images.

        Features are the inputs of the networks' last layers, scaled to unit length for each
        network. `images` are uint8 [B, H, W, C], an array or anything read by index. Returns
        float32 [N, B, K] and [B, N C]. Raises a ValueError if they have another shape or type.
        """
        sizes = (self.num_classes, self.num_features // self.num_networks)
        parts = [[np.zeros((self.num_networks, 0, size), np.float32) for size in sizes]]
        size = self._choose_padded_size(len(images))
        image_shape = self.format.shape
        local = get_process_shard(self._mesh).take(size)  # Each process reads a part.
        for start in range(0, len(images), size):
            part = np.asarray(images[start + local.start : start + local.stop])
            if part.shape[1:] != image_shape or part.dtype != np.uint8:
                raise ValueError(
                    f"The images are {part.dtype} {part.shape[1:]}, but the classifier expects "
                    f"uint8 {image_shape}."
                )
            missing = local.stop - local.start - len(part)
            padded = np.pad(part, [(0, missing), *[(0, 0)] * (part.ndim - 1)])
            with self._lock:
                on_mesh = to_global_arrays(padded, self._mesh, P(DATA_AXIS), (size, *image_shape))
                arrays = jax.device_get(self._forward(self.variables, on_mesh))
            parts.append([array[:, : len(images) - start] for array in arrays])
        p_NBK, f_NBC = (np.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True))
        return p_NBK, join_features(f_NBC)

    def compute_heat_maps(self, images: np.ndarray, classes: np.ndarray) -> np.ndarray:
        """Where network 1 sees evidence for a class, float32 [B, h, w] from 0 to 1.

        `images` are uint8 [B, H, W, C], at least one, and `classes`, int [B], the classes. See
        `heat_maps.compute_heat_maps`.
        """
        model = self.ensemble.model
        variables = take_network(jax.device_get(self.variables), 0)

        size = min(len(images), _HEAT_MAPS_AT_ONCE)

        # The weights are an argument: the same program serves all runs.
        @functools.partial(compilation.jit, runs=-(-len(images) // size))
        def compute(variables: Any, images: jax.Array, classes: jax.Array) -> jax.Array:
            return compute_heat_maps(model, variables, self.normalize(images), classes)

        parts = []
        for start in range(0, len(images), size):
            # The last batch ends with the first images again, so that one program serves all.
            rows = np.arange(start, start + size) % len(images)
            parts.append(np.asarray(compute(variables, images[rows], classes[rows])))
        return np.concatenate(parts)[: len(images)]

    def normalize(self, images: jax.Array) -> jax.Array:
        """Normalizes uint8 [..., C] as in training."""
        mean, std = self.format.normalization
        return normalize(images, mean, std)

    @functools.cached_property
    def _forward(self) -> Callable[[Any, jax.Array], tuple[jax.Array, jax.Array]]:
        """Compiles (variables, images uint8 [B, H, W, C]) → probabilities and the heads' inputs.

        These are float32 [N, B, K] and [N, B, C], and stay on the devices.
        """

        def forward(networks: Any, images: jax.Array) -> tuple[jax.Array, jax.Array]:
            params, batch_stats = networks["params"], networks["batch_stats"]
            images = self.normalize(images)
            outputs, _ = self.ensemble.forward(
                params, batch_stats, images, train=False, head=WITH_FEATURES
            )
            logits, features = jnp.split(outputs, [self.num_classes], axis=-1)
            return self.activation(logits), features

        sharded = jax.shard_map(
            forward,
            mesh=self._mesh,
            in_specs=(P(NETWORK_AXIS), P(DATA_AXIS)),
            out_specs=P(NETWORK_AXIS, DATA_AXIS),
        )
        # The number of images is unknown, but even a hundred thousand are only a hundred batches.
        runs = 100_000 // _ENOUGH_IMAGES
        # Replicated in every process.
        return compilation.jit(sharded, runs=runs, out_shardings=NamedSharding(self._mesh, P()))

    def _choose_padded_size(self, num_images: int) -> int:
        """The padded batch size: few sizes to compile, and no full batch for a single image."""
        if num_images > self._compiled_size and self._compiled_size < _ENOUGH_IMAGES:
            shards = self._mesh.shape[DATA_AXIS]
            power_of_two = 1 << (num_images - 1).bit_length()
            self._compiled_size = min(-(-power_of_two // shards) * shards, self.batch_size)
        return max(self._compiled_size, 1)


def open_trained_networks(end: RunEnd) -> Networks:
    """The EMA networks of a run's checkpoint."""
    setup, state, _ = end
    data = setup.config.data
    return Networks(
        setup.config.model.name,
        setup.ensemble,
        variables={"params": state.ema_params, "batch_stats": state.batch_stats},
        format=ImageFormat(
            setup.dataset_spec.image_shape,
            get_decode_options(data),
            (tuple(data.mean), tuple(data.std)),
        ),
        mesh=setup.mesh,
        batch_size=setup.config.eval_batch_size,
    )


def open_instant_networks(instant: InstantClassifier | TaggedClassifier) -> Networks:
    """The frozen network of an instant classifier, with its heads."""
    network = instant.frozen
    assert network.weights.normalization is not None, "an instant classifier stores it"
    model, variables = instant.create_model()
    mesh = create_mesh(1, [jax.device_count()])
    stacked = jax.tree.map(lambda leaf: leaf[None], {"batch_stats": {}, **variables})
    return Networks(
        network.name,
        Ensemble(model),
        variables=to_global_arrays(stacked, mesh, jax.tree.map(lambda _: P(NETWORK_AXIS), stacked)),
        format=ImageFormat(network.image_shape, network.decoding, network.weights.normalization),
        mesh=mesh,
        batch_size=choose_num_at_once(max(_EVAL_PIXELS // network.image_size**2, 1)),
        activation=instant.activate,
    )
