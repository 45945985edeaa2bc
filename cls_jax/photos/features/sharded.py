"""Neighbors and label propagation on all devices of all processes.

On one device, `neighbors` and `graph` compute the same.

Shape suffixes: B images, C features, K classes, M neighbors. Each device has R of the images.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from scipy import sparse

from cls_jax.parallel import compilation

_AXIS = "device"
_BLOCK_ELEMENTS = 2**26  # Inner products in memory at once.
_EDGES_AT_ONCE = 2**18
_MAX_ITERATIONS = 1000


def has_many_devices() -> bool:
    """Whether there are several accelerators or several processes."""
    return jax.process_count() > 1 or (jax.default_backend() != "cpu" and jax.device_count() > 1)


def _create_mesh() -> Mesh:
    return jax.make_mesh((jax.device_count(),), (_AXIS,), axis_types=(AxisType.Auto,))


def find_neighbors_on_devices(
    normalized_BC: np.ndarray, num_neighbors: int
) -> tuple[np.ndarray, np.ndarray]:
    """The nearest neighbors of each image, exactly: images travel around the ring of the devices.

    Every device holds an equal part of the images and compares it with each passing part, so no
    device holds all features. Of equal cosines, the first image comes first. All processes must
    call this and get the whole result.

    Args:
        normalized_BC: float32 [B, C] of Euclidean norm 1, from which each process reads only the
            rows of its own devices.
        num_neighbors: M, less than B, the image itself excluded.

    Returns:
        Indices int32 [B, M] and cosines float32 [B, M], the nearest first.
    """
    mesh = _create_mesh()
    num_images, num_features = normalized_BC.shape
    rows = -(-num_images // mesh.size)
    shape = (rows * mesh.size, num_features)

    def read(index: Any) -> np.ndarray:
        part = np.zeros((rows, num_features), np.float32)
        found = normalized_BC[index[0]]
        part[: len(found)] = found
        return part

    features = jax.make_array_from_callback(shape, NamedSharding(mesh, P(_AXIS)), read)
    search = jax.shard_map(
        functools.partial(
            _search_ring,
            num_images=num_images,
            num_neighbors=min(num_neighbors, rows),
            wanted=num_neighbors,
        ),
        mesh=mesh,
        in_specs=P(_AXIS),
        out_specs=P(_AXIS),
        check_vma=False,
    )
    found = compilation.jit(search, runs=1)(features)
    indices, cosines = (_fetch(array)[:num_images] for array in found)
    return indices, cosines


def _search_ring(
    local_RC: jax.Array, num_images: int, num_neighbors: int, wanted: int
) -> tuple[jax.Array, jax.Array]:
    """Indices [R, M] and cosines [R, M] for the rows of this device."""
    num_rows, _ = local_RC.shape
    num_devices = jax.lax.axis_size(_AXIS)
    here = jax.lax.axis_index(_AXIS)
    at_once = max(1, min(num_rows, _BLOCK_ELEMENTS // num_rows))
    num_blocks = -(-num_rows // at_once)
    to_next = [(i, (i + 1) % num_devices) for i in range(num_devices)]

    def compare(block: jax.Array, passing_RC: jax.Array, source: jax.Array) -> tuple:
        """The best of the passing images for a block of own rows."""
        # The last block overlaps the one before, so that all have one shape.
        first = jnp.minimum(block * at_once, num_rows - at_once)
        rows = jax.lax.dynamic_slice_in_dim(local_RC, first, at_once)
        cosines = jnp.matmul(rows, passing_RC.T, precision=jax.lax.Precision.HIGHEST)
        others = source * num_rows + jnp.arange(num_rows)
        itself = here * num_rows + first + jnp.arange(at_once)
        is_excluded = (others >= num_images) | (others == itself[:, None])
        values, places = jax.lax.top_k(jnp.where(is_excluded, -jnp.inf, cosines), num_neighbors)
        return values, others[places]

    def visit(step: int, carried: tuple) -> tuple:
        """Compares with the passing images, and sends them on."""
        passing_RC, best, indices = carried
        source = (here - step) % num_devices

        def merge(block: int, found: tuple) -> tuple:
            """The best found so far, with those of the passing images for a block of own rows."""
            first = jnp.minimum(block * at_once, num_rows - at_once)
            values, others = compare(jnp.asarray(block), passing_RC, source)
            old = [jax.lax.dynamic_slice_in_dim(array, first, at_once) for array in found]
            # Rows in two blocks are compared twice: no image may count twice.
            is_new = ~(others[:, :, None] == old[1][:, None]).any(axis=-1)
            values = jnp.where(is_new, values, -jnp.inf)
            keys = (-jnp.concatenate([old[0], values], 1), jnp.concatenate([old[1], others], 1))
            ordered = [array[:, :wanted] for array in jax.lax.sort(keys, num_keys=2)]
            updates = (-ordered[0], ordered[1])
            return tuple(
                jax.lax.dynamic_update_slice_in_dim(array, update, first, 0)
                for array, update in zip(found, updates, strict=True)
            )

        best, indices = jax.lax.fori_loop(0, num_blocks, merge, (best, indices))
        return jax.lax.ppermute(passing_RC, _AXIS, to_next), best, indices

    start = jnp.full((num_rows, wanted), -jnp.inf), jnp.full((num_rows, wanted), -1)
    _, best, indices = jax.lax.fori_loop(0, num_devices, visit, (local_RC, *start))
    return indices, best


def spread_on_devices(
    graph: sparse.csr_matrix, labels_B: np.ndarray, num_classes: int, alpha: float, tolerance: float
) -> np.ndarray:
    """Solves (I - alpha S) F = Y as `graph.solve` does, with the classes divided among the devices.

    Every device has the whole graph, and devices do not communicate. All processes must call this
    and get the whole result.

    Args:
        graph: S, float64 [B, B].
        labels_B: int [B], -1 for images without a label. Y is one-hot.
        num_classes: K.
        alpha: The share that an image takes from its neighbors, in [0, 1).
        tolerance: The largest norm of the residual per column, relative to that of Y.

    Returns:
        F with columns that add up to 1, or 0 for a class without a label, float32 [B, K].

    Raises:
        ValueError: If the tolerance is not reached.
    """
    mesh = _create_mesh()
    num_edges = len(graph.data)
    sources = np.repeat(np.arange(graph.shape[0], dtype=np.int32), np.diff(graph.indptr))
    chunk = min(_EDGES_AT_ONCE, max(num_edges, 1))
    num_chunks = max(-(-num_edges // chunk), 1)  # A few dissimilar images have no edge.
    rows, columns, weights = (
        np.pad(array, (0, num_chunks * chunk - num_edges)).reshape(num_chunks, chunk)
        for array in (sources, graph.indices.astype(np.int32), graph.data)
    )
    classes = np.arange(-(-num_classes // mesh.size) * mesh.size)
    solve = _compile_solve(mesh, alpha, tolerance)
    # Scores of distant images are too small beside those of near ones for float32.
    with jax.enable_x64(True):
        scores, is_solved = solve(rows, columns, weights, labels_B, classes)
    if not _fetch(is_solved).all():
        raise ValueError(f"Conjugate gradients did not reach the tolerance {tolerance:g}.")
    return np.ascontiguousarray(_fetch(scores)[:num_classes].T)


@functools.cache
def _compile_solve(mesh: Mesh, alpha: float, tolerance: float) -> Callable[..., Any]:
    solve = jax.shard_map(
        functools.partial(_solve, alpha=alpha, tolerance=tolerance),
        mesh=mesh,
        in_specs=(P(), P(), P(), P(), P(_AXIS)),
        out_specs=(P(_AXIS), P(_AXIS)),
        check_vma=False,
    )
    return compilation.jit(solve, runs=1)


def _solve(
    rows: jax.Array,
    columns: jax.Array,
    weights: jax.Array,
    labels_B: jax.Array,
    classes: jax.Array,
    alpha: float,
    tolerance: float,
) -> tuple[jax.Array, jax.Array]:
    """Conjugate gradients for this device's classes: float32 [K, B], and whether solved, bool [K].

    The edges of the graph are [chunks, edges]. The last chunk is padded with edges of weight 0.
    """

    def apply(x_BK: jax.Array) -> jax.Array:
        def add(i: int, total: jax.Array) -> jax.Array:
            return total.at[rows[i]].add(weights[i][:, None] * x_BK[columns[i]])

        return x_BK - alpha * jax.lax.fori_loop(0, len(rows), add, jnp.zeros_like(x_BK))

    source = (labels_B[:, None] == classes).astype(jnp.float64)
    target = tolerance**2 * source.sum(axis=0)

    def is_unsolved(state: tuple) -> jax.Array:
        iteration, *_, squared = state
        return (squared > target).any() & (iteration < _MAX_ITERATIONS)

    def iterate(state: tuple) -> tuple:
        iteration, solution, residual, direction, squared = state
        product = apply(direction)
        is_active = squared > target
        curvature = jnp.where(is_active, (direction * product).sum(axis=0), 1)
        step = jnp.where(is_active, squared / curvature, 0)
        solution, residual = solution + step * direction, residual - step * product
        earlier, squared = jnp.where(squared > 0, squared, 1), jnp.square(residual).sum(axis=0)
        direction = residual + jnp.where(is_active, squared / earlier, 0) * direction
        return iteration + 1, solution, residual, direction, squared

    start = (0, jnp.zeros_like(source), source, source, source.sum(axis=0))
    _, solution, _, _, squared = jax.lax.while_loop(is_unsolved, iterate, start)
    # The exact solution has no negative entry.
    solution = jnp.maximum(solution, 0)
    sums = solution.sum(axis=0)
    return (solution / jnp.where(sums > 0, sums, 1)).T.astype(jnp.float32), squared <= target


def _fetch(array: jax.Array) -> np.ndarray:
    """Gathers an array spread over the devices, in every process."""
    if jax.process_count() == 1:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))
