"""Image files decoded once: uint8 of one size in one file, read by index from disk.

Caches are in $XDG_CACHE_HOME/cls_jax/images (~/.cache by default) and may be deleted at any time.
The name of each is a hash of the files' names, sizes and times and of the image size, so any
change makes a new one.
"""

import concurrent.futures
import errno
import hashlib
import itertools
import json
import os
import pathlib
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from cls_jax.data.images.decode import ImageError, decode_image, open_file
from cls_jax.data.images.index import ImageFile, hash_rows
from cls_jax.errors import UserError
from cls_jax.io import PARSE_ERRORS, read_json
from cls_jax.parallel.cpus import available_cpus

# Increase when the pixels of any file come out differently.
_VERSION = 2
_IMAGES, _DIGESTS, _FAILURES = "images.npy", "digests.npy", "failures.json"
_DIGEST_BYTES = 16
# Files per task of a thread.
_CHUNK = 32


class DecodedImages:
    """Images in a `.npy` file, read from disk by index; an `ImageSource`.

    Not a memory map: pages of a map count as this program's memory once they have been touched, and
    a set larger than memory would seem to fill it.
    """

    _whole: "DecodedImages"

    def __init__(self, path: pathlib.Path):
        """Opens a file of uint8 [n, H, W, C]."""
        header = np.lib.format.open_memmap(path, mode="r")
        self._shape, self._offset = header.shape[1:], header.offset
        self._rows = np.arange(len(header))
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def select(self, rows: np.ndarray) -> "DecodedImages":
        """Those at the rows int [m], in this order."""
        chosen = object.__new__(DecodedImages)
        chosen.__dict__.update(self.__dict__)
        chosen._rows = self._rows[rows]
        chosen._whole = self  # Keeps the file open.
        return chosen

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, indices: Any) -> np.ndarray:
        """Returns uint8 [n, H, W, C] for int indices [n] or a slice."""
        rows = self._rows[indices]
        images = np.empty((len(rows), *self._shape), np.uint8)
        # Neighbors are read together.
        starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
        for start, stop in itertools.pairwise([*starts, len(rows)]):
            self._read_into(images[start:stop], int(rows[start]))
        return images

    def _read_into(self, images: np.ndarray, row: int) -> None:
        missing = images.data.cast("B")
        offset = self._offset + row * images[0].nbytes
        while missing:
            num_read = os.preadv(self._file, [missing], offset)
            if num_read == 0:
                raise OSError(errno.EIO, "The cache of decoded images was cut short")
            missing, offset = missing[num_read:], offset + num_read


class DecodedSet(NamedTuple):
    """A decoded set of n image files.

    Attributes:
        images: uint8 [n, H, W, C]; files that could not be decoded are black.
        digests: uint8 [n, 16], hashes of the files' bytes.
        failures: index of a file → why it could not be decoded.
    """

    images: DecodedImages
    digests: np.ndarray
    failures: dict[int, str]


def get_cache_folder() -> pathlib.Path:
    """The folder that holds all caches."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    return cache / "cls_jax" / "images"


def load_decoded(
    root: pathlib.Path, files: Sequence[ImageFile], image_size: int, is_silent: bool = False
) -> DecodedSet:
    """Decodes files on all cores, or reads them from the cache.

    Args:
        root: the folder of the files.
        files: what to decode, at least one.
        image_size: height and width to decode to.
        is_silent: whether to show no progress bar.

    Raises:
        UserError: if the cache cannot be written.
    """
    key = hash_rows([(_VERSION, image_size), *files])
    folder = get_cache_folder() / key
    shape = (len(files), image_size, image_size, 3)
    try:
        decoded = _open(folder, shape)
        if decoded is None:
            _decode_to(folder, root, files, shape, is_silent)
            decoded = _open(folder, shape)
            assert decoded is not None, folder
    except OSError as error:
        raise UserError(
            f"The images cannot be decoded to {folder} ({error.strerror}; "
            f"{np.prod(shape) / 2**30:.1f} GiB): set the environment variable XDG_CACHE_HOME to a "
            "folder with enough space."
        ) from error
    return decoded


def _open(folder: pathlib.Path, shape: tuple[int, int, int, int]) -> DecodedSet | None:
    """Opens the cache in a folder; None if it is missing or damaged."""
    try:
        # Maps first: whatever size a damaged file claims, nothing is allocated for it.
        images = np.lib.format.open_memmap(folder / _IMAGES, mode="r")
        digests = np.lib.format.open_memmap(folder / _DIGESTS, mode="r")
        is_ours = images.dtype == digests.dtype == np.uint8 and images.flags.c_contiguous
        if not is_ours or images.shape != shape or digests.shape != (shape[0], _DIGEST_BYTES):
            return None
        failures = {int(i): str(why) for i, why in read_json(folder / _FAILURES).items()}
        if not all(0 <= i < shape[0] for i in failures):
            return None
        return DecodedSet(DecodedImages(folder / _IMAGES), np.array(digests), failures)
    except FileNotFoundError:
        return None
    except OSError:  # Such as a failing disk, which decoding again would not repair.
        raise
    except PARSE_ERRORS:
        return None


def _decode_to(
    folder: pathlib.Path,
    root: pathlib.Path,
    files: Sequence[ImageFile],
    shape: tuple[int, int, int, int],
    is_silent: bool,
) -> None:
    """Decodes files to a folder that appears when it is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder.parent).free < np.prod(shape):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    partial = pathlib.Path(tempfile.mkdtemp(prefix="partial-", dir=folder.parent))
    try:
        digests, failures = _decode(partial / _IMAGES, root, files, shape, is_silent)
        np.save(partial / _DIGESTS, digests)
        (partial / _FAILURES).write_text(json.dumps(failures))
        if _open(folder, shape) is None:  # Unless another process was faster.
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _decode(
    path: pathlib.Path,
    root: pathlib.Path,
    files: Sequence[ImageFile],
    shape: tuple[int, int, int, int],
    is_silent: bool,
) -> tuple[np.ndarray, dict[int, str]]:
    offset = np.lib.format.open_memmap(path, "w+", np.uint8, shape).offset
    digests = np.zeros((len(files), _DIGEST_BYTES), np.uint8)
    failures: dict[int, str] = {}
    output = os.open(path, os.O_WRONLY)

    def decode_chunk(start: int) -> int:
        """Decodes the files from `start`, writes them to their place and returns how many."""
        chunk = files[start : start + _CHUNK]
        images = np.zeros((len(chunk), *shape[1:]), np.uint8)
        for i, file in enumerate(chunk):
            try:
                with open_file(root / file.name) as opened:
                    images[i] = decode_image(opened, shape[1:])
                    digests[start + i] = _compute_digest(opened)
            except ImageError as error:
                failures[start + i] = str(error)
        if os.pwrite(output, images.data, offset + start * images[0].nbytes) != images.nbytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return len(chunk)

    bar = tqdm(
        total=len(files), unit="image", desc="Decoding", dynamic_ncols=True, disable=is_silent
    )
    pool = concurrent.futures.ThreadPoolExecutor(available_cpus())
    try:
        with bar:
            for num_decoded in pool.map(decode_chunk, range(0, len(files), _CHUNK)):
                bar.update(num_decoded)
    finally:
        pool.shutdown(cancel_futures=True)
        os.close(output)
    return digests, failures


def _compute_digest(file: Any) -> np.ndarray:
    file.seek(0)
    digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_DIGEST_BYTES))
    return np.frombuffer(digest.digest(), np.uint8)
