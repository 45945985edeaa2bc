"""Datasets from one file."""

import io
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

from cls_jax.data.datasets import load_dataset
from cls_jax.data.sources import archive as archive_lib
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


def write_archive(path, members):
    with tarfile.open(path, "w:xz" if path.name.endswith("xz") else "w") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def encode(size, mode="RGB"):
    content = io.BytesIO()
    Image.new(mode, size).save(content, "png")
    return content.getvalue()


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([("train/a/1.png", encode((2000, 9)))], "more than 1,024 pixels"),
        ([("train/a/1.png", bytes(2**12 + 1))], "has 4,097 bytes"),
        ([("train/a/1.png", encode((8, 8))), ("train/b/1.png", encode((9, 9)))], "several sizes"),
        ([("other", bytes(2**24)), ("train/a/1.png", encode((8, 8)))], "far more than images do"),
    ],
)
def test_archive_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch, members, reason):
    monkeypatch.setattr(archive_lib, "_FREE_EXPANSION", 2**22)
    monkeypatch.setattr(archive_lib, "_MAX_MEMBER_BYTES", 2**12)
    write_archive(tmp_path / "set.tar.xz", members)
    with pytest.raises(UserError, match=reason):
        load(tmp_path / "set.tar.xz")


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["train/a/1.png"], "no images in test/<class>/"),
        (["train/a/1.png", "test/b/1.png"], "test class 'b' has no training images"),
    ],
)
def test_archive_without_a_split_or_a_class_is_refused(tmp_path, names, reason):
    write_archive(tmp_path / "set.tar", [(name, encode((32, 32))) for name in names])
    with pytest.raises(UserError, match=reason):
        load(tmp_path / "set.tar")


def test_archive_is_never_unpacked_to_disk_and_its_links_are_left_out(tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    with tarfile.open(inside / "set.tar", "w") as archive:
        for name in ("../../train/a/1.png", "/train/b/1.png", "test/a/1.png"):
            member, content = tarfile.TarInfo(name), encode((32, 32))
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("train/a/2.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hosts"
        archive.addfile(link)
    assert load(inside / "set.tar").train_labels.tolist() == [0, 1]
    assert [path.name for path in tmp_path.rglob("*")] == ["inside", "set.tar"]


@pytest.mark.parametrize(
    "change",
    [
        {"train_labels": np.full(30, 2_000_000_000)},
        {"train_labels": np.full(30, -1)},
        {"train_labels": np.zeros(30)},
        {"class_names": np.array(["one"])},
    ],
)
def test_labels_that_are_not_classes_are_refused(tmp_path, change):
    np.savez(tmp_path / "set.npz", **create_arrays() | change)
    with pytest.raises(UserError, match="cannot be read as a dataset"):
        load(tmp_path / "set.npz")


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
    monkeypatch.setattr(archive_lib, "_get_max_bytes", lambda: 1000)
    with pytest.raises(UserError, match="too much for this machine"):
        load(tmp_path / "set.npz")
