"""Tables of other programs anywhere in a folder: no label gets to another file than its own.

Folders have files of the same names, and a table in one of them names some as it likes.
FUZZ_EXAMPLES=5000 reads that many.
"""

import os
import pathlib
import tempfile

from hypothesis import assume, given
from hypothesis import strategies as st

from cls_jax.photos.folder.index import FileIndex
from cls_jax.photos.folder.options import AUTOMATIC
from cls_jax.photos.folder.propose import propose_tables
from cls_jax.photos.folder.reading import Folder
from cls_jax.photos.images.files import ImageFile, ImageFiles, Listing
from tests.photos.fuzz.thorough import COUNTS, fuzz

FOLDERS = ("", "train", "test", "valid", "train/a", "train/b", "Site1", "Site1/100CAM", "Site2")
NAMES = ("1.png", "x.png", "y.jpg")
FILES = [f"{folder}/{name}".lstrip("/") for folder in FOLDERS for name in NAMES]
HEADERS = ["file", "filename", "x", "id"]


def spell_near(folder, name):
    return name.removeprefix(f"{folder}/") if folder else name


SPELLINGS = {
    "from the top": lambda folder, name: name,
    "from the table": spell_near,
    "without extension": lambda folder, name: os.path.splitext(spell_near(folder, name))[0],
    "from the folder around": lambda folder, name: f"./album/{name}",
    "on another machine": lambda folder, name: f"D:\\data\\album\\{name}".replace("/", "\\"),
}


@st.composite
def create_folders(draw):
    """The files, the folder of the table, its content, and the class of each file in it."""
    files = draw(st.lists(st.sampled_from(FILES), min_size=3, unique=True))
    folder = draw(st.sampled_from(FOLDERS))
    spell = draw(st.sampled_from(sorted(SPELLINGS)))
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
    cells = [SPELLINGS[spell](folder, name) for name in rows]
    # Some rows are about files that are gone.
    gone = draw(st.sets(st.sampled_from(rows), max_size=len(rows) - 1))
    lines = [f"{cell},{label}" for cell, label in zip(cells, labels, strict=True)]
    content = "\n".join([f"{draw(st.sampled_from(HEADERS))},label", *lines, ""])
    truth = {name: label for name, label in zip(rows, labels, strict=True) if name not in gone}
    return [name for name in files if name not in gone], folder, content, truth


@COUNTS
def test_no_label_gets_to_a_file_of_another_folder(count):
    outcomes = []

    @fuzz(count)
    @given(create_folders())
    def check(case):
        names, folder, content, truth = case
        with tempfile.TemporaryDirectory() as parent:
            root = pathlib.Path(parent) / "album"
            table = root / folder / "table.csv"
            table.parent.mkdir(parents=True)
            table.write_text(content)
            files = ImageFiles(ImageFile(name, 0, 0, 0, 0) for name in sorted(names))
            name = table.relative_to(root).as_posix()
            listing = Listing(files, [], [name], [])
            index = FileIndex(files, root)
            found = propose_tables(Folder(root, listing, index, AUTOMATIC))
        labels = found[0].list_labels() if found else {}
        assert labels.items() <= truth.items()
        outcomes.append(labels == truth)

    check()
    assert sum(outcomes) > len(outcomes) / 2
