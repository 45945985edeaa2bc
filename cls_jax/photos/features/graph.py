"""A graph of similar images, and label propagation along it.

Label propagation (Zhou et al., "Learning with Local and Global Consistency", NIPS 2003) on the
features of a deep network (Iscen et al., "Label Propagation for Deep Semi-supervised Learning",
CVPR 2019). A few labels reach all images that lie in the same region of the feature space.

`Propagation` updates the scores label by label. Each class is a column of F, so a new label changes
only one, for which the solver starts from the previous solution.

Shape suffixes: N networks, B images, C features, K classes, L labeled images, M members of a group.
"""

import concurrent.futures
from typing import NamedTuple

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from cls_jax.parallel.distributed import gather_rows, take_local
from cls_jax.parallel.machine import available_cpus
from cls_jax.photos.features.neighbors import Neighbors, find_neighbors

# Accuracy on 2,768 photos in ten unequal classes with 1, 5 and 10 labels per class (means of
# twelve draws): 58.4%, 70.6% and 75.6% with 10 neighbors and alpha 0.9, 59.8%, 71.3% and 75.9% with
# 20 neighbors, 62.0%, 72.9% and 77.5% with alpha 0.99 as well.
NUM_NEIGHBORS = 20
ALPHA = 0.99
_EXPONENT = 3  # Of the similarity, as in Iscen et al.
# Exponent from scores to probabilities, since scores at alpha 0.99 hardly differ between classes.
# With it, the mean confidence (73%, 75% and 76% with 1, 5 and 10 labels per class) is close to the
# accuracy above.
_SHARPNESS = 10

_MAX_ITERATIONS = 1000
_TOLERANCE = 1e-8
# Classes per thread, and threads: together they bound memory.
_CLASSES_AT_ONCE = 16
_MAX_THREADS = 4
# From here on, half the time is worth half the digits. 30,000 images of 600 overlapping clusters,
# three labels each: 10 CPU seconds, and 19 in float64. The most probable classes are the same, and
# probabilities differ by at most 7.4e-5.
_MANY_CLASSES = 100
_MANY_TOLERANCE = 1e-6  # Also of scores that are updated label by label.
_COLUMNS_AT_ONCE = 64
# A smaller share of a score, left after a subtraction, is an error of the solver.
_ROUNDING = 1e-5


def build_graph(features_BC: np.ndarray, num_neighbors: int = NUM_NEIGHBORS) -> sparse.csr_matrix:
    """Builds the normalized graph of nearest neighbors by cosine similarity.

    Image i has an edge of weight max(0, cosine)³ to each of its nearest neighbors, itself excluded.
    W is the mean of these weights and their transpose, D has the sums of its rows, and the graph is
    D^-½ W D^-½, float64 [B, B], symmetric, with zeros on the diagonal and eigenvalues in [-1, 1].
    Memory grows linearly with the number of images. Features are floating [B, C], need not be
    normalized, and rows of zeros have no neighbors. Raises a ValueError if one is not finite.
    """
    num_images = len(features_BC)
    return connect_neighbors(find_neighbors(features_BC, min(num_neighbors, num_images - 1)))


def connect_neighbors(neighbors: Neighbors) -> sparse.csr_matrix:
    """The graph that `build_graph` builds of B images, given their nearest neighbors."""
    num_images, num_neighbors = neighbors.indices.shape
    weights = np.maximum(neighbors.cosines, 0).astype(np.float64) ** _EXPONENT
    row_starts = np.arange(num_images + 1) * num_neighbors
    edges = (weights.ravel(), neighbors.indices.ravel(), row_starts)
    directed = sparse.csr_matrix(edges, shape=(num_images, num_images))
    graph = (directed + directed.T).tocsr() / 2
    graph.eliminate_zeros()
    degree = np.asarray(graph.sum(axis=1)).ravel()
    scale = np.divide(1, np.sqrt(degree), out=np.zeros_like(degree), where=degree > 0)
    graph.data *= scale[graph.indices] * np.repeat(scale, np.diff(graph.indptr))
    return graph


def join_features(features_NBC: np.ndarray) -> np.ndarray:
    """Features of N networks, each at unit length, side by side: float32 [B, N C]."""
    norms = np.linalg.norm(features_NBC, axis=-1, keepdims=True)
    return np.concatenate(list(features_NBC / np.maximum(norms, 1e-12)), axis=-1)


