"""Image files, decoded once to one size and kept in the store by content."""

import contextlib
import errno
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import filelock
import jax
import numpy as np

from cls_jax.bars import show_progress
from cls_jax.data.resize import CENTER_CROP, DecodeOptions
from cls_jax.errors import UserError
from cls_jax.parallel.distributed import (
    from_all_processes,
    gather_rows,
    is_main_process,
    take_local,
)
from cls_jax.photos.images.files import (
    ImageFile,
    compute_key,
    find_settled,
    read_ahead,
    stat_image,
)
from cls_jax.photos.images.packed import open_packed
from cls_jax.photos.images.store import Store, find_places, get_cache_folder

# Increase when the pixels of any file change.
_VERSION = 5
# Decoded and written together: so many bytes, and so many images.
_BATCH_BYTES = 2**25
_MAX_BATCH = 512
_NO_DIGEST = bytes(16)
_FEW = 32  # Up to this many files, no progress bar.

Shape = tuple[int, int, int]


class DecodedImages:
    """Images in the store, read by index. An `ImageSource`."""

    def __init__(
        self,
        store: Store,
        digests: Sequence[bytes],
        find_path: Callable[[int], str],
        shape: Shape,
        options: DecodeOptions,
        is_kept: bool = True,
    ):
        """Images by digest, decoded from their files if they are not in the store.

        `find_path` returns the path of an image by its row. Decoded images go to the store if
        `is_kept`. Otherwise they do not fit into it.
        """
        self._store = store
        self._find_path = find_path
        self._shape = shape
        self._options = options
        self._name = _name_options(shape, options)
        self._is_kept = is_kept
        self._digests = np.frombuffer(b"".join(digests), "V16")
        self._rows = np.arange(len(digests))  # Turns slices and negative indices into rows.
        self._is_checked = np.zeros(len(digests), bool)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, indices: Any) -> np.ndarray:
        """uint8 [n, H, W, C] for int [n] or a slice. Raises a UserError if one is unreadable."""
        rows = self._rows[indices]
        trusted = set(self._digests[rows[self._is_checked[rows]]].tolist())
        images = np.empty((len(rows), *self._shape), np.uint8)
        places = find_places(self._digests[rows].tolist())
        with contextlib.suppress(OSError):  # Fall back to the files.
            for digest, content in self._store.read(self._name, list(places), trusted):
                images[places.pop(digest)] = np.frombuffer(content, np.uint8).reshape(self._shape)
        paths = [self._find_path(rows[found[0]]) for found in places.values()]
        decoded = self._decode(paths, list(places))
        for found, image in zip(places.values(), decoded, strict=True):
            images[found] = image
        self._is_checked[rows] = True
        return images

    @property
    def digests(self) -> list[bytes]:
        """The digests of the images' files."""
        return list(self._digests.tolist())

    def _decode(self, paths: Sequence[str], digests: Sequence[bytes]) -> Iterator[np.ndarray]:
        """The pixels of files with these contents, decoded on all cores."""
        batches = read_ahead(
            paths,
            self._shape,
            batch_size=_MAX_BATCH,
            options=self._options,
            is_known=lambda _: False,
        )
        for first, batch in zip(range(0, len(paths), _MAX_BATCH), batches, strict=True):
            wanted = digests[first : first + _MAX_BATCH]
            for path, error, found, digest in zip(
                batch.files, batch.errors, batch.digests, wanted, strict=True
            ):
                reason = error or ("its file has changed" if found != digest else "")
                if reason:
                    raise UserError(
                        f"{path} is not in the cache, and cannot be read ({reason}): restore the "
                        "file, and rerun the command."
                    )
            if self._is_kept:
                rows = zip(wanted, (image.tobytes() for image in batch.images), strict=True)
                with contextlib.suppress(OSError):
                    self._store.write(self._name, dict(rows), {})
            yield from batch.images


