"""Image files decoded once: bytes of one size, stored by the content of the file.

The cache does not know names or labels. A file whose bytes have been decoded before, to the same
size and with the same options, is never decoded again. Images are stored in packs that never
change. Every image has a checksum, and a damaged one is decoded again.

A table for each folder remembers the content of its files by name, size, time and inode, so that
unchanged files are not read again.
"""

import concurrent.futures
import contextlib
import errno
import hashlib
import itertools
import os
import pathlib
import shutil
import sys
import threading
import time
import uuid
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import filelock
import numpy as np
import platformdirs
from tqdm import tqdm

from cls_jax.data.images.decode import (
    CENTER_CROP,
    DecodeOptions,
    ImageError,
    decode_image,
    open_file,
    read_image,
)
from cls_jax.data.images.files import ImageFile
from cls_jax.errors import UserError
from cls_jax.parallel.cpus import available_cpus

# Increase when the pixels of any file come out differently.
_VERSION = 4
_PACK_BYTES = 2**28
_TABLES, _PARTIAL = "tables", "partial-"
_DIGEST_BYTES = 16
_NO_DIGEST = bytes(_DIGEST_BYTES)
_CUT_SHORT = "a pack of decoded images was cut short"
# A pack's entry for an image.
_ENTRY = np.dtype([("digest", "u1", _DIGEST_BYTES), ("checksum", "<u4")])
# Files per task of a thread.
_CHUNK = 32
_SEEKING = threading.Lock()  # Where all threads share a file's position.
# A file that changed this recently may change again and keep its modification time.
_SETTLED_NS = 10**9
# A pack used within this time may be in use by another process.
_FRESH_SECONDS = 3600

Shape = tuple[int, int, int]


def get_cache_folder() -> pathlib.Path:
    """The folder that holds all decoded images."""
    return platformdirs.user_cache_path("cls_jax", appauthor=False) / "images"


class _Pack:
    """A file of n entries and, behind them, of images uint8 [n, H, W, C].

    Opening one raises an OSError if it cannot be read or was cut short.
    """

    def __init__(self, path: pathlib.Path, shape: Shape):
        self.path = path
        self._file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, self._file)
        num_bytes, row_bytes = os.fstat(self._file).st_size, int(np.prod(shape))
        num_images, rest = divmod(num_bytes, row_bytes + _ENTRY.itemsize)
        if rest:
            raise OSError(errno.EIO, _CUT_SHORT, str(path))
        self.entries = np.empty(num_images, _ENTRY)
        self._read(self.entries, 0)

    def read_into(self, images: np.ndarray, row: int) -> None:
        """Reads as many images as there is room for, from `row` on."""
        self._read(images, self.entries.nbytes + row * images[0].nbytes)

    def _read(self, array: np.ndarray, offset: int) -> None:
        missing = array.reshape(-1).view(np.uint8).data
        while missing:
            num_read = _read_at(self._file, missing, offset)
            if num_read == 0:
                raise OSError(errno.EIO, _CUT_SHORT, str(self.path))
            missing, offset = missing[num_read:], offset + num_read


def _read_at(descriptor: int, buffer: memoryview, offset: int) -> int:
    """Reads bytes at a position without moving the file's own. Several threads read at a time."""
    if hasattr(os, "preadv"):  # Not on Windows and older versions of macOS.
        return os.preadv(descriptor, [buffer], offset)
    with _SEEKING:
        os.lseek(descriptor, offset, os.SEEK_SET)
        content = os.read(descriptor, len(buffer))
    buffer[: len(content)] = content
    return len(content)


