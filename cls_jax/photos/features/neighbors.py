"""The nearest neighbors of each image, by the cosine of their features.

Shape suffixes: B images, C features, R rows of a block.
"""

import importlib
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from cls_jax.bars import show_progress
from cls_jax.extras import is_installed, write_install
from cls_jax.parallel import compilation
from cls_jax.parallel.distributed import gather_rows, take_local
from cls_jax.photos.features.heads import standardize

# Inner products in memory at once, 256 MB in float32.
_BLOCK_ELEMENTS = 2**26
_MAX_BLOCK_ROWS = 1024
# From this many images on, an accelerator searches, if there is one. Before, compiling for it takes
# longer than the search on a CPU.
_MIN_ON_ACCELERATOR = 4096
_MIN_SHOWN = 20_000  # From this many images on, the search shows a progress bar.
# From this many images on, the search is approximate.
_MIN_APPROXIMATE = 100_000
_LINKS = 32  # Links per image in faiss's graph.
_CANDIDATES_KEPT = 64  # Kept while faiss follows the links. More of them find more neighbors.

# Principal components kept by `fit_whitening`, and the variance that it adds to each, in mean
# variances. From 3 to 30 times the mean, labels of photos are equally accurate.
_NUM_COMPONENTS = 256
_SHRINKAGE = 10


class Neighbors(NamedTuple):
    """The k nearest neighbors of each image, the nearest first."""

    indices: np.ndarray  # int32 [B, k].
    cosines: np.ndarray  # float32 [B, k].


def find_neighbors(features_BC: np.ndarray, num_neighbors: int) -> Neighbors:
    """Finds the k nearest neighbors of each image by cosine similarity, itself excluded.

    From 100,000 images on, the search is approximate: by `jax.lax.approx_max_k` on an accelerator,
    by faiss on a CPU. Without faiss, a CPU searches exactly and prints how long that takes. Each of
    several processes searches those of some images, and gets all. Features are floating [B, C],
    need not be normalized, and k is less than B. Raises a ValueError if a feature is not finite.
    """
    num_images = len(features_BC)
    if num_neighbors <= 0:
        nothing = np.zeros((num_images, 0))
        return Neighbors(nothing.astype(np.int32), nothing.astype(np.float32))
    normalized, local = normalize_rows(features_BC), take_local(num_images)
    is_cpu = jax.default_backend() == "cpu"
    if num_images < _MIN_ON_ACCELERATOR and not is_cpu:
        with compilation.on_cpu():
            found = _search_blocks(normalized, local, num_neighbors, is_cpu=True)
    elif num_images >= _MIN_APPROXIMATE and is_cpu and is_installed("scale"):
        found = _search_links(normalized, num_neighbors)
    else:
        found = _search_blocks(normalized, local, num_neighbors, is_cpu)
    indices, cosines = (gather_rows(each[local], num_images) for each in found)
    return Neighbors(indices, cosines)


def take_neighbors(
    neighbors: Neighbors, rows: np.ndarray, take_features: Callable[[], np.ndarray]
) -> Neighbors:
    """The neighbors of the images at `rows`, int [n], among each other, in this order.

    Given those of all images, only images that lose a neighbor are compared again, by the features
    floating [n, C] that `take_features` returns.
    """
    places = np.full(len(neighbors.indices), -1, np.int32)
    places[rows] = np.arange(len(rows))
    indices, cosines = places[neighbors.indices[rows]], neighbors.cosines[rows]
    num_neighbors = max(min(indices.shape[1], len(rows) - 1), 0)
    is_lost = indices < 0
    order = np.argsort(is_lost, axis=1, kind="stable")[:, :num_neighbors]
    indices, cosines = (np.take_along_axis(each, order, axis=1) for each in (indices, cosines))
    if len(short := np.flatnonzero((~is_lost).sum(axis=1) < num_neighbors)):
        unit = normalize_rows(take_features())
        indices[short], cosines[short] = search_rows(unit[short], unit, num_neighbors, short)
    return Neighbors(indices, cosines)


def extend_neighbors(neighbors: Neighbors, features_BC: np.ndarray) -> Neighbors:
    """The neighbors of all images, given those of the first ones among each other.

    Features are floating [B, C], of all images. Images have as many neighbors as before.
    """
    num_before, num_neighbors = neighbors.indices.shape
    unit = normalize_rows(features_BC)
    new = np.arange(num_before, len(unit), dtype=np.int32)
    indices = np.concatenate([neighbors.indices, np.tile(new, (num_before, 1))], axis=1)
    cosines = np.concatenate([neighbors.cosines, unit[:num_before] @ unit[new].T], axis=1)
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :num_neighbors]
    indices, cosines = (np.take_along_axis(each, order, axis=1) for each in (indices, cosines))
    found, similarities = search_rows(unit[new], unit, num_neighbors, new)
    return Neighbors(np.concatenate([indices, found]), np.concatenate([cosines, similarities]))


def search_rows(
    queries: np.ndarray, unit_BC: np.ndarray, num_neighbors: int, rows: np.ndarray | None = None
) -> Neighbors:
    """The nearest of B images to n others, exactly, given features of unit length.

    With `rows`, int [n], the others are the images at these rows, and none is its own neighbor.
    """
    parts = []
    for start in range(0, max(len(queries), 1), _MAX_BLOCK_ROWS):
        products = queries[start : start + _MAX_BLOCK_ROWS] @ unit_BC.T
        if rows is not None:
            products[np.arange(len(products)), rows[start : start + _MAX_BLOCK_ROWS]] = -np.inf
        nearest = np.argpartition(-products, num_neighbors - 1, axis=1)[:, :num_neighbors]
        cosines = np.take_along_axis(products, nearest, axis=1)
        order = np.lexsort((nearest, -cosines), axis=1)
        parts.append([np.take_along_axis(each, order, axis=1) for each in (nearest, cosines)])
    indices, cosines = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Neighbors(indices.astype(np.int32), cosines)


