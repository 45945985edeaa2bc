"""Layouts of a folder of images, and one-sentence errors for everything wrong with one."""

import os
import pathlib
import re

import numpy as np
import pytest
from PIL import Image

from cls_jax.data.datasets import compute_mean_and_std, load_dataset
from cls_jax.data.images.decode import read_image
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


def test_labeled_unlabeled_and_test_folders(root):
    train = ["labeled/cat/1.png", "labeled/dog/1.png", "labeled/dog/deeper/2.png"]
    unlabeled = ["unlabeled/4.png", "unlabeled/from/5.png"]
    put(root, *train, *unlabeled, "test/cat/9.png", "test/dog/8.png")
    dataset = load(root)
    assert dataset.name == "my images"
    assert dataset.class_names == ("cat", "dog")
    assert dataset.train_labels.tolist() == [0, 1, 1, -1, -1]
    assert dataset.train_labels.dtype == np.int32
    assert dataset.test_labels.tolist() == [0, 1]
    assert dataset.image_shape == dataset.test_images[:].shape[1:] == (SIZE, SIZE, 3)
    assert dataset.warnings == dataset.skipped_files == ()
    assert dataset.train_files == (*train, *unlabeled)
    assert dataset.test_files == ("test/cat/9.png", "test/dog/8.png")
    check_images(dataset, root, [*train, *unlabeled])


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


def test_names_of_any_kind(root):
    names = ["a b.png", "quo\"te's.png", "new\nline.png", "büro.png", "猫.png", "-x,;.PNG"]
    put(root, *(f"labeled/kü che/{name}" for name in names), "labeled/犬/1.png")
    dataset = load(root)
    assert dataset.class_names == ("kü che", "犬")
    assert len(dataset.train_images) == 7
    assert dataset.skipped_files == ()


def test_name_that_is_not_unicode(root):
    put_labeled(root)
    os.rename(root / "labeled/cat/1.png", os.fsencode(root / "labeled/cat") + b"/\xff.png")
    assert len(load(root).train_images) == 6


