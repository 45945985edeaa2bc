"""The instant classifier that is fitted to the labels of a session.

It equals that of `cls-jax train FOLDER --instant --backbone NAME[,NAME]` on the same labels, with
the session's networks: the same photos in the same order, and the same order of classes, since
labels are held out in turn by it.

Shape suffixes: B photos of the folder, C features, K classes, T tags, M photos that a run is
trained on.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import BinaryIO

import numpy as np

from cls_jax.io import write_count
from cls_jax.photos.features.accuracy import (
    MIN_CHECKS,
    Estimate,
    correct_estimate,
    count_labels,
    describe_estimate,
    describe_new_sources,
    is_too_early,
)
from cls_jax.photos.features.decide import decide
from cls_jax.photos.features.infer import Inferred, infer
from cls_jax.photos.features.instant import fit_classifier
from cls_jax.photos.features.neighbors import normalize_rows
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.features.relations import Relations
from cls_jax.photos.features.tag_accuracy import (
    correct_tags,
    describe_tag,
    estimate_each,
    estimate_tags,
)
from cls_jax.photos.features.tags import InferredTags, group_tagged, infer_tags
from cls_jax.photos.folder.kinds import ONE_CLASS, TAGS, Classes, read_sets
from cls_jax.photos.inference.suspects import choose_suspects
from cls_jax.photos.inference.unknown import FolderImages, collect_images
from cls_jax.photos.labeling.answers import RefusedError
from cls_jax.photos.labeling.known import (
    Known,
    find_checked,
    list_checked,
    list_sources,
    list_trainable,
)
from cls_jax.photos.labeling.proposals import NUM_ANSWERS, Classified, Suspect

INSTANT = "the instant classifier"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Fitted(Classified):
    """A classifier fitted to some labels, and what it says about all photos."""

    relations: Relations  # Of all photos.
    rows: np.ndarray  # The photos that a run would be trained on, int [M], in its order.
    sources: np.ndarray | None  # What the photos at `rows` come from, see `list_sources`.
    inferred: Inferred | InferredTags  # Of the same.
    # The accuracy on the other photos, measured on random ones if enough were checked.
    estimate: Estimate | None
    others: str  # What these are.
    right: str  # What the accuracy is of, as in "are named right".
    accuracy: str  # The same in sentences.
    # The probabilities of a photo from elsewhere, floating [1, K], given its file and features.
    predict: Callable[[BinaryIO, FrozenFeatures], np.ndarray]
    namer: str  # What names the photos.
    by: str  # The same, as it follows a figure: ", after 9 answers".

    @property
    def num_labels(self) -> int:
        """The photos with a label."""
        return int((self.labels >= 0).sum())

    @property
    def accuracy_in_short(self) -> str:
        """The accuracy in a few words, with the number of answers: there may be more since."""
        if self.estimate is None:
            return ""
        if self.estimate.accuracy is None:
            return f"Too early to say how many {self.right}"
        return f"About {self.estimate.accuracy:.0f}% of {self.others} {self.right}{self.by}"

    @functools.cached_property
    def labeled(self) -> tuple[np.ndarray, np.ndarray]:
        """The photos with a label, int [n], and descriptors of unit length, float32 [n, C]."""
        labeled = np.flatnonzero(self.labels >= 0)
        return labeled, normalize_rows(self.relations.features.descriptors[labeled])

    @functools.cached_property
    def images(self) -> FolderImages | None:
        """What photos from elsewhere are compared with."""
        return collect_images(self.relations.features.pooled[self.rows], self.sources)


def fit(session: Known) -> Fitted:
    """Fits the classifier to the labels of a session. Raises a RefusedError without two of them."""
    return _FITS[session.options.kind](session)


def _fit_classes(session: Known) -> Fitted:
    """Where a photo has one class."""
    relations, names = session.relations, session.class_names
    class_names = sorted({names[k] for k in np.unique(session.labels) if k >= 0})
    if relations is None or len(class_names) < 2:
        raise RefusedError("Label photos of two classes first: then there is a classifier to save.")
    places = np.array([class_names.index(name) if name in class_names else -1 for name in names])
    labels = np.where(session.labels >= 0, places[session.labels], -1)
    rows, originals = _choose_rows(session, relations, labels)
    known, sources = relations.take(rows), list_sources(session, rows)
    inferred = infer(known, labels[rows], len(class_names), sources)
    classifier = fit_classifier(None, known, inferred)

    def predict(found: FrozenFeatures) -> np.ndarray:
        return classifier.predict_with_features(found)[0][0]

    estimate, checked = inferred.estimate, find_checked(session)
    estimate = estimate and correct_estimate(estimate, checked.is_right, checked.confidences)
    others = _describe_others(labels, f"{len(class_names)} classes", estimate)
    right, answers = "are named right", _count_answers(labels)
    sentences = [describe_estimate(estimate, INSTANT, others, right)] if estimate else []
    if inferred.new_sources is not None:
        sentences.append(describe_new_sources(inferred.new_sources))
    is_own = labels[:, None] == np.arange(len(class_names))
    values = np.where(labels[:, None] < 0, np.int8(-1), is_own)
    p_BK = _complete(relations, inferred.probabilities, rows, values, originals, predict)
    suspects = choose_suspects(inferred.held_out, labels[rows])
    best, confidence, _ = decide(inferred.held_out.probabilities[suspects])
    return Fitted(
        class_names=class_names,
        labels=labels,
        probabilities=p_BK,
        suspects=[
            Suspect(i, class_names[labels[i]], class_names[k], float(c))
            for i, k, c in zip(rows[suspects].tolist(), best.tolist(), confidence, strict=True)
        ],
        is_early=is_too_early(count_labels(labels[rows], inferred.groups)),
        relations=relations,
        rows=rows,
        sources=sources,
        inferred=inferred,
        estimate=estimate,
        others=others,
        right=right,
        accuracy=" ".join(sentences),
        predict=lambda _, found: predict(found),
        namer=f"{INSTANT} {answers}",
        by=f", {answers}",
    )


def _fit_tags(session: Known) -> Fitted:
    """Where a photo may have several classes, its tags."""
    relations, labels = session.relations, session.labels
    if relations is None or len(np.unique(labels[labels >= 0])) < 2:
        raise RefusedError("Label photos with different tags first, or some with none.")
    texts = [session.get_state(image).label for image in range(len(labels))]
    distinct = sorted({texts[i] for i in np.flatnonzero(labels >= 0)})
    sets = read_sets(distinct)
    numbers = np.array([distinct.index(text) if text else -1 for text in texts])
    values, class_names = sets.mark(np.where(labels >= 0, numbers, -1)), list(sets.names)
    rows, originals = _choose_rows(session, relations, labels)
    known, sources = relations.take(rows), list_sources(session, rows)
    groups_M = group_tagged(known, values[rows], sources)
    inferred = infer_tags(known, values[rows], groups_M)
    p_MT, held_out_MT, predict = inferred.probabilities, inferred.held_out, inferred.head.predict
    q_MT = np.where(np.isnan(held_out_MT), p_MT, held_out_MT)
    p_BT = _complete(relations, q_MT, rows, values, originals, predict)
    # What random photos that were checked have: those that were chosen to be asked are harder.
    is_random = np.isin(np.arange(len(labels)), list(list_checked(session)))
    random_BT = np.where(is_random[:, None], values, np.int8(-1))
    is_known = (random_BT >= 0).any(axis=1)
    estimate = estimate_tags(p_MT, held_out_MT, values[rows], groups_M)
    estimate = estimate and correct_tags(estimate, p_BT[is_known], random_BT[is_known])
    others = _describe_others(labels, f"{len(class_names)} tags", estimate)
    right, answers, accuracy = "are tagged without a mistake", _count_answers(labels), ""
    if estimate:
        accuracy = describe_estimate(estimate, INSTANT, others, right, ("tag", "tags"))
    figures = {}
    if len(find_checked(session).is_right) >= MIN_CHECKS:
        of_tags = estimate_each(p_MT, held_out_MT, random_BT[rows], groups_M)
        figures = dict(zip(class_names, map(describe_tag, of_tags), strict=True))
    return Fitted(
        class_names=class_names,
        labels=labels,
        probabilities=p_BT,
        suspects=(),
        is_early=estimate is None or estimate.accuracy is None,
        figures=figures,
        relations=relations,
        rows=rows,
        sources=sources,
        inferred=inferred,
        estimate=estimate,
        others=others,
        right=right,
        accuracy=accuracy,
        predict=lambda _, found: predict(found),
        namer=f"{INSTANT} {answers}",
        by=f", {answers}",
    )


_FITS: dict[Classes, Callable[[Known], Fitted]] = {ONE_CLASS: _fit_classes, TAGS: _fit_tags}


def _choose_rows(
    session: Known, relations: Relations, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The photos that a run would be trained on, int [M], and the originals of copies, int [B].

    A run leaves copies of labeled photos out: those with the same features as one without a label.
    Their original is the first such photo, and that of others is -1. Labels are int [B].
    """
    firsts_B = np.full(len(labels), -1)
    labeled = np.flatnonzero(labels >= 0)[::-1]
    firsts_B[relations.same[labeled]] = labeled  # The first one is written last.
    originals_B = np.where(labels < 0, firsts_B[relations.same], -1)
    rows = list_trainable(session)
    return rows[originals_B[rows] < 0], originals_B


