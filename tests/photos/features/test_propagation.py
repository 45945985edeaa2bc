"""Label propagation, suspect labels, weights of labelers, and which images to label next."""

import numpy as np
import pytest

from cls_jax.photos.features.coverage import Coverage
from cls_jax.photos.features.graph import Propagation, build_graph, propagate_labels
from cls_jax.photos.features.infer import take_log, weigh_labelers
from tests.photos.labeling.sessions import create_features

KINDS = np.arange(120) % 3


@pytest.fixture(scope="module")
def graph():
    return build_graph(create_features(KINDS))


def propagate(graph, num_classes, *changes, groups=None):
    propagated = Propagation(graph, groups)
    propagated.add_classes(num_classes)
    for change in changes:
        propagated.update(change)
    return propagated


def test_labels_given_changed_and_taken_back_propagate_like_the_final_ones(graph):
    changes = {0: 0, 1: 1}, {2: 3}, {2: 2}, {5: 1, 7: 0}, {5: -1}
    propagated = propagate(graph, 4, *changes)
    labels = np.full(len(KINDS), -1)
    labels[[0, 1, 2, 7]] = 0, 1, 2, 0
    expected = propagate_labels(graph, labels, num_classes=4)
    np.testing.assert_allclose(propagated.compute_probabilities(), expected, atol=1e-4)
    np.testing.assert_array_equal(propagated.labels, labels)


def test_a_class_that_lost_its_labels_is_proposed_for_nothing(graph):
    for image in range(3, 60, 3):  # Some leave rounding errors.
        propagated = propagate(graph, 2, {0: 0, image: 1}, {image: -1})
        assert not propagated.compute_probabilities()[KINDS == 0, 1].any()


def test_near_copies_are_left_out_together(graph):
    labels = np.where(np.arange(len(KINDS)) < 30, KINDS, -1)
    labels[[4, 9]] = 0, 1  # Wrong ones.
    groups = np.arange(len(KINDS))
    groups[[3, 4, 6, 100]] = 3  # With one label of another class, and an image without a label.
    groups[[1, 7]] = 1
    propagation = propagate(graph, 3, dict(enumerate(labels[:20])), groups=groups)
    propagation.leave_one_out()
    propagation.update({i: labels[i] for i in range(20, 30)} | {6: -1})  # What is left out changes.
    labels[6] = -1
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
    coverage, is_open = Coverage(graph), KINDS != 0
    chosen, _ = coverage.choose(np.ones(len(KINDS), bool), 3)
    assert sorted(KINDS[chosen]) == [0, 1, 2]
    is_open[1:25:3] = False  # Many of kind 1.
    chosen, _ = coverage.choose(is_open, 4)
    assert KINDS[chosen[0]] == 2
    assert is_open[chosen].all()
    assert len(set(chosen)) == 4
    for open_images in ([3, 5], [7], []):
        found, _ = coverage.choose(np.isin(np.arange(len(KINDS)), open_images), 8)
        assert sorted(found) == open_images
    few = Coverage(build_graph(create_features(KINDS[:2])))  # Its graph has all edges.
    assert sorted(few.choose(np.ones(2, bool), 10)[0]) == [0, 1]


PRIOR = np.array([0.5, 0.7])


def predict(labels, share_right, num_classes=4, seed=0):
    """Log-probabilities of a labeler that is sure, and right for a share of the images."""
    rng = np.random.default_rng(seed)
    guesses = np.where(rng.random(len(labels)) < share_right, labels, (labels + 1) % num_classes)
    return take_log(np.where(np.eye(num_classes)[guesses] > 0, 0.97, 0.01))


def test_the_labeler_that_is_right_more_often_gets_the_weight():
    labels = np.arange(200) % 4
    good, bad = predict(labels, 0.9), predict(labels, 0.4, seed=1)
    for order in (1, -1):
        weights = weigh_labelers(np.stack([good, bad][::order]), labels, PRIOR)
        assert (weights >= 0).all()
        assert weights[::order][0] > 3 * weights[::order][1]


def test_without_a_label_to_judge_the_prior_holds():
    weights = weigh_labelers(take_log(np.zeros((2, 0, 3))), np.zeros(0, int), PRIOR)
    np.testing.assert_array_equal(weights, PRIOR)
