"""Nearest neighbors and label propagation, beside dense linear algebra and label by label."""

import re
import sys

import numpy as np
import pytest

from cls_jax.photos.features import graph as graphs
from cls_jax.photos.features import neighbors
from cls_jax.photos.features.coverage import Coverage
from cls_jax.photos.features.graph import (
    ALPHA,
    Propagation,
    build_graph,
    compute_weight,
    propagate_labels,
)
from cls_jax.photos.features.neighbors import find_neighbors, normalize_rows

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


def _dense_propagation(graph, labels) -> np.ndarray:
    one_hot = (labels[:, None] == np.arange(K)).astype(float)
    scores = np.linalg.solve(np.eye(len(labels)) - ALPHA * graph, one_hot)
    is_reached = scores.max(axis=1) > 1e-12
    p = (scores[is_reached] / np.maximum(scores.sum(axis=0), 1e-12)) ** 10
    probabilities = np.full((len(labels), K), 1 / K)
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


@pytest.mark.parametrize(
    ("features", "labels"),
    [(CLUSTERS, _label(TRUTH, [0, 1, 2])), (PARTS, PART_LABELS)],
    ids=["clusters", "unconnected parts"],
)
def test_graph_and_probabilities_agree_with_dense_linear_algebra(features, labels):
    graph, dense = build_graph(features, 6), _dense_graph(features, 6)
    np.testing.assert_allclose(graph.toarray(), dense, atol=1e-5)
    actual = propagate_labels(graph, labels, K)
    np.testing.assert_allclose(actual, _dense_propagation(dense, labels), atol=1e-4)
    np.testing.assert_allclose(actual.sum(axis=1), 1, rtol=1e-5)
    if features is CLUSTERS:
        assert (actual.argmax(axis=1) == TRUTH).mean() > 0.9


def test_many_classes_have_the_probabilities_of_few(monkeypatch):
    features, truth = _make_features(900, 7)
    features[5] = 0
    # Copies are parts of their own.
    features = np.concatenate([features, np.repeat(features[:3], 30, axis=0)])
    graph, labels = build_graph(features, 10), _label(np.resize(truth, 990), list(range(0, 300, 9)))
    few = propagate_labels(graph, labels, 7)
    monkeypatch.setattr(graphs, "_MANY_CLASSES", 7)
    np.testing.assert_allclose(propagate_labels(graph, labels, 7), few, atol=1e-4)
    monkeypatch.setattr(graphs, "_MAX_ITERATIONS", 2)
    with pytest.raises(ValueError, match="tolerance 1e-06"):
        propagate_labels(graph, labels, 7)


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


def check_exact(features, number):
    """Asserts that the neighbors are those of NumPy."""
    normalized = features.astype(float) / np.linalg.norm(features, axis=1, keepdims=True)
    cosines = normalized @ normalized.T
    np.fill_diagonal(cosines, -np.inf)
    expected = np.argsort(-cosines, axis=1)[:, :number]
    indices, found = find_neighbors(features, number)
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_allclose(found, np.take_along_axis(cosines, expected, axis=1), atol=1e-6)


@pytest.fixture
def search(monkeypatch):
    """`find_neighbors` as of a large number of images on a CPU."""
    pytest.importorskip("faiss")
    monkeypatch.setattr(neighbors, "_MIN_APPROXIMATE", 1)
    return find_neighbors


def test_links_lead_to_most_of_the_neighbors(search):
    features, _ = _make_features(600, 8)
    expected = np.argsort(-normalize_rows(features) @ normalize_rows(features).T)[:, 1:11]
    indices, found = search(features, 10)
    assert (indices.dtype, found.dtype) == (np.int32, np.float32)
    assert (indices != np.arange(600)[:, None]).all()
    assert (np.diff(found, axis=1) <= 0).all()
    overlap = [len(set(a) & set(b)) / 10 for a, b in zip(indices, expected, strict=True)]
    assert 0.8 < np.mean(overlap) <= 1
    np.testing.assert_array_equal(search(features, 10)[0], indices)


