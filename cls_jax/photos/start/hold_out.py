"""The validation images that a run holds out (`data.validation`), near-copies together.

Features differ slightly between machines, and so might the groups of near-copies. A run keeps its
validation images in its folder, so that no image it was trained on ever validates it.
"""

import functools
import pathlib

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
    if len(checked := _find_checked(config, dataset)) >= MIN_CHECKS:
        check_no_validation(dataset)
        return dataset.hold_out(_choose_checked(dataset.train.labels, checked, config))
    if dataset.train.sources is not None:
        check_no_validation(dataset)
        labels, share = dataset.train.labels, config.data.validation
        return dataset.hold_out(
            choose_validation_sources(
                labels, dataset.num_classes, share, config.seed, dataset.train.sources
            )
        )
    if not config.model.init or not dataset.train.files:
        return hold_out_validation(config, dataset)
    return hold_out_validation(config, dataset, _group_labeled(config, dataset))


def list_checked_files(config: ConfigDict) -> list[str]:
    """The photos of a run's folder that were drawn at random and checked, the newest last.

    Only those that a classifier has guessed before. Empty for other datasets. Raises a UserError if
    the label table cannot be read.
    """
    if config.data.name != "folder":
        return []
    root = pathlib.Path(config.data.data_dir).expanduser()
    return read_checked(root, get_folder_options(config.data)).list_checked()


def _find_checked(config: ConfigDict, dataset: Dataset) -> np.ndarray:
    """The training images among these that have a label, int [n]."""
    rows = {name: row for row, name in enumerate(dataset.train.files)}
    found = [rows[name] for name in list_checked_files(config) if name in rows]
    return np.array([row for row in found if dataset.train.labels[row] >= 0], int)


def _choose_checked(labels: np.ndarray, checked: np.ndarray, config: ConfigDict) -> np.ndarray:
    """The newest checked images up to the share `data.validation` of all labels, int [m].

    Every class keeps an image for training.
    """
    left = np.bincount(labels[labels >= 0])
    most = max(round(config.data.validation * left.sum()), 1)
    chosen = list[int]()
    for row in checked[::-1]:
        if len(chosen) < most and left[labels[row]] > 1:
            left[labels[row]] -= 1
            chosen.append(row)
    return np.array(chosen, int)


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
    labels: np.ndarray, num_classes: int, share: float, seed: int, sources: np.ndarray
) -> np.ndarray:
    """Draws whole sources for validation, with about a share of the images of known class.

    Every class keeps at least one image for training. A source that would be too many is passed
    over. Images without a known source stay in training.

    Args:
        labels: int [n], -1 where unknown.
        num_classes: K.
        share: Of the images of known class.
        seed: Decides the draw.
        sources: The source of each image, int [n], -1 where unknown.

    Returns:
        All images of the drawn sources, sorted, int64, also those of unknown class.

    Raises:
        UserError: If no source is small enough.
    """
    is_known = labels >= 0
    is_counted = is_known & (sources >= 0)
    numbers, places = np.unique(sources[is_counted], return_inverse=True)
    counts_SK = np.zeros((len(numbers), num_classes), int)
    np.add.at(counts_SK, (places, labels[is_counted]), 1)
    left = np.bincount(labels[is_known], minlength=num_classes)
    most, drawn = share * is_known.sum(), list[int]()
    for s in np.random.default_rng([seed, 3]).permutation(len(numbers)):
        has_classes = (left - counts_SK[s] >= np.minimum(left, 1)).all()
        if counts_SK[s].sum() <= most and has_classes:
            left = left - counts_SK[s]
            most -= counts_SK[s].sum()
            drawn.append(numbers[s])
    if not drawn:
        raise UserError(
            f"data.validation={share:g} holds out none of {len(numbers):,} sources, since each is "
            "held out as a whole: choose a larger share, or put validation images into val/."
        )
    return np.flatnonzero(np.isin(sources, drawn)).astype(np.int64)
