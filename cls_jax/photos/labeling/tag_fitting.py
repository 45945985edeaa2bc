"""As `fitting`, where a photo may have several classes, its tags.

Shape suffixes: B photos of the folder, T tags.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from cls_jax.photos.features.accuracy import Estimate, correct_estimate
from cls_jax.photos.features.marks import Marks, groups, mark_labels
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.features.tags import InferredTags, infer_tags, join_depths
from cls_jax.photos.folder.tags import OPEN, join_tags, read_sets
from cls_jax.photos.inference.suspects import MIN_LABELS
from cls_jax.photos.labeling.answers import RefusedError
from cls_jax.photos.labeling.fitting import Fitted, find_originals
from cls_jax.photos.labeling.known import Known, find_checked, list_sources, list_trainable
from cls_jax.photos.labeling.proposals import Suspect

_CONTRADICTED = 0.75  # The probability of a tag that is not given, or the other way round.


@dataclasses.dataclass(frozen=True)
class FittedTags(Fitted):
    """One that gives each photo any number of tags."""

    inferred: InferredTags  # Of `rows`.

    right = "have all tags right"

    @property
    def is_early(self) -> bool:
        """Without an estimate."""
        return self.estimate is None or self.estimate.accuracy is None

    @property
    def estimate(self) -> Estimate | None:
        """The share of the other photos with all tags right."""
        is_open = (self.inferred.marks.values < 0).all(axis=1)
        if not is_open.any():
            return None
        said = self.rules.say(self.inferred.probabilities[is_open], self.class_names)
        found = Estimate(
            len(self.class_names),
            0,
            confidence=100 * float(said.confidences.mean()),
            confidence_deviation=100 * float(said.confidences.std()),
            images=len(said.confidences),
        )
        return correct_estimate(found, self.checked.is_right, self.checked.confidences)

    def describe_accuracy(self) -> str:
        """The same in a sentence."""
        found = self.estimate
        if found is None or found.accuracy is None:
            return "Too early to say: check random photos."
        interval = f"({found.accuracy_low:.0f} to {found.accuracy_high:.0f}%)"
        return f"About {found.accuracy:.0f}% of the other photos {self.right} {interval}."

    def find_suspects(self) -> list[Suspect]:
        """Labels with a tag, or without one, that the others contradict clearly."""
        given_MT, names = self.inferred.marks.values, self.class_names
        q_MT = np.nan_to_num(self.inferred.held_out)  # 0 for tags that are open.
        is_known = (given_MT == 1).sum(axis=0) >= MIN_LABELS
        p_MT = np.where(given_MT == 1, 1 - q_MT, q_MT) * is_known  # That it is the other way.
        others_MT = np.where(p_MT > _CONTRADICTED, 1 - given_MT, given_MT)
        p_M = p_MT.max(axis=1, initial=0)
        found = [m for m in np.argsort(-p_M, kind="stable").tolist() if p_M[m] > _CONTRADICTED]
        return [
            Suspect(
                int(self.rows[m]),
                _write(given_MT[m], names),
                _write(others_MT[m], names),
                float(p_M[m]),
            )
            for m in found
        ]

    def predict(self, found: FrozenFeatures) -> np.ndarray:
        """By the head of the tags."""
        head = self.inferred.head
        return head.compute_probabilities(head.scale(join_depths(found)))


def _write(values_T: np.ndarray, names: Sequence[str]) -> str:
    """The label of a photo with tags (1) of which some are open (-1)."""
    return join_tags(
        name if value > 0 else OPEN + name
        for name, value in zip(names, values_T.tolist(), strict=True)
        if value
    )


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
    # As `start.fit_tags`.
    of_one_class = mark_labels(np.where(labels[rows] >= 0, 0, -1), 1)
    groups_M = groups(known, of_one_class, None if sources is None else sources[rows])
    inferred = infer_tags(known.features, Marks(values[rows], exclusive=False), groups_M)
    q_BT, q_rows = np.zeros(values.shape, np.float32), inferred.held_out
    q_BT[rows] = np.where(np.isnan(q_rows), inferred.probabilities, q_rows)
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
    )
    others = np.setdiff1d(np.arange(len(labels)), rows)
    left_out = relations.features.convert(lambda columns: columns[others])
    copied = np.where(originals[others, None] >= 0, values[originals[others]], -1)
    q_BT[others] = np.where(copied >= 0, copied, fitted.predict(left_out))
    return fitted
