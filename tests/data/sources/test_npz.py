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


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def create_arrays(**changes):
    return {
        "train_images": RNG.integers(0, 256, (30, 32, 32, 3), dtype=np.uint8),
        "train_labels": np.arange(30) % 10,
        "test_images": RNG.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8),
        "test_labels": np.arange(10),
    } | changes


def load(path):
    config = load_config("cifar10", "10")
    config.data.data_dir = str(path)
    return load_dataset(config)


def test_npz_comes_back_as_it_is(tmp_path):
    arrays = create_arrays()
    arrays["train_labels"][5:] = -1  # Of no class, or of an unknown one.
    np.savez(tmp_path / "set.npz", **arrays)
    dataset = load(tmp_path / "set.npz")
    for name, array in arrays.items():
        np.testing.assert_array_equal(getattr(dataset, name), array)
    assert dataset.num_classes == 10


@pytest.mark.parametrize(
    "arrays",
    [
        {"train_images": np.zeros((2, 32, 32, 3), np.uint8)},
        create_arrays(train_images=np.zeros((30, 32, 32, 3), np.float32)),
        create_arrays(train_images=np.zeros((0, 32, 32, 3), np.uint8), train_labels=np.arange(0)),
        create_arrays(train_labels=np.zeros(3, int)),
        create_arrays(train_labels=np.full(30, 2_000_000_000)),
        create_arrays(train_labels=np.full(30, -2)),
        create_arrays(test_labels=np.full(10, -1)),
        create_arrays(train_labels=np.zeros(30)),
        create_arrays(class_names=np.array(["one"])),
        b"not an archive at all",
        None,
    ],
)
def test_damaged_or_missing_npz_is_refused(tmp_path, arrays):
    if isinstance(arrays, dict):
        np.savez(tmp_path / "set.npz", **arrays)
    elif arrays:
        (tmp_path / "set.npz").write_bytes(arrays)
    with pytest.raises(UserError, match="cannot be read as a dataset"):
        load(tmp_path / "set.npz")


def test_objects_are_never_unpickled(tmp_path):
    images = np.array([Payload(tmp_path / "unpickled")], object)
    np.savez(tmp_path / "set.npz", **create_arrays(test_images=images))
    with pytest.raises(UserError, match="cannot be read as a dataset"):
        load(tmp_path / "set.npz")
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.parametrize("name", ["set.tar", "set.tar.xz", "set.tgz"])
def test_archive_is_refused_with_the_remedy(name):
    with pytest.raises(UserError, match="is an archive: unpack it and train on the folder"):
        load(name)


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