def _search_blocks(
    normalized: np.ndarray, local: slice, num_neighbors: int, is_cpu: bool
) -> Neighbors:
    """Compares rows float32 [B, C] with all, as many at once as fit into memory.

    Only the neighbors of images in `local` are found.
    """
    num_images = len(normalized)
    is_large = num_images >= _MIN_APPROXIMATE
    # Contiguous: inner products are twice as fast on a CPU.
    columns = jax.device_put(np.ascontiguousarray(normalized.T))
    rows_at_once = min(_MAX_BLOCK_ROWS, max(1, _BLOCK_ELEMENTS // num_images), num_images)
    indices = np.empty((num_images, num_neighbors), np.int32)
    cosines = np.empty((num_images, num_neighbors), np.float32)
    steps = range(local.start, local.stop, rows_at_once)
    is_quick = num_images < _MIN_SHOWN
    static = ("num_neighbors", "is_exact")
    search = compilation.jit(_search_block, runs=len(steps), static_argnames=static)
    blocks = show_progress(steps, "Neighbors", unit="block", disable=is_quick)
    for i, start in enumerate(blocks):
        # The last block overlaps the one before, so that all have one shape.
        first = min(start, num_images - rows_at_once)
        chosen = slice(first, first + rows_at_once)
        began = time.monotonic()
        cosines[chosen], indices[chosen] = search(
            normalized[chosen], first, columns, num_neighbors, not is_large or is_cpu
        )
        if i == 1 and is_large and is_cpu:  # The first block includes compilation.
            minutes = len(steps) * (time.monotonic() - began) / 60
            text = f"The neighbors of {num_images:,} images take about {minutes:,.0f} minutes"
            blocks.write(f"{text}: {write_install('scale')} for a faster search.", file=sys.stderr)
    return Neighbors(indices, cosines)


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


def _search_links(normalized_BC: np.ndarray, num_neighbors: int) -> Neighbors:
    """Follows links between similar images (HNSW: Malkov and Yashunin, TPAMI 2020)."""
    faiss = importlib.import_module("faiss")  # It ships no types.
    num_images, length = normalized_BC.shape
    index = faiss.IndexHNSWFlat(length, _LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efSearch = max(_CANDIDATES_KEPT, num_neighbors + 1)
    num_threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)  # More threads would link the images differently each time.
    index.add(normalized_BC)
    faiss.omp_set_num_threads(num_threads)
    cosines, indices = index.search(normalized_BC, num_neighbors + 1)
    is_itself = indices == np.arange(num_images)[:, None]
    is_itself[:, -1] |= ~is_itself.any(axis=1)  # May be missing among many copies.
    cosines, indices = (a[~is_itself].reshape(num_images, -1) for a in (cosines, indices))
    # If too few neighbors are found, arbitrary images with a cosine of 0 fill in.
    is_missing = indices < 0
    other = (np.arange(num_images)[:, None] + 1) % num_images
    indices = np.where(is_missing, other, indices).astype(np.int32)
    return Neighbors(indices, np.where(is_missing, 0, cosines))


class Whitening(NamedTuple):
    """A linear function of features: their largest principal components at equal variance."""

    mean: np.ndarray  # float32 [C].
    kernel: np.ndarray  # float32 [C, ≤ 256].

    def __call__(self, features_BC: np.ndarray) -> np.ndarray:
        """The components of images, float32 [B, ≤ 256]."""
        return (features_BC - self.mean) @ self.kernel


def fit_whitening(features_BC: np.ndarray) -> Whitening:
    """The 256 largest principal components at nearly equal variance, of features float32 [B, C].

    Statistics of stages are strongly correlated, so a few components decide which images are
    similar. Divided by their deviations, all take part (Jégou and Chum, "Negative Evidences and
    Co-occurrences in Image Retrieval", ECCV 2012). Ten times the mean variance is added to all
    variances first, since small ones are mostly noise.
    """
    scaled, mean, deviation = standardize(features_BC)
    num_images, size = scaled.shape
    added = max(_SHRINKAGE * np.square(scaled).sum() / (num_images * size), 1e-12)
    # With fewer images than features, their products have the same variances, and are a smaller
    # matrix. With no more than components, some variances would be 0 and their axes arbitrary.
    is_wide = _NUM_COMPONENTS < num_images < size
    products = (scaled @ scaled.T if is_wide else scaled.T @ scaled) / num_images
    largest = (max(len(products) - _NUM_COMPONENTS, 0), len(products) - 1)
    # Driver "evr" computes only these: of 2,848, three times faster than all.
    variances, axes = scipy.linalg.eigh(products, subset_by_index=largest, driver="evr")
    if is_wide:
        axes = scaled.T @ axes / np.sqrt(num_images * np.maximum(variances, 1e-12))
    axes = axes / np.sqrt(np.maximum(variances, 0) + added)
    return Whitening(mean, axes / deviation[:, None])


def normalize_rows(features_BC: np.ndarray) -> np.ndarray:
    """Divides each row of [B, C] by its Euclidean norm, in float32. Rows of zeros stay as they are.

    Raises a ValueError if a feature is not finite.
    """
    features_BC = np.asarray(features_BC, np.float32)
    norms = np.linalg.norm(features_BC, axis=1, keepdims=True)
    if not np.isfinite(norms).all():
        raise ValueError("Features must be finite.")
    return features_BC / np.maximum(norms, np.finfo(np.float32).tiny)
