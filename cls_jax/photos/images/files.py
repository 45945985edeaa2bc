"""Finds image files and decodes them in threads, ahead of their use."""

import array
import collections
import concurrent.futures
import contextlib
import glob
import io
import itertools
import os
import pathlib
import sys
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from cls_jax.data.resize import CENTER_CROP, DecodeOptions, ImageError
from cls_jax.errors import UserError
from cls_jax.io import describe_error, open_regular, read_bytes
from cls_jax.parallel.machine import available_cpus
from cls_jax.photos.images.decode import (
    MAX_FILE_BYTES,
    SUFFIXES,
    ImageLike,
    decode_image,
    open_file,
)
from cls_jax.photos.images.dicom import START, is_dicom
from cls_jax.photos.images.packed import INDEX, SHARD, PackedFolder, find_packed, open_packed
from cls_jax.photos.images.store import Store, hash_content
from cls_jax.photos.images.tiff import SIGNATURES as TIFF_SIGNATURES

SkippedFile = tuple[str, str]
# What systems leave in folders of images, in lower case, besides names with a leading dot. Only a
# system can move some of these.
_NEVER_LISTED = {
    *("thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "__macosx", "__pycache__"),
    *(
        "$recycle.bin",
        "recycler",
        "system volume information",
        "lost+found",
        "lost.dir",
        "found.000",
    ),
    *("network trash folder", "temporary items", "@eadir", "@tmp", "@recycle", "#recycle"),
    *("@recently-snapshot", "#snapshot"),
}
# A folder with config.json and one of these is a run, and so is one with the lock that a run takes
# before it writes anything.
_IN_A_RUN = {"checkpoints", "dataset.json", "labeled_indices.json", "result.json"}
_LOCK = ".lock"
_CLOSED, _A_RUN = "a folder that cannot be read", "a folder that a run has written"
_NO_IMAGE = f"no image extension; supported: {' '.join(SUFFIXES)}"
# A file that changed this recently may change again and keep its modification time.
_SETTLED_NS = 10**9
# Larger files are read one at a time, to bound memory.
_LARGE_BYTES = 2**26
_LARGE_FILES = threading.Lock()
_MAX_LIST_BYTES = 2**30
_MAX_ALIKE = 20  # Files with the same ending in a folder.
_ROWS_AT_ONCE = 1024
_NUM_LOCKS = 256
_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"RIFF", *TIFF_SIGNATURES)


class ImageFile(NamedTuple):
    """A file in a listing."""

    name: str  # Path relative to the folder, with "/".
    size: int  # In bytes.
    mtime_ns: int  # Time of the last change of the content.
    ctime_ns: int  # Time of the last change of content or metadata.
    inode: int  # Inode number.


class ImageFiles(Sequence[ImageFile]):
    """The files of a folder as columns: about 80 bytes each, where objects take 500."""

    def __init__(self, files: Iterable[ImageFile] = (), text: bytes = b"", numbers: bytes = b""):
        """Starts from the columns `text` and `numbers`, then appends `files`."""
        self.text = bytearray(text)  # All names, concatenated.
        # Per file: the end of its name in the text, and the other columns.
        self.numbers = array.array("q", numbers)
        for file in files:
            self.append(file)

    def append(self, file: ImageFile) -> None:
        """Adds a file at the end."""
        self.text += file.name.encode("utf-8", "surrogateescape")  # Names need not be Unicode.
        self.numbers.extend((len(self.text), *file[1:]))

    def __len__(self) -> int:
        return len(self.numbers) // len(ImageFile._fields)

    def __getitem__(self, index: Any) -> Any:
        """A file or, for a slice or an array, a list of files."""
        chosen = np.arange(len(self))[index]
        return list(self.take(chosen)) if chosen.ndim else next(self.take(chosen[None]))

    def __iter__(self) -> Iterator[ImageFile]:
        return self.take(range(len(self)))

    def names(self) -> Iterator[str]:
        """The names in the order of the files."""
        return (name for names, _ in self.read(range(len(self))) for name in names)

    def take(self, places: np.ndarray | range) -> Iterator[ImageFile]:
        """The files at some places, int [n], one by one."""
        for names, numbers in self.read(places):
            yield from map(ImageFile, names, *numbers.T.tolist())

    def read(self, places: np.ndarray | range) -> Iterator[tuple[list[str], np.ndarray]]:
        """Names and the other columns, int64 [n, 4], of some files at a time."""
        text = self.text
        for first in range(0, len(places), _ROWS_AT_ONCE):
            part = np.asarray(places[first : first + _ROWS_AT_ONCE])
            numbers = np.frombuffer(self.numbers, np.int64).reshape(-1, len(ImageFile._fields))
            ends = numbers[part, 0].tolist()
            starts = np.where(part > 0, numbers[part - 1, 0], 0).tolist()
            spans = zip(starts, ends, strict=True)
            names = [text[start:end].decode("utf-8", "surrogateescape") for start, end in spans]
            yield names, numbers[part, 1:]

    def sort(self) -> None:
        """Sorts by name. Builds objects only if the files are not in order already."""
        if any(a > b for a, b in itertools.pairwise(self.names())):
            self.__init__(sorted(self))  # type: ignore[misc]


