"""Tables of all forms: no label ever gets to another file than the one whose row has it.

A table is a column of files and one of classes among others, in any order, under any headers,
quoted and encoded in any way, or it lies in a folder of the folder. It is read rightly, or a
sentence asks. FUZZ_EXAMPLES=5000 reads that many.
"""

import csv
import io
import os
import pathlib
import tempfile
import urllib.parse

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from cls_jax.errors import UserError
from cls_jax.photos.folder.index import FileIndex
from cls_jax.photos.folder.label_table import read_label_table
from cls_jax.photos.folder.options import AUTOMATIC
from cls_jax.photos.folder.propose import collect_labels, propose_tables
from cls_jax.photos.folder.reading import Folder
from cls_jax.photos.images.files import ImageFile, ImageFiles, Listing
from tests.photos.helpers import place

ROOT = pathlib.Path("/home/ben/album")
FILES = {
    "numbers in a folder": [f"images/{i}.png" for i in range(1, 7)],
    "numbers at the top": [f"{i}.jpg" for i in range(6)],
    "names that two folders have": [f"{top}/{i}.png" for top in "ab" for i in range(1, 4)],
    "names with spaces": [f"my photos/Bild {name}.JPG" for name in ("ä", "b;c", "d,e", "f", "1")],
}
# How a program writes the name of a file.
SPELLINGS = {
    "whole": str,
    "last part": os.path.basename,
    "without extension": lambda name: os.path.splitext(name)[0],
    "last part without extension": lambda name: os.path.splitext(os.path.basename(name))[0],
    "absolute": lambda name: f"/home/ben/album/{name}",
    "on another machine": lambda name: f"D:\\data\\{name}".replace("/", "\\"),
    "from the folder around": lambda name: f"./album//{name}",
    "address": lambda name: f"https://example.org/album/{urllib.parse.quote(name)}?v=1",
    "uploaded": lambda name: f"/data/upload/3/0123abcd-{os.path.basename(name)}",
}
FILE_HEADERS = ["file", "filename", "img_path", "Image", "url", "name", "id", "photo", "x", "key"]
LABEL_HEADERS = ["label", "Class", "category", "choice", "kind", "what", "y"]
OTHER_HEADERS = ["id", "", "index", "name", "thumbnail", "note", "width", "x", "score", "title"]
CLASSES = {"words": ["cat", "dog"], "numbers": ["0", "1"], "names": ["Bär, braun", 'the "cat"']}


@st.composite
def create_tables(draw):
    """The names of the files, the content of a table, and the class of each file in it."""
    names = FILES[draw(st.sampled_from(sorted(FILES)))]
    rows = draw(st.lists(st.sampled_from(names), min_size=2, max_size=len(names), unique=True))
    classes = CLASSES[draw(st.sampled_from(sorted(CLASSES)))]
    labels = draw(st.lists(st.sampled_from(classes), min_size=len(rows), max_size=len(rows)))
    spell = SPELLINGS[draw(st.sampled_from(sorted(SPELLINGS)))]
    others = {
        "numbers": [str(i) for i in range(len(rows))],
        "numbers from 1": [str(i) for i in range(1, len(rows) + 1)],
        "numbers downward": [str(len(rows) - i) for i in range(len(rows))],
        "measurements": [f"{i / 7:.6f}" for i in range(len(rows))],
        "the same name": [os.path.basename(name) for name in rows],
        "other files": [names[(names.index(name) + 1) % len(names)] for name in rows],
        "one file": [names[0]] * len(rows),
        "notes": ['a "b", c;d\te|f', *["g\nh"] * (len(rows) - 1)],
        "nothing": [""] * len(rows),
    }
    if all(spell(name).isdecimal() for name in rows):
        # Bare numbers name files only where no other column does, by definition.
        others = {kind: cells for kind, cells in others.items() if "file" not in kind}
    if classes == CLASSES["numbers"]:
        # Several columns of 0 and 1 are one for each class, by definition.
        others = {kind: cells for kind, cells in others.items() if not {"0", "1"} >= set(cells)}
    kinds = draw(st.lists(st.sampled_from(sorted(others)), max_size=3, unique=True))
    columns = [
        (draw(st.sampled_from(FILE_HEADERS)), [spell(name) for name in rows]),
        (draw(st.sampled_from(LABEL_HEADERS)), labels),
        *((draw(st.sampled_from(OTHER_HEADERS)), others[kind]) for kind in kinds),
    ]
    columns = draw(st.permutations(columns))
    lines = list(zip(*(cells for _, cells in columns), strict=True))
    if draw(st.integers(0, 4)):  # Most tables have a header.
        lines.insert(0, tuple(header for header, _ in columns))
    text = io.StringIO(newline="")
    csv.writer(
        text,
        delimiter=draw(st.sampled_from(",;\t|")),
        quoting=draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])),
        lineterminator=draw(st.sampled_from(["\n", "\r\n"])),
    ).writerows(lines)
    encoding = draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "cp1252"]))
    return names, text.getvalue().encode(encoding), dict(zip(rows, labels, strict=True))


