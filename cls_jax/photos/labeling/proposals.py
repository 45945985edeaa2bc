"""What the classifier of a session changes: the proposals, and which photos are asked.

A photo has one class here. `tag_proposals` has the same for several tags.

Shape suffixes: B photos, K classes.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from scipy import sparse

from cls_jax.photos.features.accuracy import Estimate, find_sure
from cls_jax.photos.features.decide import (
    compute_margins,
    decide,
    find_partners,
    rank_classes,
)
from cls_jax.photos.features.graph import Propagation

NUM_ANSWERS = 10  # After so many, the next classifier is fitted while labeling goes on.


class Doubt(NamedTuple):
    """The photos of a class that are not sure."""

    unsure: int  # How many are suggested to be of it.
    partner: str  # What they may be instead, "" if there is none.
    images: np.ndarray  # int, those that may be either, the least certain first.


class Suspect(NamedTuple):
    """A label that the others contradict."""

    image: int
    label: str
    suggested: str
    probability: float


@dataclasses.dataclass(frozen=True, eq=False)
class Classified:
    """What the classifier of some labels says about B photos and K classes."""

    class_names: list[str]  # Those with a label.
    labels: np.ndarray  # int [B], -1 for photos without a label.
    probabilities: np.ndarray  # float32 [B, K].
    suspects: Sequence[Suspect]
    is_early: bool  # See `is_too_early`.
    # A few words about some of the classes.
    figures: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Said(NamedTuple):
    """What probabilities say about B photos."""

    labels: list[str]
    confidences: np.ndarray  # That these are right, floating [B].
    has: np.ndarray  # Which of K classes each has, bool [B, K].


class Spread(Protocol):
    """What labels say between two fits of the classifier."""

    def index(self, names: Sequence[str]) -> dict[str, int]:
        """The number of each label. New ones may be added."""

    def follow(
        self,
        names: Sequence[str],
        labels: np.ndarray,
        found: Classified | None,
        exclude: Callable[[Mapping[str, int], np.ndarray], None],
    ) -> np.ndarray:
        """The probabilities of all photos, floating [B, K], after the newest labels, int [B].

        `exclude` takes what a person has rejected out of them.
        """


class Rules(NamedTuple):
    """What depends on whether a photo has one class or several, its tags."""

    num_answers: int  # After so many, the next classifier is fitted while labeling goes on.
    num_proposals: int  # At most, of a photo.
    arguments: tuple[str, ...]  # Of `cls-jax train`.
    start: Callable[[sparse.csr_matrix], Spread]
    # From probabilities, floating [B, K], and the names of the classes.
    say: Callable[[np.ndarray, Sequence[str]], Said]
    doubt: Callable[[np.ndarray, Sequence[str], Estimate | None], list[Doubt]]
    trust: Callable[[np.ndarray], np.ndarray]  # How sure they are of each photo, float [B].
    # The photos that are in no row to confirm, given confidences [B] and the rejected photos.
    keep_back: Callable[[np.ndarray, Collection[int]], list[int]]
    clean: Callable[[str], str]  # The name of a class without what means something else.
    # A label with other names of its classes, of which some are gone ("").
    rename: Callable[[str, Mapping[str, str]], str]


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


def weigh_images(
    found: Classified | None, num_images: int, trust: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """The share of each photo in the coverage, float [B], which is 1 if it is early.

    It is 1 - (p1 - p2) by the two highest probabilities of the classifier, or the probability that
    some tag is wrong: what the `Rules` do not `trust`. While many answers are the only ones of
    their class, it is sure of wrong classes (experiments/results/labeling.md).
    """
    shares = np.ones(num_images)
    if found is not None and not found.is_early:
        doubts = 1 - trust(found.probabilities)
        shares[: len(doubts)] = np.where(found.labels < 0, doubts, 1)
    return shares


def say(p_BK: np.ndarray, names: Sequence[str]) -> Said:
    """The most probable class of each photo."""
    decision = decide(p_BK)
    labels = [names[k] for k in decision.best.tolist()]
    return Said(labels, decision.confidence, decision.has)


def doubt(p_BK: np.ndarray, names: Sequence[str], estimate: Estimate | None) -> list[Doubt]:
    """For each class, the photos named so that are not sure, and what it is mixed up with most.

    The photos that may be either class have the two as their most probable ones. K is over 1.
    """
    named, confidences, num_classes = decide(p_BK)
    unsure = np.flatnonzero(~find_sure(confidences, estimate))
    pairs = np.sort(rank_classes(p_BK[unsure], 2), axis=1)
    counts = np.zeros((num_classes, num_classes), int)
    np.add.at(counts, (pairs[:, 0], pairs[:, 1]), 1)
    doubts = []
    for k, partner in enumerate(find_partners(counts + counts.T).tolist()):
        rows = unsure[(pairs == sorted((k, partner))).all(axis=1)]
        rows = rows[np.argsort(confidences[rows], kind="stable")]
        num_unsure = int((named[unsure] == k).sum())
        doubts.append(Doubt(num_unsure, names[partner] if len(rows) else "", rows))
    return doubts


class ClassSpread:
    """Labels that spread over a graph, and what the classifier says of most photos."""

    def __init__(self, graph: sparse.csr_matrix):
        self._propagation = Propagation(graph)

    def index(self, names: Sequence[str]) -> dict[str, int]:
        """The columns of classes."""
        return {name: k for k, name in enumerate(names)}

    def follow(
        self,
        names: Sequence[str],
        labels: np.ndarray,
        found: Classified | None,
        exclude: Callable[[Mapping[str, int], np.ndarray], None],
    ) -> np.ndarray:
        """As `Spread.follow`."""
        self._propagation.update(labels, len(names))
        p_BK = self._propagation.compute_probabilities()
        if found is not None:
            take_over_probabilities(found, self.index(names), labels, p_BK)
        exclude(self.index(names), p_BK)
        return p_BK


CLASS_RULES = Rules(
    num_answers=NUM_ANSWERS,
    num_proposals=9,
    arguments=(),
    start=ClassSpread,
    say=say,
    doubt=doubt,
    trust=compute_margins,
    keep_back=lambda confidences, rejected: [],  # These have other proposals.
    clean=str,
    rename=lambda label, names: names.get(label, label),
)
