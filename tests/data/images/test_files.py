"""Image files are found once each, and read in order ahead of the network."""

import os
import threading

import pytest
from PIL import Image

from cls_jax.data.images import decode
from cls_jax.data.images.decode import ImageError, read_image
from cls_jax.data.images.files import find_images, read_ahead
from cls_jax.errors import UserError

SHAPE = (8, 8, 3)


def put(path, level=255, format=None):
    """Writes a red picture and returns where."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (level, 0, 0)).save(path, format)
    return path


@pytest.fixture
def folder(tmp_path):
    tmp_path = tmp_path / "folder"
    for name in ["b.png", "a.JPG", "sub/deep/c.webp", "notes.txt", "sub/labels.csv"]:
        put(tmp_path / name, format="png")
    os.symlink(tmp_path, tmp_path / "sub" / "loop")
    return tmp_path


def test_every_file_that_is_listed_can_be_decoded(tmp_path):
    pytest.importorskip("pillow_heif").register_heif_opener()
    readable = ["avif", "bmp", "dib", "gif", "heic", "heif", "jfif", "jpe", "jpeg", "jpg", "png"]
    readable += ["tif", "tiff", "webp"]
    others = ["jp2", "pbm", "pgm", "ppm", "tga"]  # Pillow reads them, we do not.
    for name in readable + others:
        try:
            put(tmp_path / f"image.{name}")
        except (OSError, KeyError, ValueError):  # A Pillow without this format.
            (tmp_path / f"image.{name}").write_text("a format that cannot be read")
    assert find_images(str(tmp_path)) == [f"{tmp_path}/image.{name}" for name in readable]
    for name in readable:
        assert read_image(tmp_path / f"image.{name}", SHAPE).shape == SHAPE
    for name in others:
        with pytest.raises(ImageError, match="not an image of a known format"):
            read_image(tmp_path / f"image.{name}", SHAPE)


def test_folder_glob_and_file_stand_for_each_image_once(folder, tmp_path):
    names = [os.path.relpath(file, folder) for file in find_images(str(folder))]
    assert names == ["a.JPG", "b.png", "sub/deep/c.webp"]
    os.symlink(folder / "b.png", folder / "sub" / "link.png")
    brackets = put(folder / "a[1].png")  # A name, not a pattern.
    for pattern, found in (
        ("*.png", ["a[1].png", "b.png"]),
        ("**/*.png", ["a[1].png", "b.png", "sub/link.png"]),
        ("sub/**/c.*", ["sub/deep/c.webp"]),
        ("notes.txt", ["notes.txt"]),
        (brackets.name, ["a[1].png"]),
    ):
        assert find_images(f"{folder}/{pattern}") == [f"{folder}/{name}" for name in found]
    (tmp_path / "empty").mkdir()
    for name, message in (
        ("none", r"There is no file .*/none.*: pass a folder"),
        ("*.png", r"There is no file .*/\*.png"),
        ("empty", r"There is no image in .*: pass a folder"),
    ):
        with pytest.raises(UserError, match=message):
            find_images(f"{tmp_path}/{name}")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("a.heic", "pip install '.[heif]'"), ("a.avif", "pip install --upgrade pillow")],
)
def test_image_whose_reader_is_missing_names_the_package(tmp_path, monkeypatch, name, remedy):
    pytest.importorskip("pillow_heif").register_heif_opener()
    path = put(tmp_path / name)
    monkeypatch.setattr(decode, "_get_formats", lambda: ("JPEG", "PNG"))
    (batch,) = read_ahead(find_images(str(tmp_path)), SHAPE, 1)
    assert batch.files == [str(path)]
    assert remedy in batch.errors[0]


def test_read_ahead_keeps_the_order_and_the_errors_and_ends_its_threads(tmp_path):
    files = [str(put(tmp_path / f"{i}.png", level=i)) for i in range(7)]
    (tmp_path / "4.png").write_text("no image")
    batches = list(read_ahead(files, SHAPE, 3))
    assert [batch.files for batch in batches] == [files[:3], files[3:6], files[6:]]
    assert [batch.images[:, 0, 0, 0].tolist() for batch in batches] == [[0, 1, 2], [3, 5], [6]]
    errors = [error for batch in batches for error in batch.errors]
    assert [error is None for error in errors] == [True] * 4 + [False] + [True] * 2
    assert list(read_ahead([], SHAPE, 3)) == []
    num_threads = threading.active_count()
    batches = read_ahead(files[:1] * 1000, SHAPE, 10)
    next(batches)
    batches.close()  # It is left early.
    assert threading.active_count() == num_threads