class DecodedSet(NamedTuple):
    """A decoded set of n image files, m of which can be read."""

    images: DecodedImages  # uint8 [m, H, W, C].
    rows: np.ndarray  # int64 [m], indices of the files that can be read.
    digests: list[bytes]  # n hashes of the files' bytes, empty for unreadable files.
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

    Beyond `max_gigabytes`, the store deletes the least recently used rows. Each of several
    processes decodes a part, and other images on demand. All must call this with the same files. A
    packed folder has its digests in the index and is decoded on demand. Raises a UserError if the
    store cannot be written.
    """
    store = Store(get_cache_folder(), max_gigabytes)
    folder = os.path.abspath(root)
    row_bytes = int(np.prod(shape))
    packed = open_packed(root)
    is_kept = len(files) * row_bytes <= 1e9 * max_gigabytes
    if packed:
        records = [file.inode for file in files[:]]
        digests = packed.digests[records].tolist()
        known = enumerate(map(packed.failures.get, records))
        failures = {i: reason for i, reason in known if reason is not None}
    else:
        local = take_local(len(files))
        try:
            digests, failures = _decode_files(
                store, folder, files[local], shape=shape, options=options, is_silent=is_silent
            )
            store.shrink()
        except OSError as error:
            raise _explain(error, store.folder, len(files) * row_bytes) from error
        padded = b"".join(digest or _NO_DIGEST for digest in digests)
        gathered = gather_rows(np.frombuffer(padded, "V16"), len(files)).tolist()
        digests = [b"" if digest == _NO_DIGEST else digest for digest in gathered]
        parts = from_all_processes([(local.start + i, reason) for i, reason in failures.items()])
        failures = {i: reason for part in parts for i, reason in part}
    rows = np.array([i for i in range(len(files)) if i not in failures], np.int64)

    def find_path(row: int) -> str:
        return os.path.join(folder, files[rows[row]].name)

    images = DecodedImages(
        store,
        [digests[i] for i in rows],
        find_path=find_path,
        shape=shape,
        options=options,
        is_kept=is_kept,
    )
    return DecodedSet(images, rows, digests, failures)


def _decode_files(
    store: Store,
    folder: str,
    files: Sequence[ImageFile],
    shape: Shape,
    options: DecodeOptions,
    is_silent: bool,
) -> tuple[list[bytes], dict[int, str]]:
    """Decodes files that are not in the store. Returns the digests of all, and the failures."""
    name = _name_options(shape, options)
    row_bytes = int(np.prod(shape))
    failures = dict[int, str]()
    paths = [os.path.join(folder, file.name) for file in files]
    if not is_main_process():  # Another machine may have its own copies.
        files = [stat_image(path) for path in paths]
    keys = [compute_key(path, file) for path, file in zip(paths, files, strict=True)]
    digests, todo = _find(store, name, keys)
    if not todo:
        return digests, failures
    with _hold(store.lock, is_silent) if jax.process_count() == 1 else contextlib.nullcontext():
        digests, todo = _find(store, name, keys)
        if shutil.disk_usage(store.folder).free < len(todo) * row_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        size = min(max(_BATCH_BYTES // row_bytes, 1), _MAX_BATCH)
        missing = [paths[i] for i in todo]
        places = iter(todo)
        batches = read_ahead(
            missing, shape, size, options, is_known=lambda digest: bool(store.find(name, [digest]))
        )
        has_bar = not is_silent and len(todo) >= _FEW
        bar = show_progress(total=len(todo), unit="image", desc="Decoding", disable=not has_bar)
        with contextlib.closing(batches), bar:
            for batch in batches:
                found = list(zip(batch.digests, batch.errors, strict=True))
                images = zip((d for d, error in found if error is None), batch.images, strict=True)
                rows = {digest: image.tobytes() for digest, image in images}
                store.write(name, rows, find_settled(batch))
                for digest, error in found:
                    digests[i := next(places)] = digest
                    if error:
                        failures[i] = error
                bar.update(len(batch.files))
    return digests, failures


def _find(store: Store, name: str, keys: Sequence[bytes]) -> tuple[list[bytes], list[int]]:
    """The known digests of files, and the files that must be decoded."""
    digests = store.find_contents(keys)
    known = store.find(name, digests)
    return digests, [i for i, digest in enumerate(digests) if digest not in known]


def _name_options(shape: Shape, options: DecodeOptions) -> str:
    return f"images/{_VERSION}-{'-'.join(map(str, (*shape[1:], *options)))}"


def _hold(lock: filelock.BaseFileLock, is_silent: bool) -> Any:
    """Takes a lock, waiting for another process that decodes images."""
    try:
        return lock.acquire(timeout=0)
    except filelock.Timeout:
        if not is_silent:
            print("Another process is decoding images: waiting for it.", file=sys.stderr)
        return lock.acquire()


def _explain(error: OSError, folder: pathlib.Path, num_bytes: int) -> UserError:
    remedy = ""
    where = "that can be written, on a disk with file locks"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "free disk space and rerun the command, or "
        where = "with enough space"
    return UserError(
        f"The images cannot be decoded to {folder} ({error.strerror}; {num_bytes / 2**30:.1f} "
        f"GiB): {remedy}set the environment variable XDG_CACHE_HOME to a folder {where}."
    )
