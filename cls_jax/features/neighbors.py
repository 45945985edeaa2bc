"""The nearest neighbors of each image, by the cosine of their features.

Shape suffixes: B images, C features, R rows of a block, M candidates, S samples.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse
from tqdm import tqdm

from cls_jax.features.sharded import find_neighbors_on_devices, has_many_devices

# Inner products in memory at once, 256 MB in float32. In clusters, twice as much for their order.
_BLOCK_ELEMENTS = 2**26
_MAX_BLOCK_ROWS = 1024
_MIN_SHOWN = 20_000  # Images whose search shows a progress bar: it takes seconds on a CPU.
# From here on, most of the nearest neighbors are found instead of all.
_MIN_APPROXIMATE = 100_000
# Images that a CPU then searches for each. Of 50,000 images, 20,000 candidates hold 97% of the
# neighbors, 5,000 hold 82%. A million images take 20 minutes on two cores.
_NUM_CANDIDATES = 50_000
_SAMPLES_PER_CLUSTER = 64
_CLUSTER_ITERATIONS = 10


def find_neighbors(features_BC: np.ndarray, num_neighbors: int) -> tuple[np.ndarray, np.ndarray]:
    """Finds the nearest neighbors of each image by cosine similarity.

    From 100,000 images on, most of them are found instead of all: by `jax.lax.approx_max_k` on
    accelerator, among the images of the nearest clusters on a CPU. Several devices find all.

    Args:
        features_BC: Floating [B, C], need not be normalized.
        num_neighbors: k, less than B, the image itself excluded.

    Returns:
        Indices int32 [B, k] and cosines float32 [B, k], the nearest first.

    Raises:
        ValueError: If a feature is not finite.
    """
    num_images = len(features_BC)
    if num_neighbors <= 0:
        return np.zeros((num_images, 0), np.int32), np.zeros((num_images, 0), np.float32)
    normalized = normalize_rows(features_BC)
    if has_many_devices():
        return find_neighbors_on_devices(normalized, num_neighbors)
    is_exact = num_images < _MIN_APPROXIMATE
    if not is_exact and jax.default_backend() == "cpu":
        return _find_in_clusters(normalized, num_neighbors)
    columns = jnp.asarray(normalized.T)  # Contiguous, for twice as fast inner products on a CPU.
    rows_at_once = min(_MAX_BLOCK_ROWS, max(1, _BLOCK_ELEMENTS // num_images), num_images)
    indices = np.empty((num_images, num_neighbors), np.int32)
    cosines = np.empty((num_images, num_neighbors), np.float32)
    steps = range(0, num_images, rows_at_once)
    is_quick = num_images < _MIN_SHOWN
    for start in tqdm(steps, "Neighbors", unit="block", dynamic_ncols=True, disable=is_quick):
        # The last block overlaps the one before, so that all have one shape.
        first = min(start, num_images - rows_at_once)
        chosen = slice(first, first + rows_at_once)
        cosines[chosen], indices[chosen] = _search_block(
            normalized[chosen], first, columns, num_neighbors, is_exact
        )
    return indices, cosines


@functools.partial(jax.jit, static_argnames=("num_neighbors", "is_exact"))
def _search_block(
    rows: jax.Array, first: int, columns: jax.Array, num_neighbors: int, is_exact: bool
) -> tuple[jax.Array, jax.Array]:
    """Largest inner products of rows [R, C], which begin at `first`, with columns [C, B]."""
    products = jnp.matmul(rows, columns, precision=jax.lax.Precision.HIGHEST)
    itself = first + jnp.arange(len(rows))
    products = products.at[jnp.arange(len(rows)), itself].set(-jnp.inf)
    if is_exact:
        return jax.lax.top_k(products, num_neighbors)
    return jax.lax.approx_max_k(products, num_neighbors)


def _find_in_clusters(
    normalized_BC: np.ndarray, num_neighbors: int
) -> tuple[np.ndarray, np.ndarray]:
    """Searches only the nearest clusters of images: an inverted file (Sivic and Zisserman, 2003).

    All images of a cluster have the same candidates, so their inner products are still a product of
    matrices, and the number of products grows linearly with the number of images.
    """
    num_images = len(normalized_BC)
    centers = _find_centers(normalized_BC)
    cluster_B = _find_nearest(normalized_BC, centers)
    sizes = np.bincount(cluster_B, minlength=len(centers))
    members = np.split(np.argsort(cluster_B), np.cumsum(sizes)[:-1])
    similarities = centers @ centers.T
    np.fill_diagonal(similarities, np.inf)  # Each cluster is its own nearest one.
    indices = np.empty((num_images, num_neighbors), np.int32)
    cosines = np.empty((num_images, num_neighbors), np.float32)
    clusters = tqdm(np.flatnonzero(sizes), "Neighbors", unit="cluster", dynamic_ncols=True)
    for cluster in clusters:
        nearest = np.argsort(-similarities[cluster])
        last = np.searchsorted(np.cumsum(sizes[nearest]), max(_NUM_CANDIDATES, num_neighbors + 1))
        candidates = np.concatenate([members[other] for other in nearest[: last + 1]])
        columns = normalized_BC[candidates].T
        rows_at_once = max(1, _BLOCK_ELEMENTS // len(candidates))
        for first in range(0, sizes[cluster], rows_at_once):
            rows = members[cluster][first : first + rows_at_once]
            products = normalized_BC[rows] @ columns
            # The images of the cluster itself are the first candidates.
            np.fill_diagonal(products[:, first:], -np.inf)
            cosines[rows], chosen = _take_largest(products, num_neighbors)
            indices[rows] = candidates[chosen]
    return indices, cosines


def _find_centers(normalized_BC: np.ndarray) -> np.ndarray:
    """Centers of √B clusters of a sample of B images, each at unit length: float32 [√B, C].

    Spherical k-means (Dhillon and Modha, 2001). scikit-learn's adds up the parts of its threads as
    they finish, so that the same images would not always have the same neighbors.
    """
    num_clusters = round(len(normalized_BC) ** 0.5)
    num_samples = min(len(normalized_BC), _SAMPLES_PER_CLUSTER * num_clusters)
    sample = np.random.default_rng(0).choice(len(normalized_BC), num_samples, replace=False)
    sample_SC = normalized_BC[sample]
    centers = sample_SC[:num_clusters]
    for _ in range(_CLUSTER_ITERATIONS):
        members = (_find_nearest(sample_SC, centers), np.arange(num_samples))
        is_member = sparse.csr_matrix(
            (np.ones(num_samples, np.float32), members), shape=(num_clusters, num_samples)
        )
        sums = is_member @ sample_SC
        # A center without images stays where it is.
        centers = np.where(sums.any(axis=1, keepdims=True), normalize_rows(sums), centers)
    return centers


def _find_nearest(normalized_BC: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Which of the centers [clusters, C] is the nearest to each image, int [B]."""
    blocks = np.array_split(normalized_BC, -(-len(normalized_BC) // _MAX_BLOCK_ROWS))
    return np.concatenate([(rows @ centers.T).argmax(axis=1) for rows in blocks])


def _take_largest(values_RM: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    """The largest values of each row, the largest first, and their columns: each [R, number]."""
    columns = np.argpartition(values_RM, -number, axis=1)[:, -number:]
    largest = np.take_along_axis(values_RM, columns, axis=1)
    order = np.argsort(-largest, axis=1)
    return np.take_along_axis(largest, order, axis=1), np.take_along_axis(columns, order, axis=1)


def normalize_rows(features_BC: np.ndarray) -> np.ndarray:
    """Divides each row of [B, C] by its Euclidean norm, in float32. Rows of zeros stay as they are.

    Raises:
        ValueError: If a feature is not finite.
    """
    features_BC = np.asarray(features_BC, np.float32)
    norms = np.linalg.norm(features_BC, axis=1, keepdims=True)
    if not np.isfinite(norms).all():
        raise ValueError("Features must be finite.")
    return features_BC / np.maximum(norms, np.finfo(np.float32).tiny)
