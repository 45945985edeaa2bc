"""Groups of near-copies: the same photo compressed, resized, cropped, or taken again right after.

A label predicts that of a near-copy, whatever the classifier has learned. So near-copies are held
out together wherever an accuracy is estimated, as exact copies are.

Two tests compare the mean and deviation of all stages, which see texture and layout, between each
image and its nearest neighbors. Whitened, near-copies stand out in folders of many different
photos. Where a folder has only some dozens of bursts, whitening enlarges what differs within them,
and the standardized features decide. Groups are connected: an image is in the group of each of its
near-copies.

Shape suffixes: B images, C features, L labeled images.
"""

import hashlib

import numpy as np
from scipy import sparse

from cls_jax.photos.features.heads import standardize
from cls_jax.photos.features.neighbors import Neighbors, find_neighbors, normalize_rows, whiten
from cls_jax.photos.features.network import FrozenFeatures

# Cosines from which two images are near-copies. Chosen on clothing, textures, scans and digits, and
# then checked once on trash and CIFAR-10 (experiments/results/near_copies.md).
_WHITENED_COSINE = 0.775
_STANDARDIZED_COSINE = 0.84
_NUM_NEIGHBORS = 20
# With fewer features of stages, different images are as similar by chance.
_MIN_FEATURES = 100
_ROWS_AT_ONCE = 1000


def group_near_copies(features: FrozenFeatures, similar: Neighbors | None = None) -> np.ndarray:
    """The group of each image, int [B] from 0. Most images are alone in theirs.

    Without at least 100 features of stages, only images with the same features are grouped.
    An image that could not be read, with features of 0, is alone. `similar` are the nearest
    neighbors by whitened stages, if known.
    """
    num_images = len(features.stages)
    if not num_images:
        return np.zeros(0, int)
    first: dict[bytes, int] = {}
    pairs = [
        (first.setdefault(_hash(row), i) if row.any() else i, i)
        for i, row in enumerate(features.descriptors)
    ]
    rows, others = np.array(pairs, int).reshape(-1, 2).T
    if features.stages.shape[1] >= _MIN_FEATURES and num_images > 1:
        stages = features.stages.astype(np.float32)
        if similar is None:
            similar = find_neighbors(whiten(stages), min(_NUM_NEIGHBORS, num_images - 1))
        near = _compare(normalize_rows(standardize(stages)[0]), similar.indices)
        is_read = np.asarray(features.descriptors.any(axis=1))
        is_copy = (near >= _STANDARDIZED_COSINE) | (similar.cosines >= _WHITENED_COSINE)
        is_copy &= is_read[:, None] & is_read[similar.indices]
        found, places = np.nonzero(is_copy)
        rows, others = np.append(rows, found), np.append(others, similar.indices[found, places])
    shape = num_images, num_images
    pairs_BB = sparse.coo_matrix((np.ones(len(rows)), (rows, others)), shape=shape)
    return sparse.csgraph.connected_components(pairs_BB, directed=False)[1].astype(int)


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
