"""Odd folders: experiments/results/odd_folders.md has the expected outcome of each.

python -m tests.photos.folder.test_odd_folders writes that page again.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from cls_jax.errors import UserError
from cls_jax.io import make_printable
from cls_jax.photos.folder.dataset import load_folder
from cls_jax.photos.images.files import find_images
from tests.conftest import ROOT, load_config
from tests.photos.helpers import make_folder, place, read_image
from tests.photos.images.test_decode import pack_png

PAGE = ROOT / "experiments" / "results" / "odd_folders.md"
LIST = "import sys; from cls_jax.photos.images.files import list_images; list_images(sys.argv[1])"
_END_OF_HEAD = "| -- | -- | -: |\n"


def put(root: pathlib.Path, *names: str) -> None:
    """Writes an image of its own under each name."""
    for name in names:
        path = place(root, name)
        seed = zlib.crc32(os.fsencode(name))
        pixels = np.random.default_rng(seed).integers(0, 256, (12, 10, 3), dtype=np.uint8)
        formats = {".heic": "HEIF", ".avif": "AVIF"}
        Image.fromarray(pixels).save(path, formats.get(path.suffix, "png"))


def add(images="cat/1.png dog/2.png", files=(), links=(), copies=(), also=None) -> Callable:
    """Describes a folder: images by name, files by content, links and copies by their source.

    Sources are relative to the folder; images that begin with "../" are beside it.
    """

    def make(root):
        put(root, *images.split())
        make_folder(root, (), files)
        for name, source in dict(links).items():
            place(root, name).symlink_to(os.path.normpath(root / source))
        for name, source in dict(copies).items():
            shutil.copy(root / source, place(root, name))
        if also:
            also(root)

    return make


def table(content: str | bytes, name: str = "labels.csv") -> Callable:
    return add("photos/1.png photos/2.png photos/3.png", {name: content})


def make_strange_names(root):
    put(root, "cat/a\nb.png", "dog/🐕.PNG", "cat/1.png")
    os.rename(root / "cat/1.png", os.fsencode(root / "cat") + b"/\xff.png")


def make_dark(root):
    for name, level in (("cat/1.png", 1000), ("dog/1.png", 4000)):
        Image.fromarray(np.full((12, 10), level, np.uint16)).save(place(root, name))


def add_slim(root):
    Image.new("RGB", (900, 1)).save(root / "cat/3.png")
    Image.new("RGB", (1, 1), "red").save(root / "dog/4.png")


def add_damaged(root):
    (root / "dog/half.png").write_bytes((root / "dog/2.png").read_bytes()[:200])
    (root / "dog/huge.png").write_bytes(pack_png((50_000, 50_000), 8, 2, b""))


OWN, NOW = "file,label,decision,time\n", "2026-11-22T13:25:40.190940Z"  # As `cls-jax label` writes.
# Title in the page → what makes the folder.
CASES: dict[str, Callable[[pathlib.Path], None]] = {
    f"`{train}/` with classes, "
    + ", ".join(f"`{path.split('/')[0]}/`" for path in others.split()): add(
        f"{train}/cat/1.png {train}/dog/2.png {others}"
    )
    for train, others in [
        ("labeled", "unlabeled/3.png test/cat/3.png"),
        ("labelled", "unlabelled/3.png val/cat/3.png"),
        ("Labeled", "Unlabeled/3.png Test/cat/3.png"),
        ("Train", "Test/cat/3.png"),
        ("train", "val/cat/3.png test/cat/3.png"),
        ("training", "testing/cat/3.png validation/cat/3.png"),
        ("TRAIN", "Valid/cat/3.png"),
    ]
}
CASES |= {
    "`train/` and `val/` with images but no classes": add("train/1.png train/2.png val/3.png"),
    "`train/` and `val/` with images but no classes, and `labels.csv`": add(
        "train/1.png train/2.png train/3.png val/4.png",
        {"labels.csv": "file,label\ntrain/1.png,cat\ntrain/2.png,dog\n"},
    ),
    "`train/` and `labeled/`, both with classes": add(
        "train/cat/1.png train/dog/2.png labeled/cat/1.png labeled/dog/2.png"
    ),
    "classes called `valid` and `invalid`": add("valid/1.png invalid/2.png"),
    "classes bus, car and `train`, which has folders": add(
        "bus/1.png car/2.png train/3.png train/old/4.png train/new/5.png"
    ),
    "classes bus, car and `train`, which has only folders": add(
        "bus/1.png car/2.png train/old/3.png train/new/4.png"
    ),
    "classes bus, car and `train`": add("bus/1.png car/2.png train/3.png"),
    "class folders, and images directly in `test/`": add("cat/1.png dog/2.png test/3.png"),
    "class folders, and images directly in `val/`": add("cat/1.png dog/2.png val/3.png"),
    "class folders, and `test/` with some of them": add(
        "cat/1.png dog/2.png test/3.png test/cat/4.png"
    ),
    "`train/` with classes, and a folder beside it": add(
        "train/cat/1.png train/dog/2.png old/3.png"
    ),
    "`é` as one character and as two": add(
        "train/caf\u00e9/1.png train/bar/2.png test/cafe\u0301/3.png train/cafe\u0301/4.png"
    ),
    "class folders `Cat` and `cat`": add("Cat/1.png cat/2.png dog/3.png"),
    "no folder but `Cat` and `cat`": add("Cat/1.png cat/2.png"),
    "class folders, and one without a visible name in `test/`": add(
        "cat/1.png dog/2.png", also=lambda root: put(root, "test/\u200b/3.png", "test/cat/4.png")
    ),
    "class folders `cat`, and `cat` with a space behind it": add(
        "cat/1.png dog/2.png", also=lambda root: put(root, "cat /3.png")
    ),
    "`_unlabeled/`, `no label/` and `Unlabeled images/` beside the classes": add(
        "cat/1.png dog/2.png _unlabeled/3.png",
        also=lambda root: put(root, "no label/4.png", "Unlabeled images/5.png", "unlabeled /6.png"),
    ),
    "`unlabeled/` among the classes in `train/`, `val/` and `test/`": add(
        "train/cat/1.png train/dog/2.png train/unlabeled/3.png val/unlabeled/4.png "
        "test/unlabeled/5.png test/cat/6.png"
    ),
    "classes called `unknown` and `none`": add("unknown/1.png none/2.png dog/3.png"),
    "what Windows, Linux, a NAS and Python leave in folders": add(
        "cat/1.png dog/2.png cat/#recycle/3.png",
        {
            "$RECYCLE.BIN/desktop.ini": "",
            "System Volume Information/x": "",
            "lost+found/x": "",
            "__pycache__/x.pyc": "",
        },
    ),
    "`runs/` with a run beside the classes": add(
        "cat/1.png dog/2.png runs/photos/plots/3.png",
        {"runs/photos/config.json": "{}"},
        also=lambda root: (root / "runs/photos/checkpoints").mkdir(),
    ),
    "class folders that hold only folders": add("pets/cat/1.png pets/dog/2.png plants/oak/3.png"),
    "everything in a folder within the folder": add("photos/cat/1.png photos/dog/2.png"),
    "folders within class folders": add("cat/1.png dog/2.png cat/2019/3.png dog/a/b/c/4.png"),
    "an empty class folder": add(also=lambda root: (root / "owl").mkdir()),
    "a class folder with nothing but text files": add(
        files={f"owl/{i}.txt": "owl" for i in range(3)}
    ),
    "links to images elsewhere": add(
        "../elsewhere/cat/1.png ../elsewhere/dog/2.png",
        links={name: f"../elsewhere/{name}" for name in ("cat/1.png", "dog/2.png")},
    ),
    "class folders that are links": add(
        "../elsewhere/cat/1.png ../elsewhere/dog/2.png",
        links={name: f"../elsewhere/{name}" for name in ("cat", "dog")},
    ),
    "a link to the folder itself, and one to the folder around it": add(
        links={"cat/loop": ".", "dog/up": ".."}
    ),
    "`train/cat` and `test/cat` are the same folder by a link": add(
        "train/cat/1.png train/dog/2.png", links={"test/cat": "train/cat"}
    ),
    "links that lead nowhere": add(
        "",
        links={f"{name}/{i}.png": f"/nowhere/{i}.png" for name in ("cat", "dog") for i in (0, 1)},
    ),
    "a class folder of links that lead nowhere": add(links={"owl/1.png": "/nowhere/1.png"}),
    "`._1.png`, `.thumbs/`, `__MACOSX/`, `@eaDir/`, `Thumbs.db`": add(
        "cat/1.png dog/2.png cat/._1.png .thumbs/1.png __MACOSX/cat/1.png dog/@eaDir/2.png",
        {"cat/Thumbs.db": ""},
    ),
    "images without an extension": add("cat/0001 dog/0002", {"cat/README": "cats"}),
    "names with line breaks, emoji and bytes that are not Unicode": make_strange_names,
    "`labels.csv` with `file,label`, one image without a row": table(
        "file,label\n1.png,cat\n2.png,dog\n"
    ),
    "`filename,class`": table("filename,class\n1.png,cat\n2.png,dog\n"),
    "`id,label` without extensions": table("id,label\n1,cat\n2,dog\n"),
    "backslashes, a semicolon and a mark of UTF-8": table(
        "\ufefffile;label\r\nphotos\\1.png;cat\r\n.\\photos\\2.png;dog\r\n"
    ),
    "tabs in UTF-16, `Labels.CSV`": table(
        "Image\tSpecies\n1.png\tcat\n2.png\tdog\n".encode("utf-16"), "Labels.CSV"
    ),
    "a table without a header": table("1.png,cat\n2.png,dog\n"),
    "a table in Latin-1": table("file,label\n1.png,Bär\n".encode("latin-1")),
    "a table with other columns": table("who,what,when\n1.png,cat,now\n"),
    "a table whose row numbers are names of files as well": table(
        "id,img_path,label\n2,photos/1.png,cat\n1,photos/2.png,dog\n"
    ),
    "a table with two columns that may have the classes": table("file,x,y\n1.png,1,2\n"),
    "a table that says `NaN`, `None`, `0` and `0.0`": table(
        "file,label\n1.png,0.0\n2.png,1\n3.png,0\n1.jpg,NaN\n"
    ),
    "a table with the classes `unknown` and `none`": table(
        "file,label\n1.png,unknown\n2.png,none\n3.png,no label\n"
    ),
    "a table with several classes in a row": table("file,label\n1.png,cat;dog\n2.png,dog\n"),
    "a table with a column of 0 and 1 for each class": table(
        "file,cat,dog\n1.png,1,0\n2.png,0,1\n"
    ),
    "a table with more cells than columns": table("file,label\n1.png,cat,dog\n2.png,dog\n"),
    "`labels.csv` and `Labels.csv`": add(
        files={"labels.csv": "file,label\n", "Labels.csv": "file,label\n"}
    ),
    "a table of another name": table("file,label\n1.png,cat\n2.png,dog\n", "train.csv"),
    "a table as Label Studio exports it": table(
        "annotation_id,annotator,choice,id,image\n1,1,cat,2,/data/upload/1/0123abcd-1.png\n"
        "2,1,dog,1,/data/upload/1/0123abce-2.png\n"
    ),
    "a table with a column of splits": table(
        "file,label,split\n1.png,cat,train\n2.png,dog,train\n3.png,dog,test\n"
    ),
    "a table with names from another machine": table(
        "file,label\n/home/ann/photos/1.png,cat\n/home/ann/photos/2.png,dog\n"
    ),
    "a table of files that are not there": table(
        "file,label\n1.png,cat\n2.png,dog\nx.png,cat\ny.png,dog\n"
    ),
    "a table with no file that is there": table("file,label\nx.png,cat\ny.png,dog\n"),
    "a table without a header whose ids are numbers": table("1,cat\n2,dog\n"),
    "a table with rows for images at the top, which one folder has as well": add(
        "IMG1.png IMG2.png 100CANON/IMG1.png 100CANON/IMG2.png 100CANON/IMG3.png",
        {
            "labels.csv": "file,label\n100CANON/IMG1.png,dog\nIMG1.png,cat\n"
            "IMG2.png,cat\nIMG3.png,dog\n"
        },
    ),
    "the same, and an image at the top is gone that `cls-jax label` has asked about": add(
        "1.png camera/1.png camera/2.png",
        {"labels.csv": f"{OWN}1.png,cat,label,{NOW}\n2.png,cat,label,{NOW}\ncamera/2.png,dog\n"},
    ),
    "names that differ only in how `é` is composed": add(
        "caf\u00e9.png cafe\u0301.png 1.png",
        {"labels.csv": "file,label\ncafe\u0301.png,cat\ncaf\u00e9.png,dog\nCAF\u00c9.png,cat\n"},
    ),
    "ids that several images have": add(
        "a/1.png b/1.png a/2.png b/3.png", {"labels.csv": "id,label\n1,cat\n2,cat\n3,dog\n"}
    ),
    "a table with a column `time` of its own": table(
        "file,label,time\n1.png,dog,2020-01-02T00:00:00Z\n1.png,cat,2020-01-01T00:00:00Z\n"
        "2.png,dog,\n"
    ),
    "answers whose times are out of order, without a zone and missing": add(
        "1.png 2.png 3.png",
        {
            "labels.csv": f"{OWN}1.png,cat,label,2026-01-02T00:00:00Z\n"
            "1.png,dog,label,2026-01-01T00:00:00Z\n2.png,cat,label,2026-01-03\n"
            "2.png,dog,label,2026-01-02\n3.png,dog\n3.png,cat\n"
        },
    ),
    "a table of two columns after answers in `cls-jax label`": add(
        "1.png 2.png 3.png",
        {
            "labels.csv": "file,label\n1.png,cat\n2.png,dog\n3.png,cat\n"
            f"3.png,,none,{NOW}\n1.png,dog\n1.png,cat\n"
        },
    ),
    "class folders after one answer in `cls-jax label`": add(
        "cat/1.png cat/2.png dog/3.png test/cat/4.png",
        {"labels.csv": f"{OWN}cat/2.png,dog,label,{NOW}\n"},
    ),
    "`train/` with classes after one answer in `cls-jax label`": add(
        "train/cat/1.png train/cat/2.png train/dog/3.png unlabeled/4.png",
        {"labels.csv": f"{OWN}train/cat/2.png,,none,{NOW}\n"},
    ),
    "an image with two labels, labels in two cases": table(
        "file,label\n1.png,cat\n2.png,dog\n3.png,cat\n3.png,dog\n1.png,Cat\n"
    ),
    "a table that labels images in `train/`, `val/` and `test/`": add(
        "train/1.png train/2.png test/3.png val/4.png",
        {"labels.csv": "id,class\n1,cat\n2,dog\n3,cat\n4,Dog\n"},
    ),
    "the same image in two classes": add(copies={"dog/1.png": "cat/1.png"}),
    "the same image twice in a class": add(copies={"cat/3.png": "cat/1.png"}),
    "labeled images in `unlabeled/` again": add(
        "labeled/cat/1.png labeled/dog/2.png unlabeled/3.png",
        copies={"unlabeled/1.png": "labeled/cat/1.png"},
    ),
    "training images in `test/` again": add(
        "train/cat/1.png train/dog/2.png",
        copies={f"test/{name}": f"train/{name}" for name in ("cat/1.png", "dog/2.png")},
    ),
    "12-bit values in 16-bit files": make_dark,
    "HEIC and AVIF photos, with pillow-heif": add("cat/1.heic dog/2.avif"),
    "images of 900 × 1 and 1 × 1 pixels": add(also=add_slim),
    "a text called .jpg, an empty file, half an image, 2,500 megapixels": add(
        files={"cat/text.jpg": "cat", "cat/empty.png": ""}, also=add_damaged
    ),
    "a class whose images are all damaged": add(files={"dog/2.png": "dog"}),
    "a pipe and a link to an endless device": add(
        links={"dog/zero.png": "/dev/zero"}, also=lambda root: os.mkfifo(root / "cat/pipe.png")
    ),
    "one class": add("labeled/cat/1.png unlabeled/2.png"),
    "images but no labels": add("1.png 2.png"),
    "a folder without anything": lambda root: root.mkdir(),
    "a file in place of the folder": lambda root: root.write_text("no folder"),
    "an archive in place of the folder": lambda root: root.write_bytes(b"PK\x03\x04"),
}


def describe(folder: pathlib.Path, title: str) -> tuple[str, str]:
    """What training and prediction make of a folder."""
    root = folder / "around" / "photos"
    root.parent.mkdir()
    CASES[title](root)
    config = load_config("folder", str(root))
    config.data.image_size = 8
    try:
        dataset = load_folder(config.data)
        counts = {
            "labeled": (dataset.train.labels >= 0).sum(),
            "unlabeled": (dataset.train.labels < 0).sum(),
            "validation": len(dataset.validation.labels),
            "test": len(dataset.test.labels),
        }
        parts = [f"{count} {name}" for name, count in counts.items() if count]
        training = f"{', '.join(parts)}; classes {', '.join(dataset.class_names)}."
        warnings = [text for text in dataset.warnings if "see skipped_files.csv" not in text]
        training = " ".join([training, *warnings])
        if dataset.skipped_files:
            rows = [f"{name}: {why.split(';')[0]}" for name, why in dataset.skipped_files]
            training += f" Skipped: {'; '.join(rows)}."
        expected = [read_image(root / name, (8, 8, 3)) for name in dataset.train.files]
        np.testing.assert_array_equal(dataset.train.images[:], expected)
    except UserError as error:
        training = f"Refused: {error}"
    assert re.search(r"[^.]\.$", training)  # A sentence.
    training = training.split(" as labeled/<class>/")[0]  # The remedy of most.
    try:
        predicted = str(len(find_images(str(root))))
    except UserError:
        predicted = "refused"
    return make_printable(training.replace(str(root), "FOLDER")), predicted


def read_page() -> dict[str, tuple[str, str]]:
    lines = PAGE.read_text().partition(_END_OF_HEAD)[2].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {title: (training, predicted) for title, training, predicted in rows}


@pytest.mark.parametrize("title", CASES)
def test_odd_folder_does_what_its_page_says(tmp_path, title):
    if "HEIC" in title:
        pytest.importorskip("pillow_heif").register_heif_opener()
    assert describe(tmp_path, title) == read_page()[title]


def test_names_that_python_cannot_read_are_explained(tmp_path):
    (tmp_path / "H\u00fcndchen").mkdir()
    environment = os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    command = [sys.executable, "-c", LIST, str(tmp_path)]
    found = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert re.search(rb"'H.*ndchen' cannot .* ascii .*PYTHONUTF8=1", found.stderr)


def write_page() -> None:
    """Writes what happens with each folder."""
    import pillow_heif

    pillow_heif.register_heif_opener()
    head, end, _ = PAGE.read_text().partition(_END_OF_HEAD)
    rows = []
    for title in CASES:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
            rows.append(f"| {title} | {' | '.join(describe(pathlib.Path(folder), title))} |\n")
    PAGE.write_text(head + end + "".join(rows))


if __name__ == "__main__":
    write_page()
