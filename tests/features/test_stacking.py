"""Weights of labelers, which the labels decide."""

import numpy as np
import pytest

from cls_jax.features.stacking import take_log, weigh_labelers

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


def test_weights_are_where_the_loss_is_least():
    labels = np.arange(40) % 4
    held_out = np.stack([predict(labels, 0.7), predict(labels, 0.6, seed=1)])

    def compute_loss(weights):
        logits = np.einsum("m,mlk->lk", weights, held_out)
        log_q = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return 5 * np.square(weights - PRIOR).sum() - log_q[np.arange(40), labels].sum()

    found = weigh_labelers(held_out, labels, PRIOR)
    assert all(
        compute_loss(found) <= compute_loss(np.maximum(found + step, 0)) + 1e-9
        for step in 0.01 * np.random.default_rng(0).normal(size=(50, 2))
    )


@pytest.mark.parametrize("labels", [[], [0], [0, 1, 2]])
def test_the_only_label_of_a_class_says_nothing(labels):
    held_out = take_log(np.zeros((2, len(labels), 3)))
    np.testing.assert_array_equal(weigh_labelers(held_out, np.array(labels, int), PRIOR), PRIOR)