class DecodedImages:
    """Images in packs, read from disk by index. An `ImageSource`.

    Not memory maps: pages of a map count as this program's memory once they have been touched, and
    a set larger than memory would seem to fill it.
    """

    def __init__(
        self,
        packs: Mapping[int, _Pack],
        places: np.ndarray,
        paths: Sequence[str],
        shape: Shape,
        options: DecodeOptions,
    ):
        """Puts images of several packs, by number, in an order.

        `places`, int64 [n, 2], has the number of the pack and the row in it of each image, and
        `paths` the files that are decoded again where a pack is damaged.
        """
        self._packs, self._places, self._paths = packs, places, paths
        self._shape, self._options = shape, options
        self._rows = np.arange(len(places))  # Turns slices and negative indices into rows.
        self._is_checked = np.zeros(len(places), bool)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, indices: Any) -> np.ndarray:
        """Returns uint8 [n, H, W, C] for int indices [n] or a slice.

        Raises:
            OSError: if an image is damaged and its file cannot be decoded again.
        """
        rows = self._rows[indices]
        images = np.empty((len(rows), *self._shape), np.uint8)
        places = self._places[rows]
        # Neighbors are read together.
        starts = np.flatnonzero((np.diff(places, axis=0) != (0, 1)).any(axis=1)) + 1
        for start, stop in itertools.pairwise([0, *starts, len(rows)] if len(rows) else []):
            pack, row = places[start]
            self._packs[pack].read_into(images[start:stop], int(row))
        for i in np.flatnonzero(~self._is_checked[rows]):
            images[i] = self._check(images[i], rows[i])
        return images

    def _check(self, image: np.ndarray, row: int) -> np.ndarray:
        """The image, decoded again if its checksum is not the pack's."""
        pack, place = self._places[row]
        entry = self._packs[pack].entries[place]
        if _compute_checksum(entry["digest"].tobytes(), image) == entry["checksum"]:
            self._is_checked[row] = True
            return image
        with contextlib.suppress(OSError):  # The next run decodes what was in it again.
            self._packs[pack].path.unlink()
        path = self._paths[row]
        try:
            return read_image(path, self._shape, self._options)
        except ImageError as error:
            raise OSError(errno.EIO, f"damaged in the cache, and {error}", path) from error


