"""Features of image files from a frozen network with pretrained weights, kept on disk.

They are computed once per image content and weights, whatever a file is called and whichever
command asks for them.

Shape suffixes: B images, H rows, W columns, C channels or features.
"""

import concurrent.futures
import contextlib
import functools
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from tqdm import tqdm

from cls_jax.batch import normalize
from cls_jax.data.images.decode import CENTER_CROP, DecodeOptions, ImageError, open_file
from cls_jax.data.images.files import ImageBatch, read_ahead
from cls_jax.data.types import ImageSource
from cls_jax.errors import UserError
from cls_jax.features.neighbors import normalize_rows
from cls_jax.features.store import KEY_BYTES, Store, get_cache_folder
from cls_jax.models import MODELS
from cls_jax.models.layers import DESCRIPTORS, Architecture
from cls_jax.models.weights.layout import Weights, WeightsError, from_torch
from cls_jax.models.weights.sources import BUILTIN, read_init
from cls_jax.parallel.cpus import available_cpus

PRETRAINED = f"{BUILTIN}efficientnet_lite0"

# Increase when features of the same image and weights come out differently.
_VERSION = 2
_BATCH_SIZE = 16  # Per device. Larger ones are no faster on a CPU.
_ACCELERATOR_BATCH_SIZE = 256
_FLOAT16_MAX = 65504.0
_create_hash = functools.partial(hashlib.blake2b, digest_size=KEY_BYTES)

Progress = Callable[[int, int], None]  # Called with (images done, images in all).


class FrozenFeatures(NamedTuple):
    """What a frozen network says about B images."""

    pooled: np.ndarray  # The inputs of the network's heads, float16 [B, C].
    # What similar images are found by, float16 [B, C], see `pool_descriptor`.
    descriptors: np.ndarray


class FrozenNetwork(NamedTuple):
    """A network whose features are used as they are."""

    name: str  # One of `MODELS`.
    weights: Weights
    image_size: int  # The height and width of its images in pixels.
    settings: tuple[tuple[str, Any], ...] = ()  # Keys of `config.model` that it has, and values.
    decoding: DecodeOptions = CENTER_CROP
    channels: int = 3  # 1 or 3.


def open_network() -> FrozenNetwork:
    """Reads the weights `PRETRAINED`, to be used at the network's own resolution.

    Raises:
        UserError: If the weights cannot be read.
    """
    name = PRETRAINED.removeprefix(BUILTIN)
    weights, entry = read_init(PRETRAINED), MODELS[name]
    weights = weights._replace(normalization=weights.normalization or entry.layout.normalization)
    return FrozenNetwork(name, weights, entry.image_size)


def load_features(
    files: Sequence[str | os.PathLike], on_progress: Progress | None = None
) -> np.ndarray:
    """Descriptors of image files by `open_network`, each of Euclidean norm 1: float32 [B, C].

    An image that cannot be read has zeros. `on_progress` is the same as in `extract_features`.

    Raises:
        UserError: If the pretrained weights cannot be read.
    """
    return normalize_rows(extract_features(files, open_network(), on_progress).descriptors)


def extract_features(
    files: Sequence[str | os.PathLike],
    network: FrozenNetwork,
    on_progress: Progress | None = None,
    images: ImageSource | None = None,
) -> FrozenFeatures:
    """Features of image files by a network. An image that cannot be read has zeros.

    Args:
        files: Images of any size and color.
        network: The network, whose `decoding` makes them squares.
        on_progress: Called after each batch that is computed. None shows a progress bar.
        images: uint8 [B, H, W, C], the files as the network decodes them, if they are known.

    Raises:
        UserError: If the weights are of another architecture.
    """
    paths = [os.fspath(file) for file in files]
    store, keys, is_missing, features = _read_stored(paths, network)
    if not is_missing.any() and features.shape[1]:
        return _split(features)
    compute, num_features, batch_size = _compile(network)
    if not features.shape[1]:
        features = np.zeros((len(paths), num_features), np.float16)
    # Of several copies of an image, the first.
    first = {keys[i].tobytes(): i for i in np.flatnonzero(is_missing)[::-1]}
    missing = sorted(first.values())
    shape = (network.image_size, network.image_size, network.channels)
    if images is not None:
        batches = _cut_batches(paths, images, np.array(missing), batch_size)
    else:
        batches = read_ahead([paths[i] for i in missing], shape, batch_size, network.decoding)
    with _report(on_progress, len(missing)) as report:
        for start, batch in zip(itertools.count(0, batch_size), batches, strict=False):
            rows = np.array(missing[start : start + batch_size])
            rows = rows[[error is None for error in batch.errors]]
            if len(rows):
                features[rows] = compute(batch.images)
                # A full disk must not stop a command that only wants the features.
                with contextlib.suppress(OSError):
                    store.append(keys[rows], features[rows])
            report(start + len(batch.files))
    for i in np.flatnonzero(is_missing):
        features[i] = features[first[keys[i].tobytes()]]
    return _split(features)


