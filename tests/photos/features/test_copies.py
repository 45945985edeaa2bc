"""Held-out images that show a training image again are found, and measured without."""

import numpy as np
import pytest
from PIL import Image

from cls_jax.data.types import Dataset, Split
from cls_jax.photos.features.copies import correlate, find_copies, measure_without_copies
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.features.relations import Relations
from cls_jax.photos.report.outcome import describe_copies
from cls_jax.photos.start.fit_labels import read_copies, write_copies

NUM_PHOTOS, SIDE = 40, 64


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
