"""Label propagation that is updated label by label.

The scores solve F = Y + alpha S F, as in `graph`. Each class is a column of F, so a new label
changes only one, for which the solver starts from the previous solution.

Shape suffixes: B images, K classes, L labeled images, M members of a group.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from scipy import sparse

from cls_jax.photos.features.graph import ALPHA, sharpen, solve

_TOLERANCE = 1e-6
_COLUMNS_AT_ONCE = 64
# A smaller share of a score, left after a subtraction, is an error of the solver.
_ROUNDING = 1e-5


class Response(NamedTuple):
    """What some labels of one class in a group of near-copies do to the scores of that class."""

    members: np.ndarray  # How much they raise the scores of the images of the group, float [M].
    total: float  # How much they raise the scores of all images together.


class Propagation:
    """The current labels and the scores that they give to all images of a `graph`."""

    def __init__(self, graph: sparse.csr_matrix, groups_B: np.ndarray | None = None):
        """Without labels. `groups_B` are held out together, None for none."""
        self.graph = graph
        num_images = graph.shape[0]
        self.groups = np.arange(num_images) if groups_B is None else groups_B  # int [B].
        self._find_members = _sort_groups(self.groups)
        self._scores_BK = np.zeros((num_images, 0))
        self.labels = np.full(num_images, -1)  # int [B], -1 for images without a label.
        # Scores are exactly 0 in parts of the graph without a label. A rounding error beside
        # nothing would become a probability of 1.
        self._num_parts, self._parts = sparse.csgraph.connected_components(graph, directed=False)
        self.responses: dict[tuple[int, ...], Response] = {}  # By the images with these labels.

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
            # Labels that were removed leave exactly 0 where no other label is.
            is_reached = np.zeros((self._num_parts, len(part)), bool)
            images, positions = np.nonzero(one_hot)
            is_reached[self._parts[images], positions] = True
            start = self._scores_BK[:, part] * is_reached[self._parts]
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
        """Predicts each labeled image from all other labels but those of its near-copies.

        By linearity, the response to the labels that are left out is subtracted from the columns of
        their classes. It does not depend on the other labels, so it is computed only once. Returns
        the labeled images, int [L], and their class probabilities, float64 [L, K]. Images that no
        other label reaches have uniform probabilities.
        """
        labeled = np.flatnonzero(self.labels >= 0)
        left_out = self._list_left_out(labeled)
        self._solve_responses([key for key in left_out if key not in self.responses])
        scores_LK = self._scores_BK[labeled]
        sums_LK = np.tile(self._scores_BK.sum(axis=0), (len(labeled), 1))
        counts_LK = self._count_labels(labeled)
        find_rows, find_members = _sort_groups(self.groups[labeled]), self._find_members
        for images in left_out:
            k, group = self.labels[images[0]], self.groups[images[0]]
            rows, response = find_rows(group), self.responses[images]
            before = scores_LK[rows, k]
            rest = before - response.members[np.searchsorted(find_members(group), labeled[rows])]
            scores_LK[rows, k] = np.where(rest > _ROUNDING * before, rest, 0)
            sums_LK[rows, k] -= response.total
            parts = self._parts[labeled[rows]]
            counts_LK[rows, k] -= (self._parts[list(images)] == parts[:, None]).sum(axis=1)
        scores_LK[counts_LK == 0] = 0
        return labeled, _normalize(scores_LK, sums_LK)

    def _count_labels(self, labeled: np.ndarray) -> np.ndarray:
        """The labels of each class in the part of the graph of each labeled image, int [L, K]."""
        found, places = np.unique(self._parts[labeled], return_inverse=True)
        counts = np.zeros((len(found), self._scores_BK.shape[1]), int)
        np.add.at(counts, (places, self.labels[labeled]), 1)
        return counts[places]

    def _list_left_out(self, labeled: np.ndarray) -> list[tuple[int, ...]]:
        """The labeled images, int [L], of each group and class, sorted."""
        found: dict[tuple[int, int], list[int]] = {}
        for i in labeled.tolist():
            found.setdefault((int(self.groups[i]), int(self.labels[i])), []).append(i)
        return [tuple(images) for images in found.values()]

    def _solve_responses(self, unsolved: list[tuple[int, ...]]) -> None:
        """Computes the responses to the labels of some images, each of one group."""
        for first in range(0, len(unsolved), _COLUMNS_AT_ONCE):
            part = unsolved[first : first + _COLUMNS_AT_ONCE]
            source = np.zeros((len(self.labels), len(part)))
            for column, images in enumerate(part):
                source[list(images), column] = 1
            solved = solve(self.graph, source, ALPHA, _TOLERANCE)
            for column, images in enumerate(part):
                members = solved[self._find_members(self.groups[images[0]]), column]
                self.responses[images] = Response(members, float(solved[:, column].sum()))


def _sort_groups(groups: np.ndarray) -> Callable[[int], np.ndarray]:
    """A function that returns the positions of a group, int, sorted."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]

    def find(group: int) -> np.ndarray:
        first, end = np.searchsorted(ordered, [group, group + 1])
        return order[first:end]

    return find


def _normalize(scores: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Probabilities as in `propagate_labels`: columns scaled by `sums`, sharpened rows of sum 1."""
    sums = np.broadcast_to(sums, scores.shape)
    scaled = np.divide(scores, sums, out=np.zeros_like(scores), where=sums > 0)
    sharpen(scaled)
    totals = scaled.sum(axis=1, keepdims=True)
    uniform = np.full_like(scaled, 1 / max(scores.shape[1], 1))
    return np.divide(scaled, totals, out=uniform, where=totals > 0)
