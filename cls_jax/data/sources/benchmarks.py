"""Datasets of arrays: benchmarks from TFDS, any images in an `.npz`, and digits.

Arrays of an `.npz` are read without TensorFlow and without pickle. They can claim any size, so
sizes are checked before they are read.
"""

import collections
import contextlib
import hashlib
import pathlib
import zipfile
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from cls_jax.data.types import NO_IMAGES, Dataset, Split
from cls_jax.errors import UserError
from cls_jax.extras import check_extra
from cls_jax.io import PARSE_ERRORS, describe_error, open_regular
from cls_jax.parallel.distributed import together
from cls_jax.parallel.machine import get_machine_memory

NPZ = "npz"  # The name of datasets that are no benchmark.
# Names in the configuration, where TFDS has another, and TFDS's splits without labels.
_TFDS_NAMES = {"svhn": "svhn_cropped"}
_UNLABELED_SPLITS = {"stl10": ("unlabelled",)}
_ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz")
_SPLITS = ("train", "test")
_MAX_CLASSES = 1_000_000
_ROWS_AT_ONCE = 1_000
NUM_TEST_DIGITS = 450


class Arrays(NamedTuple):
    """A dataset in memory."""

    class_names: tuple[str, ...]
    train: Split  # uint8 [n, H, W, C] and int32 [n].
    test: Split


def load_arrays(data_config: ConfigDict) -> Dataset:
    """A benchmark from TFDS, or the images of an `.npz`, with a warning if some repeat.

    Raises a UserError without them, or for images of another size than the configuration's.
    """
    path = data_config.data_dir
    if path.endswith(_ARCHIVE_SUFFIXES):
        raise UserError(
            f"{path} is an archive: unpack it and train on the folder, as in cls-jax train FOLDER."
        )
    is_file = path.endswith(".npz")
    if data_config.name == NPZ and not is_file:
        raise UserError(
            f"{path or 'The path after the colon'} is not an .npz: pass one, as in --config "
            "configs/npz.py:FILE.npz,40."
        )
    arrays = together(lambda: read_single_file(path) if is_file else read_tfds(data_config))
    image_shape = arrays.train.images[:1].shape[1:]
    if image_shape[:2] != (data_config.image_size, data_config.image_size):
        raise UserError(
            f"{data_config.name} has images of {image_shape[1]} x {image_shape[0]} pixels: "
            f"set --config.data.image_size={image_shape[0]}."
        )
    train, test = (_hash_images(split.images) for split in (arrays.train, arrays.test))
    content = b"".join(train) + np.asarray(arrays.train.labels, "<i4").tobytes()
    return Dataset(
        name=pathlib.Path(path).stem if data_config.name == NPZ else data_config.name,
        image_shape=image_shape,
        fingerprint=hashlib.sha256(content).hexdigest()[:32],
        warnings=_describe_repeats(train, test, arrays.train.labels),
        **arrays._asdict(),
    )


def _hash_images(images: Any) -> list[bytes]:
    return [hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in images]


def _describe_repeats(train: list[bytes], test: list[bytes], labels: np.ndarray) -> tuple[str, ...]:
    """A sentence about test images that are also training images, by the digests of both."""
    known, labeled = set(train), {train[i] for i in np.flatnonzero(labels >= 0)}
    if not (again := [digest for digest in test if digest in known]):
        return ()
    num_labeled = sum(digest in labeled for digest in again)
    are = "is" if len(again) == 1 else "are"
    return (
        f"{len(again):,} of {len(test):,} test images {are} identical to training images "
        f"({num_labeled:,} of known class): the test accuracy will be too high.",
    )


