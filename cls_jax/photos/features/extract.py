"""Features of image files from frozen networks, cached on disk.

They are computed once per image content and weights, for all commands, and stored by the digest of
the file's bytes.

Shape suffixes: B images, C channels or features, R columns of a row of the store.
"""

import concurrent.futures
import contextlib
import dataclasses
import os
import threading
from collections.abc import Generator, Sequence
from typing import Any

import jax
import numpy as np

from cls_jax.data.types import ImageSource, Selection
from cls_jax.models import MODELS
from cls_jax.models.weights.sources import read_init
from cls_jax.parallel.distributed import gather_rows, take_local
from cls_jax.photos.features.backbones import DEFAULT_BACKBONE, get_backbone
from cls_jax.photos.features.network import (
    FrozenFeatures,
    FrozenNetwork,
    Progress,
    check_finite,
    open_network,
    report_progress,
    unpack,
)
from cls_jax.photos.images.files import ImageBatch, find_digests, find_settled, read_ahead
from cls_jax.photos.images.store import Store, find_places, get_cache_folder

# Increase when features of the same image and weights change.
_VERSION = 4


def read_backbone(init: str = DEFAULT_BACKBONE) -> FrozenNetwork:
    """Weights of the table of backbones, at the network's own resolution.

    Raises a UserError if there are none of this name, or they cannot be read.
    """
    name = get_backbone(init).name
    weights = read_init(init)
    spec = MODELS[name]
    weights = weights._replace(normalization=weights.normalization or spec.layout.normalization)
    return FrozenNetwork(name, weights, spec.image_size)


def read_backbones(
    inits: Sequence[str], image_size: int = 0, **settings: Any
) -> tuple[FrozenNetwork, ...]:
    """Several networks of the table, for images of one resolution, so that these are decoded once.

    It is `image_size`, or the first network's own if it is 0. `settings` are further fields. Raises
    as `read_backbone`.
    """
    networks = [read_backbone(init) for init in inits]
    image_size = image_size or networks[0].image_size
    return tuple(dataclasses.replace(each, image_size=image_size, **settings) for each in networks)


def extract_all_features(
    files: Sequence[str | os.PathLike],
    networks: Sequence[FrozenNetwork],
    on_progress: Progress | None = None,
    images: ImageSource | None = None,
) -> FrozenFeatures:
    """Features of image files by the first network, and by the rest as `others`.

    Each network has a thread, since a compiler uses one core, and small operations not all of them.
    Several processes compute one network after the other, all in the same order. Progress is the
    mean over the networks. The arguments are those of `extract_features`, which raises the same.
    """
    left, lock, is_stopped = [len(files)] * len(networks), threading.Lock(), threading.Event()

    def extract(part: int, network: FrozenNetwork) -> FrozenFeatures:
        def report(done: int, total: int) -> None:
            if is_stopped.is_set():
                raise concurrent.futures.CancelledError
            with lock:
                left[part] = total - done
                show(len(files) - -(-sum(left) // len(left)))

        found = extract_features(files, network, report, images)
        report(0, 0)  # Also if the store had all.
        return found

    num_threads = 1 if jax.process_count() > 1 else len(networks)
    with (
        report_progress(on_progress, len(files)) as show,
        concurrent.futures.ThreadPoolExecutor(num_threads) as pool,
    ):
        futures = [pool.submit(extract, i, network) for i, network in enumerate(networks)]
        try:
            first, *others = (future.result() for future in futures)
        except BaseException:
            is_stopped.set()
            raise
    return first._replace(others=tuple(others))


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
    features = unpack(gather_rows(rows, len(files)))
    check_finite(features, [os.fspath(file) for file in files])
    return features


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
    paths = list(map(str, files))
    options = _name_options(network)
    decoded = getattr(images, "digests", None)
    digests = find_digests(store, paths) if decoded is None else decoded
    is_done, rows = _recall(store, options, digests)
    if is_done.all() and rows.shape[1]:
        return rows
    opened = open_network(network)
    if not rows.shape[1]:
        rows = np.zeros((len(paths), len(opened.blank)), np.float16)
    # The first of several files with the same content. Files without a digest are all kept.
    todo = sorted({digests[i] or i: i for i in np.flatnonzero(~is_done)[::-1].tolist()}.values())
    recalled = dict[bytes, bytes]()  # Rows found by content while reading.

    def is_known(digest: bytes) -> bool:
        with contextlib.suppress(OSError):
            recalled.update(store.read(options, [digest]))
        return digest in recalled

    if decoded is not None:
        batches = _cut_batches(paths, digests, images, todo, opened.batch_size)
    else:
        missing = [paths[i] for i in todo]
        batches = read_ahead(
            missing,
            network.image_shape,
            batch_size=opened.batch_size,
            options=network.decoding,
            is_known=is_known,
        )
    with contextlib.closing(batches), report_progress(on_progress, len(todo)) as report:
        starts = range(0, len(todo), opened.batch_size)
        for start, batch in zip(starts, batches, strict=True):
            part = todo[start : start + opened.batch_size]
            for i, digest in zip(part, batch.digests, strict=True):
                digests[i] = digest
            read = [i for i, error in zip(part, batch.errors, strict=True) if error is None]
            if read:
                rows[read] = opened.compute_rows(batch.images)
                is_done[read] = True
            new = {digests[i]: rows[i].tobytes() for i in read}
            recalled |= new
            # A full disk must not stop a command that only needs the features.
            with contextlib.suppress(OSError):
                # The first value of a row is no number, see `_pack`.
                finite = [digests[i] for i in read if np.isfinite(rows[i, 1:]).all()]
                store.write(options, {each: new[each] for each in finite}, find_settled(batch))
            report(start + len(part))
    with contextlib.suppress(OSError):
        store.shrink()
    # Copies of what was computed, and what was recalled.
    for i in np.flatnonzero(~is_done):
        rows[i] = np.frombuffer(recalled.get(digests[i], opened.blank), np.float16)
    return rows


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
    is_done, rows = np.zeros(len(digests), bool), np.zeros((len(digests), 0), np.float16)
    places = find_places(digests)
    with contextlib.suppress(OSError):  # The rows are then computed.
        for digest, row in store.read(options, digests):
            values = np.frombuffer(row, np.float16)
            if not rows.shape[1]:
                rows = np.zeros((len(digests), len(values)), np.float16)
            rows[places[digest]] = values
            is_done[places[digest]] = True
    return is_done, rows


def _name_options(network: FrozenNetwork) -> str:
    """A name for everything that features depend on, except for the images."""
    precision = jax.default_matmul_precision.value  # Of JAX's configuration.
    backend = jax.default_backend()
    how = (_VERSION, network.without_weights(), jax.__version__, backend, precision)
    return f"features/{network.name}-{network.hash_weights(repr(how))}"