class Listing(NamedTuple):
    """The contents of a folder and of all folders in it, each list sorted."""

    files: ImageFiles  # Images by extension or, without one, by their first bytes.
    folders: list[str]  # Names relative to the folder.
    others: list[str]  # Files that are no images: tables of labels, notes, archives.
    skipped: list[SkippedFile]  # Name and reason of what cannot be read, and of runs.

    def skip_others(self, read: Collection[str] = ()) -> list[SkippedFile]:
        """Name and reason of everything but the images and the other files that were `read`."""
        rest = [(name, _NO_IMAGE) for name in self.others if name not in read]
        return sorted([*self.skipped, *rest])


def group_by_ending(
    names: Iterable[str], endings: Collection[str]
) -> dict[tuple[str, str], list[str]]:
    """Folder and ending → the files in it with this ending, one of some in lower case."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in names:
        ending = os.path.splitext(name)[1].lower()
        if ending in endings:
            groups.setdefault((os.path.dirname(name), ending), []).append(name)
    return groups


def list_rare(names: Iterable[str], endings: Collection[str]) -> list[str]:
    """The files with some endings, sorted, without those of which a folder has more than 20.

    Each of these is about one image.
    """
    groups = group_by_ending(names, endings).values()
    return sorted(name for group in groups if len(group) <= _MAX_ALIKE for name in group)


def list_images(root: str | os.PathLike) -> Listing:
    """Lists a folder and all folders in it, for training and for prediction.

    Links are followed, also out of the folder. No folder is listed twice, so cyclic links are
    harmless. Hidden names and folders of runs are left out.

    Raises a UserError if the folder itself cannot be listed, or Python cannot read names.
    """
    if packed := open_packed(root):
        return _list_packed(root, packed)
    listing = Listing(ImageFiles(), [], [], [])
    visited = {_identify(parent) for parent in pathlib.Path(os.path.realpath(root)).parents}
    # A folder is listed under its own name if it has one here, so links come last.
    pending = collections.deque([""])
    while pending:
        folder = pending.popleft()
        try:
            entries, reason = _scan(os.path.join(root, folder), visited)
        except OSError as error:
            if not folder:
                raise UserError(f"{root} cannot be read: {error.strerror}.") from error
            entries, reason = [], f"{_CLOSED}: {error.strerror}"
        if folder and (reason or _is_run(entries)):
            listing.skipped.append((folder, reason or _A_RUN))
            continue
        if folder:
            listing.folders.append(folder)
        inner, links = _sort_entries(folder, entries, listing)
        pending.extendleft(reversed(inner))  # Keeps the order of names.
        pending.extend(links)
    # A folder of runs, such as runs/, is not a class.
    runs = [name for name, reason in listing.skipped if reason == _A_RUN]
    if runs:
        with_runs = _find_parents(runs) - _find_parents(listing.files.names())
        listing.folders[:] = [name for name in listing.folders if name not in with_runs]
    for part in listing:
        part.sort()
    return listing


def _scan(path: str, visited: set[tuple[int, int]]) -> tuple[list[os.DirEntry], str]:
    """The entries of a folder, sorted, or why it is left out. Adds it to the `visited` ones."""
    identity = _identify(path)
    if identity in visited:
        return [], "a link to a folder that is already listed or contains this one"
    visited.add(identity)
    with os.scandir(path) as scanned:
        return sorted(scanned, key=lambda entry: entry.name), ""


def _is_run(entries: Iterable[os.DirEntry]) -> bool:
    """Whether a folder with these entries has been written by a run."""
    names = {entry.name for entry in entries}
    return _LOCK in names or ("config.json" in names and not names.isdisjoint(_IN_A_RUN))


def _list_packed(root: str | os.PathLike, packed: PackedFolder) -> Listing:
    """What `list_images` returns for a packed folder."""
    listing = Listing(ImageFiles(), [], [], [])
    for name, row in packed.rows.items():
        listing.files.append(_stat_packed(packed, row, name))
    listing.folders.extend(sorted(_find_parents(packed.rows)))
    for name in sorted(os.listdir(root)):
        if name.startswith(".") or name == INDEX or name.endswith(SHARD):
            continue
        if name.lower().endswith(SUFFIXES):
            listing.skipped.append((name, "not among the packed images"))
        else:
            listing.others.append(name)
    return listing


def _sort_entries(
    folder: str, entries: Iterable[os.DirEntry], listing: Listing
) -> tuple[list[str], list[str]]:
    """Adds the files of a folder to a listing. Returns the folders in it, and those by links."""
    inner: list[str] = []
    links: list[str] = []
    for entry in entries:
        if is_left_by_system(entry.name):
            continue
        _check_encoding(entry.name)
        name = f"{folder}/{entry.name}" if folder else entry.name
        try:
            if entry.is_dir():
                (links if entry.is_symlink() else inner).append(name)
            elif not entry.is_file():
                is_dangling = entry.is_symlink() and not os.path.exists(entry.path)
                listing.skipped.append((name, "a broken link" if is_dangling else "not a file"))
            elif not _is_image(entry):
                listing.others.append(name)
            else:
                # On Windows `entry.stat` has no inode.
                listing.files.append(stat_image(entry.path)._replace(name=name))
        except OSError as error:
            listing.skipped.append((name, f"a file that cannot be read: {error.strerror}"))
    return inner, links


def _check_encoding(name: str) -> None:
    """Raises a UserError if Python cannot read names such as this one in a system's encoding."""
    encoding = sys.getfilesystemencoding()
    if not (name.isascii() or encoding.lower() in ("utf-8", "utf8")):
        shown = os.fsencode(name).decode("utf-8", "replace")
        raise UserError(
            f"Names such as {shown!r:.200} cannot be read, because Python expects {encoding} in "
            "names of files here: set the environment variable PYTHONUTF8=1."
        )


