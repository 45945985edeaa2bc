"""Answers reach labels.csv before anything else, and come back as they were, also in training.

Other programs write to the same table, or have made it.
"""

import collections
import concurrent.futures
import csv
import os
import pathlib
import stat
import tempfile

import filelock
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cls_jax.errors import UserError
from cls_jax.photos.folder import label_table
from cls_jax.photos.folder.label_table import LABELS_CSV
from cls_jax.photos.labeling import answers, views
from cls_jax.photos.labeling.answers import RefusedError
from cls_jax.photos.labeling.changes import (
    Change,
    ConflictError,
    describe_class,
    rename_class,
    set_example,
)
from cls_jax.photos.labeling.photos import open_session
from tests.photos.labeling import sessions, writers
from tests.photos.labeling.sessions import (
    change,
    create_photos,
    decide,
    decide_all,
    list_classes,
    open_ready,
    read_states,
    read_training,
)

HOSTILE = "<img src=x onerror=alert(1)>"


NAMES = [
    *("a,b.png", 'quo"te.png', " space .png", "line\nbreak.png", "é.png", "deep/er/x.png"),
    *(f"{HOSTILE.replace('/', '')}.png", "=cmd.png", "cr\rlf.png", "-.png", "unlabeled/x.png"),
]
CLASSES = [HOSTILE, "=1+1", "a,b", 'quo"te', "Ö-Wagen", "file", "'; drop"]
ACTIONS = st.tuples(
    st.sampled_from(["label", "label", "none", "skip", "undo", "stale", "restart"]),
    st.lists(st.integers(0, len(NAMES) - 1), min_size=1, max_size=3, unique=True),
    st.sampled_from(CLASSES),
    st.sampled_from(["one", "two"]),
)


@settings(max_examples=30, derandomize=True, deadline=None, suppress_health_check=HealthCheck)
@given(st.lists(ACTIONS, max_size=20))
def test_answers_come_back_as_they_were_last_in_this_session_the_next_and_training(actions):
    """Against a plain list of states per photo. Nothing is closed before the disk is read."""
    with tempfile.TemporaryDirectory() as root:
        folder = pathlib.Path(root) / "photos"
        kinds, names = create_photos(folder, len(NAMES), NAMES), sorted(NAMES)
        session = open_ready(folder, kinds)
        history = [[("", "")] for _ in names]
        # By window, and of earlier sessions: photo → number of its states so far.
        steps, earlier, done = {"one": [], "two": []}, [], []
        for action, images, label, window in actions:
            revisions = {image: len(history[image]) for image in images}
            if action == "restart":
                session = open_ready(folder, kinds)
                steps, earlier = {"one": [], "two": []}, [*done]
            elif action == "stale":
                changes = [Change(i, "skip", "", n) for i, n in revisions.items()]
                with pytest.raises(ConflictError):
                    session.decide(changes, window)
            elif action != "undo":
                label = session.add_class(label) if action == "label" else ""
                changes = [Change(i, action, label, n - 1) for i, n in revisions.items()]
                session.decide(changes, window)
                steps[window].append(revisions)
                done.append(revisions)
                for image in images:
                    history[image].append((action, label))
            elif not steps[window] + earlier:
                with pytest.raises(RefusedError, match="nothing to undo"):
                    session.undo(window)
            else:
                step = (steps[window] or earlier).pop()
                done = [one for one in done if one is not step]
                if any(len(history[image]) != number + 1 for image, number in step.items()):
                    with pytest.raises(ConflictError):
                        session.undo(window)
                    continue
                expected = {image: history[image][-1] for image in step}
                undone = session.undo(window)
                assert {i: (one.decision, one.label) for i, one in undone.items()} == expected
                for image, number in step.items():
                    history[image].append(history[image][number - 1])
        last = {name: states[-1] for name, states in zip(names, history, strict=True)}
        assert read_states(session) == {name: state for name, state in last.items() if state[0]}
        again = open_ready(folder, kinds)
        assert read_states(again) == read_states(session)
        used, used_again = (
            [row for row in views.describe(one)["classes"] if row["count"]]
            for one in (session, again)
        )
        assert used == used_again
        if len({label for _, label in last.values()} - {""}) > 1:
            labels, layout = read_training(folder)
            aside = {name for name, (kind, _) in last.items() if kind in ("none", "skip")}
            assert labels == {name: label for name, (_, label) in last.items() if name not in aside}
            assert layout.warnings == []
            reasons = dict(layout.skipped)
            assert set(reasons) == aside
            assert set(reasons.values()) <= {"marked as no class or skipped in labels.csv"}


