"""Label propagation beside dense linear algebra in NumPy."""

import tracemalloc

import numpy as np
import pytest

from cls_jax.features.graph import ALPHA, build_graph, compute_weight, propagate_labels, solve

K = 3


def _make_features(num_images: int, num_clusters: int = K, seed: int = 0):
    """Clusters in orthogonal directions: features [B, 8] and the cluster of each, [B]."""
    rng = np.random.default_rng(seed)
    cluster = np.arange(num_images) % num_clusters
    noise = rng.standard_normal((num_images, 8)).astype(np.float32)
    return np.eye(8, dtype=np.float32)[cluster] + 0.3 * noise, cluster


def _label(cluster: np.ndarray, images: list[int]) -> np.ndarray:
    return np.where(np.isin(np.arange(len(cluster)), images), cluster, -1)


def _dense_graph(features: np.ndarray, num_neighbors: int) -> np.ndarray:
    f = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-9)
    cosines = f.astype(float) @ f.T.astype(float)
    np.fill_diagonal(cosines, -np.inf)
    weights = np.zeros_like(cosines)
    for i, row in enumerate(cosines):
        nearest = np.argsort(-row)[:num_neighbors]
        weights[i, nearest] = np.maximum(row[nearest], 0) ** 3
    weights = (weights + weights.T) / 2
    degree = np.maximum(weights.sum(axis=1), 1e-9)
    return weights / np.sqrt(np.outer(degree, degree))


def _dense_propagation(graph, labels, frequencies) -> np.ndarray:
    one_hot = (labels[:, None] == np.arange(K)).astype(float)
    scores = np.linalg.solve(np.eye(len(labels)) - ALPHA * graph, one_hot)
    is_reached = scores.max(axis=1) > 1e-12
    p = (scores[is_reached] / np.maximum(scores.sum(axis=0), 1e-12)) ** 10
    shares = np.ones(K) if frequencies is None else np.array(frequencies, float)
    for _ in range(0 if frequencies is None else 30):
        found = (p / p.sum(axis=1, keepdims=True)).mean(axis=0)
        p = p * np.divide(shares, found, out=np.zeros(K), where=found > 0)
    probabilities = np.tile(shares / shares.sum(), (len(labels), 1))
    probabilities[is_reached] = p / p.sum(axis=1, keepdims=True)
    probabilities[labels >= 0] = one_hot[labels >= 0]
    return probabilities


CLUSTERS, TRUTH = _make_features(120)
CLUSTERS[7] = 0  # An image without features has no neighbors.
# Parts without connections: one has labels of one class, one has two, and one has none.
PARTS = np.zeros((120, 24), np.float32)
for i in range(3):
    PARTS[40 * i : 40 * (i + 1), 8 * i : 8 * (i + 1)] = _make_features(40, 1, seed=i)[0]
PART_LABELS = np.full(120, -1)
PART_LABELS[[0, 40, 41]] = [1, 0, 1]


@pytest.mark.parametrize("frequencies", [None, [6, 3, 1]])
@pytest.mark.parametrize(
    ("features", "labels"),
    [(CLUSTERS, _label(TRUTH, [0, 1, 2])), (PARTS, PART_LABELS)],
    ids=["clusters", "unconnected parts"],
)
def test_graph_and_probabilities_agree_with_dense_linear_algebra(features, labels, frequencies):
    graph, dense = build_graph(features, 6), _dense_graph(features, 6)
    np.testing.assert_allclose(graph.toarray(), dense, atol=1e-5)
    actual = propagate_labels(graph, labels, K, frequencies)
    np.testing.assert_allclose(actual, _dense_propagation(dense, labels, frequencies), atol=1e-4)
    np.testing.assert_allclose(actual.sum(axis=1), 1, rtol=1e-5)
    if features is CLUSTERS and frequencies is None:
        assert (actual.argmax(axis=1) == TRUTH).mean() > 0.9


def test_many_classes_take_little_more_memory_than_their_probabilities(monkeypatch):
    """And rows that are added up in parts are the same."""
    graph = build_graph(_make_features(1500)[0])
    labels = np.where(np.arange(1500) < 1000, np.arange(1500), -1)
    expected = propagate_labels(graph, labels, 1000, np.ones(1000))
    monkeypatch.setattr("cls_jax.features.graph._ROWS_AT_ONCE", 200)
    tracemalloc.start()
    actual = propagate_labels(graph, labels, 1000, np.ones(1000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-7)
    assert peak < 2.8 * actual.nbytes  # 2.2 with four threads.


def test_residual_of_the_solution_is_within_the_tolerance():
    graph = build_graph(CLUSTERS)
    one_hot = (_label(TRUTH, [0, 1, 2])[:, None] == np.arange(K)).astype(float)
    for tolerance in (1e-2, 1e-6):
        scores = solve(graph, one_hot, 0.9, tolerance)
        residual = one_hot - (scores - 0.9 * (graph @ scores))
        assert (np.linalg.norm(residual, axis=0) <= 1.01 * tolerance).all()
    warm = solve(graph, one_hot, 0.9, 1e-6, start_BM=scores)
    np.testing.assert_array_equal(warm, scores)  # Nothing is left to do.


def test_duplicates_of_a_labeled_image_get_its_label():
    labels = np.full(480, -1)
    labels[[0, 4, 8]] = TRUTH[:3]
    probabilities = propagate_labels(build_graph(np.repeat(CLUSTERS, 4, axis=0), 10), labels, K)
    np.testing.assert_array_equal(probabilities[:12].argmax(axis=1), np.repeat(TRUTH[:3], 4))
    # More duplicates than neighbors: they are a part of their own, without a label.
    graph = build_graph(np.repeat(CLUSTERS[:2], 30, axis=0), 5)
    assert (graph.diagonal() == 0).all()
    assert np.isfinite(propagate_labels(graph, labels[:60], K)).all()


@pytest.mark.parametrize("num_images", [0, 1, 2])
def test_tiny_sets_have_a_graph(num_images):
    graph = build_graph(CLUSTERS[:num_images])
    assert propagate_labels(graph, np.arange(num_images) - 1, 2).shape == (num_images, 2)
    with pytest.raises(ValueError, match="finite"):
        build_graph(np.full((3, 2), np.nan))


def test_weight_is_one_for_certain_and_zero_for_uniform_probabilities():
    probabilities = np.array([[1, 0, 0], [1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0]])
    expected = [1, 0, 1 - np.log(2) / np.log(3)]
    np.testing.assert_allclose(compute_weight(probabilities), expected, atol=1e-6)
