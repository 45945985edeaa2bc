"""What the classifier of a session changes: the proposals, and which photos are asked.

Shape suffixes: B photos, K classes.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from cls_jax.photos.features.decide import (
    compute_margins,
    decide,
    find_partners,
    rank_classes,
)
from cls_jax.photos.features.infer import HeldOutLabels


class Mixed(NamedTuple):
    """The class that another one is mixed up with most."""

    partner: int  # The other class, or -1.
    rows: np.ndarray  # int, photos that are one of the two, the least certain first.


class Classified(NamedTuple):
    """What the instant classifier of some labels says about B photos and K classes."""

    class_names: list[str]  # Those with a label.
    labels: np.ndarray  # int [B], -1 for photos without a label.
    probabilities: np.ndarray  # float32 [B, K].
    held_out: HeldOutLabels
    is_early: bool  # See `is_too_early`.


def take_over_probabilities(
    found: Classified, index: Mapping[str, int], labels: np.ndarray, probabilities: np.ndarray
) -> None:
    """Replaces probabilities of the graph by those of the classifier, in place.

    Not those of photos whose label has been given or removed since, or that look most like a class
    that the classifier does not know yet. There may be more photos than it knows.

    Args:
        found: What the classifier says.
        index: The columns of all classes.
        labels: Those of all photos, int, -1 for photos without a label.
        probabilities: Of all photos by the graph, floating.
    """
    known = np.array([index.get(name, -1) for name in found.class_names])
    present = np.unique(labels[labels >= 0])
    if not np.isin(known, present).all():  # A class has been renamed or deleted since.
        return
    num_images = len(found.labels)
    is_known = np.isin(decide(probabilities[:num_images]).best, known)
    rows = np.flatnonzero(is_known & (found.labels < 0) & (labels[:num_images] < 0))
    probabilities[rows] = 0
    probabilities[np.ix_(rows, known)] = found.probabilities[rows]


def weigh_images(found: Classified | None, num_images: int) -> np.ndarray:
    """The share of each photo in the coverage, float [B]: 1 - (p1 - p2), or 1 if it is early.

    By the two highest probabilities of the classifier. While many answers are the only ones of
    their class, it is sure of wrong classes (experiments/results/labeling.md).
    """
    shares = np.ones(num_images)
    if found is not None and not found.is_early:
        margins = compute_margins(found.probabilities)
        shares[: len(margins)] = np.where(found.labels < 0, 1 - margins, 1)
    return shares


def find_mixed(probabilities_BK: np.ndarray, is_sure_B: np.ndarray) -> list[Mixed]:
    """For each class, the one it is mixed up with most, by photos that are not sure.

    Those count whose two most probable classes are these.

    Args:
        probabilities_BK: Of photos without an answer, floating.
        is_sure_B: Whether each is sure, bool, see `find_sure`.
    """
    num_classes = probabilities_BK.shape[1]
    nothing = Mixed(-1, np.zeros(0, int))
    unsure = np.flatnonzero(~is_sure_B)
    if num_classes < 2:
        return [nothing] * num_classes
    pairs = np.sort(rank_classes(probabilities_BK[unsure], 2), axis=1)
    counts = np.zeros((num_classes, num_classes), int)
    np.add.at(counts, (pairs[:, 0], pairs[:, 1]), 1)
    counts += counts.T
    mixed = []
    for k, partner in enumerate(find_partners(counts).tolist()):
        if not counts[k, partner]:
            mixed.append(nothing)
            continue
        rows = unsure[(pairs == sorted((k, partner))).all(axis=1)]
        order = np.argsort(decide(probabilities_BK[rows]).confidence, kind="stable")
        mixed.append(Mixed(partner, rows[order]))
    return mixed