def stat_image(path: str | os.PathLike, opened: BinaryIO | None = None) -> ImageFile:
    """The current state of a file under the given name, also in a packed folder.

    Once a file is `opened`, that of this one, whatever has its name by now. Raises an OSError if
    there is none, and a ValueError if no file can have the name.
    """
    is_packed = isinstance(opened, io.BytesIO)  # It has no descriptor.
    try:
        stat = os.stat(path if opened is None or is_packed else opened.fileno())
    except FileNotFoundError:
        if (found := find_packed(path)) is None:
            raise
        packed, row = found
        return _stat_packed(packed, row, os.fspath(path))
    return ImageFile(os.fspath(path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)


def _stat_packed(packed: PackedFolder, row: int, name: str) -> ImageFile:
    """A packed image. Its times are those of the index, and its record replaces the inode."""
    mtime_ns, ctime_ns = packed.times
    return ImageFile(name, int(packed.sizes[row]), mtime_ns, ctime_ns, inode=row)


def is_left_by_system(name: str) -> bool:
    """Whether a name is hidden or that of a system file."""
    return name.startswith(".") or name.lower() in _NEVER_LISTED


def _identify(path: str | os.PathLike) -> tuple[int, int]:
    stat = os.stat(path)
    return stat.st_dev, stat.st_ino


def _find_parents(names: Iterable[str]) -> set[str]:
    found = set[str]()
    for name in names:
        parent = name.rpartition("/")[0]
        while parent and parent not in found:
            found.add(parent)
            parent = parent.rpartition("/")[0]
    return found


def _is_image(entry: os.DirEntry) -> bool:
    """Whether a file is an image by its extension or, without one, by its first bytes.

    A number is none, as in 1.2.840.113619.2.5, which DICOM files are often called.
    """
    if "." in entry.name and not entry.name.rpartition(".")[2].isdigit():
        return entry.name.lower().endswith(SUFFIXES)
    start = b""
    with contextlib.suppress(OSError), open_regular(entry.path) as file:
        start = file.read(START)
    return start.startswith(_SIGNATURES) or start[4:8] == b"ftyp" or is_dicom(start)


def find_images(pattern: str) -> list[str]:
    """Lists the image files of a folder, a glob or a file name, sorted by name.

    A folder is listed by `list_images`. Unreadable files with the name of an image, and unreadable
    folders, are included, so that they are not skipped silently. A glob or a name
    matches files with any ending, but a .txt is a list of files, in its own order. `**` in a glob
    descends into folders. Raises a UserError if there is no such file or the folder has no image.
    """
    expanded = os.path.expanduser(pattern)
    if is_list(expanded):
        return _read_list(expanded)
    if os.path.isdir(expanded):
        listing = list_images(expanded)
        unreadable = [
            name
            for name, reason in listing.skipped
            if name.lower().endswith(SUFFIXES) or reason.startswith(_CLOSED)
        ]
        files = [os.path.join(expanded, name) for name in (*listing.files.names(), *unreadable)]
        if not files:
            raise UserError(
                f"There is no image in {pattern}: pass a folder with files that end in "
                f"{', '.join(SUFFIXES)}."
            )
    elif os.path.exists(expanded) or find_packed(expanded):
        files = [expanded]
    else:
        files = _expand(expanded)
        if not files:
            raise UserError(
                f"There is no file {pattern}: pass a folder, a file or a quoted pattern "
                "such as 'photos/**/*.jpg'."
            )
    return sorted(files)


def is_list(path: str) -> bool:
    """Whether a path is that of a text file with a path of an image in each line."""
    return path.lower().endswith(".txt") and os.path.isfile(path)


def _read_list(path: str) -> list[str]:
    """The files of a list. Paths are relative to this folder or, if nothing is there, the list's.

    Raises a UserError if it names none or cannot be read.
    """
    try:
        text = read_bytes(path, _MAX_LIST_BYTES).decode("utf-8-sig", "surrogateescape")
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read ({describe_error(error)}): pass a list of files, one per line."
        ) from error
    names = [os.path.expanduser(line.strip()) for line in text.split("\n") if line.strip()]
    if not names:
        raise UserError(f"{path} names no file: write the path of an image into each line.")
    beside = [os.path.join(os.path.dirname(path), name) for name in names]
    return [
        other if os.path.exists(other) and not os.path.exists(name) else name
        for name, other in zip(names, beside, strict=True)
    ]


