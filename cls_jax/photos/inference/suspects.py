"""Finds labels that may be wrong: all other labels suggest another class.

Shape suffixes: B images, K classes.
"""

import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from cls_jax.data.sampling import take_rows
from cls_jax.data.types import Dataset
from cls_jax.io import to_csv, write_atomically
from cls_jax.photos.features.decide import decide
from cls_jax.photos.features.extract import concatenate_features
from cls_jax.photos.features.infer import HeldOutLabels, hold_out_labels
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.features.relations import Relations

SUSPECTS = "suspects.csv"
# More would take minutes on a CPU.
MAX_IMAGES = 10_000
MAX_UNLABELED = 1_000
# Of 80 right answers, these flag 1 to 7 (experiments/results/labeling.md).
_MIN_LABELS = 3
_MIN_MARGIN = 0.5
_COLUMNS = ("rank", "file", "part", "label", "suggested", "quality")


class Suspect(NamedTuple):
    """A label that may be wrong, of a test image or of a labeled training image."""

    is_test: bool
    position: int  # Index among the test or training images.
    label: int
    suggested: int  # The most probable class.
    quality: float  # The probability of the label given all other labels, from 0 to 1.


def choose_suspects(held_out: HeldOutLabels, labels_B: np.ndarray) -> np.ndarray:
    """Labels that the other labels contradict clearly, the likeliest mistakes first, int [n].

    Another class must be more probable by 0.5, and the class must have three labels: of classes
    with fewer, too little is known (experiments/results/labeling.md). `labels_B` are int [B], -1
    where there is none.
    """
    q_BK, rows = held_out.probabilities, np.arange(len(labels_B))
    counts = np.bincount(labels_B[labels_B >= 0], minlength=q_BK.shape[1])
    is_known = (labels_B >= 0) & (counts[labels_B] >= _MIN_LABELS) & held_out.is_judged
    margins = np.where(is_known, decide(q_BK).confidence - q_BK[rows, labels_B], 0)
    suspects = np.flatnonzero(margins > _MIN_MARGIN)
    return suspects[np.argsort(-margins[suspects], kind="stable")]


def judge_labels(
    extract: Callable[[str, np.ndarray], FrozenFeatures],
    dataset: Dataset,
    labeled: np.ndarray | None,
) -> tuple[list[Suspect], np.ndarray] | None:
    """Predicts each label of a run from all others. None with fewer than two.

    At most 10,000 labeled and 10,000 test images are judged, evenly spaced. `extract` is that of a
    `Run`, and `labeled`, int [num_labels], are rows of training images. None is returned, too, if
    they are not known.

    Returns:
        The suspect labels, see `choose_suspects`, as on the labeling page. And the labels of
        training images by class and by what all others suggest, int [K, K], without those that
        cannot be judged, such as the only ones of their classes.
    """
    if labeled is None:
        return None
    train_labels, test_labels = dataset.train.labels, dataset.test.labels
    known = take_rows(np.sort(labeled[train_labels[labeled] >= 0]), MAX_IMAGES)
    test = take_rows(np.flatnonzero(test_labels >= 0), MAX_IMAGES)
    if len(known) + len(test) < 2:
        return None
    # Unlabeled images connect labeled ones that have no neighbor in common.
    train = np.concatenate([known, take_unlabeled(len(train_labels), labeled)])
    parts = {"train": train, "test": test} if len(test) else {"train": train}
    features = concatenate_features([extract(part, rows) for part, rows in parts.items()])
    unknown = np.full(len(train) - len(known), -1)
    labels = np.concatenate([train_labels[known], unknown, test_labels[test]])
    sources = None
    if dataset.train.sources is not None:
        sources = np.append(dataset.train.sources[train], np.full(len(test), -1))
    held_out = hold_out_labels(Relations(features), labels, dataset.num_classes, sources)
    is_test, positions = np.arange(len(labels)) >= len(train), np.concatenate([train, test])
    suggested = decide(held_out.probabilities).best
    suspects = [
        Suspect(
            is_test=bool(is_test[i]),
            position=int(positions[i]),
            label=int(labels[i]),
            suggested=int(suggested[i]),
            quality=float(held_out.probabilities[i, labels[i]]),
        )
        for i in choose_suspects(held_out, labels)
    ]
    is_counted = (labels >= 0) & ~is_test & held_out.is_judged
    confusions = np.zeros((dataset.num_classes, dataset.num_classes), int)
    np.add.at(confusions, (labels[is_counted], suggested[is_counted]), 1)
    return suspects, confusions


def write_suspects(
    workdir: pathlib.Path,
    suspects: Sequence[Suspect],
    class_names: Sequence[str],
    names: Sequence[str],
) -> None:
    """Writes `suspects.csv` into a run's folder, with the `names` of the images."""
    rows = [
        (
            rank,
            name,
            "test" if row.is_test else "labeled",
            class_names[row.label],
            class_names[row.suggested],
            f"{row.quality:.6f}",
        )
        for rank, (row, name) in enumerate(zip(suspects, names, strict=True), 1)
    ]
    write_atomically(workdir / SUSPECTS, to_csv([_COLUMNS, *rows]))


def take_unlabeled(num_images: int, labeled: np.ndarray) -> np.ndarray:
    """Rows of at most 1,000 of the other training images, int64 [n], evenly spaced.

    Deterministic, so callers share the networks' outputs.
    """
    return take_rows(np.setdiff1d(np.arange(num_images), labeled), MAX_UNLABELED)
