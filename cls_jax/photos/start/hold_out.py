"""The validation images that a run holds out (`data.validation`), near-copies together.

Features differ slightly between machines, and so might the groups of near-copies. A run keeps its
validation images in its folder, so that no image it was trained on ever validates it.
"""

import functools
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np
from ml_collections import ConfigDict

from cls_jax.data.datasets import check_no_validation, hold_out_validation
from cls_jax.data.types import Dataset
from cls_jax.errors import UserError
from cls_jax.parallel.distributed import arrays_from_main_process
from cls_jax.photos.features.accuracy import MIN_CHECKS
from cls_jax.photos.features.relations import Relations
from cls_jax.photos.folder.catalog import Layout, read_checked
from cls_jax.photos.folder.dataset import open_dataset
from cls_jax.photos.folder.options import get_folder_options
from cls_jax.photos.start.frozen import compute_frozen, read_native_network
from cls_jax.runs.folder import HELD_OUT, open_description, read_fingerprint


def open_run_dataset(
    config: ConfigDict, workdir: pathlib.Path, layout: Layout | None = None
) -> Dataset:
    """The dataset of a run, with the validation images in its folder, which need not exist.

    All processes must call this. Raises the same as `open_dataset`, or a UserError if the weights
    of `model.init` cannot be read or do not fit.
    """
    return open_dataset(config, layout, functools.partial(hold_out_images, workdir))


def hold_out_images(workdir: pathlib.Path, config: ConfigDict, dataset: Dataset) -> Dataset:
    """A `HoldOut`: what the run holds out already, or else checked photos, sources, near-copies.

    With 20 random photos that a person has checked, only such photos are held out: other labels may
    be of photos that were asked because they are hard. Their near-copies and sources stay, as those
    of the folder's other photos do.
    """
    if read_fingerprint(workdir) == dataset.fingerprint:
        return dataset.hold_out(_read_held_out(workdir, len(dataset.train)))
    check_no_validation(dataset)
    train = dataset.train
    rows = choose_checked_or_sources(config, train.files, train.labels, train.sources)
    if rows is not None:
        return dataset.hold_out(rows)
    has_features = config.model.init and train.files
    groups = _group_labeled(config, dataset) if has_features else None
    return hold_out_validation(config, dataset, groups)


def choose_checked_or_sources(
    config: ConfigDict, files: Sequence[str], labels: np.ndarray, sources: np.ndarray | None
) -> np.ndarray | None:
    """The rows of n training images that are held out whatever their near-copies are, int [m].

    All n images are given, int labels [n] with -1 where unknown, and `sources` as for
    `choose_validation_sources`. With 20 checked photos these are the newest of them, or else whole
    sources. None without either. Raises a UserError if the label table cannot be read or no source
    is small enough.
    """
    share = config.data.validation
    if len(checked := _find_checked(config, files, labels)) >= MIN_CHECKS:
        return _choose_checked(labels, checked, share)
    if sources is None:
        return None
    return choose_validation_sources(labels, share, config.seed, sources)


def _find_checked(config: ConfigDict, files: Sequence[str], labels: np.ndarray) -> np.ndarray:
    """The labeled photos of a folder that were drawn at random and checked, the newest last.

    Only those that a classifier has guessed before: rows of training images, int [n], none of other
    datasets. Raises a UserError if the label table cannot be read.
    """
    if config.data.name != "folder":
        return np.zeros(0, int)
    root = pathlib.Path(config.data.data_dir).expanduser()
    checked = read_checked(root, get_folder_options(config.data)).list_checked()
    rows = {name: row for row, name in enumerate(files)}
    found = [rows[name] for name in checked if name in rows]
    return np.array([row for row in found if labels[row] >= 0], int)


def _choose_checked(labels: np.ndarray, checked: np.ndarray, share: float) -> np.ndarray:
    """The newest checked images up to a share of all labels, int [m].

    Every class keeps an image for training.
    """
    most = max(round(share * (labels >= 0).sum()), 1)
    chosen = _choose_groups(labels, checked[::-1, None], most)
    return np.array([row for (row,) in chosen], int)


def _choose_groups(
    labels: np.ndarray, groups: Iterable[np.ndarray], most: float
) -> list[np.ndarray]:
    """Chooses groups of labeled images, int [m] each, with at most so many images, in this order.

    Those that would be too many, or all images of a class, are passed over. Labels are int [n].
    """
    chosen, left = list[np.ndarray](), np.bincount(labels[labels >= 0])
    for rows in groups:
        counts = np.bincount(labels[rows], minlength=len(left))
        if len(rows) <= most and (left - counts >= np.minimum(left, 1)).all():
            left -= counts
            most -= len(rows)
            chosen.append(rows)
    return chosen


def _group_labeled(config: ConfigDict, dataset: Dataset) -> np.ndarray:
    """Groups of near-copies among the training images of known class, int [n]."""
    network = read_native_network(config, dataset.image_shape[-1])
    known = np.flatnonzero(dataset.train.labels >= 0)
    features = compute_frozen(dataset, dataset.train.take(known), config.data.data_dir, [network])
    labels = dataset.train.labels[known]
    found = arrays_from_main_process(Relations(features).group(labels))
    groups = np.arange(len(dataset.train))
    groups[known] = known[np.unique(found, return_index=True)[1]][found]
    return groups


def _read_held_out(workdir: pathlib.Path, num_images: int) -> np.ndarray:
    """The training images that a run has moved to the validation images, int64 [m], sorted.

    `num_images` are the training images and these together. Raises a UserError without a sound
    dataset.json.
    """
    with open_description(workdir) as stored:
        rows = stored[HELD_OUT]
        if not isinstance(rows, list) or not all(type(row) is int for row in rows):
            raise ValueError(f"{HELD_OUT} is not a list of integers")
        if rows != sorted(set(rows)) or (rows and not 0 <= rows[0] <= rows[-1] < num_images):
            raise ValueError(f"{HELD_OUT} does not number the training images")
        return np.array(rows, np.int64)


def choose_validation_sources(
    labels: np.ndarray, share: float, seed: int, sources: np.ndarray
) -> np.ndarray:
    """Draws whole sources for validation, with about a share of the images of known class.

    Every class keeps at least one image for training. A source that would be too many is passed
    over. Images without a known source stay in training.

    Args:
        labels: int [n], -1 where unknown.
        share: Of the images of known class.
        seed: Decides the draw.
        sources: The source of each image, int [n], -1 where unknown.

    Returns:
        All images of the drawn sources, sorted, int64, also those of unknown class.

    Raises:
        UserError: If no source is small enough.
    """
    is_counted = (labels >= 0) & (sources >= 0)
    numbers = np.unique(sources[is_counted])
    order = np.random.default_rng([seed, 3]).permutation(numbers)
    groups = (np.flatnonzero(is_counted & (sources == number)) for number in order)
    drawn = _choose_groups(labels, groups, share * (labels >= 0).sum())
    if not drawn:
        raise UserError(
            f"data.validation={share:g} holds out none of {len(numbers):,} sources, since each is "
            "held out as a whole: choose a larger share, or put validation images into val/."
        )
    return np.flatnonzero(np.isin(sources, [sources[rows[0]] for rows in drawn])).astype(np.int64)
