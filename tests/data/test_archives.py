"""Datasets from one file."""

import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from cls_jax.data.datasets import load_dataset
from cls_jax.errors import UserError
from tests.conftest import load_config

RNG = np.random.default_rng(0)


def create_arrays(num_train=30, num_test=10):
    return {
        "train_images": RNG.integers(0, 256, (num_train, 32, 32, 3), dtype=np.uint8),
        "train_labels": np.arange(num_train) % 10,
        "test_images": RNG.integers(0, 256, (num_test, 32, 32, 3), dtype=np.uint8),
        "test_labels": np.arange(num_test) % 10,
    }


def load(path):
    config = load_config("cifar10", "10")
    config.data.data_dir = str(path)
    return load_dataset(config)


def test_npz_comes_back_as_it_is(tmp_path):
    arrays = create_arrays()
    np.savez(tmp_path / "set.npz", **arrays)
    dataset = load(tmp_path / "set.npz")
    np.testing.assert_array_equal(dataset.train_images, arrays["train_images"])
    np.testing.assert_array_equal(dataset.test_labels, arrays["test_labels"])
    assert dataset.num_classes == 10


def test_archive_of_images_is_ordered_by_class_and_name(tmp_path):
    images = {}
    with tarfile.open(tmp_path / "set.tar.xz", "w:xz") as archive:
        for split, name, file in [
            ("train", "dog", "2.png"),
            ("train", "cat", "1.png"),
            ("train", "dog", "1.png"),
            ("test", "dog", "1.png"),
        ]:
            image = RNG.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            images[split, name, file] = image
            content = io.BytesIO()
            Image.fromarray(image).save(content, "png")
            member = tarfile.TarInfo(f"pets/{split}/{name}/{file}")
            member.size = content.tell()
            content.seek(0)
            archive.addfile(member, content)
    dataset = load(tmp_path / "set.tar.xz")
    assert dataset.class_names == ("cat", "dog")
    assert dataset.train_labels.tolist() == [0, 1, 1]
    assert dataset.test_labels.tolist() == [1]
    order = [("train", "cat", "1.png"), ("train", "dog", "1.png"), ("train", "dog", "2.png")]
    for image, key in zip(dataset.train_images, order, strict=True):
        np.testing.assert_array_equal(image, images[key])


@pytest.mark.parametrize(
    "arrays",
    [
        {"train_images": np.zeros((2, 32, 32, 3), np.uint8)},
        create_arrays() | {"train_images": np.zeros((30, 32, 32, 3), np.float32)},
        create_arrays() | {"train_labels": np.zeros(3, int)},
        create_arrays() | {"test_images": np.array([{"a": 1}], object)},
    ],
)
def test_npz_of_another_layout_is_refused(tmp_path, arrays):
    np.savez(tmp_path / "set.npz", **arrays)
    with pytest.raises(UserError, match="cannot be read as a dataset"):
        load(tmp_path / "set.npz")


@pytest.mark.parametrize("name", ["set.npz", "set.tar.xz", "set.tar"])
@pytest.mark.parametrize("content", [None, b"", b"not an archive at all"])
def test_missing_or_damaged_file_is_refused(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match="cannot be read as a dataset"):
        load(tmp_path / name)
