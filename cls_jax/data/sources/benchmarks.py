"""The datasets of the benchmarks: CIFAR-10 and CIFAR-100 from TFDS or an `.npz`, and digits.

Arrays of an `.npz` are read without TensorFlow and without pickle. They can claim any size, so
sizes are checked before they are read.
"""

import pathlib
import zipfile
from typing import BinaryIO, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from cls_jax.data.types import Dataset, Split
from cls_jax.errors import UserError
from cls_jax.extras import check_extra
from cls_jax.io import PARSE_ERRORS, describe_error, open_regular
from cls_jax.parallel.machine import get_machine_memory


class Arrays(NamedTuple):
    """A dataset in memory."""

    class_names: tuple[str, ...]
    train: Split  # uint8 [n, H, W, C] and int32 [n].
    test: Split


_DOWNLOAD_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
_ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz")
_SPLITS = ("train", "test")
_MAX_CLASSES = 1_000_000
_ROWS_AT_ONCE = 1_000
NUM_TEST_DIGITS = 450


def load_cifar(data_config: ConfigDict) -> Dataset:
    """CIFAR from TFDS or an `.npz`. Raises a UserError without it or for images of another size."""
    path = data_config.data_dir
    if path.endswith(_ARCHIVE_SUFFIXES):
        raise UserError(
            f"{path} is an archive: unpack it and train on the folder, as in cls-jax train FOLDER."
        )
    arrays = read_single_file(path) if path.endswith(".npz") else read_tfds(data_config)
    image_shape = arrays.train.images[:1].shape[1:]
    if image_shape[:2] != (data_config.image_size, data_config.image_size):
        raise UserError(
            f"{data_config.name} has images of {image_shape[1]} x {image_shape[0]} pixels: "
            f"set --config.data.image_size={image_shape[0]}."
        )
    return Dataset(name=data_config.name, image_shape=image_shape, **arrays._asdict())


def read_tfds(data_config: ConfigDict) -> Arrays:
    """A TFDS dataset with features "image" and "label" and splits "train" and "test".

    Read from `data_config.data_dir`, or downloaded there on first use. Raises a UserError if it is
    neither prepared nor can be downloaded, or TFDS is not installed.
    """
    otherwise = "set --config.data.data_dir to an .npz with its images"
    check_extra("tf", f"{data_config.name} from TFDS", otherwise)
    from cls_jax.data import host_tensorflow  # noqa: F401, I001 # Before TFDS.
    import requests
    import tensorflow_datasets as tfds

    name = data_config.name
    data_dir = pathlib.Path(data_config.data_dir).expanduser() if data_config.data_dir else None
    builder = tfds.builder(name, data_dir=data_dir)
    try:
        if not builder.is_prepared():
            # A single attempt: TFDS would retry for minutes without a network.
            requests.head(_DOWNLOAD_PAGE, timeout=20, allow_redirects=True)
        builder.download_and_prepare()
    except Exception as error:  # TFDS raises any exception of its downloader and file system.
        raise UserError(
            f"{name} is not prepared in {builder.data_dir} and could not be downloaded "
            f"({type(error).__name__}): connect to the internet once, or set "
            "--config.data.data_dir to a TFDS folder that has it."
        ) from error
    # Files in order and one at a time: an image's index is the same on every machine.
    read_config = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
    splits: dict[str, Split] = {}
    for split in _SPLITS:
        rows = builder.as_dataset(
            split=split, batch_size=_ROWS_AT_ONCE, shuffle_files=False, read_config=read_config
        )
        # Not all at once: TensorFlow would keep a second copy.
        parts = [(part["image"], part["label"]) for part in tfds.as_numpy(rows)]
        images, labels = map(np.concatenate, zip(*parts, strict=True))
        splits[split] = Split(images, labels.astype(np.int32))
    return Arrays(tuple(builder.info.features["label"].names), **splits)


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

    It has `train_images`, `train_labels` (-1 where unknown), `test_images`, `test_labels` and
    optionally `class_names`. Raises a UserError if the file is missing, damaged or has another
    layout.
    """
    file = pathlib.Path(path).expanduser()
    try:
        with open_regular(file) as opened:
            return _read_npz(opened)
    except PARSE_ERRORS as error:
        raise UserError(
            f"{file} cannot be read as a dataset ({describe_error(error)}): set "
            "--config.data.data_dir to an .npz with train_images, train_labels, test_images and "
            "test_labels."
        ) from error


def _read_npz(file: BinaryIO) -> Arrays:
    with zipfile.ZipFile(file) as archive:
        names = [f"{split}_{part}" for split in _SPLITS for part in ("images", "labels")]
        if "class_names.npy" in archive.namelist():
            names.append("class_names")
        num_bytes = sum(archive.getinfo(f"{name}.npy").file_size for name in names)
        if num_bytes > get_machine_memory() // 2:
            raise ValueError(f"it has {num_bytes / 2**30:.1f} GiB, too much for this machine")
    # A header that claims more than the file has costs address space, but no memory.
    file.seek(0)
    with np.load(file, allow_pickle=False) as stored:
        arrays: dict[str, np.ndarray] = {name: stored[name] for name in names}
    for split in _SPLITS:
        images = arrays[f"{split}_images"]
        labels = arrays[f"{split}_labels"]
        if images.dtype != np.uint8 or images.ndim != 4 or labels.shape != images.shape[:1]:
            raise ValueError(f"{split}_images is not uint8 [n, H, W, C] with n labels")
        is_whole = labels.dtype.kind in "iu"
        lowest = -1 if split == "train" else 0
        if not is_whole or labels.min(initial=0) < lowest or labels.max(initial=0) >= _MAX_CLASSES:
            raise ValueError(f"{split}_labels are not integers from {lowest}")
        arrays[f"{split}_labels"] = labels.astype(np.int32)
    shapes = [arrays[f"{split}_images"].shape[1:] for split in _SPLITS]
    if shapes[0] != shapes[1] or shapes[0][0] != shapes[0][1]:
        sizes = " and ".join(" x ".join(map(str, shape)) for shape in dict.fromkeys(shapes))
        raise ValueError(f"its images are {sizes}, and should be squares of one size")
    num_classes = int(max(arrays[f"{split}_labels"].max(initial=0) for split in _SPLITS)) + 1
    class_names = arrays["class_names"].ravel() if "class_names" in arrays else range(num_classes)
    if not len(arrays["train_images"]) or len(class_names) < num_classes:
        raise ValueError("it has no training images, or labels without a class name")
    splits = {
        split: Split(arrays[f"{split}_images"], arrays[f"{split}_labels"]) for split in _SPLITS
    }
    return Arrays(tuple(map(str, class_names)), **splits)
