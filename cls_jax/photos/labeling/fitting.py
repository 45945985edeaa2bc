"""The instant classifier that is fitted to the labels of a session.

It equals that of `cls-jax train FOLDER --instant --backbone NAME[,NAME]` on the same labels, with
the session's networks: the same photos in the same order, and the same order of classes, since
labels are held out in turn by it.

Shape suffixes: B photos of the folder, C features, K classes.
"""

import abc
import dataclasses
import functools
from typing import ClassVar

import numpy as np

from cls_jax.io import write_count
from cls_jax.photos.features.accuracy import (
    Estimate,
    correct_estimate,
    count_labels,
    describe_estimate,
    describe_new_sources,
    is_too_early,
)
from cls_jax.photos.features.decide import decide
from cls_jax.photos.features.infer import HeldOutLabels, Inferred, infer
from cls_jax.photos.features.instant import InstantClassifier, fit_classifier
from cls_jax.photos.features.marks import mark_labels
from cls_jax.photos.features.neighbors import normalize_rows
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.features.relations import Relations
from cls_jax.photos.folder.log import Checked
from cls_jax.photos.inference.suspects import choose_suspects
from cls_jax.photos.inference.unknown import FolderImages, collect_images
from cls_jax.photos.labeling.answers import RefusedError
from cls_jax.photos.labeling.known import Known, find_checked, list_sources, list_trainable
from cls_jax.photos.labeling.proposals import NUM_ANSWERS, Rules, Suspect

INSTANT = "the instant classifier"


@dataclasses.dataclass(frozen=True)
class Fitted(abc.ABC):
    """A classifier fitted to some labels."""

    rules: Rules
    class_names: list[str]  # Those with a label, sorted.
    labels: np.ndarray  # int [B], -1 for photos without a label.
    relations: Relations  # Of all photos.
    sources: np.ndarray | None  # What these come from, see `Session.number_sources`.
    rows: np.ndarray  # The photos that a run would be trained on, int [M], in its order.
    probabilities: np.ndarray  # Of all photos, float32 [B, K].
    checked: Checked  # The random photos that had been checked.

    right: ClassVar[str]  # What a figure says of photos.

    @property
    def num_labels(self) -> int:
        """The photos with a label."""
        return int((self.labels >= 0).sum())

    @property
    @abc.abstractmethod
    def is_early(self) -> bool:
        """Whether it is too early to say how accurate it is."""

    @property
    @abc.abstractmethod
    def estimate(self) -> Estimate | None:
        """The accuracy on the other photos, measured on random ones if enough were checked."""

    @abc.abstractmethod
    def describe_accuracy(self) -> str:
        """Sentences about the same."""

    @abc.abstractmethod
    def predict(self, found: FrozenFeatures) -> np.ndarray:
        """The probabilities of other photos, given their features, float32 [n, K]."""

    def find_suspects(self) -> list[Suspect]:
        """The labels that the others contradict, where that is known."""
        return []

    def describe_classes(self) -> dict[str, str]:
        """A few words about what is known of each class."""
        return {}

    def describe_others(self, estimate: Estimate) -> str:
        """The photos that an estimate is about: after a few answers, classes may be missing."""
        has_all = estimate.checks or self.num_labels >= NUM_ANSWERS
        of_these = f"photos of these {len(self.class_names)} {self.rules.plural}"
        return "the other photos" if has_all else of_these

    def describe_answers(self) -> str:
        """How many answers it has learned."""
        return f"after {write_count(self.num_labels, 'answer', 'answers')}"

    @functools.cached_property
    def descriptors(self) -> np.ndarray:
        """float32 [B, C], of unit length."""
        return normalize_rows(self.relations.features.descriptors)

    @functools.cached_property
    def images(self) -> FolderImages | None:
        """What photos from elsewhere are compared with."""
        sources = None if self.sources is None else self.sources[self.rows]
        return collect_images(self.relations.features.pooled[self.rows], sources)


