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

import hashlib
from typing import NamedTuple

import numpy as np

from cls_jax.photos.features.heads import standardize
from cls_jax.photos.features.neighbors import Neighbors, find_neighbors, normalize_rows, whiten
from cls_jax.photos.features.network import FrozenFeatures

# Cosines from which two images are near-copies. Chosen on clothing, textures, scans and digits, and
# then checked once on trash and CIFAR-10 (experiments/results/near_copies.md).
_WHITENED_COSINE = 0.775
_STANDARDIZED_COSINE = 0.84
_NUM_NEIGHBORS = 20
# A group with a larger share of a class's labels, and at least so many, is divided where its photos
# are no near-copies on average, unless it is so large that the pairs would fill the memory.
_LARGE_SHARE, _MIN_LARGE = 0.5, 5
_MAX_DIVIDED = 5_000
# With fewer features of stages, different images are as similar by chance.
_MIN_FEATURES = 100
_ROWS_AT_ONCE = 1000


class _Pairs(NamedTuple):
    """Pairs of near-copies."""

    rows: np.ndarray  # int [P].
    others: np.ndarray  # int [P].
    closeness: np.ndarray  # From 0 at a threshold to 1 for equal images, float32 [P].


def group_near_copies(
    features: FrozenFeatures,
    similar: Neighbors | None = None,
    labels_B: np.ndarray | None = None,
) -> np.ndarray:
    """The group of each image, int [B] from 0. Most images are alone in theirs.

    Without at least 100 features of stages, only images with the same features are grouped.
    An image that could not be read, with features of 0, is alone. `similar` are the nearest
    neighbors by whitened stages, if known.

    Images with different `labels_B`, int [B], -1 where unknown, are in different groups. The
    closest pairs are joined first (single linkage with constraints: Davidson and Ravi, "Clustering
    with Constraints", SDM 2005). A group with most of a class's labels is divided by average
    linkage, which a burst passes and a chain of similar images does not: such a chain would make
    the class impossible to judge.
    """
    num_images = len(features.stages)
    if not num_images:
        return np.zeros(0, int)
    labels = np.full(num_images, -1) if labels_B is None else np.asarray(labels_B)
    pairs = _find_pairs(features, similar)
    groups = _join(pairs, labels)
    dominating = find_dominating(groups, labels)
    if not dominating or features.stages.shape[1] < _MIN_FEATURES:
        return groups
    unit = _normalize(features)
    for group in dominating:
        members = np.flatnonzero(groups == group)
        if len(members) <= _MAX_DIVIDED:
            groups[members] = groups.max() + _divide(unit, members, pairs)  # Parts from 1.
    return np.unique(groups, return_inverse=True)[1].reshape(-1)


def _normalize(features: FrozenFeatures) -> np.ndarray:
    """Standardized features of all stages, of unit length, float32 [B, C]."""
    return normalize_rows(standardize(features.stages.astype(np.float32))[0])


def _divide(unit_BC: np.ndarray, members: np.ndarray, pairs: _Pairs) -> np.ndarray:
    """Parts of a group of n members, int [n] from 1, by average linkage of standardized cosines.

    `pairs` count as near-copies whatever these cosines are.
    """
    from scipy.cluster import hierarchy  # Takes some tenths of a second.
    from scipy.spatial import distance

    unit = unit_BC[members]
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
    parts: np.ndarray = hierarchy.fcluster(tree, most, "distance")
    return parts


def find_dominating(groups_B: np.ndarray, labels_B: np.ndarray) -> dict[int, int]:
    """The groups with more than half of the labels of a class, and at least 5: group → class.

    Groups and labels are int [B]. Labels of -1 are unknown.
    """
    is_labeled = labels_B >= 0
    pairs, sizes = np.unique(
        np.stack([groups_B[is_labeled], labels_B[is_labeled]]), axis=1, return_counts=True
    )
    totals = np.bincount(labels_B[is_labeled], minlength=1)
    is_large = (sizes > _LARGE_SHARE * totals[pairs[1]]) & (sizes >= _MIN_LARGE)
    return {int(group): int(label) for group, label in pairs[:, is_large].T}


def _join(pairs: _Pairs, labels_B: np.ndarray) -> np.ndarray:
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


def _find_pairs(features: FrozenFeatures, similar: Neighbors | None) -> _Pairs:
    num_images = len(features.stages)
    first: dict[bytes, int] = {}
    pairs = [
        (first.setdefault(_hash(row), i) if row.any() else i, i)
        for i, row in enumerate(features.descriptors)
    ]
    rows, others = np.array(pairs, int).reshape(-1, 2).T
    closeness = np.ones(len(rows), np.float32)
    if features.stages.shape[1] >= _MIN_FEATURES and num_images > 1:
        stages = features.stages.astype(np.float32)
        if similar is None:
            similar = find_neighbors(whiten(stages), min(_NUM_NEIGHBORS, num_images - 1))
        near = _compare(_normalize(features), similar.indices)
        is_read = np.asarray(features.descriptors.any(axis=1))
        close = np.maximum(
            (near - _STANDARDIZED_COSINE) / (1 - _STANDARDIZED_COSINE),
            (similar.cosines - _WHITENED_COSINE) / (1 - _WHITENED_COSINE),
        )
        is_copy = (close >= 0) & is_read[:, None] & is_read[similar.indices]
        found, places = np.nonzero(is_copy)
        rows, others = np.append(rows, found), np.append(others, similar.indices[found, places])
        closeness = np.append(closeness, close[found, places])
    return _Pairs(rows, others, closeness)


def _hash(row: np.ndarray) -> bytes:
    return hashlib.blake2b(row.tobytes(), digest_size=16).digest()


def _compare(unit_BC: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Cosines float32 [B, k] with the images at `indices`, int [B, k]. Rows have unit length."""
    cosines = np.empty(indices.shape, np.float32)
    for first in range(0, len(indices), _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        for place, others in enumerate(indices[rows].T):
            cosines[rows, place] = np.einsum("bc,bc->b", unit_BC[rows], unit_BC[others])
    return cosines


def is_copied(groups_B: np.ndarray, labels_B: np.ndarray) -> bool:
    """Whether labels have near-copies among them more often than other images have.

    Such labels predict each other better than other images, as those of a burst that somebody
    labeled at once do. If as many of the other images have a labeled near-copy, it helps them as
    much. Groups are those of `group_near_copies`, int [B]. Labels are int [B], -1 where unknown.
    """
    is_labeled = labels_B >= 0
    counts_B = np.bincount(groups_B[is_labeled], minlength=int(groups_B.max(initial=0)) + 1)[
        groups_B
    ]
    among_labels, among_others = counts_B[is_labeled] > 1, counts_B[~is_labeled] > 0
    if not among_labels.any():
        return False
    return not len(among_others) or bool(among_labels.mean() > among_others.mean())


def find_judged(labels_L: np.ndarray, groups_L: np.ndarray) -> np.ndarray:
    """Which labels other labels can predict, bool [L]: the class has a label in another group.

    Labels are classes, int [L], and their groups are from `group_near_copies`, int [L].
    """
    pairs = np.unique(np.stack([labels_L, groups_L]), axis=1)
    return np.bincount(pairs[0], minlength=1)[labels_L] > 1


def find_firsts(groups_L: np.ndarray) -> np.ndarray:
    """Which images are the first of their groups, bool [L]. Only these count in an accuracy."""
    is_first = np.zeros(len(groups_L), bool)
    is_first[np.unique(groups_L, return_index=True)[1]] = True
    return is_first