def propagate_labels(
    graph: sparse.csr_matrix, labels_B: np.ndarray, num_classes: int
) -> np.ndarray:
    """Spreads labels along a graph S: solves (I - alpha S) F = Y, with Y the one-hot labels.

    S [B, B] is from `build_graph`, labels are int [B] below K, -1 for images without one. The
    columns of F are scaled to equal sums, its entries raised to the tenth power, and its rows
    scaled to 1. Returns probabilities, float32 [B, K]. Labeled images keep their label with
    probability 1. An image that no label reaches has uniform probabilities, and a class without a
    label has probability 0 in the others. From 100 classes on, the system is solved in float32.
    """
    scores = np.zeros((len(labels_B), num_classes), np.float32)

    def spread(first: int) -> None:
        """Fills the columns of a few classes."""
        classes = np.arange(first, min(first + _CLASSES_AT_ONCE, local.stop))
        one_hot = (labels_B[:, None] == classes).astype(graph.dtype)
        scores[:, classes] = solve(graph, one_hot, tolerance=tolerance)

    local = take_local(num_classes)  # Each process spreads the labels of some classes.
    tolerance = _TOLERANCE
    if num_classes >= _MANY_CLASSES:
        graph, tolerance = graph.astype(np.float32), _MANY_TOLERANCE
    # With BLAS threads inside of these threads, each would wait for the others' cores.
    with (
        threadpool_limits(1, "blas"),
        concurrent.futures.ThreadPoolExecutor(min(_MAX_THREADS, available_cpus())) as executor,
    ):
        list(executor.map(spread, range(local.start, local.stop, _CLASSES_AT_ONCE)))
    scores = gather_rows(scores[:, local].T, num_classes).T
    sums = scores.sum(axis=0, dtype=np.float64)
    return _keep_labels(_normalize(scores, sums, out=scores), labels_B)