@dataclasses.dataclass(frozen=True)
class FittedClasses(Fitted):
    """One that gives each photo a class."""

    inferred: Inferred  # Of `rows`.
    held_out: HeldOutLabels  # Of all photos.
    classifier: InstantClassifier

    right = "are named right"

    @property
    def is_early(self) -> bool:
        """See `is_too_early`."""
        marks, groups = self.inferred.marks, self.inferred.groups
        return is_too_early(count_labels(marks.labels, groups))

    @property
    def estimate(self) -> Estimate | None:
        """See `correct_estimate`."""
        if (estimate := self.inferred.estimate) is None:
            return None
        return correct_estimate(estimate, self.checked.is_right, self.checked.confidences)

    def describe_accuracy(self) -> str:
        """The accuracy also on photos of new sources."""
        sentences = []
        if estimate := self.estimate:
            sentences.append(describe_estimate(estimate, INSTANT, self.describe_others(estimate)))
        if (of_new := self.inferred.new_sources) is not None:
            sentences.append(describe_new_sources(of_new))
        return " ".join(sentences)

    def predict(self, found: FrozenFeatures) -> np.ndarray:
        """By the classifier."""
        return self.classifier.predict_with_features(found)[0][0]

    def find_suspects(self) -> list[Suspect]:
        """See `choose_suspects`."""
        rows = choose_suspects(self.held_out, self.labels)
        best, confidence, _ = decide(self.held_out.probabilities[rows])
        names = self.class_names
        return [
            Suspect(i, names[self.labels[i]], names[k], float(c))
            for i, k, c in zip(rows.tolist(), best.tolist(), confidence.tolist(), strict=True)
        ]


def fit(session: Known) -> FittedClasses:
    """Fits the classifier to the labels of a session. Raises a RefusedError without two classes."""
    relations, names = session.relations, session.class_names
    class_names = sorted({names[k] for k in np.unique(session.labels) if k >= 0})
    if relations is None or len(class_names) < 2:
        raise RefusedError("Label photos of two classes first: then there is a classifier to save.")
    places = np.array([class_names.index(name) if name in class_names else -1 for name in names])
    labels = np.where(session.labels >= 0, places[session.labels], -1)
    originals = find_originals(relations.same, labels)
    rows = list_trainable(session)
    rows = rows[originals[rows] < 0]
    known, sources = relations.take(rows), list_sources(session)
    marks = mark_labels(labels[rows], len(class_names))
    inferred = infer(known, marks, None if sources is None else sources[rows])
    classifier = fit_classifier(None, known, inferred)
    p_BK = np.zeros((len(labels), len(class_names)), np.float32)
    p_BK[rows] = inferred.probabilities
    if len(others := np.setdiff1d(np.arange(len(labels)), rows)):
        left_out = relations.features.convert(lambda values: values[others])
        p_BK[others] = classifier.predict_with_features(left_out)[0][0]
    copies = np.flatnonzero(originals >= 0)
    p_BK[copies] = labels[originals[copies], None] == np.arange(len(class_names))
    q_BK, is_judged = np.full_like(p_BK, 1 / len(class_names)), np.zeros(len(labels), bool)
    q_BK[rows], is_judged[rows] = inferred.held_out
    return FittedClasses(
        rules=session.rules,
        class_names=class_names,
        labels=labels,
        relations=relations,
        sources=sources,
        rows=rows,
        inferred=inferred,
        probabilities=p_BK,
        held_out=HeldOutLabels(q_BK, is_judged),
        checked=find_checked(session),
        classifier=classifier,
    )


def find_originals(same_B: np.ndarray, labels_B: np.ndarray) -> np.ndarray:
    """The first labeled photo with the same features as one without a label, int [B], or -1.

    A run leaves copies of labeled photos out. `same_B` is `Relations.same`, and labels are int [B].
    """
    firsts_B = np.full(len(same_B), -1)
    labeled = np.flatnonzero(labels_B >= 0)[::-1]
    firsts_B[same_B[labeled]] = labeled  # The first one is written last.
    return np.where(labels_B < 0, firsts_B[same_B], -1)
