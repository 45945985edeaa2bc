"""Datasets: from an `.npz`, digits as they are, and TFDS on a folder prepared by the test."""

import io
import unittest.mock
import zipfile

import numpy as np
import pytest

from cls_jax.config import validate_config
from cls_jax.data.datasets import load_dataset
from cls_jax.data.sources import benchmarks
from cls_jax.errors import UserError
from cls_jax.runs.folder import check_dataset, create_run_folder, get_default_workdir
from tests.conftest import create_tiny_config, load_config

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
        split, part = name.split("_")
        np.testing.assert_array_equal(getattr(getattr(dataset, split), part), array)
    assert dataset.num_classes == 10


def test_own_arrays_choose_their_settings(tmp_path):
    """Gray images without an axis of channels, labels as Keras stores them, and no test images."""
    path = tmp_path / "my,scans.npz"
    images, labels = RNG.integers(0, 256, (30, 24, 24), dtype=np.uint8), np.arange(30) % 3
    np.savez(path, train_images=images, train_labels=labels[:, None])
    for rest, num_labels, method in ((",6,fixmatch", 6, "fixmatch"), (",all", 0, "cls")):
        config = load_config("npz", f"{path}{rest}")
        validate_config(config)
        assert (config.num_labels, config.method.name) == (num_labels, method)
        assert (config.data.image_size, config.data.shift, config.data.cutout) == (24, 3, 12)
    assert load_config("npz", f"{path},6,cls,small").num_steps == 8000
    dataset = load_dataset(config)
    np.testing.assert_array_equal(dataset.train.images[..., 0], images)
    np.testing.assert_array_equal(dataset.train.labels, labels)
    assert dataset.mean == pytest.approx([images.mean() / 255])
    assert (len(dataset.test), dataset.name) == (0, "my,scans")
    assert get_default_workdir(config).name == "my,scans-all-cls-seed0"
    for wrong in ("", str(path), "40", f"{path},x,y", f"{path},40,cls,large"):
        with pytest.raises(UserError):
            load_config("npz", wrong)
    # A run does not go on with other arrays of this name, but with these in another place.
    (tmp_path / "run").mkdir()
    create_run_folder(tmp_path / "run", config, np.arange(6), dataset)
    check_dataset(tmp_path / "run", dataset)
    images[7, 0, 0] ^= 1
    np.savez(path, train_images=images, train_labels=labels)
    with pytest.raises(UserError, match="are not those with which the run"):
        check_dataset(tmp_path / "run", load_dataset(config))


def test_names_stored_as_bytes_are_text_and_a_single_class_is_refused(tmp_path):
    names = [f"class {i} é" for i in range(10)]
    arrays = create_arrays(class_names=np.array([name.encode() for name in names]))
    np.savez(tmp_path / "set.npz", **arrays)
    assert load(tmp_path / "set.npz").class_names == tuple(names)
    arrays = {"train_images": arrays["train_images"], "train_labels": np.zeros(30, int)}
    np.savez(tmp_path / "set.npz", **arrays)
    with pytest.raises(UserError, match="images of a single class"):
        load(tmp_path / "set.npz")


def test_images_that_are_in_training_and_test_set_are_counted(tmp_path):
    arrays = create_arrays()
    arrays["test_images"][[2, 5, 6]] = arrays["train_images"][[0, 29, 29]]
    arrays["train_labels"][29] = -1
    np.savez(tmp_path / "set.npz", **arrays)
    (warning,) = load(tmp_path / "set.npz").warnings
    assert "3 of 10 test images are identical to training images (1 of known class)" in warning