def read_tfds(data_config: ConfigDict) -> Arrays:
    """A TFDS dataset with features "image" and "label" and splits "train" and "test".

    Images of a split without labels follow the training images. Read from `data_config.data_dir`,
    or downloaded there on first use. Raises a UserError if it is neither prepared nor can be
    downloaded, is too large for this machine, or TFDS is not installed.
    """
    name = _TFDS_NAMES.get(data_config.name, data_config.name)
    otherwise = "set --config.data.data_dir to an .npz with its images"
    check_extra("tf", f"{data_config.name} from TFDS", otherwise)
    from cls_jax.data import host_tensorflow  # noqa: F401, I001 # Before TFDS.
    import requests
    import tensorflow_datasets as tfds

    data_dir = pathlib.Path(data_config.data_dir).expanduser() if data_config.data_dir else None
    builder = tfds.builder(name, data_dir=data_dir)
    try:
        if not builder.is_prepared():
            # A single attempt: TFDS would retry for minutes without a network.
            requests.head(builder.info.homepage, timeout=20, allow_redirects=True)
        builder.download_and_prepare()
    except Exception as error:  # TFDS raises any exception of its downloader and file system.
        raise UserError(
            f"{name} is not prepared in {builder.data_dir} and could not be downloaded "
            f"({type(error).__name__}): connect to the internet once, or set "
            "--config.data.data_dir to a TFDS folder that has it."
        ) from error
    sources = {"train": ["train", *_UNLABELED_SPLITS.get(data_config.name, ())], "test": ["test"]}
    counts = {name: found.num_examples for name, found in builder.info.splits.items()}
    num_images = sum(counts[name] for names in sources.values() for name in names)
    num_bytes = num_images * int(np.prod(builder.info.features["image"].shape))
    if num_bytes > get_machine_memory() // 2:
        raise UserError(
            f"{name} has {num_bytes / 2**30:.1f} GiB, too much for the memory of this machine: set "
            "--config.data.data_dir to an .npz with fewer of its images."
        )
    splits: dict[str, Split] = {}
    for split, names in sources.items():
        parts = [part for name in names for part in _read_rows(builder, name)]
        images, labels = map(np.concatenate, zip(*parts, strict=True))
        splits[split] = Split(images, labels.astype(np.int32))
    return Arrays(tuple(builder.info.features["label"].names), **splits)


