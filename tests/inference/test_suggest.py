"""Suggested images are typical ones, from all over the set."""

import numpy as np
import pytest

from cls_jax.inference.suggest import (
    choose_typical,
    compute_pixel_features,
    compute_typicality,
    find_clusters,
)

CENTERS = np.asarray([[0, 0], [10, 0], [0, 10], [10, 10]], np.float32)


def create_clusters(sizes=(40, 30, 20, 10), seed=0):
    """Points around the centers: features float32 [B, 2], and the cluster of each, int [B]."""
    truth = np.repeat(np.arange(len(sizes)), sizes)
    noise = np.random.default_rng(seed).normal(0, 0.5, (len(truth), 2))
    return (CENTERS[truth] + noise).astype(np.float32), truth


def test_each_cluster_gives_one_image_the_largest_first():
    features, truth = create_clusters()
    assert truth[choose_typical(features, 4).indices].tolist() == [0, 1, 2, 3]


def test_chosen_image_is_the_most_typical_of_its_cluster():
    features, truth = create_clusters()
    for index, typicality in zip(*choose_typical(features, 4), strict=True):
        members = np.flatnonzero(truth == truth[index])
        distances = np.linalg.norm(features[members] - features[index], axis=1)
        nearest = np.sort(distances)[1 : 1 + min(20, len(members) // 2)]
        assert typicality == pytest.approx(1 / nearest.mean(), rel=1e-4)
        others = compute_typicality(features[members])
        assert typicality == pytest.approx(others.max(), rel=1e-4)


def test_clusters_that_have_a_label_come_last():
    features, truth = create_clusters()
    labeled = features[[0, 45]]  # Of the two largest clusters.
    chosen = choose_typical(np.delete(features, [0, 45], axis=0), 2, labeled).indices
    assert set(np.delete(truth, [0, 45])[chosen]) == {2, 3}


def test_outliers_are_not_chosen_before_the_clusters():
    features, _ = create_clusters()
    outliers = np.asarray([[100, 100], [-100, 0], [0, -100]], np.float32)
    chosen = choose_typical(np.concatenate([outliers, features]), 7).indices
    assert not set(chosen[:4]) & {0, 1, 2}


def test_a_duplicate_is_not_chosen_before_something_else():
    features = np.repeat(CENTERS, 10, axis=0)
    assert set(choose_typical(features, 4).indices // 10) == {0, 1, 2, 3}


@pytest.mark.parametrize("num_images", [1, 2, 3])
def test_all_are_chosen_once_where_there_are_too_few(num_images):
    features = CENTERS[:num_images]
    assert sorted(choose_typical(features, 10).indices) == list(range(num_images))


def test_nothing_is_chosen_from_nothing():
    assert len(choose_typical(CENTERS[:0], 3).indices) == 0


def test_the_choice_is_the_same_every_time():
    features, _ = create_clusters()
    first, again = choose_typical(features, 60), choose_typical(features, 60)
    np.testing.assert_array_equal(first.indices, again.indices)
    assert len(set(first.indices)) == 60


def test_clusters_are_the_groups_of_points():
    features, truth = create_clusters()
    found = find_clusters(features, 4)
    assert len({(a, b) for a, b in zip(truth, found, strict=True)}) == 4


def test_features_of_pixels_tell_images_apart_and_have_unit_length():
    rng = np.random.default_rng(0)
    dark = rng.integers(0, 60, (10, 4, 4, 3), dtype=np.uint8)
    light = rng.integers(190, 256, (10, 4, 4, 3), dtype=np.uint8)
    features = compute_pixel_features(np.concatenate([dark, light]))
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, rtol=1e-5)
    similarity = features @ features.T
    assert similarity[:10, :10].min() > similarity[:10, 10:].max()
