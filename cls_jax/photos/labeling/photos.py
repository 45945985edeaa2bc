"""The photos of a folder for a session, including those added later."""

import functools
import hashlib
import io
import pathlib
import re
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
from PIL import Image

from cls_jax.data.resize import ImageError
from cls_jax.errors import UserError
from cls_jax.io import make_printable, write_atomically
from cls_jax.photos.features.backbones import DEFAULT_BACKBONES, Backbones
from cls_jax.photos.features.extract import extract_all_features, read_backbones
from cls_jax.photos.features.network import Progress
from cls_jax.photos.folder.catalog import read_catalog
from cls_jax.photos.folder.options import AUTOMATIC, FolderOptions, find_folder
from cls_jax.photos.images.decode import find_suffix, read_upright
from cls_jax.photos.images.files import find_digests, list_images
from cls_jax.photos.images.store import Store, get_cache_folder
from cls_jax.photos.labeling.answers import Answers, RefusedError, check_writable
from cls_jax.photos.labeling.changes import take_back
from cls_jax.photos.labeling.classes import NO_CLASSES, add_class
from cls_jax.photos.labeling.known import Features, Known
from cls_jax.photos.labeling.session import Session

SIDES = {"small": 320, "large": 1280}  # Pixels on the long side of a photo.
# Nothing hidden, no path, nothing that a shell, a table or an address takes for something else.
_USUAL_NAME = re.compile(r"\w[\w ().+-]{0,99}")


def open_session(
    root: pathlib.Path,
    class_names: Sequence[str] = (),
    options: FolderOptions = AUTOMATIC,
    backbones: Backbones = DEFAULT_BACKBONES,
) -> Session:
    """A session on a folder, before its features are computed. Prints a hint if folders label all.

    `backbones` see the photos. Raises a UserError if there is no image, or labels.csv cannot be
    read or written.
    """
    root = find_folder(root, "a folder of photos")
    catalog = read_catalog(root, list_images(root), options)
    files = list(catalog.labelable())
    if not files:
        raise UserError(f"There is no photo in {root}: pass a folder of photos.")
    catalog.check_kind()
    check_writable(catalog.table_path)
    catalog.table.check_appending()
    answers = Answers(
        catalog.table_path,
        list(catalog.folder.listing.files.names()),
        catalog.start_marks(),
        catalog.folder.options,
        catalog.names,
    )
    classes = NO_CLASSES
    try:
        for name in class_names:
            classes, _ = add_class(classes, name)
    except RefusedError as error:
        raise UserError(f"--classes: {error}") from error
    if not catalog.base.origin and catalog.base.marks.keys() >= set(files):
        print(
            f"Every photo is labeled by its folder, such as {make_printable(files[0])!r}: move "
            f"those without a label to {root / 'unlabeled'}."
        )
    sources, _ = catalog.sources()
    return Session(root, files, answers, options, backbones, sources, classes)


def find_new(session: Session, window: str = "") -> dict[str, int]:
    """Adds the new photos of a session's folder, see `Session.extend`.

    A label belongs to a content: photos that were replaced by others lose theirs, as a step of the
    window that can be undone. Raises a UserError if the folder cannot be read.
    """
    session.follow_table()  # A folder that is gone has not lost all its photos.
    known = session.known
    catalog = read_catalog(known.root, list_images(known.root), known.options)
    sources, _ = catalog.sources()
    load = functools.partial(load_all, backbones=known.backbones)
    names = list(catalog.folder.listing.files.names())
    marks = catalog.start_marks()
    replaced = _find_replaced(known)
    if any(known.marks.get(name).decision for name in replaced):
        session.change(window, take_back, replaced)
    return session.extend(list(catalog.labelable()), names, marks, sources, load, replaced)


def _find_replaced(known: Known) -> list[str]:
    """The photos that have another content than when they were read."""
    paths = [known.root / name for name in known.files]
    digests = find_digests(Store(get_cache_folder()), [str(path) for path in paths], reads=True)
    return [
        name
        for name, path, digest in zip(known.files, paths, digests, strict=True)
        if digest not in (b"", known.digests.get(path, digest))
    ]


def load_all(
    paths: Sequence[pathlib.Path],
    on_progress: Progress = lambda *_: None,
    backbones: Backbones = DEFAULT_BACKBONES,
) -> Features:
    """The features of photos by the networks of a session, and why others cannot be read."""
    found = extract_all_features(paths, read_backbones(backbones.inits), on_progress)
    networks = found, *found.others
    is_read = np.logical_and.reduce([each.descriptors.any(axis=1) for each in networks])
    reasons = {}
    for i in np.flatnonzero(~is_read).tolist():
        try:
            read_upright(paths[i], 32)
            reasons[i] = "it changed while it was read"
        except ImageError as error:
            reasons[i] = str(error)
    digests = find_digests(Store(get_cache_folder()), [str(path) for path in paths], reads=True)
    return Features(
        np.flatnonzero(is_read),
        found.convert(lambda rows: rows[is_read]),
        reasons,
        {path: digest for path, digest in zip(paths, digests, strict=True) if digest},
    )


def add_photo(root: pathlib.Path, file: BinaryIO, wanted: str = "") -> str:
    """Saves a photo, in `unlabeled/` if there is one, and returns its name in `root`.

    It is the `wanted` name if that is a usual one and free. Otherwise it is derived from the
    content. No file is replaced. Raises an ImageError if the file is not an image, and an OSError
    if the system refuses.
    """
    suffix = find_suffix(file)
    file.seek(0)
    content = file.read()
    folder = next((f for f in ("unlabeled", "unlabelled") if (root / f).is_dir()), ".")
    own = f"added-{hashlib.sha256(content).hexdigest()[:16]}{suffix}"
    name = f"{wanted.rpartition('.')[0]}{suffix}"
    path = root / folder / (name if _USUAL_NAME.fullmatch(name) else own)
    if path.exists() and path.read_bytes() != content:
        path = path.with_name(own)
    if not path.exists():
        write_atomically(path, content)
    return path.relative_to(root).as_posix()


@functools.lru_cache(maxsize=128)
def encode_photo(path: pathlib.Path, size: str, time: int) -> bytes:
    """A photo as JPEG, "small" or "large", decoded within limits and encoded again.

    `time` is when the file was changed, for the cache.

    The browser never gets a byte of the original file. Malformed images and metadata, such as the
    location of a photo, stay in this process. Raises an ImageError if it cannot be
    read or is not an image.
    """
    return encode_file(path, size)


def encode_file(file: pathlib.Path | BinaryIO, size: str) -> bytes:
    """The same of a file that is open, too."""
    buffer = io.BytesIO()
    Image.fromarray(read_upright(file, SIDES[size])).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
