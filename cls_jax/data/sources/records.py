"""TFDS datasets in ArrayRecord, such as ImageNet: images are decoded on demand.

Labels and names, which are stored with the images, are read once per machine. Each of several
processes reads a part.
"""

import concurrent.futures
import contextlib
import hashlib
import io
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from PIL import Image

from cls_jax.data.resize import get_decode_options, get_image_shape, to_square
from cls_jax.data.types import Dataset, Split
from cls_jax.errors import UserError
from cls_jax.extras import check_extra
from cls_jax.io import PARSE_ERRORS, describe_error, find_cache_folder
from cls_jax.options import DECODING, TEXT, Option
from cls_jax.parallel.distributed import gather_rows, take_local, together
from cls_jax.parallel.machine import available_cpus

_NAME_BYTES = 64  # "n15075141_54.JPEG" has 17.
_ROW = np.dtype([("label", "<i4"), ("name", "S", _NAME_BYTES)])
_CHUNK = 1024  # Images that a thread reads at a time.


class FetchedImages:
    """Images that a function returns one by one on demand. An `ImageSource`."""

    def __init__(
        self, fetch: Callable[[int], np.ndarray], num_images: int, shape: tuple[int, int, int]
    ):
        """`fetch` returns an image uint8 `shape` by its number. It must be thread-safe."""
        self._fetch = fetch
        self._shape = shape
        self._rows = np.arange(num_images)  # Turns slices and negative indices into rows.
        self._threads = concurrent.futures.ThreadPoolExecutor(available_cpus())

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, indices: np.ndarray | slice) -> np.ndarray:
        """Returns uint8 [n, H, W, C] for int indices [n] or a slice."""
        rows = self._rows[indices]
        images = np.empty((len(rows), *self._shape), np.uint8)
        for i, image in enumerate(self._threads.map(self._fetch, rows.tolist())):
            images[i] = image
        return images


# fmt: off
OPTIONS = DECODING | {
    "data.labeled_subset": Option("", TEXT,
        "Images of imagenet2012 that have a label: a TFDS dataset, as imagenet2012_subset/1pct, "
        "or a .txt with names. Empty: all."),
}
# fmt: on


def load_records(data_config: ConfigDict) -> Dataset:
    """The dataset with the splits "train" and "validation", which is used for testing.

    It needs the features "image" and "label". With `data.labeled_subset`, another TFDS dataset or a
    text file of names, it also needs "file_name", and only images of the subset keep their label.
    Raises a UserError if one of them is not prepared in ArrayRecord, the subset names other images,
    or TFDS or ArrayRecord is not installed.
    """
    options = get_decode_options(data_config)
    shape = get_image_shape(data_config)
    builder = together(lambda: _open_builder(data_config.name, data_config.data_dir))
    images: dict[str, FetchedImages] = {}
    rows: dict[str, np.ndarray] = {}
    for split in ("train", "validation"):
        source = _open_source(builder, split)

        def fetch(row: int, source: Any = source, split: str = split) -> np.ndarray:
            try:
                with Image.open(io.BytesIO(source[row]["image"])) as image:
                    return to_square(image, shape, options)
            except PARSE_ERRORS as error:  # Every ImageError is a ValueError.
                reason = describe_error(error)
                message = f"Image {row} of {builder.data_dir} ({split}) cannot be read: {reason}."
                raise OSError(message) from error

        images[split] = FetchedImages(fetch, len(source), shape)
        rows[split] = _read_rows(builder, split)
    labels = rows["train"]["label"].copy()
    subset = data_config.labeled_subset
    if subset:
        is_labeled = np.isin(rows["train"]["name"], _read_names(subset, data_config.data_dir))
        if not is_labeled.any():
            raise UserError(
                f"data.labeled_subset={subset} names no image of {builder.data_dir}: set it to a "
                "subset of this dataset."
            )
        labels[~is_labeled] = -1
    return Dataset(
        name=data_config.name,
        class_names=tuple(builder.info.features["label"].names),
        train=Split(images["train"], labels),
        test=Split(images["validation"], rows["validation"]["label"].copy()),
        image_shape=shape,
        fingerprint=hashlib.sha256(rows["train"].tobytes() + labels.tobytes()).hexdigest()[:32],
    )


def _open_builder(name: str, data_dir: str) -> Any:
    """The prepared dataset, as described by its own files."""
    check_extra("tf,shards", f"{name} from TFDS, in ArrayRecord,")
    from cls_jax.data import host_tensorflow  # noqa: F401, I001 # Before TFDS.
    import tensorflow_datasets as tfds

    folder = pathlib.Path(data_dir).expanduser() if data_dir else None
    try:
        builder = tfds.builder(name, data_dir=folder)
        builder = tfds.builder_from_directory(builder.data_dir)
        if builder.info.file_format == tfds.core.FileFormat.ARRAY_RECORD:
            return builder
    except Exception as error:  # TFDS raises any exception of its file system and parsers.
        reason = type(error).__name__
    else:
        reason = f"it is in {builder.info.file_format.value}"
    raise UserError(
        f"{name} is not prepared in ArrayRecord ({reason}): run tfds build {name} "
        "--file_format=array_record, and set --config.data.data_dir to TFDS's folder."
    )


def _open_source(builder: Any, split: str) -> Any:
    """The records of a split by number, with encoded images. Thread-safe."""
    import tensorflow_datasets as tfds

    return builder.as_data_source(split=split, decoders={"image": tfds.decode.SkipDecoding()})


def _read_rows(builder: Any, split: str) -> np.ndarray:
    """Labels and names of a split, `_ROW` [n], from the cache or from the records themselves."""
    info = (pathlib.Path(builder.data_dir) / "dataset_info.json").read_bytes()
    key = hashlib.sha256(info + f"{builder.data_dir}\0{split}".encode()).hexdigest()[:32]
    cache = find_cache_folder() / "records" / f"{key}.npy"
    source = _open_source(builder, split)
    local = take_local(len(source))
    try:
        known = np.load(cache, allow_pickle=False)
    except PARSE_ERRORS:
        known = np.zeros(0, _ROW)
    if known.dtype == _ROW and len(known) == len(source):
        part = known[local]
    else:
        starts = range(local.start, local.stop, _CHUNK)

        def read(start: int) -> list[tuple[int, bytes]]:
            found = [source[row] for row in range(start, min(start + _CHUNK, local.stop))]
            return [(int(row["label"]), row.get("file_name", b"")) for row in found]

        with concurrent.futures.ThreadPoolExecutor(available_cpus()) as executor:
            part = np.array([row for rows in executor.map(read, starts) for row in rows], _ROW)
    rows = gather_rows(part, len(source))
    if len(known) != len(source) and cache.is_absolute():
        with contextlib.suppress(OSError):
            cache.parent.mkdir(parents=True, exist_ok=True)
            partial = cache.with_name(f"{os.getpid()}-{cache.name}")
            np.save(partial, rows)
            os.replace(partial, cache)
    return rows


def _read_names(subset: str, data_dir: str) -> np.ndarray:
    """The names of a subset's images, bytes [m]: of a TFDS dataset, or the lines of a .txt."""
    if subset.endswith(".txt"):
        try:
            lines = pathlib.Path(subset).expanduser().read_bytes().split()
        except OSError as error:
            raise UserError(
                f"data.labeled_subset={subset} cannot be read ({error.strerror}): pass a file with "
                "one image name per line."
            ) from error
        return np.array(lines, _ROW["name"])
    return _read_rows(_open_builder(subset, data_dir), "train")["name"]