TOPS = ("", "train", "test", "valid", "train/a", "train/b", "Site1", "Site1/100CAM", "Site2")
INSIDE = [f"{top}/{name}".lstrip("/") for top in TOPS for name in ("1.png", "x.png", "y.jpg")]


def spell_near(folder, name):
    return name.removeprefix(f"{folder}/") if folder else name


NEAR = {
    "from the top": lambda folder, name: name,
    "from the table": spell_near,
    "without extension": lambda folder, name: os.path.splitext(spell_near(folder, name))[0],
    "from the folder around": lambda folder, name: f"./album/{name}",
    "on another machine": lambda folder, name: f"D:\\data\\album\\{name}".replace("/", "\\"),
}


@st.composite
def create_folders(draw):
    """The same, with the folder of the table after the files.

    The folder has files of the same names, and the table names some as it likes.
    """
    files = draw(st.lists(st.sampled_from(INSIDE), min_size=3, unique=True))
    folder = draw(st.sampled_from(TOPS))
    spell = draw(st.sampled_from(sorted(NEAR)))
    if folder and "table" not in spell:
        # What is named from elsewhere would have another meaning below the table.
        around = (folder, folder.split("/")[0])
        files = [name for name in files if not any(f"{top}/{name}" in files for top in around)]
    # What is named from the table lies below it.
    inside = [name for name in files if not folder or name.startswith(f"{folder}/")]
    below = inside if "top" not in spell and "machine" not in spell else files
    below = files if spell == "from the folder around" else below
    assume(below)
    rows = draw(st.lists(st.sampled_from(below), min_size=1, max_size=12, unique=True))
    # No names of folders: a class and a file would be a path.
    labels = draw(st.lists(st.sampled_from("pq"), min_size=len(rows), max_size=len(rows)))
    cells = [NEAR[spell](folder, name) for name in rows]
    # Some rows are about files that are gone.
    gone = draw(st.sets(st.sampled_from(rows), max_size=len(rows) - 1))
    lines = [f"{cell},{label}" for cell, label in zip(cells, labels, strict=True)]
    header = draw(st.sampled_from(["file,label", "filename,label", "x,label", "id,label"]))
    content = "\n".join([header, *lines, ""])
    truth = {name: label for name, label in zip(rows, labels, strict=True) if name not in gone}
    return [name for name in files if name not in gone], folder, content, truth


def read_table(names, content):
    """File → class, None if the table is refused in a sentence."""
    path = ROOT / "labels.csv"
    try:
        table = read_label_table(path, FileIndex(names, ROOT), AUTOMATIC, content)
        return collect_labels(table).list_labels()
    except UserError:
        return None


def read_folder(names, top, content):
    """The same by a table in the folder `top`."""
    with tempfile.TemporaryDirectory() as parent:
        root, table = pathlib.Path(parent) / "album", f"{top}/table.csv".lstrip("/")
        place(root, table).write_text(content)
        files = ImageFiles(ImageFile(name, 0, 0, 0, 0) for name in sorted(names))
        listing = Listing(files, [], [table], [])
        found = propose_tables(Folder(root, listing, FileIndex(files, root), AUTOMATIC))
        return found[0].list_labels() if found else {}


@pytest.mark.parametrize("count", [100, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("create", "read"), [(create_tables, read_table), (create_folders, read_folder)]
)
def test_no_label_gets_to_another_file(create, read, count):
    """The examples are the same ones in every run."""
    outcomes = []

    @settings(
        max_examples=int(os.environ.get("FUZZ_EXAMPLES", count)),
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(create())
    def check(case):
        *folder, truth = case
        labels = read(*folder)
        assert labels is None or labels.items() <= truth.items()
        outcomes.append(labels == truth)

    check()
    assert sum(outcomes) > len(outcomes) / 2  # Most tables are read, and not only refused.
