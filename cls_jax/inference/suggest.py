"""Which images to label next: typical ones, from all over the set.

TypiClust (Hacohen et al., Active Learning on a Budget: Opposite Strategies Suit High and Low
Budgets, ICML 2022): as many clusters as there will be labels, and from each cluster without a
label, the largest first, its most typical image. With few labels this beats asking about the images
that a network is uncertain of, which are odd ones of a few classes.

Shape suffixes: B images, C features, L labeled images.
"""

from typing import NamedTuple

import numpy as np
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize

# The authors' values.
_MAX_CLUSTERS = 500
_NUM_NEIGHBORS = 20
_MIN_CLUSTER_SIZE = 5
# More clusters than this are found in samples of the images, as the authors do.
_MAX_FULL_CLUSTERS = 50

_NUM_COMPONENTS = 50


class Suggestions(NamedTuple):
    """Chosen images, the most helpful first.

    Attributes:
        indices: int64 [M].
        typicality: float64 [M], inverse mean distance to the nearest images of the same cluster.
    """

    indices: np.ndarray
    typicality: np.ndarray


def choose_typical(
    features_BC: np.ndarray, num_images: int, labeled_LC: np.ndarray | None = None
) -> Suggestions:
    """Chooses typical images of the largest clusters without a label.

    Args:
        features_BC: float32 [B, C], of the images to choose from.
        num_images: how many to choose; all if there are fewer.
        labeled_LC: float32 [L, C], of images that have a label already.

    Returns:
        The choice, of min(num_images, B) images; the same for the same features.
    """
    if not len(features_BC):
        return Suggestions(np.zeros(0, np.int64), np.zeros(0))
    labeled_LC = features_BC[:0] if labeled_LC is None else labeled_LC
    everything = np.concatenate([features_BC, labeled_LC])
    num_clusters = min(len(labeled_LC) + num_images, _MAX_CLUSTERS, len(everything))
    cluster = find_clusters(everything, num_clusters)
    num_labels = np.bincount(cluster[len(features_BC) :], minlength=num_clusters)
    cluster = cluster[: len(features_BC)]
    size = np.bincount(cluster, minlength=num_clusters)
    typicality, rank = np.zeros(len(cluster)), np.zeros(len(cluster), int)
    for k in np.flatnonzero(size):
        members = np.flatnonzero(cluster == k)
        typicality[members] = compute_typicality(features_BC[members])
        order = np.argsort(-typicality[members], kind="stable")
        rank[members[order]] = np.arange(len(members))
    # Outliers last, then by the labels that the cluster has by the time that it is this image's
    # turn, then by size; `lexsort` sorts by its last key first.
    is_small = size < _MIN_CLUSTER_SIZE
    order = np.lexsort((-size[cluster], num_labels[cluster] + rank, is_small[cluster]))
    chosen = order[:num_images]
    return Suggestions(chosen, typicality[chosen])


def find_clusters(features_BC: np.ndarray, num_clusters: int) -> np.ndarray:
    """K-means clusters, int [B]; the same for the same features."""
    if num_clusters <= _MAX_FULL_CLUSTERS:
        return KMeans(num_clusters, n_init=5, random_state=0).fit_predict(features_BC)
    return MiniBatchKMeans(num_clusters, batch_size=5000, n_init=3, random_state=0).fit_predict(
        features_BC
    )


def compute_typicality(features_BC: np.ndarray) -> np.ndarray:
    """Inverse mean distance of each image to its 20 nearest neighbors, float64 [B].

    To at most half of the others: a small cluster has no typical image if all count.
    """
    num_neighbors = min(_NUM_NEIGHBORS, len(features_BC) // 2)
    if num_neighbors == 0:
        return np.ones(len(features_BC))
    neighbors = NearestNeighbors(n_neighbors=num_neighbors).fit(features_BC)
    distances, _ = neighbors.kneighbors()  # Of each image, itself not among them.
    return 1 / np.maximum(distances.mean(axis=1), 1e-9)


def compute_pixel_features(images: np.ndarray) -> np.ndarray:
    """Features without any network: 50 principal components of the pixels, at unit length.

    Args:
        images: uint8 [B, H, W, C], at least two.

    Returns:
        float32 [B, at most 50].
    """
    pixels = images.reshape(len(images), -1).astype(np.float32) / 255
    num_components = min(_NUM_COMPONENTS, *pixels.shape)
    components = PCA(num_components, random_state=0).fit_transform(pixels)
    return normalize(components).astype(np.float32)
