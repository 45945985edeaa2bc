"""A frozen network: its weights and how it wants its images, and the same opened on the devices.

One forward pass gives features of several depths (Head2Toe: Evci et al., ICML 2022): the last layer
separates objects, earlier layers separate scans and textures.

Shape suffixes: B images, H rows, W columns, C channels or features, S features of stages.
"""

import contextlib
import dataclasses
import functools
import hashlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from cls_jax.bars import show_progress
from cls_jax.batch import normalize
from cls_jax.data.resize import CENTER_CROP, DecodeOptions
from cls_jax.data.types import ImageSource
from cls_jax.errors import UserError
from cls_jax.io import make_printable
from cls_jax.models import MODELS
from cls_jax.models.convolutions import traced_for
from cls_jax.models.layers import ALL_FEATURES, Architecture
from cls_jax.models.weights.layout import Weights, WeightsError, from_torch
from cls_jax.parallel import compilation
from cls_jax.parallel.machine import available_cpus

# Images per device that are read and stored together.
_BATCH_SIZE = 16
_ACCELERATOR_BATCH_SIZE = 256
# The number of images is unknown, but even a hundred thousand are only some hundred batches.
_NUM_RUNS = 100_000 // _ACCELERATOR_BATCH_SIZE
_NUM_TIMED = 4  # Batches.
_MAX_OPENED = 4  # Networks that stay open, with their weights in the devices' memory.
_FLOAT16_MAX = 65504.0

Progress = Callable[[int, int], None]  # Called with (images done, images in all).


