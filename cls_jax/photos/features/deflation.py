"""Label propagation for many classes at once: conjugate gradients without the slow directions.

Plain conjugate gradients carry a label from neighbor to neighbor, so most iterations go into how
much each cluster of images gets as a whole. Here a small dense system answers that first, with one
unknown per group of similar images, and the iterations only correct within and between
neighboring groups (deflation: A-DEF2 of Tang et al., "Comparison of Two-Level Preconditioners
Derived from Deflation, Domain Decomposition and Multigrid Methods", J. Sci. Comput. 2009).

Shape suffixes: B images, G groups, M columns.
"""

import functools
from collections.abc import Callable

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import reverse_cuthill_mckee

_MAX_GROUPS = 2048
_MOVES = 4  # Times that all images move to the group with most of their edges.
_MAX_ITERATIONS = 1000


def prepare_solver(
    graph: sparse.csr_matrix, potential_B: np.ndarray, alpha: float, tolerance: float
) -> Callable[[np.ndarray], np.ndarray]:
    """How to solve (I - alpha S) F = Y for the columns of Y, in float32.

    Rounding leaves a relative error of some 1e-6 in each entry of F.

    Args:
        graph: S from `graph.build_graph`, [B, B].
        potential_B: F for a Y of ones, float64 [B], roughly. It is what a group has in common.
        alpha: The share that an image takes from its neighbors, in [0, 1).
        tolerance: The largest norm of Y - (I - alpha S) F per column, relative to the norm of Y.

    Returns:
        A function from Y, [B, M] and not negative, to F, float32 [B, M]. It raises a ValueError if
        the tolerance is not reached.
    """
    # Groups found along a search through the graph fit its clusters: half the iterations.
    found = reverse_cuthill_mckee(graph, symmetric_mode=True)
    groups = _find_groups(graph[found][:, found])
    # Similar images beside each other in memory: products take a third of the time.
    by_group = np.argsort(groups, kind="stable")
    order, groups = found[by_group], groups[by_group]
    graph = graph[order][:, order].sorted_indices()
    members = _indicate(groups).tocsc()
    largest = np.sort(np.argsort(-np.diff(members.indptr), kind="stable")[:_MAX_GROUPS])
    basis = (sparse.diags_array(potential_B[order]) @ members[:, largest]).tocsr()
    flow = alpha * (graph @ basis)
    inverse = np.linalg.inv((basis.T @ (basis - flow)).toarray()).astype(np.float32)
    graph, basis, flow = (a.astype(np.float32).tocsr() for a in (alpha * graph, basis, flow))
    return functools.partial(
        _solve,
        order=order,
        graph=graph,
        basis=basis,
        restrict=basis.T.tocsr(),
        restrict_flow=flow.T.tocsr(),
        inverse=inverse,
        tolerance=tolerance,
    )


def _solve(
    source_BM: np.ndarray,
    order: np.ndarray,
    graph: sparse.csr_matrix,
    basis: sparse.csr_matrix,
    restrict: sparse.csr_matrix,
    restrict_flow: sparse.csr_matrix,
    inverse: np.ndarray,
    tolerance: float,
) -> np.ndarray:
    """F for Y = `source_BM`: the groups' answer, then deflated conjugate gradients.

    Args:
        source_BM: Y, not negative.
        order: int [B], the images by group. Matrices are in this order, and float32.
        graph: alpha S, [B, B].
        basis: Z, what each of the largest groups has in common, [B, G].
        restrict: Z^T, [G, B].
        restrict_flow: (alpha S Z)^T, [G, B].
        inverse: Of Z^T (I - alpha S) Z, [G, G].
        tolerance: See `prepare_solver`.
    """
    source = source_BM[order].astype(np.float32)
    solution = basis @ (inverse @ (restrict @ source))
    residual = source - solution + graph @ solution
    target = tolerance**2 * _multiply(source, source)
    earlier = np.ones_like(target)
    direction = np.zeros_like(source)
    for _ in range(_MAX_ITERATIONS):
        deflated = basis @ (inverse @ (restrict_flow @ residual))
        deflated += residual
        squared = _multiply(residual, deflated)
        if (_multiply(residual, residual) <= target).all():
            result = np.empty_like(solution)
            result[order] = np.maximum(solution, 0)  # As the exact solution is.
            return result
        is_active = squared > 0
        direction *= np.divide(squared, earlier, out=np.zeros_like(squared), where=is_active)
        direction += deflated
        product = graph @ direction
        np.subtract(direction, product, out=product)
        curvature = _multiply(direction, product)
        step = np.divide(squared, curvature, out=np.zeros_like(squared), where=is_active)
        np.multiply(direction, step, out=deflated)  # It is not needed anymore.
        solution += deflated
        product *= step
        residual -= product
        earlier = squared
    raise ValueError(f"Conjugate gradients did not reach the tolerance {tolerance:g}.")


def _multiply(a_BM: np.ndarray, b_BM: np.ndarray) -> np.ndarray:
    """Inner products of columns, [M]."""
    return np.einsum("bm,bm->m", a_BM, b_BM)


def _find_groups(graph: sparse.csr_matrix) -> np.ndarray:
    """Groups of similar images, int [B], and where those are too many, groups of groups."""
    groups = np.arange(graph.shape[0])
    while True:
        found = _join_neighbors(graph)
        groups = found[groups]
        members = _indicate(found)
        if members.shape[1] <= _MAX_GROUPS or members.shape[1] == len(found):
            return groups
        graph = (members.T @ graph @ members).tocsr()


def _join_neighbors(graph: sparse.csr_matrix) -> np.ndarray:
    """Groups around images whose neighbors are in no group yet, then improved, int [B]."""
    groups = np.full(graph.shape[0], -1)
    count = 0
    for i, (start, end) in enumerate(zip(graph.indptr, graph.indptr[1:], strict=False)):
        neighbors = graph.indices[start:end]
        if groups[i] < 0 and (groups[neighbors] < 0).all():
            groups[i] = groups[neighbors] = count
            count += 1
    for _ in range(_MOVES):
        weights = (graph @ _indicate(groups)).tocsr()
        rows = np.repeat(np.arange(len(groups)), np.diff(weights.indptr))
        by_weight = np.lexsort((weights.data, rows))
        heaviest = by_weight[np.flatnonzero(np.diff(rows[by_weight], append=len(groups)))]
        groups[rows[heaviest]] = weights.indices[heaviest]
    return np.unique(groups, return_inverse=True)[1]


def _indicate(groups_B: np.ndarray) -> sparse.csr_matrix:
    """1 where an image is in a group, float64 [B, G]. Groups below 0 are none."""
    rows = np.flatnonzero(groups_B >= 0)
    shape = len(groups_B), int(groups_B.max(initial=-1)) + 1
    return sparse.csr_matrix((np.ones(len(rows)), (rows, groups_B[rows])), shape=shape)
