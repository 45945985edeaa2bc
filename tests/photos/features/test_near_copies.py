"""Photos of one burst are found, and held out together."""

import numpy as np
import pytest

from cls_jax.photos.features.grouping import find_firsts, find_judged, is_copied
from cls_jax.photos.features.infer import hold_out_labels, infer
from cls_jax.photos.features.near_copies import find_dominating
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.features.relations import Relations

K = 4


def _create(num_photos, num_copies, num_features=200, seed=0):
    """Features of photos and their near-copies, the photos of each, and their classes."""
    rng = np.random.default_rng(seed)
    photos = np.repeat(np.arange(num_photos), num_copies)
    centers = 0.15 * np.random.default_rng(9).standard_normal((K, num_features))
    features = centers[np.arange(num_photos) % K] + rng.standard_normal((num_photos, num_features))
    features = features[photos] + 0.1 * rng.standard_normal((len(photos), num_features))
    return FrozenFeatures(features, features, features), photos, photos % K


@pytest.mark.parametrize(("num_photos", "num_copies"), [(600, 1), (300, 2), (100, 6), (8, 30)])
def test_groups_are_those_of_the_photos(num_photos, num_copies):
    features, photos, _ = _create(num_photos, num_copies)
    groups = Relations(features).copies
    np.testing.assert_array_equal(groups, photos)
    shuffled = np.random.default_rng(0).permutation(len(photos))
    again = Relations(features.convert(lambda rows: rows[shuffled])).copies
    same = photos[shuffled][:, None] == photos[shuffled]
    np.testing.assert_array_equal(again[:, None] == again, same)


def test_without_features_of_stages_only_exact_copies_are_grouped():
    features, _, _ = _create(5, 4)
    pixels = features._replace(stages=features.stages[:, :0])
    assert len(set(Relations(pixels).copies)) == 20
    copied = pixels.convert(lambda rows: rows[[0, 1, 0, 2, 1]])
    np.testing.assert_array_equal(Relations(copied).copies, [0, 1, 0, 2, 1])
    assert not len(Relations(pixels.convert(lambda rows: rows[:0])).copies)
    unread = np.arange(20)[:, None] < 3
    assert len(set(Relations(features.convert(lambda rows: rows * ~unread)).copies[:3])) == 3


def _create_chain(length, num_features=400):
    """Each image is a near-copy of the next three or so, and of no other."""
    rng = np.random.default_rng(1)
    steps = rng.standard_normal((length + 20, num_features))
    return np.stack([steps[i : i + 20].sum(axis=0) for i in range(length)]) / np.sqrt(20)


def test_images_with_different_labels_are_in_different_groups():
    features, photos, truth = _create(40, 5)
    labels = np.where(np.arange(len(photos)) % 5 < 3, truth, -1)
    np.testing.assert_array_equal(Relations(features).group(labels), photos)
    labels[0], labels[1] = 0, 1  # Of one burst.
    groups = Relations(features).group(labels)
    assert groups[0] != groups[1]
    assert set(groups[:5]) == {groups[0], groups[1]}
    np.testing.assert_array_equal(groups[5:] - groups[5], photos[5:] - photos[5])


def test_a_chain_is_no_burst_where_it_has_most_of_a_class():
    """A burst is one group, however large its share, since its images are alike in pairs."""
    features, _, truth = _create(60, 1, num_features=400)
    chain, burst = _create_chain(40), np.tile(_create_chain(1), (12, 1))
    burst += 0.1 * np.random.default_rng(2).standard_normal(burst.shape)
    rows = np.concatenate([features.stages, chain, burst])
    features = FrozenFeatures(rows, rows, rows)
    labels = np.concatenate([truth, [K] * len(chain), [K + 1] * len(burst)])
    unlabeled = Relations(features).copies
    assert len(set(unlabeled[60:100])) == 1
    groups = Relations(features).group(labels)
    sizes = np.unique(groups[60:100], return_counts=True)[1]
    assert len(sizes) >= 4
    assert len(set(groups[100:])) == 1
    assert find_dominating(groups, labels) == [groups[100]]
    assert find_judged(labels, groups)[60:].tolist() == [True] * 40 + [False] * 12
    # Where the class has many other labels, the chain stays as it is.
    more = np.concatenate([np.full(60, K), labels[60:]])
    assert len(set(Relations(features).group(more)[60:100])) == 1


def test_a_label_is_judged_by_labels_of_other_groups_and_each_group_once():
    labels, groups = np.array([0, 0, 1, 1, 2, 0]), np.array([3, 3, 1, 2, 4, 1])
    assert find_judged(labels, groups).tolist() == [True, True, True, True, False, True]
    assert find_judged(labels[:2], groups[:2]).tolist() == [False, False]
    assert find_firsts(groups).tolist() == [True, False, True, True, True, False]


def test_near_copies_give_labels_away_where_other_images_have_fewer():
    """A burst labeled at once, against one of three photos of every burst."""
    groups = np.repeat(np.arange(4), 3)
    for labels, expected in [
        ([0, 0, 0, 1, 1, 1, -1, -1, -1, -1, -1, -1], True),
        ([0, -1, -1, 1, -1, -1, 0, -1, -1, 1, -1, -1], False),
        ([0, 0, -1, 1, 1, -1, 0, 0, -1, 1, 1, -1], False),
        ([0, 0, -1, 1, -1, -1, -1, -1, -1, 0, 0, -1], True),
        ([0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1], True),  # No other image can tell.
        ([-1] * 12, False),
    ]:
        assert is_copied(groups, np.array(labels)) == expected, labels


@pytest.mark.parametrize("most", [1_000, 100])
def test_held_out_labels_are_not_predicted_by_their_near_copies(most, monkeypatch):
    monkeypatch.setattr("cls_jax.photos.features.infer._MAX_HELD_OUT", most)
    features, photos, truth = _create(200, 3)
    labels = np.where(photos < 80, truth, -1)  # All three photos of a burst.
    inferred = infer(Relations(features), labels, K)
    accuracy = 100 * np.mean((inferred.labels == truth)[labels < 0])
    num_groups = inferred.figures["near_copies"], inferred.figures["near_copy_groups"]
    assert num_groups == (160, 80)
    held_out = hold_out_labels(Relations(features), labels, K)
    p_BK = held_out.probabilities
    right = 100 * np.mean((p_BK.argmax(axis=1) == truth)[labels >= 0])
    assert abs(right - accuracy) < 20
    np.testing.assert_array_equal(held_out.is_judged, labels >= 0)
    # A class with one burst cannot be judged.
    alone = np.where((truth > 0) | (photos == 0), labels, -1)
    np.testing.assert_array_equal(
        hold_out_labels(Relations(features), alone, K).is_judged, alone > 0
    )
