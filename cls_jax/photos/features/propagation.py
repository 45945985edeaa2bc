"""Label propagation that is updated label by label, and which proposals and labels to check.

The scores solve F = Y + alpha S F, as in `graph`. Each class is a column of F, so a new label
changes only one, for which the solver starts from the previous solution.

Shape suffixes: B images, K classes, L labeled images.
"""

from collections.abc import Mapping

import numpy as np
from scipy import sparse

from cls_jax.photos.features.graph import ALPHA, sharpen, solve

_TOLERANCE = 1e-6
_COLUMNS_AT_ONCE = 64


class Propagation:
    """The current labels and the scores that they give to all images of a `graph`."""

    def __init__(self, graph: sparse.csr_matrix):
        self.graph = graph
        self._scores_BK = np.zeros((graph.shape[0], 0))
        self.labels = np.full(graph.shape[0], -1)  # int [B], -1 for images without a label.
        # How much an image's label raises its own score, and the sum of all. NaN: not computed yet.
        self._responses_2B = np.full((2, graph.shape[0]), np.nan)

    def add_classes(self, num_classes: int) -> None:
        """Adds classes without a label until there are `num_classes`."""
        missing = num_classes - self._scores_BK.shape[1]
        if missing > 0:
            self._scores_BK = np.pad(self._scores_BK, ((0, 0), (0, missing)))

    def update(self, labels: Mapping[int, int]) -> None:
        """Changes the labels of some images: image → class, or -1 to remove its label."""
        changed = {int(k) for i in labels for k in (self.labels[i], labels[i]) if k >= 0}
        for image, label in labels.items():
            self.labels[image] = label
        columns = sorted(changed)
        for first in range(0, len(columns), _COLUMNS_AT_ONCE):
            part = columns[first : first + _COLUMNS_AT_ONCE]
            one_hot = (self.labels[:, None] == part).astype(float)
            # A class without labels must have scores of exactly 0.
            start = self._scores_BK[:, part] * one_hot.any(axis=0)
            self._scores_BK[:, part] = solve(self.graph, one_hot, ALPHA, _TOLERANCE, start)

    def compute_probabilities(self) -> np.ndarray:
        """Class probabilities of all images, float64 [B, K].

        Classes are assumed equally frequent. Labeled images keep their label. Images that no label
        reaches have uniform probabilities.
        """
        probabilities = _normalize(self._scores_BK, self._scores_BK.sum(axis=0))
        labeled = np.flatnonzero(self.labels >= 0)
        probabilities[labeled] = 0
        probabilities[labeled, self.labels[labeled]] = 1
        return probabilities

    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Predicts each labeled image from all other labels.

        By linearity, the response to label i is subtracted from its class's column. It does not
        depend on the other labels, so it is computed only once. Returns the labeled images, int
        [L], and their class probabilities, float64 [L, K].
        """
        labeled = np.flatnonzero(self.labels >= 0)
        unsolved = labeled[np.isnan(self._responses_2B[0, labeled])]
        for first in range(0, len(unsolved), _COLUMNS_AT_ONCE):
            part = unsolved[first : first + _COLUMNS_AT_ONCE]
            one_hot = (np.arange(len(self.labels))[:, None] == part).astype(float)
            responses = solve(self.graph, one_hot, ALPHA, _TOLERANCE)
            self._responses_2B[:, part] = responses[part, np.arange(len(part))], responses.sum(0)
        scores_LK = self._scores_BK[labeled]
        sums_LK = np.tile(self._scores_BK.sum(axis=0), (len(labeled), 1))
        rows = np.arange(len(labeled))
        given = rows, self.labels[labeled]
        scores_LK[given] -= self._responses_2B[0, labeled]
        sums_LK[given] -= self._responses_2B[1, labeled]
        is_only_one = np.bincount(self.labels[labeled], minlength=scores_LK.shape[1]) == 1
        scores_LK[rows, self.labels[labeled]] *= ~is_only_one[self.labels[labeled]]
        return labeled, _normalize(np.maximum(scores_LK, 0), sums_LK)


def _normalize(scores: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Probabilities as in `propagate_labels`: columns scaled by `sums`, sharpened rows of sum 1."""
    sums = np.broadcast_to(sums, scores.shape)
    scaled = np.divide(scores, sums, out=np.zeros_like(scores), where=sums > 0)
    sharpen(scaled)
    totals = scaled.sum(axis=1, keepdims=True)
    uniform = np.full_like(scaled, 1 / max(scores.shape[1], 1))
    return np.divide(scaled, totals, out=uniform, where=totals > 0)


def find_confident(
    probabilities_BK: np.ndarray, is_open_B: np.ndarray, label: int, num_images: int
) -> np.ndarray:
    """The open images whose most probable class is `label`, most confident first, int [M]."""
    rows = np.flatnonzero(is_open_B & (probabilities_BK.argmax(axis=1) == label))
    order = np.argsort(-probabilities_BK[rows, label], kind="stable")
    return rows[order[:num_images]]


def find_suspect_labels(
    probabilities_LK: np.ndarray, labels_L: np.ndarray, is_open_L: np.ndarray, num_images: int
) -> np.ndarray:
    """Labels that the others contradict, the likeliest mistakes first.

    `probabilities_LK` are those from `leave_one_out`, and `is_open_L`, bool, marks the labels to
    check. Returns rows of these, int [M], M at most `num_images`.
    """
    if not len(labels_L):
        return np.zeros(0, int)
    rows = np.arange(len(labels_L))
    margin = probabilities_LK.max(axis=1) - probabilities_LK[rows, labels_L]
    suspects = rows[is_open_L & (probabilities_LK.argmax(axis=1) != labels_L) & (margin > 0)]
    return suspects[np.argsort(-margin[suspects], kind="stable")][:num_images]
