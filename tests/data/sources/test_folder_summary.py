"""What a folder of images holds, found without decoding it."""

import numpy as np
import pytest
from PIL import Image

from cls_jax.data.sources.folder import load_sample, summarize_folder, take_evenly
from cls_jax.errors import UserError

GRAYS = {"labeled/ant": (10, 3), "labeled/bee": (20, 6), "unlabeled": (30, 7), "test/ant": (40, 2)}


@pytest.fixture
def folder(tmp_path):
    """Images of a gray level per subfolder, 20 x 30 pixels, and one damaged file."""
    for name, (gray, count) in GRAYS.items():
        (tmp_path / name).mkdir(parents=True)
        for i in range(count):
            Image.new("L", (20, 30), gray).save(tmp_path / name / f"{i}.png")
    (tmp_path / "labeled/bee/broken.png").write_text("no image")
    return tmp_path


def test_counts_and_sizes(folder):
    summary = summarize_folder(folder)
    assert summary.class_counts == {"ant": 3, "bee": 7}
    assert (summary.num_labeled, summary.num_unlabeled, summary.num_test) == (10, 7, 2)
    assert summary.imbalance == pytest.approx(7 / 3)
    np.testing.assert_array_equal(summary.sizes, [[20, 30]] * 16)  # Not of the damaged file.
    assert summary.channels == 1
    # One colored image makes a folder colored.
    Image.new("RGB", (20, 30), "red").save(folder / "unlabeled" / "0.png")
    assert summarize_folder(folder).channels == 3


def test_sample_has_readable_images_of_both_kinds_with_their_labels(folder):
    sample = load_sample(summarize_folder(folder), (8, 8, 3), 100)
    assert sample.train_labels.tolist() == [0] * 3 + [1] * 6 + [-1] * 7
    assert sample.train_images.shape == (16, 8, 8, 3)
    grays = sample.train_images.reshape(16, -1).mean(axis=1)
    np.testing.assert_array_equal(grays, [10] * 3 + [20] * 6 + [30] * 7)

    few = load_sample(summarize_folder(folder), (8, 8, 3), 2)
    assert few.train_labels.tolist() == [0, -1, -1]  # The other labeled one is damaged.


def test_rows_are_taken_evenly():
    assert take_evenly(range(100), 3) == [0, 49, 99]
    assert take_evenly(range(3), 100) == [0, 1, 2]
    assert take_evenly([], 5) == []


def test_a_folder_that_cannot_be_used_is_named(folder, tmp_path):
    with pytest.raises(UserError, match="nothing is not a folder"):
        summarize_folder(tmp_path / "nothing")
    for path in folder.rglob("*.png"):
        path.write_text("no image")
    with pytest.raises(UserError, match="can be read: convert them"):
        summarize_folder(folder)
