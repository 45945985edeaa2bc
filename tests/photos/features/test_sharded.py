"""All devices together compute the same as one alone."""

import jax
import numpy as np
import pytest

from cls_jax.photos.features import graph as graph_lib
from cls_jax.photos.features import neighbors, sharded
from cls_jax.photos.features.graph import build_graph, propagate_labels

NUM_IMAGES, NUM_CLASSES = 203, 5  # Neither is a multiple of the four devices.


@pytest.fixture(scope="module")
def drawn():
    """Features of clusters, among them copies, and labels of a few of the images."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, NUM_CLASSES, NUM_IMAGES)
    features = 3 * rng.normal(size=(NUM_CLASSES, 12))[truth] + rng.normal(size=(NUM_IMAGES, 12))
    features[150:160] = features[20]
    return features, np.where(rng.random(NUM_IMAGES) < 0.1, truth, -1)


@pytest.mark.parametrize(
    ("num_images", "num_neighbors", "block_elements"),
    [(NUM_IMAGES, 20, 2**26), (NUM_IMAGES, 20, 51 * 20), (NUM_IMAGES, 90, 51), (5, 4, 2**26)],
)
def test_a_ring_of_devices(drawn, monkeypatch, num_images, num_neighbors, block_elements):
    monkeypatch.setattr(sharded, "_BLOCK_ELEMENTS", block_elements)
    normalized = neighbors.normalize_rows(drawn[0][:num_images])
    indices, cosines = sharded.find_neighbors_on_devices(normalized, num_neighbors)
    products = normalized.astype(float) @ normalized.T
    np.fill_diagonal(products, -np.inf)
    expected = -np.sort(-products, axis=1)[:, :num_neighbors]
    np.testing.assert_allclose(cosines, expected, atol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(products, indices, 1), expected, atol=1e-6)
    assert all(len(set(row)) == num_neighbors for row in indices)
    if num_images == NUM_IMAGES:
        copies = {20, *range(150, 160)}
        for row in copies:
            assert indices[row, :10].tolist() == sorted(copies - {row})


def test_accelerators_and_processes_share_the_work_but_not_the_cores_of_a_cpu(monkeypatch):
    rows = ("cpu", 4, 1, False), ("gpu", 1, 1, False), ("gpu", 2, 1, True), ("cpu", 2, 2, True)
    for *machine, expected in rows:
        names = "default_backend", "device_count", "process_count"
        for name, value in zip(names, machine, strict=True):
            monkeypatch.setattr(jax, name, lambda value=value: value)
        assert sharded.has_many_devices() == expected


def test_labels_spread_over_devices_as_on_one(drawn, monkeypatch):
    features, labels = drawn
    alone = build_graph(features)
    monkeypatch.setattr(sharded, "_EDGES_AT_ONCE", 1000)
    expected = [propagate_labels(alone, labels, NUM_CLASSES + k) for k in range(2)]
    for module in (neighbors, graph_lib):
        monkeypatch.setattr(module, "has_many_devices", lambda: True)
    together = build_graph(features)
    np.testing.assert_allclose(together.toarray(), alone.toarray(), atol=1e-6)
    without_edges = alone[:7, :7] * 0
    without_edges.eliminate_zeros()
    found = propagate_labels(without_edges, np.arange(7) - 2, 5)
    np.testing.assert_allclose(found[:2], 1 / 5)
    np.testing.assert_array_equal(found[2:], np.eye(5))
    for k in range(2):  # The second time with a class that no label names.
        found = propagate_labels(alone, labels, NUM_CLASSES + k)
        np.testing.assert_allclose(found, expected[k], rtol=1e-4, atol=1e-7)
