"""Which photographs to show next, which proposals to check, and which labels to doubt.

Shape suffixes: B images, K classes, L labeled images.
"""

import numpy as np
from scipy import sparse

from cls_jax.features.graph import ALPHA

# A label reaches its neighbors and theirs.
_NUM_STEPS = 2


class Coverage:
    """Chooses photographs that represent as many others as possible.

    An image is covered as well as the best answered photograph reaches it. The next photograph is
    the one that increases the sum of this coverage most. This is facility location, whose greedy
    solution is within 1 - 1/e of the optimum (Nemhauser et al., 1978). The first choices lie in the
    middle of large groups, the next ones in groups without an answer, and later ones in large
    groups far from any answer.
    """

    def __init__(self, graph: sparse.csr_matrix):
        """Computes which images each image reaches.

        Args:
            graph: S from `build_graph`, [B, B].
        """
        step = sparse.identity(graph.shape[0], np.float32, format="csr")
        self._reach_BB = step
        for _ in range(_NUM_STEPS):
            step = (ALPHA * step @ graph).tocsr()
            self._reach_BB = (self._reach_BB + step).tocsr().astype(np.float32)

    def choose(self, is_open_B: np.ndarray, num_images: int) -> np.ndarray:
        """Chooses images without an answer, the most helpful first.

        Args:
            is_open_B: bool [B], whether an image has no answer yet.
            num_images: The number to choose. Fewer, if there are not as many.

        Returns:
            int [M].
        """
        reach_BB, is_open_B = self._reach_BB, is_open_B.copy()
        covered_B = np.zeros(len(is_open_B), np.float32)
        answered = reach_BB[~is_open_B]
        np.maximum.at(covered_B, answered.indices, answered.data)
        chosen: list[int] = []
        for _ in range(min(num_images, int(is_open_B.sum()))):
            gains = np.maximum(reach_BB.data - covered_B[reach_BB.indices], 0)
            gain_B = np.add.reduceat(gains, reach_BB.indptr[:-1])
            best = int(np.where(is_open_B, gain_B, -1).argmax())
            is_open_B[best] = False
            row = reach_BB[[best]]
            covered_B[row.indices] = np.maximum(covered_B[row.indices], row.data)
            chosen.append(best)
        return np.array(chosen, int)


def find_confident(
    probabilities_BK: np.ndarray, is_open_B: np.ndarray, label: int, num_images: int
) -> np.ndarray:
    """The open images whose most probable class is `label`, the most certain first; int [M]."""
    rows = np.flatnonzero(is_open_B & (probabilities_BK.argmax(axis=1) == label))
    order = np.argsort(-probabilities_BK[rows, label], kind="stable")
    return rows[order[:num_images]]


def find_doubtful(
    probabilities_LK: np.ndarray, labels_L: np.ndarray, is_open_L: np.ndarray, num_images: int
) -> np.ndarray:
    """Labels that the others contradict, the likeliest mistakes first.

    Args:
        probabilities_LK: The probabilities of each labeled image given all other labels.
        labels_L: Its own label.
        is_open_L: bool, whether it may be doubted.
        num_images: The largest number to return.

    Returns:
        int [M], rows of `probabilities_LK`.
    """
    if not len(labels_L):
        return np.zeros(0, int)
    rows = np.arange(len(labels_L))
    margin = probabilities_LK.max(axis=1) - probabilities_LK[rows, labels_L]
    doubtful = rows[is_open_L & (probabilities_LK.argmax(axis=1) != labels_L) & (margin > 0)]
    return doubtful[np.argsort(-margin[doubtful], kind="stable")][:num_images]
