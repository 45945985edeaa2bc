"""Features of image files from a frozen network with pretrained weights, cached on disk.

They are computed once per image content and weights, for all commands, and stored by the digest of
the file's bytes. One forward pass gives features of several depths (Head2Toe: Evci et al., ICML
2022): the last layer separates objects, earlier layers separate scans and textures.

Shape suffixes: B images, H rows, W columns, C channels or features.
"""

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from tqdm import tqdm

from cls_jax.batch import normalize
from cls_jax.data.resize import CENTER_CROP, DecodeOptions
from cls_jax.data.types import ImageSource, Selection
from cls_jax.errors import UserError
from cls_jax.io import make_printable
from cls_jax.models import MODELS
from cls_jax.models.layers import ALL_FEATURES, Architecture
from cls_jax.models.weights.layout import Weights, WeightsError, from_torch
from cls_jax.models.weights.sources import read_init
from cls_jax.parallel.distributed import gather_rows, take_local
from cls_jax.photos.features.backbones import DEFAULT_BACKBONE, get_backbone
from cls_jax.photos.features.neighbors import normalize_rows
from cls_jax.photos.images.files import ImageBatch, find_digests, find_settled, read_ahead
from cls_jax.photos.images.store import Store, get_cache_folder

# Increase when features of the same image and weights change.
_VERSION = 4
_BATCH_SIZE = 16  # Per device. Larger batches are no faster on a CPU.
_ACCELERATOR_BATCH_SIZE = 256
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


class FrozenNetwork(NamedTuple):
    """A network whose features are used without training."""

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


def open_backbone(init: str = DEFAULT_BACKBONE) -> FrozenNetwork:
    """Weights of the table of backbones, at the network's own resolution.

    Raises a UserError if there are none of this name, or they cannot be read.
    """
    name = get_backbone(init).name
    weights = read_init(init)
    spec = MODELS[name]
    weights = weights._replace(normalization=weights.normalization or spec.layout.normalization)
    return FrozenNetwork(name, weights, spec.image_size)


def open_backbones(
    inits: Sequence[str], image_size: int = 0, **settings: Any
) -> tuple[FrozenNetwork, ...]:
    """Several networks of the table, for images of one resolution, so that these are decoded once.

    It is `image_size`, or the first network's own if it is 0. `settings` are further fields. Raises
    as `open_backbone`.
    """
    networks = [open_backbone(init) for init in inits]
    image_size = image_size or networks[0].image_size
    return tuple(each._replace(image_size=image_size, **settings) for each in networks)


def load_features(files: Sequence[str | os.PathLike], init: str = DEFAULT_BACKBONE) -> np.ndarray:
    """Descriptors by `open_backbone`, float32 [B, C] of norm 1. Zeros where one cannot be read."""
    return normalize_rows(extract_features(files, open_backbone(init)).descriptors)


def extract_all_features(
    files: Sequence[str | os.PathLike],
    networks: Sequence[FrozenNetwork],
    on_progress: Progress | None = None,
) -> FrozenFeatures:
    """Features of image files by the first network, and by the rest as `others`.

    Progress counts in proportion to the networks that have seen an image. Raises the same as
    `extract_features`.
    """
    parts = []
    for i, network in enumerate(networks):
        report = on_progress and functools.partial(_report_part, on_progress, i, len(networks))
        parts.append(extract_features(files, network, report))
    return parts[0]._replace(others=tuple(parts[1:]))


