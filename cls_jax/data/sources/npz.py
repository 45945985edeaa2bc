"""Datasets from NumPy's `.npz`, without TensorFlow.

Arrays are read without pickle. They can claim any size, so sizes are checked before they are read.
"""

import os
import pathlib
import zipfile
from typing import BinaryIO

import numpy as np

from cls_jax.errors import UserError
from cls_jax.io import PARSE_ERRORS, describe_error, open_regular

Split = tuple[np.ndarray, np.ndarray]
_ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz")
_SPLITS = ("train", "test")
_MAX_CLASSES = 1_000_000


def is_single_file(path: str) -> bool:
    """Whether a path names a dataset in one file.

    Raises:
        UserError: if it names an archive.
    """
    if path.endswith(_ARCHIVE_SUFFIXES):
        raise UserError(
            f"{path} is an archive: unpack it and train on the folder, as in cls-jax train FOLDER."
        )
    return path.endswith(".npz")


def read_single_file(path: str) -> tuple[dict[str, Split], tuple[str, ...]]:
    """Reads the splits "train" and "test" of a dataset in one file.

    Args:
        path: an `.npz` with `train_images`, `train_labels`, `test_images`, `test_labels` and
            optionally `class_names`.

    Returns:
        Split name → images uint8 [n, H, W, C] and labels int32 [n], and the class names.

    Raises:
        UserError: if the file is missing, damaged or has another layout.
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


def _get_max_bytes() -> int:
    """The most that the images of a dataset may take: half of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _read_npz(file: BinaryIO) -> tuple[dict[str, Split], tuple[str, ...]]:
    with zipfile.ZipFile(file) as archive:
        names = [f"{split}_{part}" for split in _SPLITS for part in ("images", "labels")]
        has_names = "class_names.npy" in archive.namelist()
        names += ["class_names"] if has_names else []
        num_bytes = sum(archive.getinfo(f"{name}.npy").file_size for name in names)
        if num_bytes > _get_max_bytes():
            raise ValueError(f"it holds {num_bytes / 2**30:.1f} GiB, too much for this machine")
    # A header that claims more than the file holds costs address space, but no memory.
    file.seek(0)
    with np.load(file, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in names}
    splits = {}
    for split in _SPLITS:
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
        if images.dtype != np.uint8 or images.ndim != 4 or labels.shape != images.shape[:1]:
            raise ValueError(f"{split}_images is not uint8 [n, H, W, C] with n labels")
        splits[split] = images, _to_classes(labels, split)
    num_classes = int(max(labels.max(initial=0) for _, labels in splits.values())) + 1
    if has_names:
        class_names = tuple(map(str, arrays["class_names"].ravel()))
    else:
        class_names = tuple(str(k) for k in range(num_classes))
    if not len(splits["train"][0]) or len(class_names) < num_classes:
        raise ValueError("it has no training images, or labels without a class name")
    return splits, class_names


def _to_classes(labels: np.ndarray, split: str) -> np.ndarray:
    is_whole = labels.dtype.kind in "iu"
    if not is_whole or labels.min(initial=0) < 0 or labels.max(initial=0) >= _MAX_CLASSES:
        raise ValueError(f"{split}_labels are not whole numbers from 0")
    return labels.astype(np.int32)