class DecodedSet(NamedTuple):
    """A decoded set of n image files, m of which can be read."""

    images: DecodedImages  # uint8 [m, H, W, C].
    rows: np.ndarray  # int64 [m], indices of the files that can be read.
    digests: list[bytes]  # n hashes of the files' bytes. Zero where a file cannot be read.
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
    """Decodes the files of a folder to (H, W, C) on all cores, or reads them from the cache.

    The cache has at most `max_gigabytes`. Beyond that, the least recently used packs are deleted.

    Raises:
        UserError: if the cache cannot be written.
    """
    row_bytes = int(np.prod(shape))
    paths = [os.path.join(root, file.name) for file in files]
    folder = get_cache_folder() / f"v{_VERSION}-{'-'.join(map(str, (*shape[1:], *options)))}"
    failures: dict[int, str] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _open_table(root, files, is_silent) as table:
            places = _find_places(packs := _open_packs(folder, shape))
            todo = [i for i, digest in enumerate(table.digests) if digest not in places]
            if todo and shutil.disk_usage(folder).free < len(todo) * row_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            known, size = set(places), max(_PACK_BYTES // row_bytes, 1)
            with tqdm(
                total=len(todo),
                unit="image",
                desc="Decoding",
                dynamic_ncols=True,
                disable=is_silent or len(todo) < _CHUNK,
            ) as bar:
                for start in range(0, len(todo), size):
                    part = todo[start : start + size]
                    part_paths = [paths[i] for i in part]
                    pixels, entries, results = _decode(part_paths, shape, options, known, bar)
                    for i, (digest, error) in zip(part, results, strict=True):
                        table.digests[i] = digest
                        if error is not None:
                            failures[i] = error
                    _write_pack(folder, table.path.name, pixels, entries)
                    table.write()
            if todo:
                places = _find_places(packs := _open_packs(folder, shape))
        rows = np.array([i for i in range(len(files)) if i not in failures], np.int64)
        # A place is missing if somebody clears the cache at this moment.
        chosen = np.array([places[table.digests[i]] for i in rows], np.int64).reshape(-1, 2)
        used = {number: packs[number] for number in np.unique(chosen[:, 0]).tolist()}
        for pack in used.values():
            os.utime(pack.path)
        shrink_cache(max_gigabytes)
    except (OSError, KeyError) as error:
        reason = getattr(error, "strerror", None) or "it was cleared meanwhile"
        raise UserError(
            f"The images cannot be decoded to {folder} ({reason}; "
            f"{len(files) * row_bytes / 2**30:.1f} GiB): free disk space and rerun the command, or "
            "set the environment variable XDG_CACHE_HOME to a folder with enough space."
        ) from error
    images = DecodedImages(used, chosen, [paths[i] for i in rows], shape, options)
    return DecodedSet(images, rows, table.digests, failures)


class _Table:
    """What a folder's files contained when they were last read.

    `digests` has the hash of each file's bytes, zero where it is not known. A table that is damaged
    counts as missing.
    """

    def __init__(self, path: pathlib.Path, files: Sequence[ImageFile]):
        self.path = path
        self._keys = [_hash("\0".join(map(str, file))) for file in files]
        # Files that have just changed may change again within the resolution of their times.
        latest = time.time_ns() - _SETTLED_NS
        self._is_settled = [max(file.mtime_ns, file.ctime_ns) < latest for file in files]
        content = path.read_bytes() if path.exists() else b""
        start, stored = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        known = _split(stored) if start == _hash(stored) else []
        digests = dict(zip(known[::2], known[1::2], strict=False))
        self.digests = [digests.get(key, _NO_DIGEST) for key in self._keys]

    def write(self) -> None:
        """Stores the digests that are known now."""
        rows = zip(self._keys, self.digests, self._is_settled, strict=True)
        stored = b"".join(
            key + digest for key, digest, is_settled in rows if is_settled and digest != _NO_DIGEST
        )
        _write_file(self.path, self.path.name, [_hash(stored), stored])


@contextlib.contextmanager
def _open_table(
    root: pathlib.Path, files: Sequence[ImageFile], is_silent: bool
) -> Iterator[_Table]:
    """Opens the table of a folder while no other process does, and removes what dead ones left."""
    folder = get_cache_folder() / _TABLES
    folder.mkdir(parents=True, exist_ok=True)
    name = _hash(os.path.realpath(root)).hex()
    lock = filelock.FileLock(folder / f"{name}.lock")
    try:
        held = lock.acquire(timeout=0)
    except filelock.Timeout:
        if not is_silent:
            print("Another process is decoding these images: waiting for it.", file=sys.stderr)
        held = lock.acquire()
    with held:
        for partial in folder.parent.glob(f"*/{_PARTIAL}*"):
            _remove_partial(partial, folder, name)
        yield _Table(folder / name, files)


def _remove_partial(partial: pathlib.Path, folder: pathlib.Path, own_name: str) -> None:
    """Removes an unfinished file unless the process that writes it may be alive."""
    name = partial.name.removeprefix(_PARTIAL).split("-")[0]
    with contextlib.suppress(OSError, filelock.Timeout):
        if name == own_name:
            partial.unlink()
        else:
            with filelock.FileLock(folder / f"{name}.lock", timeout=0):
                partial.unlink()


def _open_packs(folder: pathlib.Path, shape: Shape) -> list[_Pack]:
    """All packs in a folder, oldest first. Those that were cut short are removed."""
    packs = []
    for path in sorted(folder.glob("*.pack")):
        try:
            packs.append(_Pack(path, shape))
        except FileNotFoundError:  # Another process has deleted it.
            continue
        except OSError as error:
            if error.strerror != _CUT_SHORT:  # Such as a failing disk.
                raise
            path.unlink(missing_ok=True)
    return packs


def _find_places(packs: Sequence[_Pack]) -> dict[bytes, tuple[int, int]]:
    """Digest → pack and row of every image."""
    places = {
        digest: (number, row)
        for number, pack in enumerate(packs)
        for row, digest in enumerate(_split(pack.entries["digest"].tobytes()))
    }
    places.pop(_NO_DIGEST, None)
    return places


def _decode(
    paths: Sequence[str],
    shape: Shape,
    options: DecodeOptions,
    known: set[bytes],
    bar: tqdm,
) -> tuple[np.ndarray, np.ndarray, list[tuple[bytes, str | None]]]:
    """Decodes files in threads, except those whose content is `known`. Adds to it.

    Returns:
        Images uint8 [n, H, W, C] and their `_ENTRY` [n], zero in unused rows. Then, for each file,
        the hash of its bytes, zero if it cannot be read, and the reason or None.
    """
    images, entries = np.zeros((len(paths), *shape), np.uint8), np.zeros(len(paths), _ENTRY)

    def decode(row: int) -> tuple[bytes, str | None]:
        """A file's digest and None or the reason. Its image goes into its row."""
        digest = _NO_DIGEST
        try:
            with open_file(paths[row]) as file:
                digest = _compute_digest(file)
                if digest not in known:
                    images[row] = decode_image(file, shape, options)
                    checksum = _compute_checksum(digest, images[row])
                    entries[row] = np.frombuffer(digest, np.uint8), checksum
                    known.add(digest)
            return digest, None
        except ImageError as error:
            return digest, str(error)
        except OSError as error:
            return digest, error.strerror or str(error)

    def decode_chunk(start: int) -> list[tuple[bytes, str | None]]:
        return [decode(row) for row in range(start, min(start + _CHUNK, len(paths)))]

    results = []
    pool = concurrent.futures.ThreadPoolExecutor(available_cpus())
    try:
        for chunk in pool.map(decode_chunk, range(0, len(paths), _CHUNK)):
            results += chunk
            bar.update(len(chunk))
    finally:
        pool.shutdown(cancel_futures=True)
    return images, entries, results


def _write_pack(folder: pathlib.Path, table: str, images: np.ndarray, entries: np.ndarray) -> None:
    is_used = entries["digest"].any(axis=1)
    if is_used.any():
        if not is_used.all():
            entries, images = entries[is_used], images[is_used]
        path = folder / f"{time.time_ns():020}-{uuid.uuid4().hex}.pack"
        _write_file(
            path, table, (part.reshape(-1).view(np.uint8).data for part in (entries, images))
        )


def _write_file(path: pathlib.Path, table: str, parts: Iterable[Any]) -> None:
    """Writes a file that gets its name when all of it is on the disk.

    Until then its name holds the table's, whose lock says whether its writer is alive, and it has
    no suffix, so that nobody takes it for a pack.
    """
    partial = path.with_name(f"{_PARTIAL}{table}-{path.stem}")
    try:
        with partial.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)  # A full disk needs the space.
        raise


