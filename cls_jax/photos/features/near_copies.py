"""Groups of near-copies: the same photo compressed, resized, cropped, or taken again right after.

A label predicts that of a near-copy, whatever the classifier has learned. So near-copies are held
out together wherever an accuracy is estimated, as exact copies are.

Two tests compare the mean and deviation of all stages, which see texture and layout, between each
image and its nearest neighbors. Whitened, near-copies stand out in folders of many different
photos. Where a folder has only some dozens of bursts, whitening enlarges what differs within them,
and the standardized features decide. Groups are connected: an image is in the group of each of its
near-copies. Two things speak against a near-copy: another label, and a group that would have most
of a class, whose photos rather look alike than show the same.

Shape suffixes: B images, C features, L labeled images.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from cls_jax.photos.features.neighbors import Neighbors

# Cosines from which two images are near-copies. Chosen on clothing, textures, scans and digits, and
# then checked once on trash and CIFAR-10 (experiments/results/near_copies.md).
_WHITENED_COSINE = 0.775
_STANDARDIZED_COSINE = 0.84
# A group with a larger share of a class's labels, and at least so many, is divided where its photos
# are no near-copies on average, unless it is so large that the pairs would fill the memory.
_LARGE_SHARE, _MIN_LARGE = 0.5, 5
_MAX_DIVIDED = 5_000
# With fewer features of stages, different images are as similar by chance.
MIN_FEATURES = 100
_ROWS_AT_ONCE = 1000


class Pairs(NamedTuple):
    """Pairs of near-copies."""

    rows: np.ndarray  # int [P].
    others: np.ndarray  # int [P].
    closeness: np.ndarray  # From 0 at a threshold to 1 for equal images, float32 [P].

    def take(self, rows: np.ndarray, num_images: int) -> "Pairs":
        """Those among some of the images, int [n], by their positions there."""
        places = np.full(num_images, -1)
        places[rows] = np.arange(len(rows))
        is_kept = (places[self.rows] >= 0) & (places[self.others] >= 0)
        first, second, closeness = (each[is_kept] for each in self)
        return Pairs(places[first], places[second], closeness)


NO_PAIRS = Pairs(np.zeros(0, int), np.zeros(0, int), np.zeros(0, np.float32))


def find_same(descriptors_BC: np.ndarray) -> np.ndarray:
    """The first image with the same features as each, int [B].

    Images that could not be read, with features of 0, are not the same.
    """
    if not descriptors_BC.size:
        return np.arange(len(descriptors_BC))
    rows = np.ascontiguousarray(descriptors_BC).view(f"V{descriptors_BC[0].nbytes}")[:, 0]
    _, firsts, places = np.unique(rows, return_index=True, return_inverse=True)
    return np.where(descriptors_BC.any(axis=1), firsts[places], np.arange(len(rows)))


def find_pairs(unit_BC: np.ndarray, similar: Neighbors, is_read_B: np.ndarray) -> Pairs:
    """Near-copies among the nearest neighbors by whitened stages.

    `unit_BC` are standardized features of stages, float32 [B, C] of unit length. Images that could
    not be read, where `is_read_B` is false, have none.
    """
    close = measure_closeness(unit_BC, unit_BC, similar)
    is_copy = (close >= 0) & is_read_B[:, None] & is_read_B[similar.indices]
    rows, places = np.nonzero(is_copy)
    return Pairs(rows, similar.indices[rows, places], close[rows, places])


def measure_closeness(unit: np.ndarray, unit_BC: np.ndarray, similar: Neighbors) -> np.ndarray:
    """How close n images are to the nearest of B others, float32 [n, k].

    From 0 for near-copies to 1 for equal images, and less for others. `unit` [n, C] and `unit_BC`
    are standardized features of stages.
    """
    near = _compare(unit, unit_BC, similar.indices)
    return np.asarray(
        np.maximum(
            (near - _STANDARDIZED_COSINE) / (1 - _STANDARDIZED_COSINE),
            (similar.cosines - _WHITENED_COSINE) / (1 - _WHITENED_COSINE),
        )
    )


def join_pairs(
    pairs: Pairs,
    same_B: np.ndarray,
    labels_B: np.ndarray,
    take_features: Callable[[np.ndarray], np.ndarray] | None = None,
) -> np.ndarray:
    """Groups of near-copies, int [B] from 0 in the order of their first images.

    Images with different `labels_B`, int [B], -1 where unknown, are in different groups. The
    closest pairs are joined first (single linkage with constraints: Davidson and Ravi, "Clustering
    with Constraints", SDM 2005). A group with most of a class's labels is divided by average
    linkage, which a burst passes and a chain of similar images does not: such a chain would make
    the class impossible to judge.

    Args:
        pairs: By `find_pairs`.
        same_B: By `find_same`.
        labels_B: int.
        take_features: Standardized features of the images at some rows. None to divide no group.
    """
    copies = np.flatnonzero(same_B != np.arange(len(same_B)))
    joined = Pairs(
        rows=np.append(same_B[copies], pairs.rows),
        others=np.append(copies, pairs.others),
        closeness=np.append(np.ones(len(copies), np.float32), pairs.closeness),
    )
    groups = _join(joined, labels_B)
    for group in find_dominating(groups, labels_B):
        members = np.flatnonzero(groups == group)
        if take_features and len(members) <= _MAX_DIVIDED:  # Parts are numbered from 1.
            groups[members] = groups.max() + _divide(take_features(members), members, joined)
    return np.unique(groups, return_inverse=True)[1].reshape(-1)


def _divide(unit: np.ndarray, members: np.ndarray, pairs: Pairs) -> np.ndarray:
    """Parts of a group of n members, int [n] from 1, by average linkage of standardized cosines.

    `unit` are their standardized features, float32 [n, C]. `pairs` count as near-copies whatever
    these cosines are.
    """
    from scipy.cluster import hierarchy  # Takes some tenths of a second.
    from scipy.spatial import distance

    distances = 1 - np.clip(unit @ unit.T, -1, 1)
    is_inside = np.isin(pairs.rows, members) & np.isin(pairs.others, members)
    rows, others = (
        np.searchsorted(members, column[is_inside]) for column in (pairs.rows, pairs.others)
    )
    most = 1 - _STANDARDIZED_COSINE
    for one, two in ((rows, others), (others, rows)):
        distances[one, two] = np.minimum(distances[one, two], most)
    np.fill_diagonal(distances, 0)
    tree = hierarchy.average(distance.squareform(distances, checks=False))
    return np.asarray(hierarchy.fcluster(tree, most, "distance"))


def find_dominating(groups_B: np.ndarray, labels_B: np.ndarray) -> list[int]:
    """The groups with more than half of the labels of a class, and at least 5.

    Groups and labels are int [B]. Labels of -1 are unknown.
    """
    is_labeled = labels_B >= 0
    pairs, sizes = np.unique(
        np.stack([groups_B[is_labeled], labels_B[is_labeled]]), axis=1, return_counts=True
    )
    totals = np.bincount(labels_B[is_labeled], minlength=1)
    is_large = (sizes > _LARGE_SHARE * totals[pairs[1]]) & (sizes >= _MIN_LARGE)
    return list(np.unique(pairs[0, is_large]).tolist())


def _join(pairs: Pairs, labels_B: np.ndarray) -> np.ndarray:
    """Connected images, int [B] from 0 in the order of their first images, without conflicts."""
    roots, classes = list(range(len(labels_B))), labels_B.tolist()

    def find(image: int) -> int:
        while roots[image] != image:
            roots[image] = roots[roots[image]]
            image = roots[image]
        return image

    # The closest first, and equally close ones by position.
    order = np.lexsort((pairs.others, pairs.rows, -pairs.closeness))
    for row, other in zip(pairs.rows[order].tolist(), pairs.others[order].tolist(), strict=True):
        one, two = sorted((find(row), find(other)))
        if one == two or -1 < classes[one] != classes[two] > -1:
            continue
        roots[two] = one
        classes[one] = max(classes[one], classes[two])
    firsts = [find(image) for image in range(len(roots))]
    return np.unique(firsts, return_inverse=True)[1].reshape(-1)


def _compare(unit: np.ndarray, unit_BC: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Cosines float32 [n, k] with the images at `indices`, int [n, k]. Rows have unit length."""
    cosines = np.empty(indices.shape, np.float32)
    for first in range(0, len(indices), _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        for place, others in enumerate(indices[rows].T):
            cosines[rows, place] = np.einsum("bc,bc->b", unit[rows], unit_BC[others])
    return cosines