def _expand(pattern: str) -> list[str]:
    """The files that match a pattern. Each folder counts under its shortest name only."""
    files = [file for file in glob.glob(pattern, recursive=True) if os.path.isfile(file)]
    # `**` follows links to folders, which may be cyclic.
    names: dict[str, str] = {}
    for parent in sorted({os.path.dirname(file) for file in files}, key=lambda x: (len(x), x)):
        names.setdefault(os.path.realpath(parent), parent)
    known = set(names.values())
    return [file for file in files if os.path.dirname(file) in known]


def compute_key(path: str, file: ImageFile) -> bytes:
    """16 bytes that change whenever a file's content may have changed."""
    text = "\0".join(map(str, (os.path.abspath(path), *file[1:])))
    return hash_content(text.encode("utf-8", "surrogateescape"))  # Names need not be Unicode.


class ImageBatch(NamedTuple):
    """A decoded batch of files. The last two exist only if contents are hashed."""

    files: list[Any]  # Names or images, as given.
    # Per file: None, or why it could not be read, or "" if its content is already known.
    errors: list[str | None]
    images: np.ndarray  # uint8 [n, H, W, C], the images of files without an error, in order.
    digests: Sequence[bytes] = ()  # Of the decoded bytes, b"" where there are none.
    keys: Sequence[bytes] = ()  # Of the same files, b"" if the content may still change.


