"""Evaluated images that are near-copies of training images, and the accuracy without them."""

import pathlib
from collections.abc import Sequence

import numpy as np

from cls_jax.data.sampling import take_rows
from cls_jax.errors import UserError
from cls_jax.photos.features.copies import find_copies
from cls_jax.photos.features.extract import extract_features
from cls_jax.photos.features.relations import Relations
from cls_jax.photos.images.files import find_digests, read_ahead
from cls_jax.photos.images.store import Store, get_cache_folder
from cls_jax.photos.inference.run import Run
from cls_jax.photos.start.fit_labels import read_copies
from cls_jax.runs.folder import read_labeled_rows

_MAX_UNLABELED = 10_000  # Training images that others are compared with. More would take minutes.


def find_copied(run: Run) -> np.ndarray:
    """Which test images are near-copies of training images, bool [n], as the run has found."""
    return read_copies((run.begun_with or run).workdir, run.dataset)["test"]


def compare_with_training(run: Run, paths: Sequence[str]) -> np.ndarray | None:
    """Which image files are near-copies of a run's training images, bool [n].

    Without the frozen network that the run began with, which have the same bytes. None without the
    run's images.
    """
    try:
        train = run.dataset.train
        labeled = read_labeled_rows(run.workdir, run.dataset)
    except UserError:  # They were moved.
        return None
    if run.frozen is None:
        root, store = pathlib.Path(run.config.data.data_dir).expanduser(), Store(get_cache_folder())
        own = find_digests(store, [str(root / name) for name in train.files], reads=True)
        return np.isin(find_digests(store, paths, reads=True), own)
    most = run.config.model.inferred_images or _MAX_UNLABELED
    others = np.setdiff1d(np.arange(len(train)), labeled)
    rows = np.union1d(labeled, take_rows(others, most))
    relations = Relations(run.extract("train", rows))
    features = extract_features(paths, run.frozen)

    def read(places: np.ndarray) -> np.ndarray:
        (batch,) = read_ahead([paths[i] for i in places], run.dataset.image_shape, len(places))
        return batch.images

    return find_copies(relations, train.take(rows).images, features, read) >= 0
