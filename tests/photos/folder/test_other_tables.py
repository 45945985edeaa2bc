"""Tables and folders of other programs: what looks alike, and what contradicts the folders."""

import pytest

from cls_jax.errors import UserError
from tests.photos.helpers import make_folder, read_layout

IMAGES = "images/1.png images/2.png images/3.png images/4.png"


def read(root, names, *rows, table="labels.csv"):
    """The layout of a folder with empty files, and a table if it has rows."""
    files = {table: "\n".join([*rows, ""])} if rows else {}
    return read_layout(make_folder(root, [name.replace("+", " ") for name in names.split()], files))


@pytest.mark.parametrize("word", ["??", "#REF!", "#NAME?", "N/A", "No label"])
def test_words_for_no_label_are_none(tmp_path, word):
    layout = read(tmp_path, IMAGES, "file,label", "1.png,a", "2.png,b", f"3.png,{word}")
    assert layout.class_names == ("a", "b")
    assert repr(word) in layout.warnings[0]


@pytest.mark.parametrize("word", ["-", "--", "-1", "-1.0", "n.a.", "not_labeled_yet", "untagged"])
def test_words_that_may_mean_no_label_are_asked_about(tmp_path, word):
    layout = read(tmp_path, IMAGES, "file,label", "1.png,a", "2.png,b", f"3.png,{word}")
    assert [f"{word!r} counts as a class" in one for one in layout.warnings] == [True]


@pytest.mark.parametrize(
    ("names", "count", "warning"),
    [
        ("black+cat/1.png black_cat/2.png dog/3.png", 3, "count as different classes"),
        ("t-shirt/1.png T+Shirt/2.png dog/3.png", 3, "count as different classes"),
        ("❤/1.png ❤\ufe0f/2.png dog/3.png", 2, "count as one class"),
        ("\uff43\uff41\uff54/1.png cat/2.png dog/3.png", 2, "count as one class"),
        ("1/1.png 2/2.png 1-2/3.png", 3, ""),
        ("C/1.png C#/2.png F#/3.png", 3, ""),
    ],
)
def test_names_that_look_alike_are_told(tmp_path, names, count, warning):
    layout = read(tmp_path, names)
    assert len(layout.class_names) == count
    assert [warning in one for one in layout.warnings] == [True] * bool(warning)


def test_marks_of_competitions_are_parts_and_unknown_ones_are_refused(tmp_path):
    marks = ("Training", "Training", "PublicTest", "PrivateTest")
    rows = [f"{i + 1}.png,{'ab'[i % 2]},{mark}" for i, mark in enumerate(marks)]
    layout = read(tmp_path, IMAGES, "file,label,Usage", *rows)
    assert len(layout.train) == len(layout.test) == 2
    with pytest.raises(UserError, match="'extra' in the column 'Usage'"):
        read(tmp_path, IMAGES, "file,label,Usage", *rows[:3], "4.png,b,extra")


@pytest.mark.parametrize("delimiter", [";", ","])
def test_a_line_that_tells_excel_the_delimiter_is_no_header(tmp_path, delimiter):
    rows = ["sep=,", "file,label", "1.png,a", "2.png,b"]
    layout = read(tmp_path, IMAGES, *(row.replace(",", delimiter) for row in rows))
    assert layout.table == "labels.csv: files in file, classes in label; 2 of 2 rows found."


def test_folders_that_contradict_a_table_are_told(tmp_path):
    names = "a/1.png a/2.png b/3.png b/4.png unlabeled/5.png test/a/6.png"
    layout = read(tmp_path, names, "file,label", "a/1.png,b", "a/2.png,a", "b/3.png,b")
    first, second = layout.warnings
    assert "1 image has another class in labels.csv than by its folder, such as 'a/1.png'" in first
    assert "1 image in a folder is unlabeled, such as 'b/4.png'" in second
