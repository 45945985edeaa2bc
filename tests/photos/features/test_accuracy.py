"""The accuracy that is shown holds on the unlabeled images, and waits for enough labels."""

import numpy as np
import pytest

from cls_jax.photos.features.accuracy import (
    Estimate,
    choose_to_check,
    correct_estimate,
    count_labels,
    describe_estimate,
    estimate_accuracy,
    find_sure,
    is_too_early,
)
from cls_jax.photos.features.coverage import Coverage
from cls_jax.photos.features.graph import build_graph
from cls_jax.photos.features.infer import Inferred, infer
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.features.relations import Relations

NUM_IMAGES = 200


def _draw_folder(seed: int) -> tuple[FrozenFeatures, np.ndarray]:
    """Features of classes with three clusters each, and the classes. 7% look like another class.

    Features of stages are noisier than those of the last layer.
    """
    rng = np.random.default_rng(seed)
    num_classes = (3, 6, 9)[seed % 3]
    clusters = rng.integers(3 * num_classes, size=NUM_IMAGES)
    centers = np.tile(rng.normal(size=(num_classes, 24)), (3, 1))
    centers = (centers + rng.normal(size=centers.shape)) / 2
    features = centers[clusters] + rng.normal(size=(NUM_IMAGES, 24))
    stages = features[:, :12] + rng.normal(size=(NUM_IMAGES, 12))
    classes = clusters % num_classes
    is_odd = rng.random(NUM_IMAGES) < 0.07
    classes[is_odd] = rng.integers(num_classes, size=is_odd.sum())
    return FrozenFeatures(features, features, stages), classes


def _answer(seed: int, num_labels: int) -> tuple[Inferred, np.ndarray]:
    """What is inferred of a folder after the page's first questions, and which labels are right."""
    features, truth = _draw_folder(seed)
    coverage = Coverage(build_graph(features.descriptors))
    order, _ = coverage.choose(np.ones(NUM_IMAGES, bool), num_labels)
    labels = np.full(NUM_IMAGES, -1)
    classes, labels[order] = np.unique(truth[order], return_inverse=True)
    inferred = infer(Relations(features), labels, len(classes))
    return inferred, classes[inferred.labels] == truth


@pytest.mark.slow
def test_the_interval_holds_the_truth_in_nine_of_ten_folders():
    is_held, errors = [], []
    for seed in range(9):
        for num_labels in (20, 40, 80):
            inferred, is_right = _answer(seed, num_labels)
            estimate = inferred.estimate
            if estimate.accuracy is None:
                continue
            right = 100 * is_right[inferred.given < 0].mean()
            is_held.append(estimate.accuracy_low <= right <= estimate.accuracy_high)
            errors.append(estimate.accuracy - right)
    assert len(is_held) > 20
    assert np.mean(is_held) >= 0.9
    assert abs(np.mean(errors)) < 8


def _check_randomly(accuracy, num_checks, num_labels, excess, excess_then):
    """The estimate and the truth in percent, for 300 draws of a folder and of random photos.

    The confidences are too high by `excess`, and by `excess_then` when the photos were checked.
    """
    rng = np.random.default_rng(0)
    for _ in range(300):
        mean = min(accuracy + excess, 0.98)
        c_B = rng.beta(8 * mean, 8 * (1 - mean), 500)
        chance_B = c_B - excess
        chance_B += accuracy - chance_B.mean()
        right_B = rng.random(500) < chance_B
        checked = rng.choice(500, num_checks, replace=False)
        labels = np.r_[np.full(500, -1), np.arange(num_labels) % 2]
        confidences = np.r_[c_B, np.ones(num_labels)]
        probabilities = np.stack([confidences, np.zeros(len(labels))], axis=1)
        estimate = estimate_accuracy(probabilities, labels, np.arange(len(labels)))
        then = np.minimum(c_B[checked] + excess_then - excess, 1)
        yield correct_estimate(estimate, right_B[checked], then), 100 * right_B.mean()


def _summarize(drawn):
    """How often the interval holds, the mean error and the mean absolute error."""
    is_held = [one.accuracy_low <= right <= one.accuracy_high for one, right in drawn]
    errors = np.array([one.accuracy - right for one, right in drawn])
    return np.mean(is_held), errors.mean(), np.abs(errors).mean()


@pytest.mark.parametrize("num_checks", [20, 60])
@pytest.mark.parametrize("accuracy", [0.5, 0.75, 0.97])
@pytest.mark.parametrize("excess", [0.0, 0.1])
def test_random_photos_correct_a_classifier_that_is_too_sure(num_checks, accuracy, excess):
    """While it is otherwise too early to say, and with 40 labels."""
    alone = list(_check_randomly(accuracy, num_checks, 2, excess, excess))
    held, error, size = _summarize(alone)
    assert held >= 0.9
    assert abs(error) < 2
    both = list(_check_randomly(accuracy, num_checks, 40, excess, excess))
    held, error, size_with_confidence = _summarize(both)
    assert held >= 0.9
    assert abs(error) < 5
    # A mean confidence that is right makes the estimate more exact.
    assert excess or size_with_confidence < 0.8 * size
    width, width_with_confidence = (
        np.mean([one.accuracy_high - one.accuracy_low for one, _ in drawn])
        for drawn in (alone, both)
    )
    assert width_with_confidence < width  # Nor is it wider than without.


