"""Decisions about images, from their probabilities.

Shape suffixes: N networks, B images, K classes.
"""

from typing import NamedTuple

import numpy as np


class Decision(NamedTuple):
    """Decisions about images whose probabilities are [..., B, K]."""

    best: np.ndarray  # The most probable class, int [..., B]. The first of equals.
    confidence: np.ndarray  # Its probability, floating [..., B].
    num_classes: int  # K.

    @property
    def has(self) -> np.ndarray:
        """Which classes each image has, bool [..., B, K]: the most probable one."""
        return np.asarray(self.best[..., None] == np.arange(self.num_classes))

    def is_right(self, labels_B: np.ndarray) -> np.ndarray:
        """Whether that is the class of each image, bool [..., B]. Labels are int [B]."""
        return np.asarray(self.best == labels_B)


def decide(probabilities: np.ndarray) -> Decision:
    """What probabilities say, floating [..., B, K], of one class or more."""
    return Decision(
        best=probabilities.argmax(axis=-1),
        confidence=probabilities.max(axis=-1),
        num_classes=probabilities.shape[-1],
    )


def rank_classes(p_BK: np.ndarray, num_classes: int) -> np.ndarray:
    """The most probable classes of each image, int [..., num_classes], the first of equals first.

    Probabilities are floating [..., K]. There are at most K.
    """
    return np.argsort(-p_BK, axis=-1, kind="stable")[..., :num_classes]


def compute_margins(p_BK: np.ndarray) -> np.ndarray:
    """How much more probable the best class is than the second one, floating [B]. K is over 1."""
    second, first = np.sort(p_BK, axis=1)[:, -2:].T
    return np.asarray(first - second)


def find_partners(counts_KK: np.ndarray) -> np.ndarray:
    """The other class that each class is taken for most often, int [K], by counts int [K, K]."""
    return np.asarray((counts_KK - np.diag(np.diag(counts_KK))).argmax(axis=1))