def _complete(
    relations: Relations,
    p_MK: np.ndarray,
    rows: np.ndarray,
    values: np.ndarray,
    originals: np.ndarray,
    predict: Callable[[FrozenFeatures], np.ndarray],
) -> np.ndarray:
    """The probabilities of all photos, float32 [B, K], given those at `rows`.

    Copies have what is known of their originals, by `values`, int8 [B, K] of 1, 0, and -1 where
    that is open. The rest is predicted.
    """
    p_BK = np.zeros(values.shape, np.float32)
    p_BK[rows] = p_MK
    if len(others := np.setdiff1d(np.arange(len(values)), rows)):
        left_out = relations.features.convert(lambda columns: columns[others])
        known = np.where(originals[others, None] >= 0, values[originals[others]], np.int8(-1))
        p_BK[others] = np.where(known >= 0, known, predict(left_out))
    return p_BK


def _describe_others(labels: np.ndarray, classes: str, estimate: Estimate | None) -> str:
    """The photos that an estimate is about: after a few answers, classes may be missing.

    `classes` says how many are known.
    """
    is_measured = estimate is not None and estimate.checks
    has_all = is_measured or (labels >= 0).sum() >= NUM_ANSWERS
    return "the other photos" if has_all else f"photos of these {classes}"


def _count_answers(labels: np.ndarray) -> str:
    """How many answers a classifier has learned."""
    return f"after {write_count(int((labels >= 0).sum()), 'answer', 'answers')}"
