"""Finds labels that are probably wrong: the other labels and the networks suggest another class.

Shape suffixes: B images, C features, K classes, N networks.
"""

import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from cls_jax.data.sampling import take_rows
from cls_jax.data.types import Dataset
from cls_jax.io import to_csv, write_atomically
from cls_jax.photos.features.extract import FrozenFeatures, concatenate_features
from cls_jax.photos.features.labels import hold_out_labels

SUSPECTS = "suspects.csv"
# More would take minutes on a CPU.
MAX_IMAGES = 10_000
MAX_UNLABELED = 1_000
_COLUMNS = ("rank", "file", "part", "label", "suggested", "quality", "neighbors", "networks")


class Suspect(NamedTuple):
    """A label that is probably wrong, of a test image or of a labeled training image."""

    is_test: bool
    position: int  # Index among the test or training images.
    label: int
    suggested: int  # The most probable class.
    quality: float  # The probability of the label given all evidence, from 0 to 1.
    neighbors: float  # The probability of the label given all other labels.
    networks: float  # The mean probability that the networks give the label.


def find_suspects(
    predict_with_features: Callable[[str, np.ndarray], tuple[np.ndarray, np.ndarray]],
    extract: Callable[[str, np.ndarray], FrozenFeatures],
    dataset: Dataset,
    labeled: np.ndarray,
) -> list[Suspect]:
    """Labels that both the other labels and all evidence combined contradict, the worst first.

    At most 10,000 labeled and 10,000 test images are checked, evenly spaced.
    `predict_with_features` and `extract` are those of a `Run`, and `labeled`, int [num_labels], are
    rows of training images.
    """
    train_labels, test_labels = dataset.train.labels, dataset.test.labels
    all_labeled = labeled
    labeled = labeled[train_labels[labeled] >= 0]
    labeled = take_rows(np.sort(labeled), MAX_IMAGES)
    test = take_rows(np.flatnonzero(test_labels >= 0), MAX_IMAGES)
    # Unlabeled images connect labeled ones that have no neighbor in common.
    train = np.concatenate([labeled, take_unlabeled(len(train_labels), all_labeled)])
    if len(labeled) + len(test) < 2:
        return []
    parts = {"train": train, "test": test} if len(test) else {"train": train}
    features = concatenate_features([extract(part, rows) for part, rows in parts.items()])
    labels = np.full(len(train) + len(test), -1)
    labels[: len(labeled)] = train_labels[labeled]
    labels[len(train) :] = test_labels[test]
    known = np.flatnonzero(labels >= 0)
    predicted = [predict_with_features(part, rows)[0] for part, rows in parts.items()]
    p_BK = np.concatenate(predicted, axis=1).mean(axis=0)[known]
    labels_known = labels[known]
    held_out = hold_out_labels(features, labels, dataset.num_classes)
    q_BK, is_judged = held_out.probabilities[known], held_out.is_judged[known]
    # Networks that agree with a label that they were trained on may have memorized it.
    is_learned = (known < len(train)) & (p_BK.argmax(axis=1) == labels_known)
    evidence_BK = np.where(is_learned[:, None], q_BK, (p_BK + q_BK) / 2)
    quality, suggested = rate_labels(evidence_BK, labels_known, is_judged)
    indices = np.concatenate([labeled, test])
    order = np.argsort(quality, kind="stable")
    return [
        Suspect(
            is_test=bool(known[i] >= len(train)),
            position=int(indices[i]),
            label=int(labels_known[i]),
            suggested=int(suggested[i]),
            quality=float(quality[i]),
            neighbors=float(q_BK[i, labels_known[i]]),
            networks=float(p_BK[i, labels_known[i]]),
        )
        for i in order
        if labels_known[i] not in (suggested[i], q_BK[i].argmax())
    ]


def rate_labels(
    p_BK: np.ndarray, labels: np.ndarray, is_judged: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rates labels, int [B], by probabilities [B, K] that did not learn them.

    The quality of a label is its probability, the "self-confidence" of confident learning
    (Northcutt et al., "Confident Learning", JAIR 2021). Where no other label is of the class,
    `is_judged`, bool [B], is False, and the quality is 1.

    Returns the qualities, float64 [B] from 0 to 1, and the most probable classes, int64 [B].
    """
    quality = p_BK[np.arange(len(labels)), labels].astype(np.float64)
    return np.where(is_judged, quality, 1.0), np.where(is_judged, p_BK.argmax(axis=1), labels)


def write_suspects(
    workdir: pathlib.Path,
    suspects: Sequence[Suspect],
    class_names: Sequence[str],
    names: Sequence[str],
) -> None:
    """Writes `suspects.csv` into a run's folder, with the `names` of the images."""
    rows: list[Sequence[object]] = [_COLUMNS]
    for rank, (row, name) in enumerate(zip(suspects, names, strict=True), 1):
        numbers = (f"{value:.6f}" for value in (row.quality, row.neighbors, row.networks))
        part = "test" if row.is_test else "labeled"
        classes = class_names[row.label], class_names[row.suggested]
        rows.append([rank, name, part, *classes, *numbers])
    write_atomically(workdir / SUSPECTS, to_csv(rows))


def take_unlabeled(num_images: int, labeled: np.ndarray) -> np.ndarray:
    """Rows of at most 1,000 of the other training images, int64 [n], evenly spaced.

    Deterministic, so callers share the networks' outputs.
    """
    return take_rows(np.setdiff1d(np.arange(num_images), labeled), MAX_UNLABELED)