ACTS = (
    lambda session: decide(session, 3, "cat"),
    lambda session: decide(session, 0, "cat"),
    lambda session: decide(session, 0, "", decision="skip"),
    lambda session: session.decide([Change(i, "label", "cat", 0) for i in (1, 2)], "w"),
    change(describe_class, "cat", "has whiskers"),
    change(rename_class, "cat", "Cat"),
    change(rename_class, "Cat", "dog"),
    change(rename_class, "dog", ""),
    lambda session: decide(session, 0, "owl"),
)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_steps_are_undone_one_by_one_also_after_a_restart(folder, kinds, is_restarted):
    """Without those that were undone before."""
    session = open_ready(folder, kinds)
    before = []
    for act in ACTS:
        before.append(read_states(session))
        act(session)
        decide(session, 5, "owl")
        session.undo("w")
        if is_restarted:
            session = open_ready(folder, kinds)
    assert views.describe(session, "w")["can_undo"]
    for state in before[::-1]:
        session.undo("w")
        assert read_states(session) == state
    with pytest.raises(RefusedError, match="nothing to undo"):
        session.undo("w")


def test_an_undo_is_refused_once_another_window_has_answered(session):
    decide(session, 0, "cat", "one")
    decide(session, 0, "dog", "two")
    with pytest.raises(ConflictError, match="Nothing was undone"):
        session.undo("one")


@pytest.mark.parametrize("num_written", [0, 9])
def test_nothing_changes_on_a_full_disk(session, folder, monkeypatch, num_written):
    decide(session, 0, "cat")
    before, write = views.describe(session, "w"), os.write
    content = (folder / LABELS_CSV).read_bytes()

    def write_a_part(descriptor, text):
        if num_written:
            return write(descriptor, text[:num_written])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", write_a_part)
    for act in (lambda session: decide(session, 1, "cat"), change(rename_class, "cat", "owl")):
        with pytest.raises(OSError, match="No space left"):
            act(session)
    assert views.describe(session, "w") | {"version": 0} == before | {"version": 0}
    assert (folder / LABELS_CSV).read_bytes() == content


def test_unusable_class_names_are_refused_and_those_that_differ_in_case_are_one(folder, kinds):
    session = open_session(folder, ["Cat"])
    names = ("", "  ", "a\nb", "\x1b[2J", "\ud800", "a\u202eb", "x" * 256)
    for name, reason in [*((name, "name of a class") for name in names), ("No label", "no label")]:
        with pytest.raises(RefusedError, match=reason):
            session.add_class(name)
    assert session.add_class("cAT ") == "Cat"
    assert list_classes(session) == ["Cat"]


FILES = [f"labeled/{name}/{i}.png" for name in sessions.CLASSES for i in range(2)]


def look(folder, session):
    """What a session, the next one and training know: states, used classes, notes, test labels."""
    again = open_ready(folder, [0] * 8)
    for one in (session, again):
        one.follow_table()
    used = [
        [(row["name"], row["count"], row["description"], row["example"]) for row in classes]
        for classes in (views.describe(one)["classes"] for one in (session, again))
    ]
    labels, layout = read_training(folder)
    tests = sorted(name for _, name in layout.test)
    assert sorted(used[0]) == sorted(used[1])
    states = read_states(session)
    assert states == read_states(again)
    assert {n: s[1] for n, s in states.items()} == {n: k for n, k in labels.items() if k}
    return states, used[0], tests


