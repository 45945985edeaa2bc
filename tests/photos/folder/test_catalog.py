"""A folder is read once, for everybody, and only what two readings share is asked about."""

import pytest

from cls_jax.errors import UserError
from cls_jax.photos.folder import index
from tests.photos.helpers import make_folder, open_catalog

SORTED_NAMES = [f"{name}/{i}.png" for name in ("cat", "dog") for i in range(6)]


def read(root, names, **tables):
    files = {f"{name}.csv": "\n".join([*rows, ""]) for name, rows in tables.items()}
    return open_catalog(make_folder(root, names, files))


def write_rows(header, values, names=SORTED_NAMES):
    return [header, *(f"{file},{value}" for file, value in zip(names, values, strict=True))]


@pytest.mark.parametrize(
    ("header", "values"),
    {
        "file,age": [0, 1, 2] * 4,
        "file,born": [1998, 2010, 2021] * 4,
        "file,x": [0.5, 1, 2] * 4,
    }.items(),
)
def test_numbers_that_are_no_classes_do_not_contradict_class_folders(tmp_path, header, values):
    layout = read(tmp_path, SORTED_NAMES, metadata=write_rows(header, values)).train()
    assert layout.class_names == ("cat", "dog")
    assert not layout.warnings


@pytest.mark.parametrize("header", ["file,label", "file,level"])
def test_numbers_that_may_be_classes_are_asked_about(tmp_path, header):
    with pytest.raises(UserError, match=r"has the class 'cat' by its folder and '0' in meta.csv"):
        read(tmp_path, SORTED_NAMES, meta=write_rows(header, [0, 1, 2] * 4))


def test_a_table_of_classes_counts_before_one_of_ages(tmp_path):
    names = [f"{i}.png" for i in range(12)]
    ages = write_rows("file,age", [3, 4, 5] * 4, names)
    classes = write_rows("file,label", ["a", "b"] * 6, names)
    assert read(tmp_path, names, ages=ages, classes=classes).train().class_names == ("a", "b")
    (tmp_path / "classes.csv").unlink()
    assert read(tmp_path, names).train().class_names == ("3", "4", "5")  # What else?


def test_class_folders_are_told_about_a_table_with_one_class(tmp_path):
    layout = read(tmp_path, SORTED_NAMES, submission=write_rows("file,label", ["0"] * 12)).train()
    assert layout.class_names == ("cat", "dog")
    assert layout.warnings[0].startswith("12 images have another class in submission.csv than by")


def test_names_are_indexed_once(tmp_path, monkeypatch):
    folded = []
    cut = index._cut_stem
    monkeypatch.setattr(index, "_cut_stem", lambda name: folded.append(name) or cut(name))
    names = [f"site{k}/{i}.png" for k in (1, 2) for i in range(6)]
    tables = {
        name: write_rows("file,number,label,site", [f"{i},{i % 2},x" for i in range(12)], names)
        for name in ("train", "labels")
    }
    read(tmp_path, names, **tables).train()
    assert sorted(folded) == names
