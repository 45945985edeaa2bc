"""Images that show one photo again: held out together, found in the test part, and left out."""

import numpy as np
import pytest
from PIL import Image

from cls_jax.data.types import Dataset, Split
from cls_jax.photos.features.copies import correlate, find_copies, measure_without_copies
from cls_jax.photos.features.grouping import find_firsts, find_judged, is_copied
from cls_jax.photos.features.infer import hold_out_labels, infer
from cls_jax.photos.features.near_copies import find_dominating
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.features.relations import Relations
from cls_jax.photos.report.outcome import describe_copies
from cls_jax.photos.start.fit_labels import read_copies, write_copies

K = 4
NUM_PHOTOS, SIDE = 40, 64


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


def create_photos(count, seed=0):
    """Smooth random photos, uint8 [n, 64, 64, 3]."""
    noise = np.random.default_rng(seed).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    return np.stack([np.asarray(Image.fromarray(each).resize((SIDE, SIDE))) for each in noise])


def change(photo, name):
    image = Image.fromarray(photo)
    if name == "mirrored":
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if name == "turned":
        image = image.rotate(4, Image.Resampling.BICUBIC)
    if name == "resized":
        image = image.resize((SIDE // 2, SIDE // 2)).resize((SIDE, SIDE))
    if name == "cropped":
        image = image.crop((3, 3, SIDE - 3, SIDE - 3)).resize((SIDE, SIDE))
    return np.asarray(image)


@pytest.mark.parametrize("name", ["same", "mirrored", "turned", "resized", "cropped"])
def test_pixels_of_a_copy_correlate_and_those_of_other_photos_do_not(name):
    photos = create_photos(12)
    copies = [change(photo, name) for photo in photos]
    assert min(map(correlate, copies, photos)) > 0.93
    assert max(correlate(copies[i], photos[i - 1]) for i in range(12)) < 0.8


def create_features(closeness, seed=0):
    """Features of photos and of one like each of them, as close as whitened cosines say."""
    rng = np.random.default_rng(seed)
    own, other = rng.standard_normal((2, NUM_PHOTOS, 200))
    like = closeness * own + np.sqrt(1 - closeness**2) * other
    return (FrozenFeatures(each, each, each) for each in (own, like))


@pytest.mark.parametrize(("closeness", "found"), [(0.98, "all"), (0.7, "same"), (0.1, "none")])
def test_features_name_a_candidate_and_decide_where_they_can(closeness, found):
    """Pixels decide between: every other image shows the photo again."""
    train, held_out = create_features(closeness)
    photos, others = create_photos(NUM_PHOTOS), create_photos(NUM_PHOTOS, seed=1)
    is_same = np.arange(NUM_PHOTOS) % 2 == 0
    images = np.where(is_same[:, None, None, None], photos[:, :, ::-1], others)
    copies = find_copies(Relations(train), photos, held_out, images.__getitem__)
    expected = {"all": is_same | True, "same": is_same, "none": is_same & False}[found]
    np.testing.assert_array_equal(copies, np.where(expected, np.arange(NUM_PHOTOS), -1))
    pixels = FrozenFeatures(train.pooled, train.pooled, train.stages[:, :0])
    assert (find_copies(Relations(pixels), photos, pixels, photos.__getitem__) == -1).all()


def test_the_figure_without_copies_stands_beside_the_figure(tmp_path):
    is_right, is_copy = np.array([1, 1, 0, 1], bool), np.array([1, 1, 0, 0], bool)
    assert measure_without_copies(is_right, is_copy) == {"test/accuracy_without_copies": 50}
    for nothing in (is_copy | True, is_copy & False):
        assert measure_without_copies(is_right, nothing) == {}
    result = {"test_accuracy": 75.0, "test_accuracy_without_copies": 50.0}
    result |= {"test_near_copies": 2.0, "test_images": 4.0}  # As a training writes figures.
    sentence = "2 of 4 test images are near-copies of training images (see near_copies.csv)"
    assert describe_copies(result) == f"{sentence}: without them, the test accuracy is 50.0%."
    kept = {"predictor": "instant", "test_accuracy_instant_without_copies": 25.0}
    assert "is 25.0%" in describe_copies(result | kept)
    all_copies = result | {"test_near_copies": 4, "test_accuracy_without_copies": None}
    assert describe_copies(all_copies).endswith("so the test accuracy is not to be reported.")
    assert describe_copies({"test_images": 4, "test_near_copies": None}) is None
    # Which ones is in a file, also where there are no names.
    images = np.zeros((4, 2, 2, 3), np.uint8)
    for files in ((), ("a,b.jpg", 'c".jpg', "d.jpg", "e.jpg")):
        split = Split(images, np.array([0, 1, 1, 1]), files)
        dataset = Dataset("x", ("a", "b"), split, split, (2, 2, 3))
        found = np.array([3, 0, -1, -1])
        write_copies(tmp_path, dataset, np.arange(4), {"test": found})
        np.testing.assert_array_equal(read_copies(tmp_path, dataset)["test"], is_copy)
    assert not read_copies(tmp_path / "nothing", dataset)["test"].any()
