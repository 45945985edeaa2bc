"""Digits as they are, and TFDS on a folder prepared by the test."""

import numpy as np
import pytest

from cls_jax.data.datasets import load_dataset
from cls_jax.errors import UserError
from tests.conftest import create_tiny_config, load_config


def test_digits_have_a_fixed_stratified_test_set():
    first, other_seed = load_dataset(create_tiny_config()), load_dataset(create_tiny_config(seed=7))
    np.testing.assert_array_equal(first.test_images, other_seed.test_images)
    assert len(first.test_images) == 450
    assert len(first.train_images) == 1797 - 450
    shares = np.bincount(first.test_labels) / 450 - np.bincount(first.train_labels) / 1347
    assert np.abs(shares).max() < 0.002
    # All gray levels are kept at the native size.
    levels = np.unique(np.concatenate([first.train_images, first.test_images]))
    assert len(levels) == 17
    assert levels[[0, -1]].tolist() == [0, 255]


def test_mean_and_deviation_of_the_configuration_are_those_of_the_digits():
    config = load_config("digits", "40")
    images = load_dataset(config).train_images / 255
    np.testing.assert_allclose(images.mean(), config.data.mean[0], atol=2e-3)
    np.testing.assert_allclose(images.std(), config.data.std[0], atol=2e-3)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder in which TFDS finds `cifar10`: 30 training and 10 test images."""
    tfds = pytest.importorskip("tensorflow_datasets")
    folder = tmp_path_factory.mktemp("tfds")
    rng = np.random.default_rng(0)
    rows = {
        split: [
            {"id": str(i), "image": rng.integers(0, 256, (32, 32, 3), np.uint8), "label": i % 10}
            for i in range(n)
        ]
        for split, n in (("train", 30), ("test", 10))
    }
    features = tfds.features.FeaturesDict(
        {
            "id": tfds.features.Text(),
            "image": tfds.features.Image(shape=(32, 32, 3)),
            "label": tfds.features.ClassLabel(names=[f"class{i}" for i in range(10)]),
        }
    )
    tfds.dataset_builders.store_as_tfds_dataset(
        name="cifar10",
        version="3.0.2",
        data_dir=folder,
        features=features,
        split_datasets={k: ((r["id"], r) for r in rs) for k, rs in rows.items()},
    )
    return folder, rows


def test_tfds_dataset_prepared_beforehand_needs_no_download(prepared):
    folder, rows = prepared
    config = load_config("cifar10", "10")
    config.data.data_dir = str(folder)
    dataset = load_dataset(config)
    assert dataset.class_names == tuple(f"class{i}" for i in range(10))
    assert dataset.image_shape == (32, 32, 3)
    stored = {row["image"].tobytes(): row["label"] for row in rows["train"]}
    assert len(dataset.train_images) == 30
    for image, label in zip(dataset.train_images, dataset.train_labels, strict=True):
        assert stored[image.tobytes()] == label
    # The order of the images is the same every time.
    np.testing.assert_array_equal(dataset.train_images, load_dataset(config).train_images)


def test_dataset_neither_prepared_nor_downloadable_names_the_remedy(tmp_path, monkeypatch):
    pytest.importorskip("tensorflow_datasets")
    requests = pytest.importorskip("requests")

    def refuse(*args, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr(requests, "head", refuse)
    config = load_config("cifar10", "10")
    config.data.data_dir = str(tmp_path)
    with pytest.raises(UserError, match=r"set --config\.data\.data_dir to a TFDS folder"):
        load_dataset(config)


def test_another_image_size_is_refused(prepared):
    config = load_config("cifar10", "10")
    config.data.data_dir, config.data.image_size = str(prepared[0]), 64
    with pytest.raises(UserError, match=r"set --config\.data\.image_size=32"):
        load_dataset(config)


def test_unknown_dataset_is_refused():
    with pytest.raises(UserError, match="choose one of"):
        load_dataset(create_tiny_config(data__name="mnist3"))
