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


def test_images_are_chosen_of_different_groups_and_where_no_label_is(coverage):
    chosen, _ = coverage.choose(np.ones(len(KINDS), bool), 3)
    assert sorted(KINDS[chosen]) == [0, 1, 2]
    is_open = KINDS != 0
    is_open[1:25:3] = False  # Many of kind 1.
    chosen, _ = coverage.choose(is_open, 4)
    assert KINDS[chosen[0]] == 2
    assert is_open[chosen].all()
    assert len(set(chosen)) == 4


@pytest.mark.parametrize("open_images", [[3, 5], [7], []])
def test_every_open_image_is_chosen_once_and_then_none(coverage, open_images):
    assert sorted(coverage.choose(np.isin(np.arange(90), open_images), 8)[0]) == open_images
    num_images = len(open_images) + 1  # A graph of a few images has all of their edges.
    few = Coverage(build_graph(create_features(np.arange(num_images))))
    assert sorted(few.choose(np.ones(num_images, bool), 10)[0]) == list(range(num_images))


def test_choices_are_those_of_the_greedy_algorithm(coverage):
    """Each increases the sum of the coverage most, and its gain is that increase."""
    reach = coverage._reach_BB.toarray()
    is_open, covered = KINDS != 0, reach[KINDS == 0].max(axis=0)
    for image, gain in zip(*coverage.choose(is_open, 20), strict=True):
        gains = np.where(is_open, np.maximum(reach - covered, 0).sum(axis=1), -1)
        assert gains[image] == pytest.approx(gains.max(), rel=1e-5)
        assert gain == pytest.approx(gains[image], rel=1e-4, abs=1e-6)
        is_open[image], covered = False, np.maximum(covered, reach[image])