@pytest.mark.parametrize("start", ["folders", "own table", "other table"])
@pytest.mark.parametrize("new", ["kitten", "dog", "", "Cat"])
def test_a_class_is_renamed_merged_or_deleted_and_all_of_it_undone(folder, start, new):
    """Also where folders or the table of another program say what is in it."""
    names = FILES if start == "folders" else [f"unlabeled/{n.replace('/', '-')}" for n in FILES]
    labels = [name for name in sessions.CLASSES for _ in range(2)]
    create_photos(folder, 8, [*names, "unlabeled/x.png", "unlabeled/y.png"])
    create_photos(folder, 2, ["test/cat/t.png", "test/dog/t.png"])
    if start == "other table":
        rows = "".join(f"{label};{name}\n" for name, label in zip(names, labels, strict=True))
        (folder / LABELS_CSV).write_text("class;image\n" + rows)
    session = open_ready(folder, [0] * 8, [] if start == "other table" else ["dog"])
    if start == "own table":
        decide_all(session, labels)
    session.change("w", describe_class, "cat", 'has = whiskers, and "fur"')
    session.change("w", set_example, 1)
    before = look(folder, session)
    assert ("cat", 2, 'has = whiskers, and "fur"', 1) in before[1]
    session.change("w", rename_class, "cat", new)
    states, used, tests = look(folder, session)
    renamed = {n: (d, new if label == "cat" else label) for n, (d, label) in before[0].items()}
    assert states == {name: state for name, state in renamed.items() if state[1]}
    assert sorted(row[0] for row in used) == sorted({new or "dog", "dog", "owl"})
    assert tests == sorted(name for name in (new, "dog") if name)
    notes = [row[2:] for row in used if row[0] == new]
    assert notes == [note[2:] for note in before[1] if note[0] == "cat" and new]
    session.undo("w")
    assert look(folder, session) == before
    for _ in range(2):  # The example, then the description.
        session.undo("w")
    assert ("cat", 2, "", None) in look(folder, session)[1]


@pytest.mark.parametrize(
    "act",
    [
        *(change(rename_class, "cat", new) for new in ("a\nb", "cat")),
        change(rename_class, "fish", "cat"),
        *(change(describe_class, "cat", text) for text in ("a\nb", "x" * 501)),
        change(describe_class, "fish", ""),
        *(change(set_example, image) for image in (5, 99)),
    ],
)
def test_changes_that_make_no_sense_write_nothing(session, folder, act):
    decide(session, 0, "cat")
    before = (folder / LABELS_CSV).read_bytes(), views.describe(session)["classes"]
    with pytest.raises(RefusedError):
        act(session)
    assert ((folder / LABELS_CSV).read_bytes(), views.describe(session)["classes"]) == before


@pytest.mark.parametrize("header", ["label;note;file", "kind;id;img"])
def test_a_table_of_another_program_keeps_its_columns(session, folder, kinds, header):
    table = folder / LABELS_CSV
    before = f"{header}\ncat;1;IMG_0000.png\ndog;2;IMG_0001.png"
    table.write_text(before)
    session.follow_table()
    decide(session, 1, "cat")
    decide(session, 2, "", decision="none")
    decide(session, 3, "", decision="skip")
    decide(session, 0, "dog")
    session.undo("w")
    decide(session, 2, "dog")
    rows = [row[:4] for row in csv.reader(table.read_text().split("\n"), delimiter=";")]
    assert table.read_text().startswith(f"{before}\ncat;;IMG_0001.png\n")
    assert rows[4:6] == [
        ["", "", f"IMG_000{i}.png", kind] for i, kind in ((2, "none"), (3, "skip"))
    ]
    assert rows[6:8] == [["dog", "", "IMG_0000.png"], ["cat", "", "IMG_0000.png"]]
    states = {0: ("label", "cat"), 1: ("label", "cat"), 2: ("label", "dog"), 3: ("skip", "")}
    expected = {f"IMG_000{i}.png": state for i, state in states.items()}
    assert read_states(session) == read_states(open_ready(folder, kinds)) == expected


