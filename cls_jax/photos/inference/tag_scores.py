"""Metrics of predicted tags, for `cls-jax evaluate` and the report. B images, T tags.

What is known of tags is int8 [B, T]: 1 with a tag, 0 without it, -1 if it is open. What is open
does not count.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cls_jax.photos.features.accuracy import wilson_interval
from cls_jax.photos.features.tags import find_right
from cls_jax.photos.folder.names import fold_class
from cls_jax.photos.folder.tags import read_sets
from cls_jax.photos.inference.scores import (
    TAGS,
    ClassFigures,
    ClassScoring,
    Figures,
    Target,
    average_figures,
)
from cls_jax.training.evaluate import Accuracies


class TagScoring(NamedTuple):
    """How predictions are compared with what is known of images that have tags.

    It has the methods of `ClassScoring`.
    """

    names: tuple[str, ...]  # Of the tags.
    thresholds: np.ndarray  # From which probability on an image has each tag, floating [T].
    target: Target = TAGS

    def number(self, labels_B: np.ndarray, labels: Sequence[str]) -> np.ndarray:
        """What is known of B images, by the numbers of their labels, int [B], none foreign.

        Nothing is known of an image without a label, -1. As in training, a labeled image has none
        of the tags that its label does not name.
        """
        sets = read_sets(labels)
        folded = np.array([fold_class(name) for name in sets.names])
        known_ST = np.zeros((len(labels), len(self.names)), np.int8)
        for k, name in enumerate(self.names):
            if (is_named := folded == fold_class(name)).any():
                known_ST[:, k] = sets.values[:, is_named].max(axis=1)
        return np.where(labels_B[:, None] >= 0, known_ST[labels_B], np.int8(-1))

    def find_right(self, p_BT: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Which images have all tags right, bool [B]."""
        return find_right(p_BT, known, self.thresholds)

    def measure(self, p_NBT: np.ndarray, known: np.ndarray) -> Accuracies:
        """The share of images with all tags right, and the mean average precision, in percent.

        By the probabilities of one network.
        """
        figures = self.compute_figures(p_NBT[0], known)
        measured = {
            "test/accuracy": 100 * figures.accuracy,
            "test/mean_average_precision": 100 * figures.macro.area,
        }
        return {name: value for name, value in measured.items() if not np.isnan(value)}

    def compute_figures(self, p_BT: np.ndarray, known: np.ndarray) -> Figures:
        """Precision, recall, F1 and average precision by tag and on average, as scikit-learn's.

        The accuracy is the exact match: the share of images with all tags right. At least one image
        has a tag that is not open.
        """
        says = p_BT >= self.thresholds
        columns = zip(p_BT.T, says.T, known.T, strict=True)
        tags = [
            _compare(p[has >= 0], said[has >= 0], has[has >= 0] == 1) for p, said, has in columns
        ]
        support = np.array([row.support for row in tags])
        is_right = self.find_right(p_BT, known)[(known >= 0).any(axis=1)]
        return Figures(
            accuracy=float(is_right.mean()),
            interval=wilson_interval(int(is_right.sum()), len(is_right)),
            class_names=self.names,
            classes=tags,
            macro=average_figures(tags, np.sign(support)),
            weighted=average_figures(tags, support),
            target=TAGS,
        )


Scoring = ClassScoring | TagScoring


def _compare(p_n: np.ndarray, says_n: np.ndarray, has_n: np.ndarray) -> ClassFigures:
    """The figures of a tag on n images, from its probabilities, predictions and true labels."""
    from sklearn.metrics import average_precision_score  # As in `scores`.

    num_right, num_said, support = (int(a.sum()) for a in (says_n & has_n, says_n, has_n))
    precision = num_right / num_said if num_said else np.nan
    if not support:
        return ClassFigures(precision, recall=np.nan, f1=np.nan, area=np.nan, support=0)
    return ClassFigures(
        precision,
        recall=num_right / support,
        f1=2 * num_right / (num_said + support),
        area=float(average_precision_score(has_n, p_n)),
        support=support,
        interval=wilson_interval(num_right, support),
    )
