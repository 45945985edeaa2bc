"""The images to label next represent the others."""

import numpy as np
import pytest

from cls_jax.features.coverage import Coverage
from cls_jax.features.graph import build_graph

KINDS = np.arange(90) % 3


def create_features(kinds, num_features=16, seed=0):
    """Features float32 [B, num_features] that point in a direction per kind, and some noise."""
    noise = np.random.default_rng(seed).normal(0, 0.05, (len(kinds), num_features))
    return (np.eye(num_features)[kinds] + noise).astype(np.float32)


@pytest.fixture(scope="module")
def coverage():
    return Coverage(build_graph(create_features(KINDS)))


def test_the_first_images_are_of_different_groups(coverage):
    chosen, _ = coverage.choose(np.ones(len(KINDS), bool), 3)
    assert sorted(KINDS[chosen]) == [0, 1, 2]


def test_images_are_chosen_where_no_label_is(coverage):
    is_open = KINDS != 0
    is_open[[1, 4, 7, 10, 13, 16, 19, 22]] = False  # Many of kind 1.
    chosen, _ = coverage.choose(is_open, 4)
    assert KINDS[chosen[0]] == 2
    assert is_open[chosen].all()
    assert len(set(chosen)) == 4


def test_every_open_image_is_chosen_once_and_then_none(coverage):
    is_open = np.zeros(len(KINDS), bool)
    is_open[[3, 5]] = True
    assert sorted(coverage.choose(is_open, 8)[0]) == [3, 5]
    is_open[:] = False
    assert len(coverage.choose(is_open, 8)[0]) == 0


def test_choices_are_those_of_the_greedy_algorithm(coverage):
    """Each increases the sum of the coverage most, and its gain is that increase."""
    reach = coverage._reach_BB.toarray()
    is_open, covered = KINDS != 0, reach[KINDS == 0].max(axis=0)
    for image, gain in zip(*coverage.choose(is_open, 20), strict=True):
        gains = np.where(is_open, np.maximum(reach - covered, 0).sum(axis=1), -1)
        assert gains[image] == pytest.approx(gains.max(), rel=1e-5)
        assert gain == pytest.approx(gains[image], rel=1e-4, abs=1e-6)
        is_open[image], covered = False, np.maximum(covered, reach[image])


@pytest.mark.parametrize("num_images", [1, 2, 3])
def test_few_images_are_all_chosen(num_images):
    graph = build_graph(create_features(np.arange(num_images)))
    chosen, _ = Coverage(graph).choose(np.ones(num_images, bool), 10)
    assert sorted(chosen) == list(range(num_images))


def test_odd_images_and_images_without_neighbors_come_last():
    odd = -np.eye(16, dtype=np.float32)[[8, 9]]
    features = np.concatenate([odd, np.zeros((1, 16)), create_features(KINDS[:60])])
    chosen, _ = Coverage(build_graph(features)).choose(np.ones(63, bool), 63)
    assert sorted(chosen) == list(range(63))
    assert not set(chosen[:3]) & {0, 1, 2}


def test_a_duplicate_is_not_chosen_before_something_else():
    features = np.repeat(np.eye(4, dtype=np.float32), 10, axis=0)
    chosen, _ = Coverage(build_graph(features, 9)).choose(np.ones(40, bool), 4)
    assert set(chosen // 10) == {0, 1, 2, 3}
