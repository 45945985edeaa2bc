"""What is expected of tags holds on the unlabeled images, and waits for enough labels."""

import numpy as np
import pytest

from cls_jax.photos.features.tag_accuracy import (
    Share,
    TagFigures,
    confide,
    correct_tags,
    describe_tag,
    estimate_each,
    estimate_tags,
)

NUM_IMAGES, NUM_TAGS = 400, 4


def _draw(seed: int, num_labels: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities, the tags that follow from them, and those that are known, [B, T]."""
    rng = np.random.default_rng(seed)
    p_BT = rng.beta(0.4, 0.8, (NUM_IMAGES, NUM_TAGS))
    has_BT = (rng.random(p_BT.shape) < p_BT).astype(np.int8)
    is_labeled_B = np.arange(NUM_IMAGES) < num_labels
    return p_BT, has_BT, np.where(is_labeled_B[:, None], has_BT, np.int8(-1))


@pytest.mark.parametrize("num_labels", [20, 60, 200])
def test_intervals_hold_the_truth_in_nine_of_ten_folders(num_labels):
    are_held, shares_are_held = [], []
    for seed in range(100):
        p, has, known = _draw(seed, num_labels)
        says, has = p[num_labels:] >= 0.5, has[num_labels:] == 1
        parts = p, p, known, np.arange(NUM_IMAGES)
        estimate = estimate_tags(*parts)
        true = 100 * (says == has).all(axis=1).mean()
        are_held.append(estimate.accuracy_low <= true <= estimate.accuracy_high)
        right = (says & has).sum(axis=0)
        truths = zip(right / says.sum(axis=0), right / has.sum(axis=0), strict=True)
        for figures, of_tag in zip(estimate_each(*parts), truths, strict=True):
            shares_are_held += [
                share.low <= 100 * true <= share.high
                for share, true in zip(figures, of_tag, strict=True)
                if share is not None
            ]
    assert np.mean(are_held) >= 0.9
    assert len(shares_are_held) > 100 * NUM_TAGS
    assert np.mean(shares_are_held) >= 0.9


def test_held_out_labels_correct_errors_that_depend_on_each_other():
    """All tags of an image are right or wrong together, so the product is too low."""
    rng = np.random.default_rng(0)
    is_right = rng.random(NUM_IMAGES) < 0.8
    has = rng.integers(2, size=(NUM_IMAGES, NUM_TAGS), dtype=np.int8)
    p = np.where((has == 1) == is_right[:, None], 0.8, 0.2)
    known = np.where(np.arange(NUM_IMAGES)[:, None] < 100, has, -1)
    estimate = estimate_tags(p, p, known, np.arange(NUM_IMAGES))
    assert estimate.confidence == pytest.approx(100 * 0.8**NUM_TAGS)
    assert estimate.accuracy == pytest.approx(80, abs=8)


def test_random_images_are_judged_without_their_own_labels_and_open_tags_are_right():
    p, has, known = _draw(0, 40)
    estimate = estimate_tags(p, p, known, np.arange(NUM_IMAGES))
    rows = np.arange(40, 70)
    wrong = np.where(has[rows] == 1, 0.1, 0.9)
    assert correct_tags(estimate, wrong, has[rows]).accuracy < estimate.accuracy - 20
    is_open = correct_tags(estimate, wrong, np.full_like(has[rows], -1))  # Surely right.
    assert is_open.accuracy == pytest.approx(estimate.confidence)
    assert correct_tags(estimate, wrong[:19], has[rows[:19]]) == estimate  # Too few.


def test_the_confidence_is_that_of_what_is_said():
    p = np.array([[0.9, 0.6]])
    assert confide(p) == pytest.approx([0.54])
    assert confide(p, np.array([0.5, 0.7])) == pytest.approx([0.36])


def test_nothing_is_said_without_labels_or_of_tags_with_too_few():
    p, _, known = _draw(0, 40)
    groups = np.arange(NUM_IMAGES)
    nothing = np.full_like(known, -1)
    assert estimate_tags(p, p, nothing, groups) is None
    assert estimate_tags(p, p, known * 0, groups) is None
    early = TagFigures(None, None)
    assert estimate_each(p, p, nothing, groups) == [early] * NUM_TAGS
    assert describe_tag(early) == "too early to say"
    known[:40, 0] = 0
    known[0, 0] = 1
    known[:40, 1] = -1  # Open.
    figures = estimate_each(p, p, known, groups)
    assert figures[:2] == [early] * 2
    assert figures[2] != early
    p[29:] = np.nan
    assert estimate_each(p, p, known, groups) == [early] * NUM_TAGS


def test_it_is_too_early_while_many_tags_have_one_image_and_near_copies_are_one():
    p, _, known = _draw(0, 20)
    groups = np.arange(NUM_IMAGES)
    known[:20] = 0
    known[:5] = 1
    assert estimate_tags(p, p, known, groups).accuracy is not None
    groups[:5] = 0
    early = estimate_tags(p, p, known, groups)
    assert (early.accuracy, early.classes_with_one_label) == (None, NUM_TAGS)


def test_all_of_a_few_others_may_be_right():
    p = np.full((NUM_IMAGES, 1), 0.1)
    p[:50], p[100:110] = 0.9, 0.9
    known = np.full((NUM_IMAGES, 1), -1, np.int8)
    known[:100] = p[:100] > 0.5
    known[0] = 0
    (figures,) = estimate_each(p, p, known, np.arange(NUM_IMAGES))
    assert figures.precision.share == 98
    assert figures.precision.high == 100
    assert figures.precision.low % 10 == pytest.approx(0)


def test_figures_of_a_tag_are_a_few_words():
    figures = TagFigures(Share(90, 80, 95), Share(70, 55, 82))
    assert describe_tag(figures) == "precision about 90% (80 to 95%), recall about 70% (55 to 82%)"