def _read_rows(builder: Any, split: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Images and labels of a split of a TFDS dataset, -1 where unknown, some at a time."""
    import tensorflow_datasets as tfds

    # Files in order and one at a time: an image's index is the same on every machine.
    read_config = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
    rows = builder.as_dataset(
        split=split, batch_size=_ROWS_AT_ONCE, shuffle_files=False, read_config=read_config
    )
    # Not all at once: TensorFlow would keep a second copy.
    return [(part["image"], part["label"]) for part in tfds.as_numpy(rows)]


def load_digits(data_config: ConfigDict) -> Dataset:
    """scikit-learn's 1,797 handwritten digits, scaled up. 450 of them, stratified, are for testing.

    The scans are 8 x 8 with 17 gray levels. The test set is the same whatever the seed.
    """
    from PIL import Image
    from sklearn.datasets import load_digits as load_sklearn_digits
    from sklearn.model_selection import train_test_split

    scans = load_sklearn_digits()
    size = (data_config.image_size, data_config.image_size)
    images = np.stack(
        [
            np.asarray(Image.fromarray(scan).resize(size, Image.Resampling.BILINEAR))
            for scan in np.rint(scans.images * (255 / 16)).astype(np.uint8)
        ]
    )[..., None]
    labels = scans.target.astype(np.int32)
    train, test = train_test_split(
        np.arange(len(labels)), test_size=NUM_TEST_DIGITS, stratify=labels, random_state=0
    )
    return Dataset(
        name="digits",
        class_names=tuple(str(digit) for digit in range(10)),
        train=Split(images[train], labels[train]),
        test=Split(images[test], labels[test]),
        image_shape=(*size, 1),
    )


def read_single_file(path: str) -> Arrays:
    """Reads an `.npz`.

    It has `train_images` and `train_labels` (-1 where unknown), and optionally `test_images` with
    `test_labels` and `class_names`. Raises a UserError if the file is missing, damaged or has
    another layout.
    """
    with _open_npz(path) as opened:
        return _read_npz(opened)


def read_image_size(path: str) -> int:
    """The height of the training images of an `.npz`, in pixels, without reading them.

    Raises the same as `read_single_file`.
    """
    with _open_npz(path) as opened, zipfile.ZipFile(opened) as archive:
        with archive.open("train_images.npy") as array:
            version = np.lib.format.read_magic(array)
            is_first = version == (1, 0)
            read = np.lib.format.read_array_header_1_0
            read = read if is_first else np.lib.format.read_array_header_2_0
            shape, _, _ = read(array)
        if len(shape) not in (3, 4):
            raise ValueError("train_images is not [n, H, W, C] or [n, H, W]")
        return int(shape[1])


@contextlib.contextmanager
def _open_npz(path: str) -> Iterator[BinaryIO]:
    """Opens an `.npz`, and turns what reading it raises into a UserError."""
    file = pathlib.Path(path).expanduser()
    try:
        with open_regular(file) as opened:
            yield opened
    except PARSE_ERRORS as error:
        raise UserError(
            f"{file} cannot be read as a dataset ({describe_error(error)}): pass an .npz with "
            "train_images and train_labels, and for a test set test_images and test_labels."
        ) from error


def _read_npz(file: BinaryIO) -> Arrays:
    with zipfile.ZipFile(file) as archive:
        stored = {name.removesuffix(".npy") for name in archive.namelist()}
        has_test = bool({"test_images", "test_labels"} & stored)
        parts = _SPLITS if has_test else _SPLITS[:1]
        names = [f"{split}_{part}" for split in parts for part in ("images", "labels")]
        names += {"class_names"} & stored
        num_bytes = sum(archive.getinfo(f"{name}.npy").file_size for name in names)
        if num_bytes > get_machine_memory() // 2:
            raise ValueError(f"it has {num_bytes / 2**30:.1f} GiB, too much for this machine")
    # A header that claims more than the file has costs address space, but no memory.
    file.seek(0)
    with np.load(file, allow_pickle=False) as opened:
        arrays: dict[str, np.ndarray] = {name: opened[name] for name in names}
    splits = {"train": NO_IMAGES, "test": NO_IMAGES}
    for split in parts:
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
        if images.ndim == 3:  # Gray, without an axis of channels.
            images = images[..., None]
        if labels.shape == (len(images), 1):  # As Keras stores CIFAR's.
            labels = labels[:, 0]
        if images.dtype != np.uint8 or images.ndim != 4 or labels.shape != images.shape[:1]:
            raise ValueError(f"{split}_images is not uint8 [n, H, W, C] with n labels")
        if images.shape[3] not in (1, 3):
            raise ValueError(f"{split}_images has {images.shape[3]} channels, and not 1 or 3")
        is_whole = labels.dtype.kind in "iu"
        lowest = -1 if split == "train" else 0
        if not is_whole or labels.min(initial=0) < lowest or labels.max(initial=0) >= _MAX_CLASSES:
            raise ValueError(f"{split}_labels are not integers from {lowest}")
        splits[split] = Split(images, labels.astype(np.int32))
    shapes = [splits[split].images[:1].shape[1:] for split in parts]
    if len(set(shapes)) > 1 or shapes[0][0] != shapes[0][1]:
        sizes = " and ".join(" x ".join(map(str, shape)) for shape in dict.fromkeys(shapes))
        raise ValueError(f"its images are {sizes}, and should be squares of one size")
    num_classes = int(max(split.labels.max(initial=0) for split in splits.values())) + 1
    stored_names = arrays.get("class_names", np.arange(num_classes))
    if not len(splits["train"]) or stored_names.size < num_classes:
        raise ValueError("it has no training images, or labels without a class name")
    return Arrays(_to_names(stored_names), **splits)


def _to_names(array: np.ndarray) -> tuple[str, ...]:
    """Names of classes, which may be bytes. Raises a ValueError if two are the same."""
    names = [item.decode() if isinstance(item, bytes) else str(item) for item in array.ravel()]
    name, count = collections.Counter(names).most_common(1)[0]
    if count > 1:
        raise ValueError(f"{count:,} classes are called {name!r:.100}")
    return tuple(names)
