"""Datasets from an `.npz`."""

import io
import zipfile

import numpy as np
import pytest

from cls_jax.data.datasets import load_dataset
from cls_jax.data.sources import benchmarks
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
    arrays["train_labels"][5:] = -1  # Of no class, or of an unknown one.
    np.savez(tmp_path / "set.npz", **arrays)
    dataset = load(tmp_path / "set.npz")
    np.testing.assert_array_equal(dataset.train_images, arrays["train_images"])
    np.testing.assert_array_equal(dataset.train_labels, arrays["train_labels"])
    np.testing.assert_array_equal(dataset.test_labels, arrays["test_labels"])
    assert dataset.num_classes == 10


@pytest.mark.parametrize(
    "arrays",
    [
        {"train_images": np.zeros((2, 32, 32, 3), np.uint8)},
        *(
            create_arrays() | change
            for change in (
                {"train_images": np.zeros((30, 32, 32, 3), np.float32)},
                {"test_images": np.array([{"a": 1}], object)},
                {"train_labels": np.zeros(3, int)},
                {"train_labels": np.full(30, 2_000_000_000)},
                {"train_labels": np.full(30, -2)},
                {"test_labels": np.full(10, -1)},
                {"train_labels": np.zeros(30)},
                {"class_names": np.array(["one"])},
            )
        ),
    ],
)
def test_npz_of_another_layout_is_refused(tmp_path, arrays):
    np.savez(tmp_path / "set.npz", **arrays)
    with pytest.raises(UserError, match="cannot be read as a dataset"):
        load(tmp_path / "set.npz")


@pytest.mark.parametrize("content", [None, b"", b"not an archive at all"])
def test_missing_or_damaged_file_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "set.npz").write_bytes(content)
    with pytest.raises(UserError, match="cannot be read as a dataset"):
        load(tmp_path / "set.npz")


@pytest.mark.parametrize("name", ["set.tar", "set.tar.xz", "set.tgz"])
def test_archive_is_refused_with_the_remedy(tmp_path, name):
    with pytest.raises(UserError, match="is an archive: unpack it and train on the folder"):
        load(tmp_path / name)


def test_array_that_claims_more_than_there_is_is_refused(tmp_path):
    np.savez(tmp_path / "good.npz", **create_arrays())
    content = io.BytesIO()
    header = {"descr": "|u1", "fortran_order": False, "shape": (10**6, 1024, 1024, 3)}
    np.lib.format.write_array_header_1_0(content, header)
    with (
        zipfile.ZipFile(tmp_path / "good.npz") as good,
        zipfile.ZipFile(tmp_path / "set.npz", "w") as bad,
    ):
        for name in good.namelist():
            is_changed = name == "train_images.npy"
            bad.writestr(name, content.getvalue() if is_changed else good.read(name))
    with pytest.raises(UserError, match="cannot be read as a dataset"):
        load(tmp_path / "set.npz")


def test_arrays_larger_than_memory_are_refused(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "set.npz", **create_arrays())
    monkeypatch.setattr(benchmarks, "get_machine_memory", lambda: 2000)
    with pytest.raises(UserError, match="too much for this machine"):
        load(tmp_path / "set.npz")