def test_copies_and_images_without_features_have_neighbors(search):
    features = np.concatenate([np.repeat(CLUSTERS[:3], 40, axis=0), np.zeros((5, 8))])
    indices, cosines = search(features, 20)
    same = np.repeat(np.arange(3), 40)
    np.testing.assert_array_equal(same[indices[:120]], np.repeat(same[:, None], 20, axis=1))
    np.testing.assert_allclose(cosines[:120], 1, atol=1e-6)
    np.testing.assert_array_equal(cosines[120:], 0)
    assert (indices != np.arange(125)[:, None]).all()
    assert indices.min() >= 0


def test_without_faiss_all_are_found_and_a_sentence_says_how_long_that_takes(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setattr(neighbors, "_MAX_BLOCK_ROWS", 20)
    check_exact(CLUSTERS[10:60], 6)
    assert "scale" not in capsys.readouterr().err
    monkeypatch.setattr(neighbors, "_MIN_APPROXIMATE", 50)
    check_exact(CLUSTERS[10:60], 6)
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "scale" in line)
    assert re.search(r"of 50 images take about \d+ minutes: pip install '\.\[scale\]'", line)


def share(monkeypatch, module, compute, count):
    """The rows that each of several processes computes, in their order."""
    parts = []

    def gather(rows, num_rows):
        parts.append(rows.copy())
        return np.resize(rows, (num_rows, *rows.shape[1:]))

    monkeypatch.setattr(module, "gather_rows", gather)
    for i in range(count):

        def take(num_rows, i=i):
            return slice(num_rows * i // count, num_rows * (i + 1) // count)

        monkeypatch.setattr(module, "take_local", take)
        compute()
    return parts


@pytest.mark.parametrize("num_images", [2, 50, 110])
def test_several_processes_find_the_neighbors_of_one(monkeypatch, num_images):
    features = CLUSTERS[10 : 10 + num_images]
    expected = find_neighbors(features, min(6, num_images - 1))
    monkeypatch.setattr(neighbors, "_MAX_BLOCK_ROWS", 20)
    parts = share(monkeypatch, neighbors, lambda: find_neighbors(features, len(expected[0].T)), 3)
    np.testing.assert_array_equal(np.concatenate(parts[::2]), expected.indices)
    np.testing.assert_allclose(np.concatenate(parts[1::2]), expected.cosines, atol=1e-6)


@pytest.mark.parametrize("num_classes", [2, 20, 100])
def test_several_processes_spread_the_labels_of_one(monkeypatch, num_classes):
    features, truth = _make_features(300, 8)
    graph, labels = build_graph(features, 10), np.where(np.arange(300) % 9, -1, truth % num_classes)
    one, three = (
        np.concatenate(
            share(monkeypatch, graphs, lambda: propagate_labels(graph, labels, num_classes), count)
        )
        for count in (1, 3)
    )
    np.testing.assert_allclose(three, one, rtol=1e-6)


@pytest.fixture(scope="module")
def graph():
    return build_graph(_make_features(120)[0])


def propagate(graph, num_classes, *changes, groups=None):
    """Changes are labels by images, -1 to take one back."""
    propagated, labels = Propagation(graph, groups), np.full(graph.shape[0], -1)
    for change in changes:
        labels[list(change)] = list(change.values())
        propagated.update(labels, num_classes)
    return propagated


def test_labels_given_changed_and_taken_back_propagate_like_the_final_ones(graph):
    changes = {0: 0, 1: 1}, {2: 3}, {2: 2}, {5: 1, 7: 0}, {5: -1}
    propagated = propagate(graph, 4, *changes)
    labels = np.full(len(TRUTH), -1)
    labels[[0, 1, 2, 7]] = 0, 1, 2, 0
    expected = propagate_labels(graph, labels, num_classes=4)
    np.testing.assert_allclose(propagated.compute_probabilities(), expected, atol=1e-4)
    np.testing.assert_array_equal(propagated.labels, labels)


def test_a_class_that_is_removed_leaves_the_others_as_they_were(graph):
    labels = np.full(len(TRUTH), -1)
    labels[[0, 1, 2, 3]] = 0, 1, 2, 2
    propagated = Propagation(graph)
    propagated.update(labels, num_classes=4)
    labels = np.where(labels == 1, -1, np.minimum(labels, 1))  # The last one moves up.
    propagated.update(labels, num_classes=2)
    expected = propagate_labels(graph, labels, num_classes=2)
    np.testing.assert_allclose(propagated.compute_probabilities(), expected, atol=1e-4)


def test_a_class_that_lost_its_labels_is_proposed_for_nothing(graph):
    for image in range(3, 60, 3):  # Some leave rounding errors.
        propagated = propagate(graph, 2, {0: 0, image: 1}, {image: -1})
        assert not propagated.compute_probabilities()[TRUTH == 0, 1].any()


def test_near_copies_are_left_out_together(graph):
    labels = np.where(np.arange(len(TRUTH)) < 30, TRUTH, -1)
    labels[[4, 9]] = 0, 1  # Wrong ones.
    groups = np.arange(len(TRUTH))
    groups[[3, 4, 6, 100]] = 3  # With one label of another class, and an image without a label.
    groups[[1, 7]] = 1
    propagation = propagate(graph, 3, dict(enumerate(labels[:20])), groups=groups)
    propagation.leave_one_out()
    # What is left out changes.
    labels[6] = -1
    propagation.update(labels, num_classes=3)
    for image, found in zip(*propagation.leave_one_out(), strict=True):
        others = np.where(groups == groups[image], -1, labels)
        expected = propagate_labels(graph, others, num_classes=3)[image]
        np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.fixture(scope="module")
def bursts():
    """The graph of 40 bursts of 30 nearly identical images each, and the bursts."""
    rng = np.random.default_rng(0)
    bursts = np.repeat(np.arange(40), 30)
    features = rng.standard_normal((40, 64))[bursts] + 0.02 * rng.standard_normal((1200, 64))
    return build_graph(features), bursts


@pytest.mark.parametrize("per_burst", [1, 30])
def test_hidden_labels_leave_no_trace_where_no_other_label_is(bursts, per_burst):
    """Of random labels, nothing can predict one from those of other bursts. Chance is 25%."""
    graph, burst = bursts
    is_labeled = np.arange(1200) % 30 < per_burst
    labels = np.where(is_labeled, np.random.default_rng(1).integers(0, 4, 1200), -1)
    given = {i: int(labels[i]) for i in np.flatnonzero(is_labeled).tolist()}
    groups = None if per_burst == 1 else burst
    labeled, p_LK = propagate(graph, 4, given, groups=groups).leave_one_out()
    assert np.mean(p_LK.argmax(axis=1) == labels[labeled]) < 0.4
    np.testing.assert_array_equal(p_LK, 0.25)  # No edge leads to another burst.
    # Nor does a label that was taken back.
    taken_back = propagate(graph, 4, given, {i: -1 for i in given if burst[i] == 0})
    np.testing.assert_array_equal(taken_back.compute_probabilities()[burst == 0], 0.25)


def test_the_only_label_of_a_class_says_nothing_about_itself(graph):
    for image in (3, 15, 33):  # All of one group. Some leave rounding errors.
        labeled, probabilities = propagate(graph, 2, {0: 0}, {6: 0}, {image: 1}).leave_one_out()
        np.testing.assert_allclose(probabilities[labeled == image], [[1, 0]], atol=1e-6)


def test_images_to_label_are_chosen_of_different_groups_and_where_no_label_is(graph):
    coverage, is_open = Coverage(graph), TRUTH != 0
    chosen, _ = coverage.choose(np.ones(len(TRUTH), bool), 3)
    assert sorted(TRUTH[chosen]) == [0, 1, 2]
    is_open[1:25:3] = False  # Many of kind 1.
    chosen, _ = coverage.choose(is_open, 4)
    assert TRUTH[chosen[0]] == 2
    assert is_open[chosen].all()
    assert len(set(chosen)) == 4
    for open_images in ([3, 5], [7], []):
        found, _ = coverage.choose(np.isin(np.arange(len(TRUTH)), open_images), 8)
        assert sorted(found) == open_images
    few = Coverage(build_graph(CLUSTERS[:2]))  # Its graph has all edges.
    assert sorted(few.choose(np.ones(2, bool), 10)[0]) == [0, 1]
