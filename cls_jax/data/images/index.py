"""Which image files a folder holds."""

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
        mtime_ns: when it was last changed.
        mode: its permissions.
    """

    name: str
    size: int
    mtime_ns: int
    mode: int


class Listing(NamedTuple):
    """What a folder holds, each sorted.

    Attributes:
        files: that look like images by their names.
        folders: names of all folders in it, relative to it.
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
        return f"no image by its name: none of {' '.join(SUFFIXES)}"
    return None


def hash_rows(rows: Iterable[tuple]) -> str:
    """A short hash of rows of strings and numbers, 32 hexadecimal digits."""
    digest = hashlib.sha256()
    for row in rows:
        # Names may hold any character but a zero byte, also what is no Unicode.
        text = "\0".join(map(str, row)) + "\0\n"
        digest.update(text.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:32]
