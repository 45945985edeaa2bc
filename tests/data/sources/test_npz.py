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


def pack(arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def claim_more_than_there_is():
    content = io.BytesIO()
    header = {"descr": "|u1", "fortran_order": False, "shape": (10**6, 1024, 1024, 3)}
    np.lib.format.write_array_header_1_0(content, header)
    file = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(pack(create_arrays()))) as good,
        zipfile.ZipFile(file, "w") as bad,
    ):
        for name in good.namelist():
            is_changed = name == "train_images.npy"
            bad.writestr(name, content.getvalue() if is_changed else good.read(name))
    return file.getvalue()


class Payload:
    """Fails when it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("It was unpickled.",)


@pytest.mark.parametrize(
    "arrays",
    [
        {"train_images": np.zeros((2, 32, 32, 3), np.uint8)},
        create_arrays(train_images=np.zeros((30, 32, 32, 3), np.float32)),
        create_arrays(train_images=np.zeros((0, 32, 32, 3), np.uint8), train_labels=np.arange(0)),
        *(create_arrays(train_labels=labels) for labels in (np.zeros(3, int), np.zeros(30))),
        *(create_arrays(train_labels=np.full(30, label)) for label in (2_000_000_000, -2)),
        create_arrays(test_labels=np.full(10, -1)),
        create_arrays(class_names=np.array(["one"])),
        create_arrays(test_images=np.array([Payload()], object)),
        claim_more_than_there_is(),
        b"not an archive at all",
        None,
    ],
)
def test_damaged_or_missing_npz_is_refused_and_never_unpickled(tmp_path, arrays):
    if arrays:
        content = arrays if isinstance(arrays, bytes) else pack(arrays)
        (tmp_path / "set.npz").write_bytes(content)
    with pytest.raises(UserError, match="cannot be read as a dataset"):
        load(tmp_path / "set.npz")


def test_archives_and_arrays_larger_than_memory_are_refused(tmp_path, monkeypatch):
    for name in ("set.tar", "set.tar.xz", "set.tgz"):
        with pytest.raises(UserError, match="is an archive: unpack it and train on the folder"):
            load(name)
    np.savez_compressed(tmp_path / "set.npz", **create_arrays())
    monkeypatch.setattr(benchmarks, "get_machine_memory", lambda: 2000)
    with pytest.raises(UserError, match="too much for this machine"):
        load(tmp_path / "set.npz")
