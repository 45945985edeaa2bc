"""Which images to label next: those that represent most of the others.

Shape suffixes: B images.
"""

import numpy as np
from scipy import sparse

from cls_jax.photos.features.graph import ALPHA

# A label reaches its neighbors and theirs.
_NUM_STEPS = 2


class Coverage:
    """Chooses images that represent as many others as possible.

    The coverage of an image is how well its best labeled image reaches it. The next image chosen
    increases the sum of the coverage most. This is facility location, whose greedy solution is
    within 1 - 1/e of the optimum (Nemhauser et al., 1978). The first choices lie in the middle of
    large groups, the next ones in groups without a label, and later ones in large groups far from
    any label. With few labels, such images help more than those that a classifier is uncertain
    about, which are outliers of a few classes.
    """

    def __init__(self, graph: sparse.csr_matrix):
        """Computes which images each image reaches in a graph from `build_graph`, [B, B]."""
        step = sparse.identity(graph.shape[0], np.float32, format="csr")
        self._reach_BB = step
        for _ in range(_NUM_STEPS):
            step = (ALPHA * step @ graph).tocsr()
            self._reach_BB = (self._reach_BB + step).tocsr().astype(np.float32)

    def choose(
        self,
        is_open_B: np.ndarray,
        num_images: int,
        shares_B: np.ndarray | None = None,
        sources_B: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Chooses among the images without a label (`is_open_B`, bool [B]), the most helpful first.

        In the sum, each image counts `shares_B` times, float [B], by default once. Returns at most
        `num_images` images, int [M], and by how much each increases the sum of the coverage, in
        which an image covers itself by 1, float [M].

        With `sources_B`, what images come from, int [B], -1 where unknown, each choice is from a
        source that has the fewest images with a label or chosen before. All unknown ones count as
        one source.
        """
        groups_B = np.zeros(len(is_open_B), int)
        if sources_B is not None:
            groups_B = np.unique(sources_B, return_inverse=True)[1]
        taken_S = np.bincount(groups_B[~is_open_B], minlength=len(is_open_B))
        shares_B = np.ones(len(is_open_B)) if shares_B is None else shares_B
        shares_B = shares_B.astype(np.float32)
        covered_B = np.zeros(len(is_open_B), np.float32)
        answered = self._reach_BB[~is_open_B]
        np.maximum.at(covered_B, answered.indices, answered.data)
        gains = np.maximum(self._reach_BB.data - covered_B[self._reach_BB.indices], 0)
        gains *= shares_B[self._reach_BB.indices]
        gain_B = np.add.reduceat(gains, self._reach_BB.indptr[:-1])
        gain_B[~is_open_B] = -1
        chosen: list[int] = []
        increases: list[float] = []
        while len(chosen) < min(num_images, int(is_open_B.sum())):
            # Gains only shrink as others are chosen, so one that is still the largest after an
            # update is the largest of all (Minoux, 1978).
            eligible_B = gain_B
            if sources_B is not None:  # Those that are open have a gain of at least 0.
                taken_B = taken_S[groups_B]
                eligible_B = np.where(taken_B == taken_B[gain_B >= 0].min(), gain_B, -1)
            best = int(eligible_B.argmax())
            # Not `self._reach_BB[best]`, which takes as long as everything else.
            start, end = self._reach_BB.indptr[best : best + 2]
            reached = self._reach_BB.indices[start:end]
            reach = self._reach_BB.data[start:end]
            gain = (np.maximum(reach - covered_B[reached], 0) * shares_B[reached]).sum()
            if gain < gain_B[best]:
                gain_B[best] = gain
                continue
            chosen.append(best)
            taken_S[groups_B[best]] += 1
            increases.append(float(gain))
            gain_B[best] = -1
            covered_B[reached] = np.maximum(covered_B[reached], reach)
        return np.array(chosen, int), np.array(increases, float)