def test_the_interval_holds_once_the_classifier_has_learned_the_random_photos():
    """With the labels doubled, it is less wrong about itself than when it was checked."""
    held, *_ = _summarize(list(_check_randomly(0.75, 20, 40, 0.0, 0.13)))
    assert held >= 0.9


@pytest.mark.parametrize(
    ("labels", "groups", "sentence"),
    [
        ([0, 0, 1, 1, 1], range(5), "About 80% of the other photos are named right (27 to 100%)."),
        ([0, 1, 2, 2, 2], range(5), "Too early to say: 2 of 3 classes have only one answer."),
        ([3, 3, 3, 3, 3], range(5), "About 80% of the other photos are named right (27 to 100%)."),
        ([5], range(1), "Too early to say: 1 of 1 class has only one answer."),
        # Near-copies are one answer.
        ([0, 0, 1, 1], [0, 0, 1, 1], "Too early to say: 2 of 2 classes have only one answer."),
    ],
)
def test_an_estimate_waits_until_few_answers_are_the_only_ones_of_their_class(
    labels, groups, sentence
):
    probabilities = np.tile([0.8, 0.2], (len(labels) + 4, 1))
    labels = np.array([*labels, -1, -1, -1, -1])
    groups = np.append(groups, [90, 91, 92, 93])
    estimate = estimate_accuracy(probabilities, labels, groups)
    assert describe_estimate(estimate) == sentence
    assert is_too_early(count_labels(labels, groups)) == (estimate.accuracy is None)


def test_without_labels_or_other_images_there_is_no_estimate():
    probabilities = np.full((3, 2), 0.5)
    for label in (-1, 1):
        assert estimate_accuracy(probabilities, np.full(3, label), np.arange(3)) is None


@pytest.mark.parametrize("share", [0.0, 0.9, 0.95, 0.98, 1.0])
def test_the_fewest_least_confident_images_are_looked_at(share):
    confidences = np.random.default_rng(0).beta(5, 1, size=300)
    estimate = Estimate(2, 0, 80.0, 70.0, 90.0)
    chosen = choose_to_check(confidences, 20, share, estimate)
    assert confidences[chosen].max(initial=0) <= np.delete(confidences, chosen).min(initial=1)
    assert (np.diff(confidences[chosen]) >= 0).all()
    # A less certain estimate needs more of them, and a target of 100% all.
    wider = choose_to_check(confidences, 20, share, estimate._replace(accuracy_low=60.0))
    assert len(chosen) == len(wider) if share in (0, 1) else len(chosen) < len(wider)
    assert (len(chosen) == 300) == (share == 1)
    assert len(choose_to_check(np.zeros(0), 0, share, estimate)) == 0


def test_as_many_are_wrong_as_the_lower_end_says_also_where_all_are_certain():
    """320 images, of which 15.1 at most may be wrong in the end."""
    estimate = Estimate(2, 0, 100.0, 90.2, 100.0)  # At the lower end, 6.4% are wrong.
    chosen = choose_to_check(np.ones(300), 20, 1 - 15.1 / 320, estimate)
    assert len(chosen) == np.ceil(300 - 15.1 / 0.064)
    for low in (0.0, 100.0):
        one = Estimate(2, 0, low, low, low)
        assert len(choose_to_check(np.full(300, 0.7), 0, 0.95, one)) == (285 if low == 0 else 0)


def test_the_target_is_reached_in_nine_of_ten_folders():
    is_reached = []
    for seed in range(10):
        inferred, is_right = _answer(seed, 60)
        is_open = inferred.given < 0
        confidences = inferred.probabilities[is_open].max(axis=1)
        for share in (0.9, 0.95, 0.98):
            chosen = choose_to_check(confidences, 60, share, inferred.estimate)
            wrong = np.delete(~is_right[is_open], chosen).sum()
            is_reached.append(wrong <= (1 - share) * NUM_IMAGES)
    assert np.mean(is_reached) >= 0.9


def test_photos_are_sure_whose_error_is_a_tenth_at_most():
    confidences = np.linspace(0, 1, 1001)
    known = Estimate(2, 0, 80.0, 70.0, 90.0, confidence=80.0, checks=20)
    for estimate, least in ((None, 0.934), (known, 0.934), (known._replace(accuracy=60.0), 0.967)):
        assert confidences[find_sure(confidences, estimate)].min() == pytest.approx(least)
