"""As `fitting`, where a photo may have several classes, its tags.

Shape suffixes: B photos of the folder, T tags.
"""

import dataclasses
import functools

import numpy as np

from cls_jax.photos.features.accuracy import MIN_CHECKS, Estimate, describe_estimate
from cls_jax.photos.features.marks import Marks
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.features.tag_accuracy import (
    correct_tags,
    describe_tag,
    estimate_each,
    estimate_tags,
)
from cls_jax.photos.features.tags import InferredTags, group_tagged, infer_tags
from cls_jax.photos.folder.tags import read_sets
from cls_jax.photos.labeling.answers import RefusedError
from cls_jax.photos.labeling.fitting import INSTANT, Fitted, find_originals
from cls_jax.photos.labeling.known import (
    Known,
    find_checked,
    list_checked,
    list_sources,
    list_trainable,
)


@dataclasses.dataclass(frozen=True)
class FittedTags(Fitted):
    """One that gives each photo any number of tags."""

    inferred: InferredTags  # Of `rows`.
    groups: np.ndarray  # The photos that belong together, int [M].
    random: np.ndarray  # What random photos that were checked have, int8 [B, T], -1 of others.

    right = "are tagged without a mistake"

    @property
    def is_early(self) -> bool:
        """Without an estimate."""
        return self.estimate is None or self.estimate.accuracy is None

    @functools.cached_property
    def estimate(self) -> Estimate | None:
        """The share of the other photos with all tags right."""
        inferred, is_random = self.inferred, (self.random >= 0).any(axis=1)
        estimate = estimate_tags(
            inferred.probabilities, inferred.held_out, inferred.marks.values, self.groups
        )
        held_out, known = self.probabilities[is_random], self.random[is_random]
        return estimate and correct_tags(estimate, held_out, known)

    def describe_accuracy(self) -> str:
        """The same in a sentence."""
        if (found := self.estimate) is None:
            return ""
        others = self.describe_others(found)
        return describe_estimate(found, INSTANT, others, self.right, nouns=("tag", "tags"))

    def describe_classes(self) -> dict[str, str]:
        """The precision and recall of each tag by random photos, if enough were checked.

        Those that were chosen to be asked are harder than others.
        """
        if len(self.checked.is_right) < MIN_CHECKS:
            return {}
        inferred, known = self.inferred, self.random[self.rows]
        figures = estimate_each(inferred.probabilities, inferred.held_out, known, self.groups)
        return dict(zip(self.class_names, map(describe_tag, figures), strict=True))

    def predict(self, found: FrozenFeatures) -> np.ndarray:
        """By the head of the tags."""
        return self.inferred.head.predict(found)


def fit_tags(session: Known) -> FittedTags:
    """Fits the classifier to the tags of a session. Raises a RefusedError without two labels."""
    relations, labels = session.relations, session.labels
    if relations is None or len(np.unique(labels[labels >= 0])) < 2:
        raise RefusedError("Label photos with different tags first, or some with none.")
    originals = find_originals(relations.same, labels)
    rows = list_trainable(session)
    rows = rows[originals[rows] < 0]
    texts = [session.get_state(image).label for image in range(len(labels))]
    distinct = sorted({texts[i] for i in np.flatnonzero(labels >= 0)})
    sets = read_sets(distinct)
    numbers = np.array([distinct.index(text) if text else -1 for text in texts])
    values = sets.mark(np.where(labels >= 0, numbers, -1))
    known, sources = relations.take(rows), list_sources(session)
    marks = Marks(values[rows], exclusive=False)
    groups_M = group_tagged(known, marks, None if sources is None else sources[rows])
    inferred = infer_tags(known, marks, groups_M)
    q_BT, q_rows = np.zeros(values.shape, np.float32), inferred.held_out
    q_BT[rows] = np.where(np.isnan(q_rows), inferred.probabilities, q_rows)
    is_random = np.isin(np.arange(len(labels)), list(list_checked(session)))
    fitted = FittedTags(
        rules=session.rules,
        class_names=list(sets.names),
        labels=labels,
        relations=relations,
        sources=sources,
        rows=rows,
        probabilities=q_BT,
        checked=find_checked(session),
        inferred=inferred,
        groups=groups_M,
        random=np.where(is_random[:, None], values, np.int8(-1)),
    )
    others = np.setdiff1d(np.arange(len(labels)), rows)
    left_out = relations.features.convert(lambda columns: columns[others])
    copied = np.where(originals[others, None] >= 0, values[originals[others]], -1)
    q_BT[others] = np.where(copied >= 0, copied, fitted.predict(left_out))
    return fitted
