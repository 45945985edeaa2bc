"""Datasets from one file: NumPy's `.npz`, or an archive of images. Neither needs TensorFlow.

Files are read as data only: arrays without pickle, archives member by member into memory. Both can
claim or unpack to any size, so sizes are checked before anything is read.
"""

import gzip
import io
import lzma
import os
import pathlib
import tarfile
import zipfile
from typing import Any, BinaryIO

import numpy as np

from cls_jax.data.images.decode import ImageError, decode_pixels
from cls_jax.errors import UserError
from cls_jax.io import PARSE_ERRORS, describe_error, open_regular

Split = tuple[np.ndarray, np.ndarray]
_ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz")
_SPLITS = ("train", "test")
_MAX_CLASSES = 1_000_000
_MAX_MEMBER_BYTES = 2**25
_MAX_SIDE = 1024  # The largest data.image_size.
# Images are compressed already: an archive of them hardly shrinks, one of zeros does 7,000 times.
_MAX_EXPANSION = 100
_FREE_EXPANSION = 2**28


def is_single_file(path: str) -> bool:
    """Whether a path names a dataset in one file."""
    return path.endswith((".npz", *_ARCHIVE_SUFFIXES))


def read_single_file(path: str) -> tuple[dict[str, Split], tuple[str, ...]]:
    """Reads the splits "train" and "test" of a dataset in one file.

    Args:
        path: an `.npz` with `train_images`, `train_labels`, `test_images`, `test_labels` and
            optionally `class_names`; or an archive of `…/train/<class>/<image>` and
            `…/test/<class>/<image>`.

    Returns:
        Split name → images uint8 [n, H, W, C] and labels int32 [n]; and the class names.

    Raises:
        UserError: if the file is missing, damaged or has another layout.
    """
    file = pathlib.Path(path).expanduser()
    try:
        with open_regular(file) as opened:
            return _read_npz(opened) if file.suffix == ".npz" else _read_archive(opened, file.name)
    except PARSE_ERRORS as error:
        raise UserError(
            f"{file} cannot be read as a dataset ({describe_error(error)}): set "
            "--config.data.data_dir to an .npz with train_images, train_labels, test_images and "
            "test_labels, or to an archive of train/<class>/<image> and test/<class>/<image>."
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


class _Limited(io.RawIOBase):
    """A file that can be read up to a limit, so that nobody waits for a bomb to unpack."""

    def __init__(self, file: Any, limit: int):
        self._file, self._limit = file, limit

    def read(self, size: int = -1) -> bytes:
        if size > _MAX_MEMBER_BYTES:
            raise ValueError("a part of it is too large")
        self._check(self._file.tell())
        return self._file.read(size if size >= 0 else _MAX_MEMBER_BYTES)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._check(offset)
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def _check(self, position: int) -> None:
        if position > self._limit:
            raise ValueError("it unpacks to far more than images do")


def _open_unpacked(file: BinaryIO, name: str) -> io.RawIOBase:
    size = os.fstat(file.fileno()).st_size
    unpacked: Any = file
    if name.endswith(".xz"):
        unpacked = lzma.LZMAFile(file)  # noqa: SIM115
    elif name.endswith("gz"):
        unpacked = gzip.GzipFile(fileobj=file)
    return _Limited(unpacked, _FREE_EXPANSION + _MAX_EXPANSION * size)


def _read_archive(file: BinaryIO, name: str) -> tuple[dict[str, Split], tuple[str, ...]]:
    found: dict[str, list[tuple[str, str, np.ndarray]]] = {split: [] for split in _SPLITS}
    shape, num_bytes, max_bytes = None, 0, _get_max_bytes() // 2  # np.stack copies them.
    with tarfile.open(fileobj=_open_unpacked(file, name), mode="r:") as archive:
        for member in archive:
            parts = pathlib.PurePosixPath(member.name).parts
            if not member.isfile() or len(parts) < 3 or parts[-3] not in found:
                continue
            image = _read_member(archive, member)
            num_bytes += image.nbytes
            if image.shape != (shape or image.shape) or num_bytes > max_bytes:
                raise ValueError("its images have several sizes, or are too many for this machine")
            shape = image.shape
            found[parts[-3]].append((parts[-2], parts[-1], image))
    names = tuple(sorted({class_name for class_name, _, _ in found["train"]}))
    index = {class_name: k for k, class_name in enumerate(names)}
    for split, rows in found.items():
        if not rows:
            raise ValueError(f"it has no images in {split}/<class>/")
    if foreign := sorted({class_name for class_name, _, _ in found["test"]} - set(names)):
        raise ValueError(f"its test class {foreign[0]!r} has no training images")
    splits = {}
    for split, rows in found.items():
        rows.sort(key=lambda row: row[:2])  # Whatever the archive's order.
        labels = np.array([index[class_name] for class_name, _, _ in rows], np.int32)
        splits[split] = np.stack([image for _, _, image in rows]), labels
    return splits, names


def _read_member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> np.ndarray:
    if member.size > _MAX_MEMBER_BYTES:
        raise ValueError(f"{member.name} has {member.size:,} bytes")
    content = io.BytesIO(archive.extractfile(member).read())  # type: ignore[union-attr] # A file.
    try:
        return decode_pixels(content, _MAX_SIDE)
    except ImageError as error:
        raise ValueError(f"{member.name}: {error}") from error
