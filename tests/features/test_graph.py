"""Label propagation beside dense linear algebra in NumPy."""

import numpy as np
import pytest

from cls_jax.features.graph import ALPHA, build_graph, compute_weight, propagate_labels, solve

K = 3


def _make_features(num_images: int, num_clusters: int = K, seed: int = 0, spread: float = 0.3):
    """Clusters in orthogonal directions: features [B, 8] and the cluster of each, [B]."""
    rng = np.random.default_rng(seed)
    cluster = np.arange(num_images) % num_clusters
    noise = rng.standard_normal((num_images, 8)).astype(np.float32)
    return np.eye(8, dtype=np.float32)[cluster] + spread * noise, cluster


def _label(cluster: np.ndarray, images: list[int]) -> np.ndarray:
    return np.where(np.isin(np.arange(len(cluster)), images), cluster, -1)


def _dense_graph(features: np.ndarray, num_neighbors: int) -> np.ndarray:
    f = features.astype(float) / np.linalg.norm(features.astype(float), axis=1, keepdims=True)
    cosines = f @ f.T
    np.fill_diagonal(cosines, -np.inf)
    weights = np.zeros_like(cosines)
    for i, row in enumerate(cosines):
        nearest = np.argsort(-row)[:num_neighbors]
        weights[i, nearest] = np.maximum(row[nearest], 0) ** 3
    weights = (weights + weights.T) / 2
    degree = weights.sum(axis=1)
    return weights / np.sqrt(np.outer(degree, degree))


def _dense_propagation(graph, labels, frequencies) -> np.ndarray:
    one_hot = (labels[:, None] == np.arange(K)).astype(float)
    scores = np.linalg.solve(np.eye(len(labels)) - ALPHA * graph, one_hot)
    probabilities = (scores / scores.sum(axis=0)) ** 10
    for _ in range(0 if frequencies is None else 30):
        shares = (probabilities / probabilities.sum(axis=1, keepdims=True)).mean(axis=0)
        probabilities = probabilities * (np.array(frequencies) / shares)
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    probabilities[labels >= 0] = one_hot[labels >= 0]
    return probabilities


@pytest.mark.parametrize("frequencies", [None, [6, 3, 1]])
def test_graph_and_probabilities_agree_with_dense_linear_algebra(frequencies):
    features, cluster = _make_features(60)
    labels = _label(cluster, [0, 1, 2, 5])
    graph = build_graph(features, 4)
    dense = _dense_graph(features, 4)
    np.testing.assert_allclose(graph.toarray(), dense, atol=1e-5)
    actual = propagate_labels(graph, labels, K, frequencies)
    expected = _dense_propagation(dense, labels, frequencies)
    np.testing.assert_allclose(actual, expected, atol=1e-4)


def test_residual_of_the_solution_is_within_the_tolerance():
    features, cluster = _make_features(200)
    graph = build_graph(features)
    one_hot = (_label(cluster, [0, 1, 2])[:, None] == np.arange(K)).astype(float)
    for tolerance in (1e-2, 1e-6):
        scores = solve(graph, one_hot, 0.9, tolerance)
        residual = one_hot - (scores - 0.9 * (graph @ scores))
        assert (np.linalg.norm(residual, axis=0) <= 1.01 * tolerance).all()
    warm = solve(graph, one_hot, 0.9, 1e-6, start_BM=scores)
    np.testing.assert_array_equal(warm, scores)  # Nothing is left to do.


def test_one_label_per_class_reaches_its_cluster():
    features, cluster = _make_features(300)
    features[7] = 0  # This image has no features, hence no neighbors.
    probabilities = propagate_labels(build_graph(features), _label(cluster, [0, 1, 2]), K)
    assert (probabilities.argmax(axis=1) == cluster).mean() > 0.95
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(probabilities[:3], np.eye(K))
    np.testing.assert_allclose(probabilities[7], 1 / K, rtol=1e-6)


def test_classes_have_the_shares_that_are_known():
    """Unequal clusters that overlap, of which as many images are labeled."""
    features, cluster = _make_features(600, 2, spread=0.5)
    kept = np.flatnonzero((cluster == 0) | (np.arange(600) < 120))
    features, cluster = features[kept], cluster[kept]
    graph, labels = build_graph(features), _label(cluster, [0, 1, 2, 3])
    unknown, known = (propagate_labels(graph, labels, 2, f) for f in (None, [300, 60]))
    np.testing.assert_allclose(known[4:].mean(axis=0), [300 / 360, 60 / 360], atol=0.01)
    assert (unknown.argmax(axis=1) == cluster).mean() < (known.argmax(axis=1) == cluster).mean()


def test_unconnected_parts_do_not_exchange_labels():
    """One part has labels of one class, one has both, and one has none. No image has class 2."""
    features = np.zeros((120, 24))
    for i in range(3):
        rows = slice(40 * i, 40 * (i + 1))
        features[rows, 8 * i : 8 * (i + 1)] = _make_features(40, 1, seed=i)[0]
    labels = np.full(120, -1)
    labels[0], labels[40], labels[41] = 1, 0, 1
    probabilities = propagate_labels(build_graph(features), labels, K, [3, 1, 4])
    np.testing.assert_array_equal(probabilities[:40], np.tile([0, 1, 0], (40, 1)))
    assert (probabilities[42:80, :2] > 0).all()
    assert (probabilities[:80, 2] == 0).all()
    np.testing.assert_allclose(probabilities[80:], np.tile([3 / 8, 1 / 8, 1 / 2], (40, 1)))


def test_duplicates_of_a_labeled_image_get_its_label():
    features, cluster = _make_features(60)
    repeated = np.repeat(features, 4, axis=0)
    labels = np.full(240, -1)
    labels[[0, 4, 8]] = cluster[:3]
    probabilities = propagate_labels(build_graph(repeated, 10), labels, K)
    np.testing.assert_array_equal(probabilities[:12].argmax(axis=1), np.repeat(cluster[:3], 4))
    # More duplicates than neighbors: they are a part of their own, without a label.
    island = np.concatenate([features, np.repeat(features[:1], 30, axis=0) * 2])
    graph = build_graph(island, 5)
    assert (graph.diagonal() == 0).all()
    assert np.isfinite(propagate_labels(graph, _label(np.tile(cluster, 2)[:90], [1, 2]), K)).all()


@pytest.mark.parametrize("num_images", [0, 1, 2])
def test_tiny_sets_have_a_graph(num_images):
    features, _ = _make_features(num_images)
    labels = np.arange(num_images) - 1
    assert propagate_labels(build_graph(features), labels, 2).shape == (num_images, 2)


def test_features_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="finite"):
        build_graph(np.full((3, 2), np.nan))


def test_weight_is_one_for_certain_and_zero_for_uniform_probabilities():
    probabilities = np.array([[1, 0, 0], [1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0]])
    expected = [1, 0, 1 - np.log(2) / np.log(3)]
    np.testing.assert_allclose(compute_weight(probabilities), expected, atol=1e-6)