def shrink_cache(max_gigabytes: float) -> None:
    """Deletes the least recently used files until the cache has at most this size.

    Packs used within the last hour stay, because another process may be about to read them.
    """
    files = []
    for path in get_cache_folder().rglob("*"):
        with contextlib.suppress(OSError):
            stat = path.stat()
            if path.is_file() and path.suffix != ".lock":
                files.append((path, stat.st_size, stat.st_mtime))
    excess = sum(size for _, size, _ in files) - max_gigabytes * 1e9
    for path, size, used in sorted(files, key=lambda file: file[2]):
        if excess <= 0 or used > time.time() - _FRESH_SECONDS:
            return
        with contextlib.suppress(OSError):
            path.unlink()
            excess -= size


def _compute_digest(file: Any) -> bytes:
    """The hash of an open file, which is then at its start."""
    digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_DIGEST_BYTES))
    file.seek(0)
    return digest.digest()


def _compute_checksum(digest: bytes, image: np.ndarray) -> int:
    return zlib.crc32(image.data, zlib.crc32(digest))


def _hash(content: str | bytes) -> bytes:
    if isinstance(content, str):  # Names may hold any byte but zero, and need not be Unicode.
        content = content.encode("utf-8", "surrogateescape")
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


def _split(digests: bytes) -> list[bytes]:
    return [digests[i : i + _DIGEST_BYTES] for i in range(0, len(digests), _DIGEST_BYTES)]
