"""Layouts of a folder of images. What happens with odd ones is in `test_odd_folders.py`."""

import builtins
import os
import pathlib

import numpy as np
import pytest
from PIL import Image

from cls_jax.data.datasets import compute_mean_and_std, load_dataset
from cls_jax.data.images.decode import read_image
from cls_jax.data.sources.folder import compute_fingerprint, list_layout
from cls_jax.errors import UserError
from tests.conftest import load_config

SIZE = 8
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


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


def put_labeled(root):
    put(root, *(f"labeled/{name}/{i}.png" for name in ("cat", "dog") for i in range(3)))


def load(root, **changes):
    config = load_config("folder", str(root))
    config.data.image_size = SIZE
    config.data.update(changes)
    return load_dataset(config)


def check_images(dataset, root, names):
    expected = np.stack([read_image(root / name, (SIZE, SIZE, 3)) for name in names])
    np.testing.assert_array_equal(dataset.train_images[:], expected)


@pytest.mark.parametrize(
    ("train", "unlabeled", "test", "validation"),
    [("Labeled", "unlabelled", "test", "val"), ("Train", "UNLABELED", "Testing", "valid")],
)
def test_folders_of_splits(root, train, unlabeled, test, validation):
    files = [f"{train}/cat/1.png", f"{train}/dog/1.png", f"{train}/dog/deeper/2.png"]
    files += [f"{unlabeled}/4.png", f"{unlabeled}/from/5.png"]
    put(root, *files, f"{test}/Cat/9.png", f"{validation}/DOG/3.png", f"{validation}/cat/4.png")
    dataset = load(root)
    assert dataset.name == "my images"
    assert dataset.class_names == ("cat", "dog")
    assert dataset.train_labels.tolist() == [0, 1, 1, -1, -1]
    assert dataset.train_labels.dtype == np.int32
    assert dataset.image_shape == dataset.test_images[:].shape[1:] == (SIZE, SIZE, 3)
    assert dataset.train_files == tuple(files)
    check_images(dataset, root, files)
    assert (dataset.test_files, dataset.test_labels.tolist()) == ((f"{test}/Cat/9.png",), [0])
    assert dataset.validation_labels.tolist() == [1, 0]
    assert len(dataset.validation_images[:]) == 2
    assert dataset.validation_files == (f"{validation}/DOG/3.png", f"{validation}/cat/4.png")
    assert dataset.warnings == dataset.skipped_files == ()


@pytest.mark.parametrize("base", ["", "train/"])
def test_class_folders(root, base):
    train = [f"{base}{name}/{i}.png" for name in ("cat", "train") for i in range(3)]
    put(root, *train, "test/cat/9.png")
    dataset = load(root)
    assert dataset.class_names == ("cat", "train")
    assert dataset.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataset.test_labels.tolist() == [0]
    check_images(dataset, root, train)


@pytest.mark.parametrize("prefix", ["", "photos/"])
@pytest.mark.parametrize("head", ["file,label\n", "\ufefffile;label\r\n", "id,file,label\n"])
def test_labels_in_a_table(root, prefix, head):
    put(root, *(f"photos/{i}.png" for i in range(5)), "test/b/1.png")
    rows = [(f"{prefix}{i}.png", label) for i, label in ((0, "b"), (3, "a"), (4, ""))]
    separator = ";" if ";" in head else ","
    first = "7," if head.startswith("id") else ""
    (root / "labels.csv").write_text(
        head + "".join(f"{first}{name}{separator}{label}\n" for name, label in rows)
    )
    dataset = load(root)
    assert dataset.class_names == ("a", "b")
    assert dataset.train_labels.tolist() == [1, 0, -1, -1, -1]
    check_images(dataset, root, [f"photos/{i}.png" for i in (0, 3, 1, 2, 4)])
    assert dataset.test_labels.tolist() == [1]
    assert dataset.warnings == dataset.skipped_files == ()


def test_row_that_could_mean_two_images_is_left_out(root):
    put(root, "x/1.png", "y/1.png", "y/2.png", "y/3.png")
    (root / "labels.csv").write_text("id,label\n1,a\n2,a\n3,b\n")
    dataset = load(root)
    assert dataset.skipped_files == (("1", "in labels.csv, but not in the folder"),)
    assert dataset.train_files[:2] == ("y/2.png", "y/3.png")


def test_dark_16_bit_images_are_named(root):
    for name, level in (("cat/1.png", 1000), ("dog/1.png", 4000)):
        (root / name).parent.mkdir(parents=True)
        Image.fromarray(np.full((12, 10), level, np.uint16)).save(root / name)
    assert "set --config.data.bit_depth=12" in load(root).warnings[0]
    dataset = load(root, bit_depth=12)
    assert dataset.warnings == (
        "16-bit images are scaled from 0 to 4,095, because data.bit_depth is 12.",
    )
    assert dataset.train_images[:].max() == 249


