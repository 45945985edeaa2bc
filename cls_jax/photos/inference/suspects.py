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
from cls_jax.photos.features.marks import mark_labels
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


class Judged(NamedTuple):
    """What the other labels of a run say about each of B images, some of which have no label."""

    held_out: HeldOutLabels
    labels: np.ndarray  # int [B], -1 where there is none.
    is_test: np.ndarray  # bool [B]. Otherwise, it is a training image.
    positions: np.ndarray  # int [B], indices among the test or training images.


def judge_labels(
    extract: Callable[[str, np.ndarray], FrozenFeatures], dataset: Dataset, labeled: np.ndarray
) -> Judged | None:
    """Predicts each label of a run from all others. None with fewer than two.

    At most 10,000 labeled and 10,000 test images are judged, evenly spaced. `extract` is that of a
    `Run`, and `labeled`, int [num_labels], are rows of training images.
    """
    train_labels, test_labels = dataset.train.labels, dataset.test.labels
    all_labeled = labeled
    labeled = labeled[train_labels[labeled] >= 0]
    labeled = take_rows(np.sort(labeled), MAX_IMAGES)
    test = take_rows(np.flatnonzero(test_labels >= 0), MAX_IMAGES)
    # Unlabeled images connect labeled ones that have no neighbor in common.
    train = np.concatenate([labeled, take_unlabeled(len(train_labels), all_labeled)])
    if len(labeled) + len(test) < 2:
        return None
    parts = {"train": train, "test": test} if len(test) else {"train": train}
    features = concatenate_features([extract(part, rows) for part, rows in parts.items()])
    labels = np.full(len(train) + len(test), -1)
    labels[: len(labeled)] = train_labels[labeled]
    labels[len(train) :] = test_labels[test]
    sources = None
    if dataset.train.sources is not None:
        sources = np.append(dataset.train.sources[train], np.full(len(test), -1))
    held_out = hold_out_labels(
        Relations(features), mark_labels(labels, dataset.num_classes), sources
    )
    is_test = np.arange(len(labels)) >= len(train)
    return Judged(held_out, labels, is_test, positions=np.concatenate([train, test]))


def list_suspects(judged: Judged) -> list[Suspect]:
    """The labels of a run that are suspect, see `choose_suspects`, as on the labeling page."""
    p_BK, labels = judged.held_out.probabilities, judged.labels
    suggested = decide(p_BK).best
    return [
        Suspect(
            is_test=bool(judged.is_test[i]),
            position=int(judged.positions[i]),
            label=int(labels[i]),
            suggested=int(suggested[i]),
            quality=float(p_BK[i, labels[i]]),
        )
        for i in choose_suspects(judged.held_out, labels)
    ]


def count_confusions(judged: Judged) -> np.ndarray:
    """The labels of training images by class and by what all others suggest, int [K, K].

    Without those that cannot be judged, such as the only ones of their classes.
    """
    is_counted = (judged.labels >= 0) & ~judged.is_test & judged.held_out.is_judged
    num_classes = judged.held_out.probabilities.shape[1]
    confusions = np.zeros((num_classes, num_classes), int)
    suggested = decide(judged.held_out.probabilities).best
    np.add.at(confusions, (judged.labels[is_counted], suggested[is_counted]), 1)
    return confusions


def write_suspects(
    workdir: pathlib.Path,
    suspects: Sequence[Suspect],
    class_names: Sequence[str],
    names: Sequence[str],
) -> None:
    """Writes `suspects.csv` into a run's folder, with the `names` of the images."""
    rows: list[Sequence[object]] = [_COLUMNS]
    for rank, (row, name) in enumerate(zip(suspects, names, strict=True), 1):
        part = "test" if row.is_test else "labeled"
        classes = class_names[row.label], class_names[row.suggested]
        rows.append([rank, name, part, *classes, f"{row.quality:.6f}"])
    write_atomically(workdir / SUSPECTS, to_csv(rows))


def take_unlabeled(num_images: int, labeled: np.ndarray) -> np.ndarray:
    """Rows of at most 1,000 of the other training images, int64 [n], evenly spaced.

    Deterministic, so callers share the networks' outputs.
    """
    return take_rows(np.setdiff1d(np.arange(num_images), labeled), MAX_UNLABELED)
