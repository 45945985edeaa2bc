"""Finds image files and decodes them in threads, ahead of their use."""

import collections
import concurrent.futures
import glob
import itertools
import os
import pathlib
from collections.abc import Generator, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from cls_jax.data.images.decode import (
    CENTER_CROP,
    NPY,
    SUFFIXES,
    TIFFS,
    DecodeOptions,
    ImageError,
    read_image,
)
from cls_jax.errors import UserError
from cls_jax.io import open_regular
from cls_jax.parallel.cpus import available_cpus

SkippedFile = tuple[str, str]
# Files that systems leave in folders of images, in lower case, beside names with a leading dot.
_NEVER_LISTED = ("thumbs.db", "desktop.ini", "__macosx", "@eadir")
# A folder with config.json and one of these is a run, whatever else is in it, and so is one with
# the lock that a run takes before it writes anything.
_IN_A_RUN = {"checkpoints", "dataset.json", "labeled_indices.json", "result.json"}
_LOCK = ".lock"
_CLOSED = "a folder that cannot be read"
_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"RIFF", NPY, *TIFFS)


class ImageFile(NamedTuple):
    """A file as its folder lists it."""

    name: str  # Path relative to the folder, with "/".
    size: int  # In bytes.
    mtime_ns: int  # Time of the last change of the content.
    ctime_ns: int  # Time of the last change of content or metadata.
    inode: int  # Number of the file on its disk.


class Listing(NamedTuple):
    """The contents of a folder and of all folders in it, each list sorted."""

    files: list[ImageFile]  # Images by name or, where that has no extension, by the first bytes.
    folders: list[str]  # Names relative to the folder.
    skipped: list[SkippedFile]  # Name and reason of everything else.


def list_images(root: str | os.PathLike) -> Listing:
    """Lists a folder and all folders in it, for training and for prediction.

    Links are followed, also those that lead out of the folder. No folder is listed twice, so links
    that lead in a circle do no harm. Hidden names and folders that hold runs are left out.
    """
    listing = Listing([], [], [])
    visited = {_identify(parent) for parent in pathlib.Path(os.path.realpath(root)).parents}
    runs: list[str] = []
    # A folder is listed under its own name where it has one here, so links to folders come last.
    pending, linked = [""], collections.deque[str]()
    while pending or linked:
        folder = pending.pop() if pending else linked.popleft()
        path = os.path.join(root, folder)
        try:
            identity = _identify(path)
            if identity in visited:
                reason = "a link to a folder that is listed already or that holds this one"
                listing.skipped.append((folder, reason))
                continue
            visited.add(identity)
            with os.scandir(path) as scanned:
                entries = sorted(scanned, key=lambda entry: entry.name)
        except OSError as error:
            listing.skipped.append((folder, f"{_CLOSED}: {error.strerror}"))
            continue
        names = {entry.name for entry in entries}
        if folder and (_LOCK in names or ("config.json" in names and names & _IN_A_RUN)):
            listing.skipped.append((folder, "the folder of a run"))
            runs.append(folder)
            continue
        if folder:
            listing.folders.append(folder)
        for entry in entries:
            if is_left_by_system(entry.name):
                continue
            name = f"{folder}/{entry.name}" if folder else entry.name
            try:
                if entry.is_dir():
                    (linked if entry.is_symlink() else pending).append(name)
                elif reason := _find_fault(entry):
                    listing.skipped.append((name, reason))
                else:
                    stat = os.stat(entry.path)  # On Windows `entry.stat` has no inode.
                    times = stat.st_mtime_ns, stat.st_ctime_ns
                    listing.files.append(ImageFile(name, stat.st_size, *times, stat.st_ino))
            except OSError as error:
                listing.skipped.append((name, f"a file that cannot be read: {error.strerror}"))
    if runs:  # A folder of runs such as runs/ is no class.
        with_runs = _find_parents(runs) - _find_parents(file.name for file in listing.files)
        listing.folders[:] = [name for name in listing.folders if name not in with_runs]
    for part in listing:
        part.sort()
    return listing


def is_left_by_system(name: str) -> bool:
    """Whether a file or folder has a hidden name, or one that systems leave everywhere."""
    return name.startswith(".") or name.lower() in _NEVER_LISTED