def _report_part(on_progress: Progress, part: int, num_parts: int, done: int, total: int) -> None:
    on_progress((part * total + done) // num_parts, total)


def extract_features(
    files: Sequence[str | os.PathLike],
    network: FrozenNetwork,
    on_progress: Progress | None = None,
    images: ImageSource | None = None,
) -> FrozenFeatures:
    """Features of image files by a network. An image that cannot be read has zeros.

    Each of several processes computes a part and gets all. All must call this with the same files.
    `on_progress` is called after each batch of files that are read. None shows a progress bar.
    `images` are the files as decoded for the network, uint8 [B, H, W, C], if known. The files are
    still read unless the images have the `digests` of the files. Raises a UserError if the weights
    are of another architecture, or a feature is not finite.
    """
    local = take_local(len(files))
    if images is not None and jax.process_count() > 1:
        images = Selection(images, np.arange(local.start, local.stop))
    rows = _extract_local(files[local], network, on_progress, images)
    features = _unpack(gather_rows(rows, len(files)))
    _check_finite(features, [os.fspath(file) for file in files])
    return features


def _check_finite(features: FrozenFeatures, names: Sequence[str]) -> None:
    """Raises a UserError that names an image whose features are NaN. Infinite ones are clipped."""
    is_finite = np.ones(len(names), bool)
    for rows in features.arrays:
        is_finite &= np.isfinite(rows).all(axis=1)
    damaged = [names[i] for i in np.flatnonzero(~is_finite).tolist()]
    if not damaged:
        return
    if len(damaged) == len(names) > 1:
        raise UserError(
            "The pretrained network's features are not numbers for any of the images, so its "
            "weights are damaged: choose others with --config.model.init."
        )
    raise UserError(
        f"The pretrained network's features are not numbers for {len(damaged):,} of {len(names):,} "
        f"images, such as {make_printable(damaged[0])}: remove these images, or choose other "
        "weights with --config.model.init."
    )


def concatenate_features(parts: Sequence[FrozenFeatures]) -> FrozenFeatures:
    """The features of several groups of images, one after the other."""
    return FrozenFeatures(
        pooled=np.concatenate([part.pooled for part in parts]),
        descriptors=np.concatenate([part.descriptors for part in parts]),
        stages=np.concatenate([part.stages for part in parts]),
        others=tuple(
            concatenate_features(each)
            for each in zip(*(part.others for part in parts), strict=True)
        ),
    )


def _extract_local(
    files: Sequence[str | os.PathLike],
    network: FrozenNetwork,
    on_progress: Progress | None,
    images: ImageSource | None,
) -> np.ndarray:
    """`extract_features` in a single process, as rows of the store, float16 [B, R].

    All processes have the same R, also where B is 0.
    """
    store = Store(get_cache_folder())
    paths = [os.fspath(file) for file in files]
    options = _name_options(network)
    decoded = None if images is None else getattr(images, "digests", None)
    digests = find_digests(store, paths) if decoded is None else decoded
    is_done, rows = _recall(store, options, digests)
    if is_done.all() and rows.shape[1]:
        return rows
    compute, blank, batch_size = _compile(network)
    if not rows.shape[1]:
        rows = np.zeros((len(paths), len(blank)), np.float16)
    rows[~is_done] = blank
    # The first of several files with the same content. Files without a digest are all kept.
    todo = sorted({digests[i] or i: i for i in np.flatnonzero(~is_done)[::-1].tolist()}.values())
    recalled = dict[bytes, bytes]()  # Rows found by content while reading.

    def is_known(digest: bytes) -> bool:
        with contextlib.suppress(OSError):
            store.read(options, [digest], lambda _, row: recalled.update({digest: row}))
        return digest in recalled

    if decoded is not None:
        batches = _cut_batches(paths, digests, images, todo, batch_size)
    else:
        missing = [paths[i] for i in todo]
        batches = read_ahead(
            missing,
            network.image_shape,
            batch_size=batch_size,
            options=network.decoding,
            is_known=is_known,
        )
    with contextlib.closing(batches), _report(on_progress, len(todo)) as report:
        for start, batch in zip(range(0, len(todo), batch_size), batches, strict=True):
            part = todo[start : start + batch_size]
            for i, digest in zip(part, batch.digests, strict=True):
                digests[i] = digest
            read = [i for i, error in zip(part, batch.errors, strict=True) if error is None]
            if read:
                rows[read] = compute(batch.images)
                is_done[read] = True
            # A full disk must not stop a command that only needs the features.
            with contextlib.suppress(OSError):
                finite = [i for i in read if np.isfinite(rows[i, 1:]).all()]
                new = {digests[i]: rows[i].tobytes() for i in finite}
                store.write(options, new, find_settled(batch))
            report(start + len(part))
    with contextlib.suppress(OSError):
        store.shrink()
    recalled |= {digests[i]: rows[i].tobytes() for i in todo if is_done[i]}
    for i in np.flatnonzero(~is_done):
        if digests[i] in recalled:
            rows[i] = np.frombuffer(recalled[digests[i]], np.float16)
    return rows


def _pack(features: np.ndarray, num_pooled: int) -> np.ndarray:
    """Rows for the store, float16 [B, 1 + 2C + S]: the bits of C, an integer, and the features."""
    width = np.full((len(features), 1), num_pooled, np.uint16).view(np.float16)
    features = np.clip(features, -_FLOAT16_MAX, _FLOAT16_MAX).astype(np.float16)
    return np.concatenate([width, features], axis=1)


def _unpack(rows: np.ndarray) -> FrozenFeatures:
    """The features of rows that `_pack` returned, of which there is at least one."""
    width = int(np.ascontiguousarray(rows[:, :1]).view(np.uint16).max(initial=0))
    pooled, descriptors, stages = np.split(rows[:, 1:], [width, 2 * width], axis=1)
    return FrozenFeatures(pooled, descriptors, stages)


def _cut_batches(
    paths: Sequence[str],
    digests: Sequence[bytes],
    images: Any,
    todo: Sequence[int],
    batch_size: int,
) -> Generator[ImageBatch, None, None]:
    """The images of some files as `read_ahead` would decode them."""
    for start in range(0, len(todo), batch_size):
        part = todo[start : start + batch_size]
        names, found = [paths[i] for i in part], [digests[i] for i in part]
        yield ImageBatch(names, [None] * len(part), images[np.array(part)], found)


def _recall(store: Store, options: str, digests: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Which digests have a row, bool [B], and the rows, [B, 0] if none has."""
    is_done = np.zeros(len(digests), bool)
    rows = np.zeros((len(digests), 0), np.float16)

    def put(places: list[int], row: bytes) -> None:
        nonlocal rows
        values = np.frombuffer(row, np.float16)
        if not rows.shape[1]:
            rows = np.zeros((len(digests), len(values)), np.float16)
        rows[places] = values
        is_done[places] = True

    with contextlib.suppress(OSError):  # The rows are then computed.
        store.read(options, digests, put)
    return is_done, rows


def extract_from_arrays(
    images: Any, network: FrozenNetwork, on_progress: Progress | None = None
) -> FrozenFeatures:
    """Features of an `ImageSource` of uint8 [B, H, W, 1 or 3], without caching.

    The images are scaled to the network's own resolution. Raises the same as `extract_features`.
    """
    compute, blank, batch_size = _compile(network)
    rows = np.zeros((len(images), len(blank)), np.float16)
    with _report(on_progress, len(images)) as report:
        for start in range(0, len(images), batch_size):
            batch = np.asarray(images[start : start + batch_size])
            enlarged = _enlarge(batch, network.image_size, network.channels)
            rows[start : start + batch_size] = compute(enlarged)
            report(start + len(batch))
    features = _unpack(rows)
    _check_finite(features, [f"number {i:,}" for i in range(len(images))])
    return features


def _enlarge(images: np.ndarray, size: int, channels: int) -> np.ndarray:
    """Bicubic, as image files are scaled: uint8 [B, H, W, C] → [B, size, size, channels]."""
    shape = (len(images), size, size, images.shape[-1])
    if images.shape == shape:
        return np.broadcast_to(images, (*shape[:-1], channels))
    scaled = jax.image.resize(images.astype(np.float32), shape, "bicubic")
    scaled = np.asarray(jnp.clip(jnp.round(scaled), 0, 255)).astype(np.uint8)
    return np.broadcast_to(scaled, (*shape[:-1], channels))


@contextlib.contextmanager
def _report(on_progress: Progress | None, total: int) -> Iterator[Callable[[int], Any]]:
    """A function to call with the number of images done so far."""
    if on_progress is not None:
        yield lambda done: on_progress(done, total)
        return
    with tqdm(None, "Features", total, unit="image", dynamic_ncols=True, disable=not total) as bar:
        yield lambda done: bar.update(done - bar.n)


def _compile(network: FrozenNetwork) -> tuple[Callable[[np.ndarray], np.ndarray], np.ndarray, int]:
    """Compiles a network: a function uint8 [n, H, W, C] → rows of the store, float16 [n, R].

    It uses all local devices. Returns it with the row of an image that cannot be read, float16 [R],
    and the largest n, a batch.
    """
    model, variables = create_network(network)
    devices = jax.local_devices()
    mesh = jax.make_mesh((len(devices),), ("data",), (AxisType.Auto,), devices=devices)
    on_all = NamedSharding(mesh, P())
    by_image = NamedSharding(mesh, P("data"))
    variables = jax.device_put(variables, on_all)
    mean, std = network.weights.normalization or MODELS[network.name].layout.normalization

    per_device = _BATCH_SIZE if devices[0].platform == "cpu" else _ACCELERATOR_BATCH_SIZE
    batch_size = per_device * len(devices)
    forward = functools.partial(_forward, model, mean, std, variables)

    def compute(images: np.ndarray) -> np.ndarray:
        padded = np.zeros((batch_size, *network.image_shape), np.uint8)
        padded[: len(images)] = images
        features = np.asarray(forward(jax.device_put(padded, by_image)))
        return _pack(features[: len(images)], num_pooled)

    num_pooled = len(variables["params"]["head"]["kernel"])
    image = jax.ShapeDtypeStruct((1, *network.image_shape), jnp.uint8)
    (blank,) = _pack(np.zeros(jax.eval_shape(forward, image).shape), num_pooled)
    return compute, blank, batch_size


def create_network(
    network: FrozenNetwork, num_classes: int = 1, **heads_used: Any
) -> tuple[Architecture, Any]:
    """An architecture and its variables, with a head of zeros, or a UserError if they differ.

    Further arguments are fields of `Architecture` that say which heads there are.
    """
    spec = MODELS[network.name]
    settings = dict(network.settings)
    model = spec.create(num_classes=num_classes, **heads_used, **settings)
    image = jax.ShapeDtypeStruct((1, *network.image_shape), jnp.float32)
    variables = jax.eval_shape(model.init, jax.random.key(0), image)
    heads = {name: variables["params"][name] for name in model.head_names}
    try:
        variables = from_torch(network.weights.arrays, variables, spec.layout, model.head_names)
    except WeightsError as error:
        raise UserError(
            f"The weights are not those of {spec.title.format(**settings)} "
            f"({error}): set model.name to their architecture."
        ) from error
    variables["params"] |= jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), heads)
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
    """Pooled features, descriptors and stages side by side, float32 [B, 2C + S]."""
    features = model.apply(variables, normalize(images, mean, std), head=ALL_FEATURES)
    assert isinstance(features, jax.Array)  # Nothing is mutable.
    return features


def _name_options(network: FrozenNetwork) -> str:
    """A name for everything that features depend on, except for the images."""
    settings = network._replace(weights=network.weights._replace(arrays={}))
    precision = jax.default_matmul_precision.value  # Of JAX's configuration.
    how = (_VERSION, settings, jax.__version__, jax.default_backend(), precision)
    digest = hashlib.blake2b(repr(how).encode(), digest_size=16)
    for name in sorted(network.weights.arrays):
        array = np.ascontiguousarray(network.weights.arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.data.cast("B") if array.ndim else array.tobytes())
    return f"features/{network.name}-{digest.hexdigest()}"
