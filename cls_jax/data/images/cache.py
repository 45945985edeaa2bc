"""Image files decoded once to bytes of one size, which are kept in the store by content."""

import contextlib
import errno
import os
import pathlib
import shutil
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import filelock
import numpy as np
from tqdm import tqdm

from cls_jax.data.images.decode import CENTER_CROP, DecodeOptions
from cls_jax.data.images.files import ImageFile, compute_key, find_settled, read_ahead
from cls_jax.data.images.store import Store
from cls_jax.errors import UserError

# Increase when the pixels of any file come out differently.
_VERSION = 4
_BATCH_BYTES, _MAX_BATCH = 2**25, 512  # Of images that are decoded and written together.
_FEW = 32  # Files that need no progress bar.

Shape = tuple[int, int, int]


class DecodedImages:
    """Images in the store, read by index. An `ImageSource`."""

    def __init__(
        self,
        store: Store,
        digests: Sequence[bytes],
        paths: Sequence[str],
        shape: Shape,
        options: DecodeOptions,
    ):
        """Orders the images of files, which are decoded again where the store has lost them."""
        self._store, self._paths, self._shape, self._options = store, paths, shape, options
        self._name = _name_options(shape, options)
        self._digests = np.frombuffer(b"".join(digests), "V16")
        self._rows = np.arange(len(paths))  # Turns slices and negative indices into rows.
        self._is_checked = np.zeros(len(paths), bool)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, indices: Any) -> np.ndarray:
        """Returns uint8 [n, H, W, C] for int indices [n] or a slice.

        Raises:
            OSError: if an image is damaged and its file cannot be decoded again.
        """
        rows = self._rows[indices]
        digests: list[bytes] = self._digests[rows].tolist()
        trusted = set(self._digests[rows[self._is_checked[rows]]].tolist())
        images = np.empty((len(rows), *self._shape), np.uint8)
        places: dict[bytes, list[int]] = {}
        for i, digest in enumerate(digests):
            places.setdefault(digest, []).append(i)
        missing = dict(places)

        def put(digest: bytes, content: bytes) -> None:
            missing.pop(digest, None)
            for i in places[digest]:
                images[i].reshape(-1).data[:] = content

        with contextlib.suppress(OSError):  # The files are there as well.
            self._store.read(self._name, digests, put, trusted)
        for digest, (i, *_) in list(missing.items()):
            put(digest, self._decode_again(self._paths[rows[i]], digest))
        self._is_checked[rows] = True
        return images

    @property
    def digests(self) -> list[bytes]:
        """The digest of what each image was decoded from."""
        digests: list[bytes] = self._digests.tolist()
        return digests

    def _decode_again(self, path: str, digest: bytes) -> bytes:
        (batch,) = read_ahead([path], self._shape, 1, self._options, lambda _: False)
        reason = batch.errors[0] or ("its file has changed" if batch.digests[0] != digest else "")
        if reason:
            raise OSError(errno.EIO, f"lost from the cache, and {reason}", path)
        content = batch.images.tobytes()
        with contextlib.suppress(OSError):
            self._store.write(self._name, {digest: content}, {})
        return content


class DecodedSet(NamedTuple):
    """A decoded set of n image files, m of which can be read."""

    images: DecodedImages  # uint8 [m, H, W, C].
    rows: np.ndarray  # int64 [m], indices of the files that can be read.
    digests: list[bytes]  # n hashes of the files' bytes. Empty where a file cannot be read.
    failures: dict[int, str]  # Index of a file → why it cannot be read.


def load_decoded(
    root: pathlib.Path,
    files: Sequence[ImageFile],
    shape: Shape,
    options: DecodeOptions = CENTER_CROP,
    *,
    max_gigabytes: float = 20,
    is_silent: bool = False,
) -> DecodedSet:
    """Decodes the files of a folder to (H, W, C) on all cores, or finds them in the store.

    The store has at most `max_gigabytes`. Beyond that, the least recently used rows are deleted.

    Raises:
        UserError: if the store cannot be written.
    """
    store, name = Store(), _name_options(shape, options)
    paths = [os.path.join(root, file.name) for file in files]
    keys = [compute_key(path, file) for path, file in zip(paths, files, strict=True)]
    failures: dict[int, str] = {}

    def find() -> tuple[list[bytes], list[int]]:
        """The digests that are known, and the files that have to be decoded."""
        digests = store.find_contents(keys)
        known = store.find(name, digests)
        return digests, [i for i, digest in enumerate(digests) if digest not in known]

    try:
        digests, todo = find()
        if todo:
            with _hold(store.lock, is_silent):
                digests, todo = find()
                _decode(store, name, paths, todo, shape, options, digests, failures, is_silent)
        store.shrink(max_gigabytes)
    except OSError as error:
        raise _explain(error, store.folder, len(files) * int(np.prod(shape))) from error
    rows = np.array([i for i in range(len(files)) if i not in failures], np.int64)
    images = DecodedImages(
        store, [digests[i] for i in rows], [paths[i] for i in rows], shape, options
    )
    return DecodedSet(images, rows, digests, failures)


def _name_options(shape: Shape, options: DecodeOptions) -> str:
    return f"images/{_VERSION}-{'-'.join(map(str, (*shape[1:], *options)))}"


def _hold(lock: filelock.BaseFileLock, is_silent: bool) -> Any:
    """Takes a lock, after another process that decodes images."""
    try:
        return lock.acquire(timeout=0)
    except filelock.Timeout:
        if not is_silent:
            print("Another process is decoding images: waiting for it.", file=sys.stderr)
        return lock.acquire()


def _decode(
    store: Store,
    name: str,
    paths: Sequence[str],
    todo: Sequence[int],
    shape: Shape,
    options: DecodeOptions,
    digests: list[bytes],
    failures: dict[int, str],
    is_silent: bool,
) -> None:
    """Decodes files that are not in the store, and fills in their digests and failures."""
    row_bytes = int(np.prod(shape))
    if todo and shutil.disk_usage(store.folder).free < len(todo) * row_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    size = min(max(_BATCH_BYTES // row_bytes, 1), _MAX_BATCH)
    batches = read_ahead(
        [paths[i] for i in todo],
        shape,
        size,
        options,
        lambda digest: bool(store.find(name, [digest])),
    )
    with (
        contextlib.closing(batches),
        tqdm(
            total=len(todo),
            unit="image",
            desc="Decoding",
            dynamic_ncols=True,
            disable=is_silent or len(todo) < _FEW,
        ) as bar,
    ):
        for start, batch in zip(range(0, len(todo), size), batches, strict=True):
            found = zip(batch.digests, batch.errors, strict=True)
            decoded = [digest for digest, error in found if error is None]
            images = (image.tobytes() for image in batch.images)
            store.write(name, dict(zip(decoded, images, strict=True)), find_settled(batch))
            for i, digest, error in zip(
                todo[start : start + size], batch.digests, batch.errors, strict=True
            ):
                digests[i] = digest
                if error:
                    failures[i] = error
            bar.update(len(batch.files))


def _explain(error: OSError, folder: pathlib.Path, num_bytes: int) -> UserError:
    remedy, where = "", "that can be written, on a disk with file locks"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy, where = "free disk space and rerun the command, or ", "with enough space"
    return UserError(
        f"The images cannot be decoded to {folder} ({error.strerror}; {num_bytes / 2**30:.1f} "
        f"GiB): {remedy}set the environment variable XDG_CACHE_HOME to a folder {where}."
    )
