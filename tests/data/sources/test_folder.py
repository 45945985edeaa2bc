"""Layouts of a folder of images. What happens with odd ones is in `test_odd_folders.py`."""

import builtins
import os
import pathlib
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from cls_jax.data.datasets import compute_mean_and_std, load_dataset
from cls_jax.data.images.decode import read_image
from cls_jax.data.images.files import ImageFile, ImageFiles, Listing
from cls_jax.data.sources.folder import hash_names, list_layout
from cls_jax.data.sources.folder_layout import pack_layout, read_layout, unpack_layout
from cls_jax.errors import UserError
from tests.conftest import load_config

SIZE = 8
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path):
    return tmp_path / "my images"


def put(root: pathlib.Path, *names: str) -> None:
    """Writes an image of random gray squares under each name."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = RNG.integers(0, 256, (12, 10, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path, "png")


LABELED = [f"labeled/{name}/{i}.png" for name in ("cat", "dog") for i in range(3)]


def load(root, **changes):
    config = load_config("folder", str(root))
    config.data.image_size = SIZE
    config.data.update(changes)
    return load_dataset(config)


def check_images(images, root, names, channels=3):
    expected = np.stack([read_image(root / name, (SIZE, SIZE, channels)) for name in names])
    np.testing.assert_array_equal(images[:], expected)


def test_a_listing_takes_few_bytes_a_file_and_travels_to_other_processes(root):
    root.mkdir()
    names = [f"images/part{i // 1000:02}/photograph_{i:05}.jpg" for i in range(20_000)]
    names[-2:] = "images/ä.png", "images/\udcff.png"  # The last one is not Unicode.
    (root / "labels.csv").write_text(
        "file,label\n" + "".join(f"{name},{'ab'[i % 2]}\n" for i, name in enumerate(names[::100]))
    )
    files = ImageFiles(ImageFile(name, i, 2**60 + i, 2**60, i) for i, name in enumerate(names))
    assert (
        files[-1] == files[[-1]][0] == ImageFile(names[-1], 19_999, 2**60 + 19_999, 2**60, 19_999)
    )
    assert [file.name for file in files] == list(files.names()) == names
    tracemalloc.start()
    layout = read_layout(root, Listing(files, ["images"], [("labels.csv", "a table")]))
    assert tracemalloc.get_traced_memory()[1] / len(names) < 60  # Beside the files.
    tracemalloc.stop()
    content = pack_layout(layout)
    assert len(content) / len(names) < 150
    theirs = unpack_layout(content)
    assert list(theirs.train) == list(layout.train)
    assert [len(theirs.train), theirs.class_names, theirs.skipped] == [20_000, ("a", "b"), []]
    files = ImageFiles(reversed(files))
    files.sort()
    assert [file.name for file in files] == sorted(names)


def test_folders_of_splits(root):
    files = ["Labeled/cat/1.png", "Labeled/dog/1.png", "Labeled/dog/deeper/2.png"]
    files += ["unlabelled/4.png", "unlabelled/from/5.png"]
    validation = ("valid/DOG/3.png", "valid/cat/4.png")
    put(root, *files, "Testing/Cat/9.png", *validation)
    dataset = load(root)
    assert dataset.name == "my images"
    assert dataset.class_names == ("cat", "dog")
    assert dataset.train_labels.tolist() == [0, 1, 1, -1, -1]
    assert dataset.train_labels.dtype == np.int32
    assert dataset.image_shape == (SIZE, SIZE, 3)
    assert dataset.train_files == tuple(files)
    check_images(dataset.train_images, root, files)
    assert (dataset.test_files, dataset.test_labels.tolist()) == (("Testing/Cat/9.png",), [0])
    check_images(dataset.test_images, root, dataset.test_files)
    assert dataset.validation_labels.tolist() == [1, 0]
    assert dataset.validation_files == validation
    check_images(dataset.validation_images, root, validation)
    assert dataset.warnings == dataset.skipped_files == ()


@pytest.mark.parametrize("base", ["", "train/"])
def test_class_folders(root, base):
    put(root, *(f"{base}{name}/{i}.png" for name in ("cat", "train") for i in range(3)))
    put(root, "test/cat/9.png")
    dataset = load(root)
    assert dataset.class_names == ("cat", "train")
    assert dataset.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataset.test_labels.tolist() == [0]


@pytest.mark.parametrize(
    ("head", "start"),
    [("file,label\n", ""), ("\ufefffile;label\r\n", "photos/"), ("id,file,label\n", "7,photos/")],
)
def test_labels_in_a_table(root, head, start):
    put(root, *(f"photos/{i}.png" for i in range(5)), "test/b/1.png")
    separator = ";" if ";" in head else ","
    rows = [f"{start}{i}.png{separator}{label}\n" for i, label in ((0, "b"), (3, "a"), (4, ""))]
    (root / "labels.csv").write_text(head + "".join(rows))
    dataset = load(root)
    assert dataset.class_names == ("a", "b")
    assert dataset.train_labels.tolist() == [1, 0, -1, -1, -1]
    assert dataset.train_files == tuple(f"photos/{i}.png" for i in (0, 3, 1, 2, 4))
    assert dataset.test_labels.tolist() == [1]
    assert dataset.warnings == dataset.skipped_files == ()


def test_row_that_could_mean_two_images_is_left_out(root):
    put(root, "x/1.png", "y/1.png", "y/2.png", "y/3.png")
    (root / "labels.csv").write_text("id,label\n1,a\n2,a\n3,b\n")
    dataset = load(root)
    assert dataset.skipped_files == (("1", "in labels.csv, but it could be several images"),)
    assert dataset.train_files[:2] == ("y/2.png", "y/3.png")
    (root / "labels.csv").write_text(f"file,label\n2.png,{'x' * 300}\n3.png,b\n")
    with pytest.raises(UserError, match="more than 255 characters"):
        load(root)


def test_channels_and_bit_depth_are_those_of_the_configuration(root):
    for name, level in (("cat/1.png", 1000), ("dog/1.png", 4000)):
        (root / name).parent.mkdir(parents=True)
        Image.fromarray(np.full((12, 10), level, np.uint16)).save(root / name)
    load(root)  # The same files in the cache with three channels, and dark.
    dataset = load(root, bit_depth=12, channels=1)
    assert "scaled from 0 to 4,095, because data.bit_depth is 12." in dataset.warnings[0]
    assert dataset.train_images[:].max() == 249
    assert dataset.image_shape == dataset.train_images[:].shape[1:] == (SIZE, SIZE, 1)
    assert len(dataset.mean) == 1


def test_test_images_of_other_classes_are_skipped_and_named(root):
    put(root, *LABELED, "test/7.png", "test/bird/1.png")
    dataset = load(root)
    assert dict(dataset.skipped_files).keys() == {"test/7.png", "test/bird/1.png"}
    assert dataset.train_files == tuple(LABELED)
    assert any("2 file(s) were skipped" in warning for warning in dataset.warnings)
    assert any("1 class(es) that no labeled image has" in text for text in dataset.warnings)


@pytest.mark.parametrize("refused", ["0.png", "unlabeled"])
def test_what_may_not_be_read_is_skipped(root, monkeypatch, refused):
    put(root, *LABELED, "unlabeled/9.png")

    def refuse(function):
        def refuse_some(path, *args, **kwargs):
            if str(path).endswith((f"cat/{refused}", f"/{refused}")):
                raise PermissionError(13, "Permission denied")
            return function(path, *args, **kwargs)

        return refuse_some

    monkeypatch.setattr(builtins, "open", refuse(open))
    monkeypatch.setattr(os, "scandir", refuse(os.scandir))
    dataset = load(root)
    assert len(dataset.train_images) < 7
    assert {why.split(": ")[-1] for _, why in dataset.skipped_files} == {"Permission denied"}


def test_path_may_be_missing():
    with pytest.raises(UserError, match=r"name one with images, as in --config configs/folder\."):
        load("")


def test_fingerprint_depends_on_the_training_images_and_not_on_their_place(root, tmp_path):
    put(root, *LABELED)
    first = load(root).fingerprint
    root.rename(tmp_path / "moved")
    put(tmp_path / "moved", "test/cat/1.png")
    assert load(tmp_path / "moved").fingerprint == first
    put(tmp_path / "moved", "unlabeled/1.png")
    assert load(tmp_path / "moved").fingerprint != first


def test_share_of_the_labeled_images_is_held_out_for_validation(root):
    put(root, *LABELED, "unlabeled/1.png")
    whole, split = load(root), load(root, validation=0.34)
    assert split.train_labels.tolist() == [0, 0, 1, 1, -1]
    assert split.validation_labels.tolist() == [0, 1]
    assert sorted(split.train_files + split.validation_files) == sorted(whole.train_files)
    check_images(split.train_images, root, split.train_files)
    check_images(split.validation_images, root, split.validation_files)
    # What was held out is the same data: a finished run is found without opening a file.
    assert whole.fingerprint == split.fingerprint
    assert whole.fingerprint.startswith(hash_names(list_layout(root), []))
    put(root, "val/cat/1.png")
    with pytest.raises(UserError, match=r"has 1 validation images already: remove --config"):
        load(root, validation=0.34)


def test_mean_and_deviation_are_computed_unless_given(root):
    put(root, *LABELED)
    dataset = load(root)
    images = dataset.train_images[:] / 255
    np.testing.assert_allclose(dataset.mean, images.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(dataset.std, images.std((0, 1, 2)), rtol=1e-6)
    assert load(root, mean=(0.5,), std=(0.25,)).mean == (0.5,)
    # Those of a single color can be divided by.
    mean, std = compute_mean_and_std(np.full((3, 4, 4, 1), 255, np.uint8))
    assert (mean, std) == ((1.0,), pytest.approx((1 / 255,)))
