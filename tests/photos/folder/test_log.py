"""One fold of labels.csv: page and run read the same labels, checks, spellings and order."""

import os
import random

import pytest

from cls_jax.photos.folder.catalog import read_checked
from cls_jax.photos.folder.label_table import LABELS_CSV
from cls_jax.photos.folder.log import LABEL, NONE, SKIP, LabelRow, compare_checks, fold
from cls_jax.photos.folder.options import AUTOMATIC
from cls_jax.photos.labeling.known import find_checked
from cls_jax.photos.labeling.photos import open_session
from tests.photos.helpers import make_folder
from tests.photos.labeling.sessions import create_photos, decide, open_ready, read_training

CLASSES = ["cat", "Cat", " CAT", "dog", "DOG", "ｄｏｇ", "owl", "Owl\u200b", "big cat", "Big  cat"]
FOLDERS = {
    "flat": ["{i}.jpg"],
    "classes": ["cat/{i}.jpg", "Dog/{i}.jpg", "dog/{i}.jpg"],
    "labeled": ["labeled/cat/{i}.jpg", "labeled/Dog/{i}.jpg", "unlabeled/{i}.jpg"],
    "parts": ["train/cat/{i}.jpg", "train/dog/{i}.jpg", "test/Cat/{i}.jpg", "unlabeled/{i}.jpg"],
    "test": ["unlabeled/{i}.jpg", "test/DOG/{i}.jpg"],
}
HEADERS = ["file,label,decision,time", "file,label", "file,label,split"]
MARKS = ["label", "label", "check", "none", "skip", "undo", "", "describe", "key"]


def create_folder(root, seed: int) -> None:
    """A folder of ten photos, and a table of labels that several hands and programs wrote."""
    rng = random.Random(seed)
    kinds = FOLDERS[rng.choice(sorted(FOLDERS))]
    names = [rng.choice(kinds).format(i=i) for i in range(10)]
    header = rng.choice(HEADERS)
    lines = [header]
    for number in range(rng.randrange(1, 40)):
        name, label, mark = rng.choice(names), rng.choice(CLASSES), rng.choice(MARKS)
        if header != HEADERS[0] and rng.random() < 0.7:
            part = rng.choice(["train", "train", "test", ""])
            lines.append(",".join([name, label, part][: header.count(",") + 1]))
            continue
        detail = f" 0.5 0.{rng.randrange(1000, 9999)} {rng.choice(CLASSES).strip()}"
        detail = detail if mark in ("check", "none") and rng.random() < 0.8 else ""
        minute = number if rng.random() < 0.8 else rng.randrange(40)
        time = f"2026-01-01T00:{minute:02}:00Z" if mark and rng.random() < 0.9 else ""
        label = "" if mark in ("none", "skip") or (mark == "undo" and rng.random() < 0.5) else label
        name = "3" if mark == "key" else name
        place = [""] * (header.count(",") - 1 if header != HEADERS[0] else 0)
        lines.append(",".join([name, label, *place, mark + detail, time]))
    make_folder(root, names, {LABELS_CSV: "\n".join([*lines, ""])})


@pytest.mark.parametrize("part", range(10))
def test_page_and_run_say_the_same_of_random_folders(tmp_path, part):
    for seed in range(10 * part, 10 * part + 10):
        root = tmp_path / f"{seed}"
        create_folder(root, seed)
        known = open_session(root).known
        files = {*known.pending}
        of_page = {name: known.marks.get(name) for name in files}
        of_run = read_checked(root, AUTOMATIC)
        assert compare_checks(of_run) == find_checked(known), seed
        assert of_run.list_checked() == known.marks.list_checked(), seed
        labels = {name: mark.label for name, mark in of_page.items() if mark.label}
        if len({*labels.values()}) < 2:  # There is nothing to train.
            continue
        of_training, layout = read_training(root)
        assert {name: label for name, label in of_training.items() if label} == labels, seed
        assert layout.class_names == tuple(sorted({*labels.values()})), seed
        assert files - of_training.keys() == {
            name for name, mark in of_page.items() if mark.decision in ("none", "skip")
        }, seed
        assert {*labels.values()} <= {*known.class_names}, seed


def test_rows_that_are_appended_give_the_marks_of_the_whole_table():
    rng = random.Random(0)
    rows = []
    for number in range(200):
        mark = rng.choice(["label", "check", "none", "skip", "undo"])
        label = "" if mark in ("none", "skip") else rng.choice([*CLASSES, ""]).strip()
        detail = "0.5 0.75 cat" if mark == "check" else ""
        time = f"2026-01-01T{number // 60:02}:{number % 60:02}:00.000000Z"
        rows.append(LabelRow(f"{rng.randrange(9)}", label, mark, time, detail=detail))
    marks = fold([])
    for row in rows:
        marks = fold([row], marks)
    assert marks == fold(rng.sample(rows, len(rows)))
    assert [*marks.files] == [*fold(rows).files]


def test_classes_that_have_numbers_have_names_on_the_page_as_in_training(tmp_path):
    kinds = create_photos(tmp_path, 4, [f"{i}.jpg" for i in range(4)])
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    (tmp_path / LABELS_CSV).write_text("file,label\n0.jpg,0\n1.jpg,1\n")
    session = open_ready(tmp_path, kinds)
    assert session.known.class_names == ("cat", "dog")
    decide(session, 0, "cat")  # As the number says: confirmed, also in the next session.
    decide(session, 2, "owl")
    decide(session, 3, "cat")
    labels = dict(zip(session.known.files, ["cat", "dog", "owl", "cat"], strict=True))
    assert read_training(tmp_path)[0] == labels
    marks = open_session(tmp_path).known.marks
    assert {name: marks.get(name).label for name in labels} == labels
    assert [mark.is_confirmed for mark in marks.files.values()] == [False, True, False, False]
    assert [*marks.files] == [*session.known.marks.files]


def test_a_table_of_the_page_that_was_renamed_says_what_it_said(tmp_path):
    answers = {"a": ("cat", LABEL), "b": ("dog", LABEL), "c": ("", NONE), "d": ("", SKIP)}
    rows = [f"{name}.jpg,{label},{decision}," for name, (label, decision) in answers.items()]
    names = [f"{name}.jpg" for name in answers]
    make_folder(tmp_path, names, {"mine.csv": "\n".join([HEADERS[0], *rows, ""])})
    marks = open_session(tmp_path).known.marks.files
    assert [(mark.label, mark.decision) for mark in marks.values()] == [*answers.values()]


def test_a_class_that_no_table_can_name_takes_no_key_from_others(tmp_path):
    make_folder(tmp_path, ["cat/1.jpg", "dog/2.jpg", os.fsdecode(b"ant\xe9/3.jpg")])
    assert open_session(tmp_path).known.classes.keys == {"cat": "1", "dog": "2"}