def find_settled(batch: ImageBatch) -> dict[bytes, bytes]:
    """Key → digest of the batch's files that are not still changing."""
    return {key: digest for key, digest in zip(batch.keys, batch.digests, strict=False) if key}


def read_ahead(
    files: Iterable[ImageLike],
    image_shape: tuple[int, int, int],
    batch_size: int,
    options: DecodeOptions = CENTER_CROP,
    is_known: Callable[[bytes], bool] | None = None,
) -> Generator[ImageBatch, None, None]:
    """Decodes files to (H, W, C) batch by batch, one batch ahead, on all cores.

    With `is_known`, a function of a digest, contents are hashed. Known contents, and repeated ones,
    are not decoded.
    """
    decoded = set[bytes]()
    # Copies share a lock, so they wait for the first. So may a few others, which bounds memory.
    locks = [threading.Lock() for _ in range(_NUM_LOCKS)]

    def read(file: ImageLike) -> tuple[np.ndarray | str, bytes, bytes]:
        """An image or the error, the digest, and the key."""
        digest = key = b""
        try:
            with _read_once(file, is_hashed=is_known is not None) as (content, digest, key):
                if is_known is None:
                    return decode_image(content, image_shape, options), digest, key
                with locks[hash(digest) % _NUM_LOCKS]:
                    if digest in decoded or is_known(digest):
                        return "", digest, key
                    image = decode_image(content, image_shape, options)
                    decoded.add(digest)
                return image, digest, key
        except ImageError as error:
            return str(error), digest, key

    executor = concurrent.futures.ThreadPoolExecutor(available_cpus())
    rest = iter(files)
    parts = iter(lambda: list(itertools.islice(rest, batch_size)), [])
    try:
        # The next batch is decoded while one is in use.
        started = ((part, executor.map(read, part)) for part in itertools.chain(parts, [[]]))
        for (part, results), _ in itertools.pairwise(started):
            found, digests, keys = zip(*results, strict=True)
            images = [result for result in found if not isinstance(result, str)]
            errors = [result if isinstance(result, str) else None for result in found]
            pixels = np.stack(images) if images else np.zeros((0, *image_shape), np.uint8)
            yield ImageBatch(files=part, errors=errors, images=pixels, digests=digests, keys=keys)
    finally:
        executor.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _read_once(path: Any, is_hashed: bool) -> Iterator[tuple[Any, bytes, bytes]]:
    """A file's content with its digest and key. An image in memory has neither."""
    if isinstance(path, bytes):
        if len(path) > MAX_FILE_BYTES:
            raise ImageError(f"more than {MAX_FILE_BYTES:,} bytes")
        path = io.BytesIO(path)
    if not isinstance(path, str | os.PathLike):
        yield path, b"", b""
        return
    path = os.fspath(path)
    with open_file(path) as file:
        before = stat_image(path, file)
        with _LARGE_FILES if before.size > _LARGE_BYTES else contextlib.nullcontext():
            try:
                content = file.read()
            except OSError as error:
                raise ImageError(error.strerror or str(error)) from error
            after = stat_image(path, file)
            latest = time.time_ns() - _SETTLED_NS
            is_settled = before == after and max(after.mtime_ns, after.ctime_ns) < latest
            key = compute_key(path, after) if is_hashed and is_settled else b""
            yield io.BytesIO(content), hash_content(content) if is_hashed else b"", key


def find_digests(store: Store, paths: Sequence[str], *, reads: bool = False) -> list[bytes]:
    """Digests of the files' contents, b"" for unknown or unreadable files.

    Files whose current state is not in the store are read only if `reads`.
    """
    keys = []
    digests = [b""] * len(paths)
    for path in paths:
        try:
            keys.append(compute_key(path, stat_image(path)))
        except (OSError, ValueError):
            keys.append(b"")
    with contextlib.suppress(OSError):
        digests = store.find_contents(keys)
    unknown = [i for i, digest in enumerate(digests) if reads and not digest]
    files = [paths[i] for i in unknown]
    # Treat all as known, so that none is decoded.
    for batch in read_ahead(files, (1, 1, 3), len(files), is_known=lambda _: True):
        for i, digest in zip(unknown, batch.digests, strict=True):
            digests[i] = digest
        with contextlib.suppress(OSError):
            store.write("", {}, find_settled(batch))
    return digests