def _split(features: np.ndarray) -> FrozenFeatures:
    """What a row holds, [B, 2C]."""
    return FrozenFeatures(*np.split(features, 2, axis=1))


def _cut_batches(
    paths: Sequence[str], images: ImageSource, rows: np.ndarray, batch_size: int
) -> Iterator[ImageBatch]:
    """The images of some files as `read_ahead` would decode them."""
    for start in range(0, len(rows), batch_size):
        part = rows[start : start + batch_size]
        yield ImageBatch([paths[i] for i in part], [None] * len(part), images[part])


def read_features(
    files: Sequence[str | os.PathLike], network: FrozenNetwork
) -> FrozenFeatures | None:
    """What `extract_features` returns, if it has computed all of it before. Otherwise None."""
    _, keys, is_missing, features = _read_stored([os.fspath(file) for file in files], network)
    is_complete = keys.any(axis=1).all() and not is_missing.any() and features.shape[1]
    return _split(features) if is_complete else None


def _read_stored(
    paths: Sequence[str], network: FrozenNetwork
) -> tuple[Store, np.ndarray, np.ndarray, np.ndarray]:
    """The store, the files' keys, bool [B] for features to be computed, and float16 [B, 2C]."""
    store = Store(get_cache_folder() / f"{network.name}-{_hash_network(network)}", np.float16)
    keys = _find_digests(paths)
    is_known, features = store.read(keys)
    return store, keys, keys.any(axis=1) & ~is_known, features


def compute_features(
    images: Any, network: FrozenNetwork, on_progress: Progress | None = None
) -> FrozenFeatures:
    """Features of an `ImageSource` of uint8 [B, H, W, 1 or 3], which are not kept on disk.

    The images are scaled to the network's own resolution. Raises the same as `extract_features`.
    """
    compute, num_features, batch_size = _compile(network)
    features = np.zeros((len(images), num_features), np.float16)
    with _report(on_progress, len(images)) as report:
        for start in range(0, len(images), batch_size):
            batch = np.asarray(images[start : start + batch_size])
            features[start : start + batch_size] = compute(
                _enlarge(batch, network.image_size, network.channels)
            )
            report(start + len(batch))
    return _split(features)


def _enlarge(images: np.ndarray, size: int, channels: int) -> np.ndarray:
    """Bicubic, as image files are scaled: uint8 [B, H, W, C] → [B, size, size, channels]."""
    shape = (len(images), size, size, images.shape[-1])
    scaled = jax.image.resize(images.astype(np.float32), shape, "bicubic")
    scaled = np.asarray(jnp.clip(jnp.round(scaled), 0, 255)).astype(np.uint8)
    return np.broadcast_to(scaled, (*shape[:-1], channels))


@contextlib.contextmanager
def _report(on_progress: Progress | None, total: int) -> Iterator[Callable[[int], Any]]:
    """A function to call with the number of images done so far."""
    if on_progress is not None:
        yield lambda done: on_progress(done, total)
        return
    with tqdm(
        total=total, unit="image", desc="Features", dynamic_ncols=True, disable=not total
    ) as bar:
        yield lambda done: bar.update(done - bar.n)


