"""Odd folders, and what happens with each: experiments/results/odd_folders.md is what is expected.

python -m tests.data.sources.test_odd_folders writes that page again.
"""

import os
import pathlib
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from cls_jax.data.images.files import find_images
from cls_jax.data.sources.folder import load_folder
from cls_jax.errors import UserError
from cls_jax.io import make_printable
from tests.conftest import ROOT, load_config

PAGE = ROOT / "experiments" / "results" / "odd_folders.md"
_HEAD = """\
# Odd folders

What `cls-jax train FOLDER` does with the images of odd and damaged folders, and how many files
`cls-jax predict RUN FOLDER` has rows for. `tests/data/sources/test_odd_folders.py` makes each of
them and expects what is written here.

```
python -m tests.data.sources.test_odd_folders
```

| folder | training | rows of predict |
| -- | -- | -: |
"""
CASES: dict[str, Callable[[pathlib.Path], None]] = {}


def case(title: str) -> Callable:
    """Registers a function that makes a folder."""

    def register(make: Callable) -> Callable:
        CASES[title] = make
        return make

    return register


def put(root: pathlib.Path, *names: str, **options) -> None:
    """Writes an image of its own under each name."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        seed = zlib.crc32(os.fsencode(name))
        pixels = np.random.default_rng(seed).integers(0, 256, (12, 10, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path, **({"format": "png"} | options))


def put_classes(root: pathlib.Path, base: str = "") -> None:
    put(root, f"{base}cat/1.png", f"{base}dog/2.png")


def write_table(root: pathlib.Path, content: str | bytes, name: str = "labels.csv") -> None:
    put(root, "photos/1.png", "photos/2.png", "photos/3.png")
    (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def add_splits(train: str, *others: str) -> None:
    @case(f"`{train}/` with classes, " + ", ".join(f"`{name}/`" for name in others))
    def make(root):
        put_classes(root, f"{train}/")
        for name in others:
            put(root, f"{name}/{'' if 'label' in name.lower() else 'cat/'}3.png")


add_splits("labeled", "unlabeled", "test")
add_splits("labelled", "unlabelled", "val")
add_splits("Labeled", "Unlabeled", "Test")
add_splits("Train", "Test")
add_splits("train", "val", "test")
add_splits("training", "testing", "validation")
add_splits("TRAIN", "Valid")


@case("`train/` and `val/` with images but no classes")
def make_flat_splits(root):
    put(root, "train/1.png", "train/2.png", "val/3.png")


@case("`train/` and `labeled/`, both with classes")
def make_both(root):
    put_classes(root, "train/")
    put_classes(root, "labeled/")


@case("classes called `valid` and `invalid`")
def make_valid(root):
    put(root, "valid/1.png", "invalid/2.png")


@case("`é` as one character in `train/`, as two in `test/`")
def make_accents(root):
    put(root, "train/caf\u00e9/1.png", "train/bar/2.png", "test/cafe\u0301/3.png")


@case("class folders `Cat` and `cat`")
def make_cases(root):
    put(root, "Cat/1.png", "cat/2.png", "dog/3.png")


@case("`runs/` with a run beside the classes")
def make_run(root):
    put_classes(root)
    put(root, "runs/photos/plots/3.png")
    (root / "runs/photos/config.json").write_text("{}")
    (root / "runs/photos/checkpoints").mkdir()


@case("class folders that hold only folders")
def make_nested(root):
    put(root, "pets/cat/1.png", "pets/dog/2.png", "plants/oak/3.png")


@case("everything in a folder within the folder")
def make_wrapped(root):
    put_classes(root, "photos/")


@case("folders within class folders")
def make_deep(root):
    put_classes(root)
    put(root, "cat/2019/3.png", "dog/a/b/c/4.png")


@case("an empty class folder")
def make_empty_class(root):
    put_classes(root)
    (root / "owl").mkdir()


@case("a class folder with nothing but text files")
def make_text_class(root):
    put_classes(root)
    (root / "owl").mkdir()
    for i in range(3):
        (root / f"owl/{i}.txt").write_text("owl")


@case("links to images elsewhere")
def make_links(root):
    put_classes(root.parent / "elsewhere")
    for name in ("cat/1.png", "dog/2.png"):
        (root / name).parent.mkdir(parents=True)
        (root / name).symlink_to(root.parent / "elsewhere" / name)


@case("class folders that are links")
def make_linked_classes(root):
    put_classes(root.parent / "elsewhere")
    root.mkdir()
    for name in ("cat", "dog"):
        (root / name).symlink_to(root.parent / "elsewhere" / name)


@case("a link to the folder itself, and one to the folder around it")
def make_loops(root):
    put_classes(root)
    (root / "cat/loop").symlink_to(root)
    (root / "dog/up").symlink_to(root.parent)


@case("`train/cat` and `test/cat` are the same folder by a link")
def make_same_folder(root):
    put_classes(root, "train/")
    (root / "test").mkdir()
    (root / "test/cat").symlink_to(root / "train/cat")


@case("links that lead nowhere")
def make_dangling(root):
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for i in range(2):
            (root / name / f"{i}.png").symlink_to(f"/nowhere/{i}.png")


@case("`._1.png`, `.thumbs/`, `__MACOSX/`, `@eaDir/`, `Thumbs.db`")
def make_hidden(root):
    put_classes(root)
    put(root, "cat/._1.png", ".thumbs/1.png", "__MACOSX/cat/1.png", "dog/@eaDir/2.png")
    (root / "cat/Thumbs.db").touch()


@case("images without an extension")
def make_without_extension(root):
    put(root, "cat/0001", "dog/0002")
    (root / "cat/README").write_text("cats")


@case("names with line breaks, emoji and bytes that are not Unicode")
def make_strange_names(root):
    put(root, "cat/a\nb.png", "dog/🐕.PNG", "cat/1.png")
    os.rename(root / "cat/1.png", os.fsencode(root / "cat") + b"/\xff.png")


@case("`labels.csv` with `file,label`, one image without a row")
def make_table(root):
    write_table(root, "file,label\n1.png,cat\n2.png,dog\n")


@case("`filename,class`")
def make_filename_class(root):
    write_table(root, "filename,class\n1.png,cat\n2.png,dog\n")


@case("`id,label` without extensions")
def make_id_label(root):
    write_table(root, "id,label\n1,cat\n2,dog\n")


@case("backslashes, a semicolon and a mark of UTF-8")
def make_backslashes(root):
    write_table(root, "\ufefffile;label\r\nphotos\\1.png;cat\r\n.\\photos\\2.png;dog\r\n")


@case("tabs in UTF-16, `Labels.CSV`")
def make_utf16(root):
    write_table(root, "Image\tSpecies\n1.png\tcat\n2.png\tdog\n".encode("utf-16"), "Labels.CSV")


@case("a table without a header")
def make_headless(root):
    write_table(root, "1.png,cat\n2.png,dog\n")


@case("a table in Latin-1")
def make_latin1(root):
    write_table(root, "file,label\n1.png,Bär\n".encode("latin-1"))


@case("a table with other columns")
def make_other_columns(root):
    write_table(root, "who,what,when\n1.png,cat,now\n")


@case("a table of files that are not there")
def make_missing_rows(root):
    write_table(root, "file,label\n1.png,cat\n2.png,dog\nx.png,cat\ny.png,dog\n")


@case("a table with no file that is there")
def make_unknown_rows(root):
    write_table(root, "file,label\nx.png,cat\ny.png,dog\n")


@case("an image with two labels, labels in two cases")
def make_conflict(root):
    write_table(root, "file,label\n1.png,cat\n2.png,dog\n3.png,cat\n3.png,dog\n1.png,Cat\n")


@case("a table that labels images in `train/` and `test/`")
def make_table_of_splits(root):
    put(root, "train/1.png", "train/2.png", "test/3.png")
    (root / "labels.csv").write_text("id,class\n1,cat\n2,dog\n3,cat\n")


@case("the same image in two classes")
def make_two_classes(root):
    put_classes(root)
    shutil.copy(root / "cat/1.png", root / "dog/1.png")


@case("labeled images in `unlabeled/` again")
def make_copies(root):
    put_classes(root, "labeled/")
    put(root, "unlabeled/3.png")
    shutil.copy(root / "labeled/cat/1.png", root / "unlabeled/1.png")


@case("training images in `test/` again")
def make_leak(root):
    put_classes(root, "train/")
    shutil.copytree(root / "train", root / "test")


@case("12-bit values in 16-bit files")
def make_dark(root):
    for name, level in (("cat", 1000), ("dog", 4000)):
        (root / name).mkdir(parents=True)
        Image.fromarray(np.full((12, 10), level, np.uint16)).save(root / name / "1.png")


@case("HEIC and AVIF photographs, with pillow-heif")
def make_heic(root):
    put(root, "cat/1.heic", format="HEIF")
    put(root, "dog/2.avif", format="AVIF")


@case("images of 900 × 1 and 1 × 1 pixels")
def make_slim(root):
    put_classes(root)
    Image.new("RGB", (900, 1)).save(root / "cat/3.png")
    Image.new("RGB", (1, 1), "red").save(root / "dog/4.png")


@case("a text called .jpg, an empty file, half an image, 2,500 megapixels")
def make_damaged(root):
    put_classes(root)
    (root / "cat/text.jpg").write_text("cat")
    (root / "cat/empty.png").touch()
    (root / "dog/half.png").write_bytes((root / "dog/2.png").read_bytes()[:200])
    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + header
    png += struct.pack(">I", zlib.crc32(b"IHDR" + header)) + struct.pack(">I", 0) + b"IDAT"
    (root / "dog/huge.png").write_bytes(png + struct.pack(">I", zlib.crc32(b"IDAT")))


@case("a class whose images are all damaged")
def make_damaged_class(root):
    put_classes(root)
    (root / "dog/2.png").write_text("dog")


@case("a pipe and a link to an endless device")
def make_pipe(root):
    put_classes(root)
    os.mkfifo(root / "cat/pipe.png")
    (root / "dog/zero.png").symlink_to("/dev/zero")


@case("one class")
def make_one_class(root):
    put(root, "labeled/cat/1.png", "unlabeled/2.png")


@case("images but no labels")
def make_no_labels(root):
    put(root, "1.png", "2.png")


@case("a folder without anything")
def make_nothing(root):
    root.mkdir()


@case("a file in place of the folder")
def make_file(root):
    root.parent.mkdir(exist_ok=True)
    root.write_text("no folder")


@case("an archive in place of the folder")
def make_archive(root):
    root.parent.mkdir(exist_ok=True)
    root.write_bytes(b"PK\x03\x04")


def describe(root: pathlib.Path) -> tuple[str, str]:
    """What training and prediction make of a folder."""
    config = load_config("folder", str(root))
    config.data.image_size = 8
    try:
        dataset = load_folder(config.data)
        counts = {
            "labeled": (dataset.train_labels >= 0).sum(),
            "unlabeled": (dataset.train_labels < 0).sum(),
            "validation": len(dataset.validation_labels),
            "test": len(dataset.test_labels),
        }
        parts = [f"{count} {name}" for name, count in counts.items() if count]
        training = f"{', '.join(parts)}; classes {', '.join(dataset.class_names)}."
        warnings = [text for text in dataset.warnings if "were skipped: see" not in text]
        training = " ".join([training, *warnings])
        if dataset.skipped_files:
            rows = [f"{name}: {why.split(';')[0]}" for name, why in dataset.skipped_files]
            training += f" Skipped: {'; '.join(rows)}."
        assert len(dataset.train_images[:]) == len(dataset.train_labels)
    except UserError as error:
        training = f"Refused: {error}".split(" as labeled/<class>/")[0]  # The remedy of most.
    try:
        predicted = str(len(find_images(str(root))))
    except UserError:
        predicted = "refused"
    training = make_printable(training.replace(str(root), "FOLDER"))
    return training, predicted


def read_page() -> dict[str, tuple[str, str]]:
    rows = [
        line.strip("| \n").split(" | ") for line in PAGE.read_text().splitlines() if "|" in line
    ]
    return {row[0].strip(): (row[1].strip(), row[2].strip()) for row in rows if len(row) == 3}


@pytest.mark.parametrize("title", CASES)
def test_odd_folder_does_what_its_page_says(tmp_path, monkeypatch, title):
    if "HEIC" in title:
        pytest.importorskip("pillow_heif").register_heif_opener()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "around" / "photos"
    root.parent.mkdir()
    CASES[title](root)
    assert describe(root) == read_page()[title]


def write_page() -> None:
    """Writes what happens with each folder."""
    import pillow_heif

    pillow_heif.register_heif_opener()
    rows = []
    for title, make in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
            root = pathlib.Path(folder) / "around" / "photos"
            root.parent.mkdir()
            make(root)
            rows.append(f"| {title} | {' | '.join(describe(root))} |\n")
    PAGE.write_text(_HEAD + "".join(rows))


if __name__ == "__main__":
    write_page()
