"""Nearest neighbors beside those of NumPy."""

import numpy as np
import pytest

from cls_jax.features import neighbors as neighbors_module
from cls_jax.features.neighbors import find_neighbors


def draw_features(num_images, num_clusters=8, length=16):
    """Features [num_images, length] around random centers, all of different lengths."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(num_clusters, length))
    features = centers[np.arange(num_images) % num_clusters]
    features = features + 0.5 * rng.normal(size=features.shape)
    return (features * rng.uniform(1, 5, (num_images, 1))).astype(np.float32)


def search_with_numpy(features, number):
    normalized = features.astype(float) / np.linalg.norm(features, axis=1, keepdims=True)
    cosines = normalized @ normalized.T
    np.fill_diagonal(cosines, -np.inf)
    indices = np.argsort(-cosines, axis=1)[:, :number]
    return indices, np.take_along_axis(cosines, indices, axis=1)


@pytest.mark.parametrize("rows", [1, 7, 50])
def test_neighbors_are_the_same_for_any_block_size(monkeypatch, rows):
    monkeypatch.setattr(neighbors_module, "_MAX_BLOCK_ROWS", rows)
    features = draw_features(50)
    expected, cosines = search_with_numpy(features, 6)
    indices, found = find_neighbors(features, 6)
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_allclose(found, cosines, atol=1e-6)


@pytest.fixture
def clusters(monkeypatch):
    """Has searches on a CPU look in clusters, in blocks of a few rows."""
    monkeypatch.setattr(neighbors_module, "_MIN_APPROXIMATE", 1)
    monkeypatch.setattr(neighbors_module, "_BLOCK_ELEMENTS", 5_000)

    def set_candidates(number):
        monkeypatch.setattr(neighbors_module, "_NUM_CANDIDATES", number)

    return set_candidates


def test_clusters_find_most_of_the_neighbors(clusters):
    features = draw_features(600)
    expected, cosines = search_with_numpy(features, 10)
    clusters(600)
    indices, found = find_neighbors(features, 10)
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_allclose(found, cosines, atol=1e-6)
    clusters(100)
    indices, found = find_neighbors(features, 10)
    assert (indices != np.arange(600)[:, None]).all()
    assert (np.diff(found, axis=1) <= 0).all()
    overlap = [len(set(a) & set(b)) / 10 for a, b in zip(indices, expected, strict=True)]
    assert 0.8 < np.mean(overlap) < 1


def test_clusters_of_duplicates_and_of_images_without_features(clusters):
    clusters(30)
    features = np.concatenate([np.repeat(draw_features(3), 40, axis=0), np.zeros((5, 16))])
    indices, cosines = find_neighbors(features, 20)
    same = np.repeat(np.arange(3), 40)
    np.testing.assert_array_equal(same[indices[:120]], np.repeat(same[:, None], 20, axis=1))
    np.testing.assert_allclose(cosines[:120], 1, atol=1e-6)
    np.testing.assert_array_equal(cosines[120:], 0)