def _compile(network: FrozenNetwork) -> tuple[Callable[[np.ndarray], np.ndarray], int, int]:
    """How a network computes features on all local devices.

    Returns:
        A function uint8 [n, H, W, C] → float32 [n, features] for up to a batch of images, the
        number of features (pooled ones and descriptors together), and the largest batch.
    """
    model, variables = create_network(network)
    num_features = len(variables["params"]["head"]["kernel"])
    image_shape = (network.image_size, network.image_size, network.channels)
    devices = jax.local_devices()
    mesh = jax.make_mesh((len(devices),), ("data",), (AxisType.Auto,), devices=devices)
    on_all, by_image = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    variables = jax.device_put(variables, on_all)
    mean, std = network.weights.normalization or MODELS[network.name].layout.normalization

    per_device = _BATCH_SIZE if devices[0].platform == "cpu" else _ACCELERATOR_BATCH_SIZE
    batch_size = per_device * len(devices)

    def compute(images: np.ndarray) -> np.ndarray:
        padded = np.zeros((batch_size, *image_shape), np.uint8)
        padded[: len(images)] = images
        on_devices = jax.device_put(padded, by_image)
        features = np.asarray(_forward(model, mean, std, variables, on_devices))
        return np.clip(features[: len(images)], -_FLOAT16_MAX, _FLOAT16_MAX)

    return compute, 2 * num_features, batch_size


def create_network(network: FrozenNetwork, num_classes: int = 1) -> tuple[Architecture, Any]:
    """The architecture and its variables, NumPy arrays, with a head of zeros.

    Raises:
        UserError: If the weights are of another architecture.
    """
    entry = MODELS[network.name]
    model = entry.create(num_classes=num_classes, **dict(network.settings))
    shape = (1, network.image_size, network.image_size, network.channels)
    image = jax.ShapeDtypeStruct(shape, jnp.float32)
    variables = jax.eval_shape(model.init, jax.random.key(0), image)
    head = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), variables["params"]["head"])
    try:
        variables = from_torch(network.weights.arrays, variables, entry.layout, ("head",))
    except WeightsError as error:
        raise UserError(
            f"The weights are not those of {entry.title.format(**dict(network.settings))} "
            f"({error}): set model.name to their architecture."
        ) from error
    variables["params"]["head"] = head
    return model, variables


# Outside of `_compile`, so that the training and the test images share one compiled program.
@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _forward(
    model: Architecture,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    variables: Any,
    images: jax.Array,
) -> jax.Array:
    features: Any = model.apply(variables, normalize(images, mean, std), head=DESCRIPTORS)
    return features


def _hash_network(network: FrozenNetwork) -> str:
    """32 hexadecimal digits for everything that features depend on but the images."""
    digest = _create_hash()
    settings = network._replace(weights=network.weights._replace(arrays={}))
    digest.update(repr((_VERSION, settings)).encode())
    for name in sorted(network.weights.arrays):
        array = np.ascontiguousarray(network.weights.arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.data.cast("B") if array.ndim else array.tobytes())
    return digest.hexdigest()


def _find_digests(paths: Sequence[str]) -> np.ndarray:
    """Hashes of the files' contents, uint8 [n, 16]. Zeros for files that cannot be read.

    A file is read again only if its name, size or times have changed.
    """
    with concurrent.futures.ThreadPoolExecutor(available_cpus()) as executor:
        keys = np.array(list(executor.map(_hash_status, paths)), np.uint8).reshape(-1, KEY_BYTES)
        store = Store(get_cache_folder() / "contents", np.uint8)
        is_known, digests = store.read(keys)
        if not digests.shape[1]:
            digests = np.zeros_like(keys)
        unknown = np.flatnonzero(~is_known)
        for i, digest in zip(
            unknown, executor.map(_hash_content, [paths[int(i)] for i in unknown]), strict=True
        ):
            digests[i] = digest
    new = unknown[digests[unknown].any(axis=1)]
    if len(new):
        with contextlib.suppress(OSError):
            store.append(keys[new], digests[new])
    return digests


def _hash_status(path: str) -> np.ndarray:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return np.zeros(KEY_BYTES, np.uint8)
    times = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    text = f"{os.path.abspath(path)}\0{times}"
    return np.frombuffer(_create_hash(os.fsencode(text)).digest(), np.uint8)


def _hash_content(path: str) -> np.ndarray:
    try:
        with open_file(path) as file:
            digest = hashlib.file_digest(file, _create_hash)  # type: ignore[arg-type] # It fits.
        return np.frombuffer(digest.digest(), np.uint8)
    except (ImageError, OSError):
        return np.zeros(KEY_BYTES, np.uint8)