def _normalize(scores: np.ndarray, sums: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Probabilities of n images, floating [n, K], given `sums` by which columns are scaled.

    Each row is then divided by its largest entry, raised to the tenth power and scaled to 1.
    Division comes first, so that float32 does not underflow with a million images. Rows of zeros
    become uniform. They take the memory of `out`, which may be the scores, or of a new array.
    """
    sums = np.broadcast_to(sums, scores.shape)
    out = np.zeros_like(scores) if out is None else out
    p = np.divide(scores, sums, out=out, where=sums > 0)
    largest = p.max(axis=1, keepdims=True, initial=0)
    np.divide(p, largest, out=p, where=largest > 0)
    np.power(p, _SHARPNESS, out=p)
    p[largest[:, 0] <= 0] = 1
    p /= np.maximum(p.sum(axis=1, keepdims=True), 1)
    return p


def _keep_labels(probabilities_BK: np.ndarray, labels_B: np.ndarray) -> np.ndarray:
    """The same probabilities, in which labeled images have their class."""
    labeled = np.flatnonzero(labels_B >= 0)
    probabilities_BK[labeled] = 0
    probabilities_BK[labeled, labels_B[labeled]] = 1
    return probabilities_BK


def solve(
    graph: sparse.csr_matrix,
    source_BM: np.ndarray,
    alpha: float = ALPHA,
    tolerance: float = _TOLERANCE,
    start_BM: np.ndarray | None = None,
) -> np.ndarray:
    """Conjugate gradients on (I - alpha S) F = Y, for all columns at once.

    S [B, B] is from `build_graph`, Y, floating [B, M], is not negative, and alpha in [0, 1) is the
    share that an image takes from its neighbors. The condition number is at most (1 + alpha) / (1 -
    alpha), so the number of iterations (about 150 at alpha 0.99) does not grow with the number of
    images. The tolerance bounds the norm of Y - (I - alpha S) F per column, relative to the norm of
    Y. It begins from an earlier solution `start_BM`, None for 0. Returns F, [B, M]. Raises
    a ValueError if the tolerance is not reached.
    """
    solution = np.zeros_like(source_BM) if start_BM is None else start_BM.copy()
    residual = source_BM - solution + alpha * (graph @ solution)
    direction = residual.copy()
    squared = np.square(residual).sum(axis=0)
    target = tolerance**2 * np.square(source_BM).sum(axis=0)
    for _ in range(_MAX_ITERATIONS):
        if (squared <= target).all():
            # The exact solution has no negative entry.
            return np.maximum(solution, 0, out=solution)
        product = direction - alpha * (graph @ direction)
        curvature = (direction * product).sum(axis=0)
        is_active = squared > target
        step = np.divide(squared, curvature, out=np.zeros_like(squared), where=is_active)
        solution += step * direction
        residual -= step * product
        earlier, squared = squared, np.square(residual).sum(axis=0)
        ratio = np.divide(squared, earlier, out=np.zeros_like(squared), where=is_active)
        direction = residual + ratio * direction
    raise ValueError(f"Conjugate gradients did not reach the tolerance {tolerance:g}.")


def compute_weight(probabilities_BK: np.ndarray) -> np.ndarray:
    """The weight 1 - H(p) / log K in [0, 1], float32 [...], of probabilities [..., K].

    Eq. 6 of the CLS paper. With a single class, nothing is uncertain, and the weight is 1.
    """
    p = probabilities_BK
    if p.shape[-1] == 1:
        return np.ones(p.shape[:-1], np.float32)
    entropy = -np.sum(p * np.log(np.where(p > 0, p, 1.0)), axis=-1)
    weight = 1.0 - entropy / np.log(p.shape[-1])
    return np.clip(weight, 0.0, 1.0).astype(np.float32)  # Rounding may leave the interval.


class Response(NamedTuple):
    """What some labels of one class in a group of near-copies do to the scores of that class."""

    members: np.ndarray  # How much they raise the scores of the images of the group, float [M].
    total: float  # How much they raise the scores of all images together.


class Propagation:
    """The current labels and the scores that they give to all images of a graph."""

    def __init__(self, graph: sparse.csr_matrix, groups_B: np.ndarray | None = None):
        """Without labels. `groups_B` are held out together, None for none."""
        self._graph = graph
        num_images = graph.shape[0]
        self.groups = np.arange(num_images) if groups_B is None else groups_B  # int [B].
        self._members = _list_members(self.groups)
        self._scores_BK = np.zeros((num_images, 0))
        self.labels = np.full(num_images, -1)  # int [B], -1 for images without a label.
        # Scores are exactly 0 in parts of the graph without a label. A rounding error beside
        # nothing would become a probability of 1.
        self._num_parts, self._parts = sparse.csgraph.connected_components(graph, directed=False)
        self.responses: dict[tuple[int, ...], Response] = {}  # By the images with these labels.

    def update(self, labels_B: np.ndarray, num_classes: int) -> None:
        """Takes over the labels of all images, int [B], -1 for images without one.

        There may be more or fewer classes than before: `num_classes` of them.
        """
        before = self._scores_BK[:, :num_classes]
        self._scores_BK = np.pad(before, ((0, 0), (0, num_classes - before.shape[1])))
        is_changed = labels_B != self.labels
        changed = {*self.labels[is_changed].tolist(), *labels_B[is_changed].tolist()}
        self.labels = labels_B.copy()
        columns = sorted(changed.intersection(range(num_classes)))
        for first in range(0, len(columns), _COLUMNS_AT_ONCE):
            part = columns[first : first + _COLUMNS_AT_ONCE]
            one_hot = (self.labels[:, None] == part).astype(float)
            # Labels that were removed leave exactly 0 where no other label is.
            is_reached = np.zeros((self._num_parts, len(part)), bool)
            images, positions = np.nonzero(one_hot)
            is_reached[self._parts[images], positions] = True
            start = self._scores_BK[:, part] * is_reached[self._parts]
            self._scores_BK[:, part] = solve(self._graph, one_hot, ALPHA, _MANY_TOLERANCE, start)

    def compute_probabilities(self) -> np.ndarray:
        """Class probabilities of all images, float64 [B, K].

        Classes are assumed equally frequent. Labeled images keep their label. Images that no label
        reaches have uniform probabilities.
        """
        p_BK = _normalize(self._scores_BK, self._scores_BK.sum(axis=0))
        return _keep_labels(p_BK, self.labels)

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
        rows_of = _list_members(self.groups[labeled])
        for images in left_out:
            k, group = self.labels[images[0]], int(self.groups[images[0]])
            rows, response = rows_of[group], self.responses[images]
            before = scores_LK[rows, k]
            rest = before - response.members[np.searchsorted(self._members[group], labeled[rows])]
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
            solved = solve(self._graph, source, ALPHA, _MANY_TOLERANCE)
            for column, images in enumerate(part):
                members = solved[self._members[int(self.groups[images[0]])], column]
                self.responses[images] = Response(members, float(solved[:, column].sum()))


def _list_members(groups: np.ndarray) -> dict[int, np.ndarray]:
    """The positions of each group, int, sorted."""
    order = np.argsort(groups, kind="stable")
    numbers, starts = np.unique(groups[order], return_index=True)
    return dict(zip(numbers.tolist(), np.split(order, starts)[1:], strict=True))