def _identify(path: str | os.PathLike) -> tuple[int, int]:
    stat = os.stat(path)
    return stat.st_dev, stat.st_ino


def _find_parents(names: Iterable[str]) -> set[str]:
    return {str(parent) for name in names for parent in pathlib.PurePosixPath(name).parents}


def _find_fault(entry: os.DirEntry) -> str:
    """Why an entry is no image, or ""."""
    if not entry.is_file():
        is_dangling = entry.is_symlink() and not os.path.exists(entry.path)
        return "a link that leads nowhere" if is_dangling else "not a file"
    if not _is_image(entry):
        return f"not an image extension; expected one of {' '.join(SUFFIXES)}"
    return ""


def _is_image(entry: os.DirEntry) -> bool:
    if "." in entry.name:
        return entry.name.lower().endswith(SUFFIXES)
    try:
        with open_regular(entry.path) as file:
            start = file.read(12)
    except OSError:
        return False
    return start.startswith(_SIGNATURES) or start[4:8] == b"ftyp"


def find_images(pattern: str) -> list[str]:
    """Lists the image files that a folder, a glob or a file's name stands for, sorted by name.

    A folder is listed by `list_images`. Unreadable files with the name of an image, and unreadable
    folders, are in the list as well, so that they are not skipped silently. A glob or a name
    matches files with any ending. `**` in a glob descends into folders.

    Raises:
        UserError: if there is no such file or the folder has no image.
    """
    expanded = os.path.expanduser(pattern)
    if os.path.isdir(expanded):
        listing = list_images(expanded)
        names = [file.name for file in listing.files]
        for name, reason in listing.skipped:
            if name.lower().endswith(SUFFIXES) or reason.startswith(_CLOSED):
                names.append(name)
        files = [os.path.join(expanded, name) for name in names]
        if not files:
            raise UserError(
                f"There is no image in {pattern}: name a folder with files that end in "
                f"{', '.join(SUFFIXES)}."
            )
    elif os.path.exists(expanded):
        files = [expanded]
    else:
        files = _expand(expanded)
        if not files:
            raise UserError(
                f"There is no file {pattern}: name a folder, a file or a quoted pattern "
                "such as 'photos/**/*.jpg'."
            )
    return sorted(files)


def _expand(pattern: str) -> list[str]:
    """The files that match a pattern, in each folder under its shortest name only."""
    files = [file for file in glob.glob(pattern, recursive=True) if os.path.isfile(file)]
    # `**` follows links to folders, some of which lead back: the same files again and again.
    names: dict[str, str] = {}
    for parent in sorted({os.path.dirname(file) for file in files}, key=lambda x: (len(x), x)):
        names.setdefault(os.path.realpath(parent), parent)
    known = set(names.values())
    return [file for file in files if os.path.dirname(file) in known]


class ImageBatch(NamedTuple):
    """A decoded batch of files."""

    files: list[str]  # Names, as given.
    errors: list[str | None]  # For each file None, or why it could not be read.
    images: np.ndarray  # uint8 [n, H, W, C], the images that could be read, in order.


def read_ahead(
    files: Sequence[str],
    image_shape: tuple[int, int, int],
    batch_size: int,
    options: DecodeOptions = CENTER_CROP,
) -> Generator[ImageBatch, None, None]:
    """Decodes files to (H, W, C) batch by batch, one batch ahead, on all cores."""

    def read(file: str) -> np.ndarray | str:
        """An image, or why it cannot be read."""
        try:
            return read_image(file, image_shape, options)
        except ImageError as error:
            return str(error)

    executor = concurrent.futures.ThreadPoolExecutor(available_cpus())
    parts = [list(files[i : i + batch_size]) for i in range(0, len(files), batch_size)]
    try:
        # A batch starts when it is taken, so the next one is decoded while one is in use.
        started = ((part, executor.map(read, part)) for part in [*parts, []])
        for (part, results), _ in itertools.pairwise(started):
            found = list(results)
            images = [result for result in found if not isinstance(result, str)]
            errors = [result if isinstance(result, str) else None for result in found]
            pixels = np.stack(images) if images else np.zeros((0, *image_shape), np.uint8)
            yield ImageBatch(part, errors, pixels)
    finally:
        executor.shutdown(cancel_futures=True)