def test_a_link_as_table_is_not_written_through(session, folder, tmp_path):
    target = tmp_path / "elsewhere.csv"
    target.write_text("file,label\n")
    (folder / LABELS_CSV).symlink_to(target)
    with pytest.raises(UserError, match="is a link"):
        decide(session, 0, "cat")
    assert target.read_text() == "file,label\n"


@pytest.mark.parametrize("base", ["", "train/"])
@pytest.mark.parametrize("is_answered_in_own_table", [False, True])
def test_an_answer_keeps_labels_of_folders(folder, capsys, base, is_answered_in_own_table):
    names = [f"{base}{kind}/{i}.png" for kind in ("cat", "dog") for i in range(8)]
    create_photos(folder, 1, ["test/cat/b.png"])
    if is_answered_in_own_table:  # With another header, and without a row so far.
        folder.joinpath(LABELS_CSV).write_text("image;class\n")
    session = open_ready(folder, create_photos(folder, len(names), names))
    assert "Every photo is labeled by its folder" in capsys.readouterr().out
    before = {name: ("label", name.split("/")[-2]) for name in names}
    assert read_states(session) == before
    decide(session, 3, "owl")
    after = before | {names[3]: ("label", "owl")}
    assert read_states(session) == after
    labels, layout = read_training(folder)
    assert labels == {name: label for name, (_, label) in after.items()}
    assert len(layout.test) == 1
    assert len(layout.warnings) == (base != "train/")  # It says which labels are folders' names.


def test_a_later_answer_counts_whatever_the_clock_says(session, folder, kinds):
    """A colleague's clock is ahead, and rows of other programs have no time or their own."""
    times = ["2999-01-01T00:00:00.5Z", "2999-01-01T00:00:00+00:00", "9999-12-31T23:59:59.999999Z"]
    rows = [f"IMG_000{i}.png,dog,label,{time}\n" for i, time in enumerate([*times, "today"])]
    (folder / LABELS_CSV).write_text("file,label,decision,time\n" + "".join(rows))
    session.follow_table()
    for image in range(4):
        decide(session, image, "cat")
        decide(session, image, "owl")
    with (folder / LABELS_CSV).open("a") as file:
        file.write("IMG_0000.png,cat\nIMG_0001.png,cat,label,2998-01-01T00:00:00Z\n")
    session.follow_table()
    expected = ["cat", "owl", "owl", "owl"]
    for one in (session, open_ready(folder, kinds)):
        assert [label for _, (_, label) in sorted(read_states(one).items())] == expected
    labels, layout = read_training(folder)
    assert [labels[f"IMG_000{i}.png"] for i in range(4)] == expected
    assert "different labels" in layout.warnings[0]


def test_a_lock_of_another_program_delays_an_answer_and_nothing_else(session, folder, monkeypatch):
    monkeypatch.setattr(answers, "_LOCK_SECONDS", 1.0)
    changes = [Change(0, "label", "cat", 0)]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with filelock.FileLock(folder / ".labels.csv.lock"):
            decision = pool.submit(session.decide, changes, "w")
            concurrent.futures.wait([decision], timeout=0.2)
            views.describe(session)
            session.follow_table()
            assert not decision.done()
            with pytest.raises(UserError, match=r"another program is writing to labels\.csv"):
                decision.result()
        pool.submit(session.decide, changes, "w").result()
    assert read_states(session) == {"IMG_0000.png": ("label", "cat")}