def test_files_that_cannot_be_used_are_skipped_and_named(root, tmp_path):
    put_labeled(root)
    put(tmp_path, "elsewhere/secret.png")
    put(root, "other/1.png", "test/7.png", "test/bird/1.png")
    (root / "unlabeled").mkdir()
    (root / "unlabeled/text.jpg").write_text("no image")
    (root / "unlabeled/empty.png").touch()
    (root / "unlabeled/notes.txt").write_text("notes")
    (root / "unlabeled/.hidden").touch()
    (root / "unlabeled/away.png").symlink_to(tmp_path / "elsewhere/secret.png")
    (root / "unlabeled/away").symlink_to(tmp_path / "elsewhere")
    (root / "unlabeled/nowhere.png").symlink_to(root / "none.png")
    (root / "unlabeled/within.png").symlink_to(root / "labeled/cat/1.png")
    (root / "unlabeled/loop").symlink_to(root)
    os.mkfifo(root / "unlabeled/pipe.png")
    content = (root / "labeled/cat/0.png").read_bytes()
    (root / "labeled/cat/cut.png").write_bytes(content[: len(content) // 2])
    dataset = load(root)
    assert dict(dataset.skipped_files).keys() == {
        "labeled/cat/cut.png",
        "other/1.png",
        "test/7.png",
        "test/bird/1.png",
        "unlabeled/away",
        "unlabeled/away.png",
        "unlabeled/empty.png",
        "unlabeled/loop",
        "unlabeled/notes.txt",
        "unlabeled/nowhere.png",
        "unlabeled/pipe.png",
        "unlabeled/text.jpg",
    }
    reasons = dict(dataset.skipped_files)
    assert reasons["unlabeled/away.png"] == "a link that leads out of the folder"
    assert reasons["unlabeled/text.jpg"] == "not an image of a known format"
    assert len(dataset.train_images) == 7
    assert dataset.train_labels.tolist() == [0, 0, 0, 1, 1, 1, -1]
    np.testing.assert_array_equal(dataset.train_images[[6]], dataset.train_images[[1]])
    assert any("12 file(s) were skipped" in warning for warning in dataset.warnings)
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

    import builtins

    monkeypatch.setattr(builtins, "open", refuse(open))
    monkeypatch.setattr(os, "scandir", refuse(os.scandir))
    dataset = load(root)
    assert len(dataset.train_images) < 7
    assert {why.split(": ")[-1] for _, why in dataset.skipped_files} == {"Permission denied"}


def test_faults_of_a_table_are_named(root):
    put(root, *(f"photos/{i}.png" for i in range(6)))
    (root / "labels.csv").write_text(
        "file,label\n0.png,a\n1.png,b\n1.png,b\n2.png,a\n2.png,b\nnone.png,a\n"
    )
    dataset = load(root)
    assert dataset.train_labels.tolist() == [0, 1, -1, -1, -1, -1]
    text = " ".join(dataset.warnings)
    assert "1 row(s) of labels.csv name no image of the folder, such as 'none.png'" in text
    assert "labels.csv lists 1 image(s) more than once, with the same label" in text
    assert "1 image(s), such as 'photos/2.png', have different labels" in text
    assert ("none.png", "in labels.csv, but not in the folder") in dataset.skipped_files


def test_test_images_that_are_training_images_are_counted(root):
    put_labeled(root)
    put(root, "unlabeled/1.png", "test/cat/5.png")
    for number, name in enumerate(["labeled/cat/0.png", "labeled/dog/0.png", "unlabeled/1.png"]):
        (root / f"test/cat/copy{number}.png").write_bytes((root / name).read_bytes())
    (warning,) = load(root).warnings
    assert warning.startswith("3 of 4 test images are also training images, byte for byte (2 of")


def make_nothing(root):
    pass


def make_empty(root):
    root.mkdir()


def make_one_image(root):
    put(root, "1.png")


def make_one_class(root):
    put(root, "labeled/cat/1.png", "unlabeled/2.png")


def make_empty_class(root):
    put_labeled(root)
    (root / "labeled/bird").mkdir()


def make_unlabeled_only(root):
    put(root, "unlabeled/2.png")


def make_damaged_class(root):
    put_labeled(root)
    for i in range(3):
        (root / f"labeled/dog/{i}.png").write_text("woof")


def make_table_without_columns(root):
    put(root, "photos/1.png")
    (root / "labels.csv").write_text("name,class\n1.png,a\n")


def make_table_in_another_code(root):
    put(root, "photos/1.png")
    (root / "labels.csv").write_bytes(b"file,label\n1.png,K\xfcche\n")


def make_table_of_unknown_files(root):
    put(root, "photos/1.png")
    (root / "labels.csv").write_text("file,label\nx.png,a\ny.png,b\n")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (make_nothing, r"is not a folder: name one with images"),
        (make_empty, r"has no labeled image, .*arrange the images as labeled/<class>/"),
        (make_one_image, r"has no labeled image"),
        (make_one_class, r"has only the class 'cat', but at least two classes are needed"),
        (make_empty_class, r"class 'bird' has no image in .*bird: add at least one"),
        (make_unlabeled_only, r"has no labeled image"),
        (make_damaged_class, r"None of the labeled images of class 'dog' can be read \(3 file"),
        (make_table_without_columns, r"make it a CSV file in UTF-8 whose first line is file,label"),
        (make_table_in_another_code, r"make it a CSV file in UTF-8"),
        (make_table_of_unknown_files, r"has no labeled image"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_in_a_sentence(root, make, message):
    make(root)
    with pytest.raises(UserError, match=message) as caught:
        load(root)
    assert re.search(r"[^.]\.$", str(caught.value))


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


def test_table_that_leads_out_of_the_folder_is_refused(root, tmp_path):
    put(root, "photos/0.png", "photos/1.png")
    (tmp_path / "elsewhere.csv").write_text("file,label\n0.png,a\n1.png,b\n")
    (root / "labels.csv").symlink_to(tmp_path / "elsewhere.csv")
    with pytest.raises(UserError, match="leads out of the folder"):
        load(root)


def test_table_with_an_endless_label_is_refused(root):
    put(root, "photos/0.png", "photos/1.png")
    (root / "labels.csv").write_text(f"file,label\n0.png,{'x' * 300}\n1.png,b\n")
    with pytest.raises(UserError, match="more than 255 characters"):
        load(root)