def test_files_that_cannot_be_used_are_skipped_and_named(root, tmp_path):
    put_labeled(root)
    put(tmp_path, "elsewhere/secret.png")
    put(root, "other/1.png", "test/7.png", "test/bird/1.png", "unlabeled/.hidden.png")
    (root / "unlabeled/notes.txt").write_text("notes")
    (root / "unlabeled/away.png").symlink_to(tmp_path / "elsewhere/secret.png")
    (root / "unlabeled/away").symlink_to(tmp_path / "elsewhere")
    (root / "unlabeled/within.png").symlink_to(root / "labeled/cat/1.png")
    dataset = load(root)
    skipped = {"other/1.png", "test/7.png", "test/bird/1.png", "unlabeled/notes.txt"}
    assert dict(dataset.skipped_files).keys() == {*skipped, "unlabeled/within.png"}
    names = [f"labeled/{name}/{i}.png" for name in ("cat", "dog") for i in range(3)]
    assert dataset.train_files == (*names, "unlabeled/away.png", "unlabeled/away/secret.png")
    assert dataset.train_labels.tolist() == [0, 0, 0, 1, 1, 1, -1, -1]
    check_images(dataset, root, dataset.train_files)
    assert any("5 file(s) were skipped" in warning for warning in dataset.warnings)
    assert any("1 class(es) that no labeled image has" in text for text in dataset.warnings)


@pytest.mark.parametrize("refused", ["0.png", "unlabeled"])
def test_what_may_not_be_read_is_skipped(root, monkeypatch, refused):
    put_labeled(root)
    put(root, "unlabeled/9.png")

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
    with pytest.raises(
        UserError, match=r"name one with images, as in --config configs/folder\.py:"
    ):
        load("")


def test_fingerprint_depends_on_the_training_images_and_not_on_their_place(root, tmp_path):
    put_labeled(root)
    first = load(root).fingerprint
    root.rename(tmp_path / "moved")
    assert load(tmp_path / "moved").fingerprint == first
    put(tmp_path / "moved", "test/cat/1.png")
    assert load(tmp_path / "moved").fingerprint == first
    put(tmp_path / "moved", "unlabeled/1.png")
    assert load(tmp_path / "moved").fingerprint != first


def test_share_of_the_labeled_images_is_held_out_for_validation(root):
    put_labeled(root)
    put(root, "unlabeled/1.png")
    whole, split = load(root), load(root, validation=0.34)
    assert split.train_labels.tolist() == [0, 0, 1, 1, -1]
    assert split.validation_labels.tolist() == [0, 1]
    assert sorted(split.train_files + split.validation_files) == sorted(whole.train_files)
    check_images(split, root, split.train_files)
    expected = np.stack(
        [read_image(root / name, (SIZE, SIZE, 3)) for name in split.validation_files]
    )
    np.testing.assert_array_equal(split.validation_images[:], expected)
    # What was held out is the same data: a finished run is found without opening a file.
    assert compute_fingerprint(list_layout(root), []) == whole.fingerprint == split.fingerprint
    put(root, "val/cat/1.png")
    with pytest.raises(UserError, match=r"has 1 validation images already: remove --config"):
        load(root, validation=0.34)


def test_mean_and_deviation_are_computed_unless_given(root):
    put_labeled(root)
    dataset = load(root)
    images = dataset.train_images[:] / 255
    np.testing.assert_allclose(dataset.mean, images.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(dataset.std, images.std((0, 1, 2)), rtol=1e-6)
    assert load(root, mean=(0.5,), std=(0.25,)).mean == (0.5,)


def test_mean_and_deviation_of_one_color_can_be_divided_by():
    mean, std = compute_mean_and_std(np.full((3, 4, 4, 1), 255, np.uint8))
    assert mean == (1.0,)
    assert std == pytest.approx((1 / 255,))


def test_table_with_an_endless_label_is_refused(root):
    put(root, "photos/0.png", "photos/1.png")
    (root / "labels.csv").write_text(f"file,label\n0.png,{'x' * 300}\n1.png,b\n")
    with pytest.raises(UserError, match="more than 255 characters"):
        load(root)


def test_gray_images_may_stay_gray(root):
    put_labeled(root)
    load(root)  # The same files in the cache with three channels.
    dataset = load(root, channels=1)
    expected = [read_image(root / name, (SIZE, SIZE, 1)) for name in dataset.train_files]
    np.testing.assert_array_equal(dataset.train_images[:], expected)
    assert dataset.image_shape == (SIZE, SIZE, 1)
    assert len(dataset.mean) == 1
