"""The photographs of a folder for a session: those that are there, and those that come."""

import itertools
import os
import pathlib
import re
import shutil
import urllib.parse
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from cls_jax.data.images.decode import SUFFIXES, ImageError, decode_image, read_upright
from cls_jax.data.images.files import list_images
from cls_jax.data.sources.folder_layout import find_table, label_by_folder, list_labelable
from cls_jax.data.sources.label_table import LABELS_CSV, read_label_table
from cls_jax.errors import UserError
from cls_jax.features.extract import extract_features, open_network
from cls_jax.features.neighbors import normalize_rows
from cls_jax.io import make_printable
from cls_jax.labeling.answers import Answers, RefusedError, check_writable
from cls_jax.labeling.session import Features, Progress, Session

_LONGEST_NAME = 150  # Characters of a file that is added.


def open_session(root: pathlib.Path, class_names: Sequence[str] = ()) -> Session:
    """A session on a folder, before its features are computed. Says if folders label all of it.

    Raises:
        UserError: If there is no image, or labels.csv cannot be read or written.
    """
    if not root.is_dir():
        raise UserError(f"{root} is not a folder: name one with images.")
    listing = list_images(root)
    table = find_table(listing)
    rows = read_label_table(root / table) if table else []
    splits, folder_labels = label_by_folder(listing, rows)
    files = list_labelable(listing, splits)
    if not files:
        raise UserError(f"There is no image in {root}: name a folder with images.")
    check_writable(root / (table or LABELS_CSV))
    names = [file.name for file in listing.files]
    answers = Answers(root / (table or LABELS_CSV), names, folder_labels, class_names)
    if folder_labels.keys() >= set(files):
        print(
            f"Every image is labeled by its folder, such as {make_printable(files[0])!r}: move "
            f"those without a label to {root / 'unlabeled'}."
        )
    return Session(root, files, answers)


def find_new(session: Session) -> dict[str, int]:
    """Adds photographs that came since the session was opened, see `Session.extend`."""
    listing = list_images(session.root)
    table = find_table(listing)
    rows = read_label_table(session.root / table) if table else []
    splits, _ = label_by_folder(listing, rows)
    files = list_labelable(listing, splits)
    return session.extend(files, load_all, [file.name for file in listing.files])


def load_all(paths: Sequence[pathlib.Path], on_progress: Progress = lambda *_: None) -> Features:
    """The features of photographs, and why others cannot be read."""
    found = extract_features(paths, open_network(), on_progress)
    is_read = found.descriptors.any(axis=1)
    readable, reasons = np.flatnonzero(is_read), {}
    for i in np.flatnonzero(~is_read).tolist():
        try:
            read_upright(paths[i], 32)
            reasons[i] = "it has changed while it was read"
        except ImageError as error:
            reasons[i] = str(error)
    descriptors = normalize_rows(found.descriptors[readable])
    return Features(readable, descriptors, found.pooled[readable], reasons)


def add_photograph(root: pathlib.Path, name: str, file: BinaryIO) -> str:
    """Saves a photograph under a name that is free, in `unlabeled/` if there is one.

    `name` is percent-encoded. Returns the file's name in the folder `root`.

    Raises:
        ImageError: If the file is no image.
        RefusedError: If the name is unusable.
        OSError: If the system refuses.
    """
    name = re.split(r"[/\\]", urllib.parse.unquote(name))[-1].strip()
    stem, suffix = os.path.splitext(name)
    is_plain = name.isprintable() and not name.startswith((".", "~")) and ":" not in name
    if not (is_plain and stem and suffix.lower() in SUFFIXES and len(name) <= _LONGEST_NAME):
        raise RefusedError(
            f"{name[:_LONGEST_NAME]!r} is not the name of a photograph, such as IMG_1.jpg."
        )
    decode_image(file, (32, 32, 3))
    folder = "unlabeled" if (root / "unlabeled").is_dir() else ""
    for number in itertools.count(1):
        free = name if number == 1 else f"{stem}-{number}{suffix}"
        path = root / folder / free
        try:
            with path.open("xb") as target:  # Never another file's, nor through a link.
                try:
                    file.seek(0)
                    shutil.copyfileobj(file, target)
                except OSError:
                    path.unlink()
                    raise
            return f"{folder}/{free}" if folder else free
        except FileExistsError:
            continue
    raise AssertionError