@pytest.mark.parametrize(
    "torn", ["IMG_0009.png", 'IMG_0009.png,"ca', "IMG_0009.png,cat\n\n", '5" x,d']
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_answers_follow_a_row_that_a_crash_has_cut_short(session, folder, kinds, torn, encoding):
    start = f"file,label\nIMG_0000.png,dog\n{torn}".encode(encoding)
    (folder / LABELS_CSV).write_bytes(start)
    decide(session, 1, "Bär")
    decide(session, 2, "", decision="none")
    assert (folder / LABELS_CSV).read_bytes().startswith(start)
    states = read_states(open_ready(folder, kinds))
    states.pop("IMG_0009.png", None)
    assert list(states.values()) == [("label", "dog"), ("label", "Bär"), ("none", "")]


def test_rows_appended_at_the_same_moment_are_read(session, folder, monkeypatch):
    decide(session, 0, "cat")
    append = label_table.append_rows

    def append_after_another(path, rows, *known):
        with path.open("a") as file:
            file.write(f"IMG_0001.png,dog,label,{label_table.find_next_time('')}\n")
        return append(path, rows, *known)

    monkeypatch.setattr(label_table, "append_rows", append_after_another)
    decide(session, 2, "cat")
    session.follow_table()
    assert read_states(session)["IMG_0001.png"] == ("label", "dog")


TOO_MANY = "\n".join(["file,label", *(f"IMG_{i % 30:04}.png,{i}" for i in range(1100))])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("one,two,three\n1,2,3\n", "'one', 'two', 'three'\\) names images"),
        (TOO_MANY, "more than 1,000 classes"),
    ],
)
def test_a_table_that_breaks_meanwhile_is_not_written_to(session, folder, table, message):
    decide(session, 0, "cat")
    (folder / LABELS_CSV).write_text(table)
    for _ in range(2):
        with pytest.raises(UserError, match=message):
            decide(session, 1, "cat")
    with pytest.raises(UserError, match=message):
        open_session(folder)
    assert (folder / LABELS_CSV).read_text() == table
    assert read_states(session) == {"IMG_0000.png": ("label", "cat")}
    (folder / LABELS_CSV).write_text("file,label\nIMG_0002.png,dog\n")
    decide(session, 1, "cat")
    assert set(read_states(session)) == {"IMG_0001.png", "IMG_0002.png"}


@pytest.mark.parametrize(
    "name", ["cat;dog", "a, b", "None", "null", '["a"]', "cat/dog", "black cat"]
)
@pytest.mark.parametrize("header", ["name,class", "name,labels"])
def test_a_table_of_another_program_keeps_every_class(folder, name, header):
    kinds = create_photos(folder, 12)
    table = f"{header}\nIMG_0000.png,a\nIMG_0001.png,b\n"
    (folder / LABELS_CSV).write_text(table)
    session = open_ready(folder, kinds)
    decide(session, 3, name)
    decide(session, 4, name)
    session.undo("w")
    assert (folder / LABELS_CSV).read_text().startswith(table)
    marks = open_ready(folder, kinds).known.marks
    assert marks.get("IMG_0003.png").label == name
    assert marks.get("IMG_0004.png").label == ""
    assert read_training(folder)[0]["IMG_0003.png"] == name


def test_no_answer_is_lost_or_on_another_file(start_program, folder, kinds):
    """Three programs answer at a time and are killed at random, into a table of two columns."""
    table = folder / LABELS_CSV
    table.write_text("file,label\nIMG_0000.png,cat by me\nIMG_0001.png,dog by me\n")
    table.chmod(0o640)
    reported = writers.run_and_kill(start_program, folder, num_answers=25, num_kills=9)
    _, *rows = csv.reader(table.read_text().splitlines())
    assert {len(row) for row in rows} <= {2, 4}
    saved = collections.Counter((row[0], row[1]) for row in rows)
    assert len(reported) > 50
    assert not collections.Counter(map(tuple, reported)) - saved
    kind_of = dict(zip(sorted(writers.NAMES), kinds, strict=True))
    assert all(label.split(" ")[0] in ("", writers.CLASSES[kind_of[name]]) for name, label in saved)
    last = {name: label for name, label, *_ in rows}  # The last row of each file counts.
    states = read_states(open_ready(folder, kinds))
    assert {name: states[name][1] for name in last} == last
    labels, _ = read_training(folder)
    labeled = {name: label for name, label in labels.items() if label}
    assert labeled == {name: label for name, label in last.items() if label}
    assert stat.S_IMODE(table.stat().st_mode) == 0o640
