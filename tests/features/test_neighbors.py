"""Nearest neighbors beside those of NumPy."""

import re
import sys

import numpy as np
import pytest

from cls_jax.features import neighbors
from cls_jax.features.neighbors import find_neighbors, normalize_rows


def draw_features(num_images, num_clusters=8, length=16):
    """Features [num_images, length] around random centers, all of different lengths."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(num_clusters, length))
    features = centers[np.arange(num_images) % num_clusters]
    features = features + 0.5 * rng.normal(size=features.shape)
    return (features * rng.uniform(1, 5, (num_images, 1))).astype(np.float32)


def check_exact(features, number):
    """Asserts that the neighbors are those of NumPy, and returns them."""
    normalized = features.astype(float) / np.linalg.norm(features, axis=1, keepdims=True)
    cosines = normalized @ normalized.T
    np.fill_diagonal(cosines, -np.inf)
    expected = np.argsort(-cosines, axis=1)[:, :number]
    indices, found = find_neighbors(features, number)
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_allclose(found, np.take_along_axis(cosines, expected, axis=1), atol=1e-6)
    return expected


@pytest.mark.parametrize("rows", [1, 7, 50])
def test_neighbors_are_the_same_for_any_block_size(monkeypatch, rows):
    monkeypatch.setattr(neighbors, "_MAX_BLOCK_ROWS", rows)
    check_exact(draw_features(50), 6)


@pytest.fixture
def search(monkeypatch):
    """`find_neighbors` as of a large number of images on a CPU."""
    pytest.importorskip("faiss")
    monkeypatch.setattr(neighbors, "_MIN_APPROXIMATE", 1)
    return find_neighbors


def test_links_lead_to_most_of_the_neighbors(search):
    features = draw_features(600)
    expected = np.argsort(-normalize_rows(features) @ normalize_rows(features).T)[:, 1:11]
    indices, found = search(features, 10)
    assert (indices.dtype, found.dtype) == (np.int32, np.float32)
    assert (indices != np.arange(600)[:, None]).all()
    assert (np.diff(found, axis=1) <= 0).all()
    overlap = [len(set(a) & set(b)) / 10 for a, b in zip(indices, expected, strict=True)]
    assert 0.8 < np.mean(overlap) <= 1
    np.testing.assert_array_equal(search(features, 10)[0], indices)


def test_copies_and_images_without_features_have_neighbors(search):
    features = np.concatenate([np.repeat(draw_features(3), 40, axis=0), np.zeros((5, 16))])
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
    check_exact(draw_features(50), 6)
    assert "scale" not in capsys.readouterr().err
    monkeypatch.setattr(neighbors, "_MIN_APPROXIMATE", 50)
    check_exact(draw_features(50), 6)
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "scale" in line)
    assert re.search(r"of 50 images take about \d+ minutes: pip install '\.\[scale\]'", line)