def pack(arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def claim_more_than_there_is():
    content = io.BytesIO()
    header = {"descr": "|u1", "fortran_order": False, "shape": (10**6, 1024, 1024, 3)}
    np.lib.format.write_array_header_1_0(content, header)
    file, good = io.BytesIO(), zipfile.ZipFile(io.BytesIO(pack(create_arrays())))
    with zipfile.ZipFile(file, "w") as bad:
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
        create_arrays(class_names=np.array(["cat", *"bcdefghi", "cat"])),
        create_arrays(test_images=np.zeros((10, 28, 28, 3), np.uint8)),
        create_arrays(train_images=np.zeros((30, 32, 32, 4), np.uint8)),
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


def test_digits_have_a_fixed_stratified_test_set():
    first, other_seed = load_dataset(create_tiny_config()), load_dataset(create_tiny_config(seed=7))
    np.testing.assert_array_equal(first.test.images, other_seed.test.images)
    assert (len(first.test.images), len(first.train.images)) == (450, 1797 - 450)
    shares = np.bincount(first.test.labels) / 450 - np.bincount(first.train.labels) / 1347
    assert np.abs(shares).max() < 0.002
    # All gray levels are kept at the native size.
    levels = np.unique(np.concatenate([first.train.images, first.test.images]))
    assert (len(levels), levels[0], levels[-1]) == (17, 0, 255)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A configuration whose folder has `cifar10` for TFDS: 30 of these images, and 10 for tests."""
    tfds = pytest.importorskip("tensorflow_datasets")
    folder = tmp_path_factory.mktemp("tfds")
    images = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), np.uint8)
    rows = [{"id": str(i), "image": image, "label": i % 10} for i, image in enumerate(images)]
    rows = [(row["id"], row) for row in rows]
    tfds.dataset_builders.store_as_tfds_dataset(
        name="cifar10",
        version="3.0.2",
        data_dir=folder,
        features=tfds.features.FeaturesDict(
            {
                "id": tfds.features.Text(),
                "image": tfds.features.Image(shape=(32, 32, 3)),
                "label": tfds.features.ClassLabel(names=[f"class{i}" for i in range(10)]),
            }
        ),
        split_datasets={"train": rows[:30], "test": rows[30:]},
    )
    config = load_config("cifar10", "10")
    config.data.data_dir = str(folder)
    return config, images


def test_tfds_dataset_prepared_beforehand_needs_no_download(prepared):
    config, images = prepared
    dataset = load_dataset(config)
    assert dataset.class_names == tuple(f"class{i}" for i in range(10))
    assert dataset.image_shape == (32, 32, 3)
    stored = {image.tobytes(): i for i, image in enumerate(images)}
    rows = [stored[image.tobytes()] for image in dataset.train.images]
    assert sorted(rows) == list(range(30))
    np.testing.assert_array_equal(dataset.train.labels, np.array(rows) % 10)
    # The order of the images is the same every time.
    np.testing.assert_array_equal(dataset.train.images, load_dataset(config).train.images)
    other = config.copy_and_resolve_references()
    other.data.image_size = 64
    with pytest.raises(UserError, match=r"set --config\.data\.image_size=32"):
        load_dataset(other)


def test_a_split_without_labels_follows_the_training_images(prepared, monkeypatch):
    config, images = prepared
    monkeypatch.setitem(benchmarks._TFDS_NAMES, "stl10", "cifar10")
    monkeypatch.setitem(benchmarks._UNLABELED_SPLITS, "stl10", ("test",))
    config = load_config("stl10", "10")
    config.data.data_dir, config.data.image_size = prepared[0].data.data_dir, 32
    dataset = load_dataset(config)
    assert (len(dataset.train), len(dataset.test)) == (len(images), 10)
    np.testing.assert_array_equal(dataset.train.images[30:], dataset.test.images)
    monkeypatch.setattr(benchmarks, "get_machine_memory", lambda: 2000)
    with pytest.raises(UserError, match=r"cifar10 has 0\.0 GiB, too much for the memory"):
        load_dataset(config)


def test_dataset_neither_prepared_nor_downloadable_names_the_remedy(tmp_path, monkeypatch):
    pytest.importorskip("tensorflow_datasets")
    requests = pytest.importorskip("requests")

    refuse = unittest.mock.Mock(side_effect=OSError("no network"))
    monkeypatch.setattr(requests, "head", refuse)
    config = load_config("cifar10", "10")
    config.data.data_dir = str(tmp_path)
    with pytest.raises(UserError, match=r"set --config\.data\.data_dir to a TFDS folder"):
        load_dataset(config)