class FrozenFeatures(NamedTuple):
    """Features of B images from a frozen network."""

    pooled: np.ndarray  # The inputs of the network's heads, float16 [B, C].
    # Descriptors for the search of similar images, float16 [B, C], see `pool_descriptor`.
    descriptors: np.ndarray
    # Mean and deviation over positions of each stage's output, float16 [B, S]. S is 0 if the
    # features are pixels.
    stages: np.ndarray
    # Features of the same images from more networks, which take part in inferring labels.
    others: tuple["FrozenFeatures", ...] = ()

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Those of this network."""
        return self.pooled, self.descriptors, self.stages

    def convert(self, convert_rows: Callable[[np.ndarray], np.ndarray]) -> "FrozenFeatures":
        """The same features after a function of each array."""
        return FrozenFeatures(
            pooled=convert_rows(self.pooled),
            descriptors=convert_rows(self.descriptors),
            stages=convert_rows(self.stages),
            others=tuple(each.convert(convert_rows) for each in self.others),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class FrozenNetwork:
    """A network whose features are used without training.

    Two are equal if they compute the same, wherever their weights were read.
    """

    name: str  # One of `MODELS`.
    weights: Weights
    image_size: int  # The height and width of its images in pixels.
    settings: tuple[tuple[str, Any], ...] = ()  # Its own keys of `config.model`, with values.
    decoding: DecodeOptions = CENTER_CROP
    channels: int = 3  # 1 or 3.

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """The shape (H, W, C) of its images."""
        return self.image_size, self.image_size, self.channels

    def without_weights(self) -> "FrozenNetwork":
        """The same network without the arrays of its weights."""
        return dataclasses.replace(self, weights=self.weights._replace(arrays={}))

    def hash_weights(self, text: str) -> str:
        """A hash of a text and of the weights, 32 characters."""
        digest = hashlib.blake2b(text.encode(), digest_size=16)
        for name in sorted(self.weights.arrays):
            array = np.ascontiguousarray(self.weights.arrays[name])
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(array.data.cast("B") if array.ndim else array.tobytes())
        return digest.hexdigest()

    @functools.cached_property
    def _identity(self) -> str:
        return self.hash_weights(repr(self.without_weights()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrozenNetwork) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)


class OpenedNetwork:
    """A frozen network on all local devices, with one program for all images.

    Attributes:
        model: The architecture, with a head for a single class.
        variables: "params" and "batch_stats", with a head of zeros, in the memory of the host.
        num_pooled: C.
        num_stages: S.
        batch_size: The largest number of images for `compute_rows`.
        blank: The row of an image that cannot be read, float16 [R].
    """

    def __init__(self, network: FrozenNetwork):
        """Raises a UserError if the weights are those of another architecture."""
        self._network = network
        self.model, self.variables, num_features = _create_model(network)
        devices = jax.local_devices()
        mesh = jax.make_mesh((len(devices),), ("data",), (AxisType.Auto,), devices=devices)
        per_device = _BATCH_SIZE if devices[0].platform == "cpu" else _ACCELERATOR_BATCH_SIZE
        self.batch_size = per_device * len(devices)
        self._num_at_once = choose_num_at_once(per_device) * len(devices)
        self._by_image = NamedSharding(mesh, P("data"))
        on_devices = jax.device_put(self.variables, NamedSharding(mesh, P()))
        default = MODELS[network.name].layout.normalization
        mean, std = network.weights.normalization or default
        compiled = compilation.jit(_forward, runs=_NUM_RUNS, static_argnums=(0, 1, 2))
        self._forward = functools.partial(compiled, self.model, mean, std, on_devices)
        self.num_pooled = len(self.variables["params"]["head"]["kernel"])
        self.num_stages = num_features - 2 * self.num_pooled
        (self.blank,) = _pack(np.zeros((1, num_features)), self.num_pooled)

    def compute_rows(self, images: np.ndarray) -> np.ndarray:
        """Features of at most a batch of uint8 [B, H, W, C], float16 [B, R], see `unpack`."""
        parts = []
        for start in range(0, len(images), self._num_at_once):
            part = images[start : start + self._num_at_once]
            padded = np.zeros((self._num_at_once, *self._network.image_shape), np.uint8)
            padded[: len(part)] = part
            parts.append(self._forward(jax.device_put(padded, self._by_image)))
        features = np.concatenate(jax.device_get(parts))
        return _pack(features[: len(images)], self.num_pooled)

    def extract(self, images: ImageSource, on_progress: Progress | None = None) -> FrozenFeatures:
        """Features of uint8 [B, H, W, 1 or 3] of any height and width, without caching.

        The images are scaled to the network's own resolution. Raises a UserError if a feature is
        not finite. `on_progress` is called after each batch. None shows a progress bar.
        """
        rows = np.zeros((len(images), len(self.blank)), np.float16)
        with report_progress(on_progress, len(images)) as report:
            for start in range(0, len(images), self.batch_size):
                batch = np.asarray(images[start : start + self.batch_size])
                enlarged = _enlarge(batch, self._network.image_size, self._network.channels)
                rows[start : start + self.batch_size] = self.compute_rows(enlarged)
                report(start + len(batch))
        features = unpack(rows)
        check_finite(features, [f"number {i:,}" for i in range(len(images))])
        return features

    def time(self) -> float:
        """Seconds for the features of an image in a full batch, without opening and compiling."""
        batch = np.zeros((self.batch_size, *self._network.image_shape), np.uint8)
        self.compute_rows(batch)
        started = time.perf_counter()
        for _ in range(_NUM_TIMED):
            self.compute_rows(batch)
        return (time.perf_counter() - started) / (_NUM_TIMED * self.batch_size)


def choose_num_at_once(most: int) -> int:
    """How many images a device takes at once through a network that is not trained, at most `most`.

    A CPU takes one for each core, but at least two, whose activations then fit into its caches:
    EfficientNet-Lite0 at 224 pixels takes 8.1 ms per image, and 10.9 ms with 16 at once (2 cores).
    """
    if jax.local_devices()[0].platform != "cpu":
        return most
    return min(max(available_cpus(), 2), most)


@functools.lru_cache(maxsize=_MAX_OPENED)
def open_network(network: FrozenNetwork) -> OpenedNetwork:
    """Opens a network, or returns it as it is if this process opened an equal one.

    Raises a UserError if the weights are those of another architecture.
    """
    return OpenedNetwork(network)


def _create_model(network: FrozenNetwork) -> tuple[Architecture, Any, int]:
    """The architecture, its variables with a head of zeros, and the number 2C + S of features.

    Raises a UserError if the weights are those of another architecture.
    """
    spec, settings = MODELS[network.name], dict(network.settings)
    model = spec.create(num_classes=1, **settings)
    image = jax.ShapeDtypeStruct((1, *network.image_shape), jnp.float32)

    # Both in one trace, which for a network of some dozen layers takes about a second.
    def initialize(image: jax.Array) -> tuple[Any, Any]:
        return model.init_with_output(jax.random.key(0), image, head=ALL_FEATURES)

    with traced_for("shapes"):  # Of the same shapes, and traced faster.
        features, variables = jax.eval_shape(initialize, image)
    heads = {name: variables["params"][name] for name in model.head_names}
    try:
        variables = from_torch(network.weights.arrays, variables, spec.layout, model.head_names)
    except WeightsError as error:
        raise UserError(
            f"The weights are not those of {spec.title.format(**settings)} "
            f"({error}): set model.name to their architecture."
        ) from error
    variables["params"] |= jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), heads)
    return model, variables, features.shape[-1]


# A function of the module, so that equal architectures share one compiled program.
def _forward(
    model: Architecture,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    variables: Any,
    images: jax.Array,
) -> jax.Array:
    """Pooled features, descriptors and stages side by side, float32 [B, 2C + S]."""
    features = model.apply(variables, normalize(images, mean, std), head=ALL_FEATURES)
    assert isinstance(features, jax.Array)  # Nothing is mutable.
    return features


def _pack(features: np.ndarray, num_pooled: int) -> np.ndarray:
    """Rows for the store, float16 [B, 1 + 2C + S]: the bits of C, an integer, and the features."""
    width = np.full((len(features), 1), num_pooled, np.uint16).view(np.float16)
    features = np.clip(features, -_FLOAT16_MAX, _FLOAT16_MAX).astype(np.float16)
    return np.concatenate([width, features], axis=1)


def unpack(rows: np.ndarray) -> FrozenFeatures:
    """The features of rows of `compute_rows`, float16 [B, R], of which there is at least one."""
    width = int(np.ascontiguousarray(rows[:, :1]).view(np.uint16).max(initial=0))
    pooled, descriptors, stages = np.split(rows[:, 1:], [width, 2 * width], axis=1)
    return FrozenFeatures(pooled, descriptors, stages)


def check_finite(features: FrozenFeatures, names: list[str]) -> None:
    """Raises a UserError that names an image whose features are NaN. Infinite ones are clipped."""
    is_finite = np.ones(len(names), bool)
    for rows in features.arrays:
        is_finite &= np.isfinite(rows).all(axis=1)
    damaged = [names[i] for i in np.flatnonzero(~is_finite).tolist()]
    if damaged:
        raise UserError(
            f"The pretrained network's features are not numbers for {len(damaged):,} of "
            f"{len(names):,} images, such as {make_printable(damaged[0])}: remove these images or, "
            "if they are all, choose other weights with --config.model.init."
        )


def _enlarge(images: np.ndarray, size: int, channels: int) -> np.ndarray:
    """Bicubic, as image files are scaled: uint8 [B, H, W, C] → [B, size, size, channels]."""
    shape = (len(images), size, size, images.shape[-1])
    if images.shape == shape:
        return np.broadcast_to(images, (*shape[:-1], channels))
    scaled = jax.image.resize(images.astype(np.float32), shape, "bicubic")
    scaled = np.asarray(jnp.clip(jnp.round(scaled), 0, 255)).astype(np.uint8)
    return np.broadcast_to(scaled, (*shape[:-1], channels))


@contextlib.contextmanager
def report_progress(on_progress: Progress | None, total: int) -> Iterator[Callable[[int], Any]]:
    """A function to call with the number of images done so far."""
    if on_progress is not None:
        yield lambda done: on_progress(done, total)
        return
    with show_progress(None, "Features", total, unit="image", disable=not total) as bar:
        yield lambda done: bar.update(done - bar.n)
