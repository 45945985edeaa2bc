"""Compares the images and labels of a folder with those that a run was trained on."""

import csv
import pathlib

from ml_collections import ConfigDict

from cls_jax.data.resize import get_decode_options, get_image_shape
from cls_jax.photos.folder.catalog import Layout
from cls_jax.photos.folder.dataset import COPY_OF, hash_contents, hash_names
from cls_jax.photos.folder.instant_config import read_instant_config
from cls_jax.photos.folder.options import get_folder_options
from cls_jax.photos.images.files import ImageFile, find_digests, read_ahead
from cls_jax.photos.images.packed import open_packed
from cls_jax.photos.images.store import Store, get_cache_folder
from cls_jax.runs.folder import (
    CONFIG,
    RESULT,
    SKIPPED_FILES,
    get_default_workdir,
    read_fingerprint,
)

_BATCH_SIZE = 256


def choose_workdir(
    config: ConfigDict, layout: Layout, again: bool = False
) -> tuple[pathlib.Path, str | None]:
    """The first of NAME, NAME-2, … without a run on other images or labels.

    With `again`, also without a finished run. Returns it with a sentence about the last run that
    was skipped, or None.
    """
    path = first = get_default_workdir(config, None if "method" in config else "instant")
    number = 1
    sentence = None
    while (difference := describe_other_data(path, config, layout, allows_copies=False)) or (
        again and (path / RESULT).exists()
    ):
        number += 1
        sentence = difference or f"{path} is finished"
        path = first.with_name(f"{first.name}-{number}")
    return path, sentence and f"{sentence}, so this run is in {path}."


def describe_other_data(
    workdir: pathlib.Path, config: ConfigDict, layout: Layout, allows_copies: bool = True
) -> str | None:
    """A clause about how a run's data differs, or None if it is the same or there is no run.

    With `allows_copies`, another folder with the same names, contents and labels counts as the same
    data, even if the run's own folder still exists. Raises a UserError if the folder has a
    run that cannot be read.
    """
    if not (workdir / CONFIG).exists():
        return None
    stored = read_instant_config(workdir)
    if (kind := get_folder_options(stored.data).kind) is not get_folder_options(config.data).kind:
        return f"{workdir} has a run with {kind.word}"
    theirs, ours = (pathlib.Path(one.data.data_dir).expanduser() for one in (stored, config))
    is_same_place = stored.data.name == "folder" and theirs.resolve() == ours.resolve()
    fingerprint = read_fingerprint(workdir)
    if fingerprint is None and is_same_place:  # The run had not begun.
        return None
    is_same = fingerprint is not None and _has_trained_on(
        workdir, stored.data, fingerprint, ours, layout
    )
    if is_same and (allows_copies or is_same_place or not theirs.is_dir()):
        return None
    if is_same_place:
        return f"The images or labels in {ours} have changed since the run in {workdir}"
    return f"{workdir} has a run on {stored.data.data_dir or stored.data.name}"


def _has_trained_on(
    workdir: pathlib.Path,
    data: ConfigDict,
    fingerprint: str,
    root: pathlib.Path,
    layout: Layout,
) -> bool:
    """Whether a run's training images have the names, contents and labels of a folder's.

    `data` is the section of the run's configuration.
    A file that the run could not read but that can be read now counts as different.
    """
    skipped = _read_skipped(workdir)
    names = hash_names(layout, skipped)
    if not fingerprint.startswith(names):
        return False
    files = [file for file, _ in layout.train]
    tried = [file.name for file in files if not skipped.get(file.name, COPY_OF).startswith(COPY_OF)]
    paths = [str(root / name) for name in tried]
    batches = read_ahead(paths, get_image_shape(data), _BATCH_SIZE, get_decode_options(data))
    errors = (error for batch in batches for error in batch.errors)
    unreadable = {name for name, error in zip(tried, errors, strict=True) if error is not None}
    return fingerprint == names + hash_contents(layout, _hash_files(root, files), unreadable)


def _hash_files(root: pathlib.Path, files: list[ImageFile]) -> list[bytes]:
    """Digests of the files' contents, b"" where they cannot be read."""
    packed = open_packed(root)
    if packed:
        return list(packed.digests[[file.inode for file in files]].tolist())
    return find_digests(
        Store(get_cache_folder()), [str(root / file.name) for file in files], reads=True
    )


def _read_skipped(workdir: pathlib.Path) -> dict[str, str]:
    """The files that a run could not use, and why."""
    try:
        with (workdir / SKIPPED_FILES).open(encoding="utf-8", errors="surrogateescape") as file:
            return {row["file"]: row["reason"] or "" for row in csv.DictReader(file)}
    except (OSError, KeyError, ValueError, csv.Error):
        return {}
