"""As `proposals`, where a photo may have several classes, its tags.

Nothing spreads between two fits, which take less than a second.

Shape suffixes: B photos, T tags.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from scipy import sparse

from cls_jax.photos.features.accuracy import Estimate, find_sure
from cls_jax.photos.features.tag_accuracy import confide
from cls_jax.photos.folder.kinds import OPEN, SEPARATOR, join_tags, split_tags
from cls_jax.photos.labeling.answers import MAX_CLASSES
from cls_jax.photos.labeling.proposals import Classified, Doubt, Rules, Said

_THRESHOLD = 0.5  # Of the probability of a tag, or of all tags of a photo.


def say(p_BT: np.ndarray, names: Sequence[str]) -> Said:
    """The tags of each photo that are as probable as not, and how surely all of them are right."""
    has_BT = p_BT >= _THRESHOLD
    labels = [
        join_tags(name for name, one in zip(names, has, strict=False) if one)
        for has in has_BT.tolist()
    ]
    return Said(labels, confide(p_BT), has_BT)


def doubt(p_BT: np.ndarray, names: Sequence[str], _: Estimate | None) -> list[Doubt]:
    """For each tag, the photos that may have it or not."""
    doubts = []
    for name, p_B in zip(names, p_BT.T, strict=False):
        confidences = np.maximum(p_B, 1 - p_B)
        is_sure = find_sure(confidences, None)
        order = np.argsort(confidences, kind="stable")
        rows = order[~is_sure[order]]
        num_unsure = int((p_B[rows] >= _THRESHOLD).sum())
        doubts.append(Doubt(num_unsure, f"not {name}" if len(rows) else "", rows))
    return doubts


def keep_back(confidences_B: np.ndarray, rejected: Collection[int]) -> list[int]:
    """Those without tags that are more probable than not, and those that would be shown again."""
    return [*rejected, *np.flatnonzero(confidences_B < _THRESHOLD).tolist()]


def rename(label: str, names: Mapping[str, str]) -> str:
    """A label with other names of its tags, of which some are gone ("")."""
    found = dict[str, str]()
    for tag in sorted(split_tags(label)):  # Those that are open come first, and others win.
        name = tag.removeprefix(OPEN)
        new = names.get(name, name)
        found[new] = tag[: len(tag) - len(name)] + new
    return join_tags(tag for new, tag in found.items() if new) if label else ""


class TagSpread:
    """What the newest classifier says, until the next one is fitted."""

    def __init__(self, _: sparse.csr_matrix):
        self._numbers: dict[str, int] = {}  # Of all labels so far.

    def index(self, names: Sequence[str]) -> dict[str, int]:
        """The numbers of labels, which stay."""
        return self._numbers

    def follow(
        self,
        names: Sequence[str],
        labels: np.ndarray,
        found: Classified | None,
        exclude: Callable[[Mapping[str, int], np.ndarray], None],
    ) -> np.ndarray:
        """As `Spread.follow`. What is rejected is only asked."""
        p_BT = np.zeros((len(labels), len(names)))
        for t, name in enumerate(names):
            if found is not None and name in found.class_names:
                p_BT[: len(found.labels), t] = found.probabilities[:, found.class_names.index(name)]
        return p_BT


TAG_RULES = Rules(
    num_answers=3,
    num_proposals=MAX_CLASSES,
    arguments=("--instant",),
    start=TagSpread,
    say=say,
    doubt=doubt,
    trust=confide,
    keep_back=keep_back,
    clean=lambda name: name.replace(SEPARATOR, ",").lstrip(OPEN),
    rename=rename,
)
