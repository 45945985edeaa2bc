"""Figures about predictions, against plain loops and known values."""

import numpy as np
import pytest

from cls_jax.inference.scores import (
    compute_reliability,
    find_confused_pairs,
    find_disagreements,
    find_mistakes,
    wilson_interval,
)


def draw_probabilities(shape, seed=0):
    logits = 2 * np.random.default_rng(seed).normal(size=shape)
    return np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)


@pytest.mark.parametrize(
    ("num_correct", "num_images", "expected"),
    # Newcombe (1998), Statistics in Medicine 17, Table I, method 3.
    [
        (81, 263, (0.2553, 0.3662)),
        (15, 148, (0.0624, 0.1605)),
        (0, 20, (0.0, 0.1611)),
        (1, 29, (0.0061, 0.1718)),
    ],
)
def test_interval_is_wilsons(num_correct, num_images, expected):
    interval = wilson_interval(num_correct, num_images)
    assert interval == pytest.approx(expected, abs=5e-5)
    mirrored = wilson_interval(num_images - num_correct, num_images)
    assert interval == pytest.approx((1 - mirrored[1], 1 - mirrored[0]))


def test_confused_pairs_leave_out_what_is_right_and_what_never_happens():
    counts = np.array([[9, 2, 0], [0, 9, 5], [1, 0, 9]])
    assert find_confused_pairs(counts, 10) == [(1, 2, 5), (0, 1, 2), (2, 0, 1)]
    assert find_confused_pairs(counts, 1) == [(1, 2, 5)]
    assert find_confused_pairs(np.eye(3, dtype=int), 10) == []


def test_calibration_is_the_sum_over_bins():
    probabilities = draw_probabilities((500, 4))
    labels = np.random.default_rng(1).integers(0, 4, 500)
    calibration = compute_reliability(probabilities, labels, num_bins=10)
    confidence = probabilities.max(axis=-1)
    is_right = probabilities.argmax(axis=-1) == labels
    error = 0.0
    for i in range(10):
        inside = (confidence > i / 10) & (confidence <= (i + 1) / 10)
        assert calibration.counts[i] == inside.sum()
        if inside.any():
            assert calibration.confidence[i] == pytest.approx(confidence[inside].mean())
            assert calibration.accuracy[i] == pytest.approx(is_right[inside].mean())
            gap = abs(is_right[inside].mean() - confidence[inside].mean())
            error += inside.sum() / 500 * gap
        else:
            assert np.isnan(calibration.accuracy[i])
    assert calibration.error == pytest.approx(error)


@pytest.mark.parametrize(("label", "error"), [(0, 0.0), (1, 1.0)])
def test_calibration_of_certainty(label, error):
    calibration = compute_reliability(np.array([[1.0, 0.0]]), np.array([label]))
    assert calibration.counts[-1] == 1
    assert calibration.error == error


def test_mistakes_come_most_confident_first():
    probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.3, 0.7]])
    labels = np.array([1, 1, 0, 1])
    assert find_mistakes(probabilities, labels).tolist() == [0, 2, 1]
    assert find_mistakes(probabilities, np.array([-1, 1, 0, -1])).tolist() == [2, 1]


def test_disagreements_where_both_are_confident_come_first():
    first = np.array([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])
    second = np.array([[0.4, 0.6], [0.1, 0.9], [0.8, 0.2], [0.1, 0.9]])
    assert find_disagreements(np.stack([first, second])).tolist() == [1, 0]
    assert find_disagreements(np.stack([first, first])).tolist() == []
