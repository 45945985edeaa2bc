"""Lists the image files of a folder."""

import hashlib
import os
import pathlib
from collections.abc import Iterable
from typing import NamedTuple

from cls_jax.data.images.decode import SUFFIXES

SkippedFile = tuple[str, str]
_NEVER_LISTED = ("Thumbs.db", "desktop.ini")  # Nor names that begin with a dot.


class ImageFile(NamedTuple):
    """A file as its folder lists it.

    Attributes:
        name: relative to the folder, with "/".
        size: in bytes.
        mtime_ns: time of the last change.
        mode: type and permissions.
    """

    name: str
    size: int
    mtime_ns: int
    mode: int


class Listing(NamedTuple):
    """The contents of a folder and of all folders in it, each list sorted.

    Attributes:
        files: those with the name of an image.
        folders: names, relative to the folder.
        skipped: name and reason of everything else.
    """

    files: list[ImageFile]
    folders: list[str]
    skipped: list[SkippedFile]


def list_images(root: pathlib.Path) -> Listing:
    """Lists a folder and all folders in it, without opening a file."""
    listing = Listing([], [], [])
    real_root = os.path.realpath(root)
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(os.path.join(real_root, folder)) as entries:
                for entry in entries:
                    _list_entry(entry, folder, real_root, listing, pending)
        except OSError as error:
            listing.skipped.append((folder, f"a folder that cannot be read: {error.strerror}"))
    for part in listing:
        part.sort()
    return listing


def _list_entry(
    entry: os.DirEntry, folder: str, real_root: str, listing: Listing, pending: list[str]
) -> None:
    if entry.name.startswith(".") or entry.name in _NEVER_LISTED:
        return
    name = f"{folder}/{entry.name}" if folder else entry.name
    if entry.is_dir(follow_symlinks=False):
        listing.folders.append(name)
        pending.append(name)
        return
    reason = _find_reason_to_skip(entry, real_root)
    if reason:
        listing.skipped.append((name, reason))
        return
    stat = entry.stat()
    listing.files.append(ImageFile(name, stat.st_size, stat.st_mtime_ns, stat.st_mode))


def _find_reason_to_skip(entry: os.DirEntry, real_root: str) -> str | None:
    if entry.is_symlink():
        target = os.path.realpath(entry.path)
        if os.path.commonpath([target, real_root]) != real_root:
            return "a link that leads out of the folder"
        if not os.path.exists(target):
            return "a link that leads nowhere"
        if os.path.isdir(target):
            return "a link to a folder"
    if not entry.is_file():
        return "not a file"
    if not entry.name.lower().endswith(SUFFIXES):
        return f"not an image extension; expected one of {' '.join(SUFFIXES)}"
    return None


def hash_rows(rows: Iterable[tuple]) -> str:
    """A short hash of rows of strings and numbers, 32 hexadecimal digits."""
    digest = hashlib.sha256()
    for row in rows:
        # Names may hold any byte but zero, also what is not Unicode.
        text = "\0".join(map(str, row)) + "\0\n"
        digest.update(text.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:32]
