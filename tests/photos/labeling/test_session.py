"""Decisions reach the disk before anything else, and come back as they were, also in training."""

import collections
import concurrent.futures
import csv
import importlib.util
import os
import pathlib
import shutil
import stat
import tempfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cls_jax.errors import UserError
from cls_jax.io import hold_lock
from cls_jax.photos.cli import commands
from cls_jax.photos.folder import label_table
from cls_jax.photos.folder.label_table import LABELS_CSV
from cls_jax.photos.folder.layout import read_layout
from cls_jax.photos.images.files import list_images
from cls_jax.photos.labeling import answers, photos, views
from cls_jax.photos.labeling.answers import RefusedError
from cls_jax.photos.labeling.classifier import SessionClassifier
from cls_jax.photos.labeling.photos import open_session
from cls_jax.photos.labeling.session import Change, ConflictError
from tests.outcomes import read_table
from tests.photos.labeling import sessions, writers
from tests.photos.labeling.sessions import (
    create_photos,
    decide,
    open_ready,
)

HOSTILE = "<img src=x onerror=alert(1)>"


def read_states(session):
    """Name → decision and label of everything that has an answer."""
    images = [views.describe_image(session, i) for i in range(len(session.list_paths()))]
    return {
        image["name"]: (image["decision"], image["label"]) for image in images if image["decision"]
    }


def read_training(folder):
    """What training makes of a folder: file → label, and the whole layout."""
    layout = read_layout(folder, list_images(folder))
    return {file.name: label for file, label in layout.train}, layout


def test_each_decision_is_one_row(session, folder):
    decide(session, 0, "cat")
    decide(session, 1, "", decision="none")
    decide(session, 2, "", decision="skip")
    decide(session, 0, "dog")
    session.undo("w")
    rows = read_table(folder / LABELS_CSV)
    found = [(row["file"][-8:-4], row["label"], row["decision"]) for row in rows]
    assert found[:3] == [("0000", "cat", "label"), ("0001", "", "none"), ("0002", "", "skip")]
    assert found[3:] == [("0000", "dog", "label"), ("0000", "cat", "undo")]
    assert sorted(row["time"] for row in rows) == [row["time"] for row in rows]


NAMES = ["a,b.png", 'quo"te.png', " space .png", "line\nbreak.png", "é.png", "deep/er/x.png"]
NAMES += [f"{HOSTILE.replace('/', '')}.png", "=cmd.png", "cr\rlf.png", "-.png", "unlabeled/x.png"]
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
        steps = {"one": [], "two": []}  # By window: photo → number of its states so far.
        for action, images, label, window in actions:
            revisions = {image: len(history[image]) for image in images}
            if action == "restart":
                session = open_ready(folder, kinds)
                steps = {"one": [], "two": []}
            elif action == "stale":
                changes = [Change(i, "skip", "", n) for i, n in revisions.items()]
                with pytest.raises(ConflictError):
                    session.decide(changes, window)
            elif action != "undo":
                label = session.add_class(label) if action == "label" else ""
                changes = [Change(i, action, label, n - 1) for i, n in revisions.items()]
                session.decide(changes, window)
                steps[window].append(revisions)
                for image in images:
                    history[image].append((action, label))
            elif not steps[window]:
                with pytest.raises(RefusedError, match="nothing to undo"):
                    session.undo(window)
            else:
                step = steps[window].pop()
                if any(len(history[image]) != number + 1 for image, number in step.items()):
                    with pytest.raises(ConflictError):
                        session.undo(window)
                    continue
                assert session.undo(window) == list(step)
                for image, number in step.items():
                    history[image].append(history[image][number - 1])
        last = {name: states[-1] for name, states in zip(names, history, strict=True)}
        assert read_states(session) == {name: state for name, state in last.items() if state[0]}
        again = open_ready(folder, kinds)
        assert read_states(again) == read_states(session)
        used = [row for row in views.describe(session)["classes"] if row["count"]]
        assert [row for row in views.describe(again)["classes"] if row["count"]] == used
        if len({label for _, label in last.values()} - {""}) > 1:
            labels, layout = read_training(folder)
            assert labels == {name: label for name, (kind, label) in last.items() if kind != "none"}
            assert layout.warnings == []
            reasons = dict(layout.skipped)
            assert set(reasons) == {name for name, (kind, _) in last.items() if kind == "none"}
            assert set(reasons.values()) <= {"marked as no class in labels.csv"}


def test_files_of_two_people_merge_by_appending_one(session, folder, kinds, tmp_path):
    other = shutil.copytree(folder, tmp_path / "other")
    theirs = open_ready(other, kinds)
    decide(session, 0, "cat")
    decide(theirs, 0, "owl")
    decide(theirs, 1, "dog")
    decide(session, 1, "cat")
    with (folder / LABELS_CSV).open("a") as file:
        file.write((other / LABELS_CSV).read_text())
    session.follow_table()
    assert read_states(session) == {
        "IMG_0000.png": ("label", "owl"),
        "IMG_0001.png": ("label", "cat"),
    }
    assert read_states(open_ready(folder, kinds)) == read_states(session)


def test_a_table_of_another_program_keeps_its_columns(session, folder, kinds):
    table = folder / LABELS_CSV
    before = "label;note;file\ncat;first;IMG_0000.png\ndog;;IMG_0001.png"
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


@pytest.mark.parametrize("num_written", [0, 9])
def test_nothing_changes_on_a_full_disk(session, folder, monkeypatch, num_written):
    decide(session, 0, "cat")
    before, content, write = (
        views.describe(session, "w"),
        (folder / LABELS_CSV).read_bytes(),
        os.write,
    )

    def write_a_part(descriptor, text):
        if num_written:
            return write(descriptor, text[:num_written])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", write_a_part)
    for change in (decide_at_once(1, "label", "cat"), lambda s: s.rename_class("w", "cat", "owl")):
        with pytest.raises(OSError, match="No space left"):
            change(session)
    assert views.describe(session, "w") | {"version": 0} == before | {"version": 0}
    assert (folder / LABELS_CSV).read_bytes() == content


def test_a_link_as_table_is_not_written_through(session, folder, tmp_path):
    target = tmp_path / "elsewhere.csv"
    target.write_text("file,label\n")
    (folder / LABELS_CSV).symlink_to(target)
    with pytest.raises(UserError, match="is a link"):
        decide(session, 0, "cat")
    assert target.read_text() == "file,label\n"


def test_unusable_class_names_are_refused_and_those_that_differ_in_case_are_one(folder, kinds):
    session = open_session(folder, ["Cat"])
    for name in ("", "  ", "a\nb", "\x1b[2J", "\ud800", "a\u202eb", "x" * 256):
        with pytest.raises(RefusedError, match="name of a class"):
            session.add_class(name)
    assert session.add_class("cAT ") == "Cat"
    assert [known["name"] for known in views.describe(session)["classes"]] == ["Cat"]


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


def test_a_file_that_is_gone_takes_no_answer_and_gives_none_away(session, folder, kinds):
    decide(session, 3, "cat")
    (folder / "camera").mkdir()
    for image in (3, 4):
        (folder / f"IMG_000{image}.png").rename(folder / "camera" / f"IMG_000{image}.png")
    with pytest.raises(RefusedError, match=r"IMG_0004\.png is no longer in the folder"):
        decide(session, 4, "dog")
    decide(session, 5, "dog")
    again = open_ready(folder, sorted(kinds))
    assert read_states(again) == {"IMG_0005.png": ("label", "dog")}
    with pytest.raises(UserError, match="only the class 'dog'"):
        read_training(folder)


def test_a_photo_that_is_gone_is_shown_nowhere_until_it_is_back(session, folder):
    for image in range(4):
        decide(session, image, ["cat", "dog"][image % 3 == 0])
    gone, answered = views.describe(session)["next"][0]["image"], 3
    for image in (gone, answered):
        path = folder / f"IMG_{image:04}.png"
        path.rename(folder.parent / path.name)
    with pytest.raises(ConflictError, match="no longer in the folder"):
        decide(session, gone, "", decision="skip")

    def list_shown():
        state = views.describe(session)
        rows = views.describe_check(session)["rows"]
        images = [*state["next"], *state["recent"], *(i for row in rows for i in row["images"])]
        table = SessionClassifier(session).list_rows()
        return {one["name"] for one in images} | {row["file"] for row in table}

    assert f"IMG_{gone:04}.png" not in list_shown()
    assert photos.find_new(session) == {"new": 0, "unreadable": 0, "gone": 1}
    assert not {f"IMG_{image:04}.png" for image in (gone, answered)} & list_shown()
    counts = views.describe(session)["counts"]
    assert (counts["images"], counts["labeled"]) == (28, 3)
    for image in (gone, answered):
        path = folder / f"IMG_{image:04}.png"
        (folder.parent / path.name).rename(path)
    assert photos.find_new(session) == {"new": 0, "unreadable": 0, "gone": 0}
    assert read_states(session)[f"IMG_{answered:04}.png"] == ("label", "dog")
    assert len(list_shown()) == 30


@pytest.mark.parametrize("remains", [False, True])  # As the place where a drive is connected.
def test_a_folder_that_is_unplugged_loses_nothing_and_labeling_goes_on(session, folder, remains):
    decide(session, 0, "cat")
    before, content = views.describe(session), (folder / LABELS_CSV).read_bytes()
    away = folder.rename(folder.with_name("away"))
    if remains:
        folder.mkdir()
    decision = [Change(1, "label", "dog", 0)]
    for change in (
        session.follow_table,
        lambda: session.decide(decision, "w"),
        lambda: session.undo("w"),
        lambda: session.rename_class("w", "cat", "owl"),
        lambda: session.describe_class("w", "cat", "has whiskers"),
        lambda: photos.find_new(session),
        SessionClassifier(session).copy_by_class,
    ):
        with pytest.raises(UserError, match="is no longer there: move it back"):
            change()
    assert views.describe(session) == before
    assert sorted(folder.parent.iterdir()) == sorted([away, *([folder] if remains else [])])
    if remains:
        folder.rmdir()  # It is still empty.
    away.rename(folder)
    session.follow_table()
    assert views.describe(session)["version"] > before["version"]  # The page loads photos again.
    session.decide(decision, "w")
    assert (folder / LABELS_CSV).read_bytes().startswith(content)
    assert read_states(session) == {
        "IMG_0000.png": ("label", "cat"),
        "IMG_0001.png": ("label", "dog"),
    }


def test_a_lock_of_another_program_delays_an_answer_and_nothing_else(session, folder, monkeypatch):
    monkeypatch.setattr(answers, "_LOCK_SECONDS", 1.0)
    change = [Change(0, "label", "cat", 0)]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with hold_lock(folder / ".labels.csv.lock"):
            decision = pool.submit(session.decide, change, "w")
            concurrent.futures.wait([decision], timeout=0.2)
            views.describe(session)
            session.follow_table()
            assert not decision.done()
            with pytest.raises(UserError, match=r"another program is writing to labels\.csv"):
                decision.result()
        pool.submit(session.decide, change, "w").result()
    assert read_states(session) == {"IMG_0000.png": ("label", "cat")}


def test_labels_of_unreadable_photos_are_no_others(folder):
    create_photos(folder, 3, ["1.png", "camera/1.png", "camera/2.png"])
    (folder / LABELS_CSV).write_text("file,label\n1.png,cat\n2.png,dog\n")
    session = open_session(folder)
    session.load(lambda report: sessions.describe_some([1, 2], sessions.create_features([0, 1])))
    assert read_states(session) == {"camera/2.png": ("label", "dog")}


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
    answers = [("label", "dog"), ("label", "Bär"), ("none", "")]
    assert list(states.values()) == answers


def test_a_failure_of_the_feature_pass_is_shown(folder, kinds):
    session = open_session(folder, ["cat"])

    def fail(report):
        report(3, 30)
        state = views.describe(session)
        assert (state["phase"], state["progress"]) == ("reading", (3, 30))
        with pytest.raises(RefusedError, match="no such photo"):
            session.get_path(29)
        with pytest.raises(RefusedError, match="still being read"):
            session.rename_class("w", "cat", "dog")
        raise UserError("The weights are missing.")

    with pytest.raises(UserError):
        session.load(fail)
    state = views.describe(session)
    assert (state["phase"], state["message"]) == ("failed", "The weights are missing.")
    assert views.describe_check(session)["rows"] == views.describe_suspects(session)["images"] == []


def test_random_photos_are_labeled_while_the_others_are_read_and_keep_their_places(folder, kinds):
    names = sorted(os.listdir(folder))
    kind_of = dict(zip(names, kinds, strict=True))
    (folder / names[4]).unlink()
    (folder / names[4]).write_bytes(b"no image")
    session = open_session(folder)
    asked = {}

    def load(report):
        for _ in range(8):
            state = views.describe(session, "w")
            assert all(item["check"] and not item["proposals"] for item in state["next"])
            item = state["next"][0]
            asked[item["image"]] = item["name"]
            decide(session, item["image"], "abc"[kind_of[item["name"]]])
        assert state["counts"]["images"] == 30
        gone = views.describe(session, "w")["next"][0]  # Deleted before it is answered.
        (folder / gone["name"]).unlink()
        asked[gone["image"]] = gone["name"]
        readable = [i for i, name in enumerate(names) if name not in (names[4], gone["name"])]
        return sessions.describe_some(readable, sessions.create_features(kinds)[readable])

    session.load(load)
    for image, name in asked.items():
        assert views.describe_image(session, image)["name"] == name
    *_, gone = asked
    assert views.describe(session)["counts"] == {
        **{"images": 28, "labeled": 8, "none": 0, "skipped": 0}
    }
    for image, path in enumerate(session.list_paths()):
        item = views.describe_image(session, image)
        if image not in asked:  # The features are those of this photo.
            assert item["proposals"][0]["label"] == "abc"[kind_of[path.name]]
    rows = read_table(folder / LABELS_CSV)
    assert [row["decision"].split()[0] for row in rows] == ["check"] * 8
    session.undo("w")
    decide(session, gone - 1, "a")
    with pytest.raises(ConflictError):
        decide(session, gone, "a")


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
        for i, label in enumerate(labels):
            decide(session, i, label)
    session.describe_class("w", "cat", 'has = whiskers, and "fur"')
    session.set_example("w", 1)
    before = look(folder, session)
    assert ("cat", 2, 'has = whiskers, and "fur"', 1) in before[1]
    assert session.rename_class("w", "cat", new) == 2
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


def decide_at_once(image, decision, label):
    return lambda session: session.decide([Change(image, decision, label, 0)], "w")


@pytest.mark.parametrize(
    "change",
    [
        *(decide_at_once(image, "label", "cat") for image in (-1, 30)),
        *(decide_at_once(1, "label", label) for label in ("fish", "")),
        *(decide_at_once(1, "none", "cat"), decide_at_once(1, "undo", "")),
        *(lambda one, new=new: one.rename_class("w", "cat", new) for new in ("a\nb", "cat")),
        lambda session: session.rename_class("w", "fish", "cat"),
        *(lambda one, t=t: one.describe_class("w", "cat", t) for t in ("a\nb", "x" * 501)),
        lambda session: session.describe_class("w", "fish", ""),
        *(lambda session, image=image: session.set_example("w", image) for image in (5, 99)),
    ],
)
def test_changes_that_make_no_sense_write_nothing(session, folder, change):
    decide(session, 0, "cat")
    before = (folder / LABELS_CSV).read_bytes(), views.describe(session)["classes"]
    with pytest.raises(RefusedError):
        change(session)
    assert ((folder / LABELS_CSV).read_bytes(), views.describe(session)["classes"]) == before


def test_photos_that_come_later_are_offered_and_broken_ones_are_tried_again(folder, kinds):
    session = open_ready(folder, kinds, ["cat"])
    decide(session, 3, "cat")
    (folder / "labeled" / "dog").mkdir(parents=True)
    for name in ("labeled/dog/a.png", "b.png"):
        shutil.copy(folder / "IMG_0000.png", folder / name)
    (folder / "c.png").write_bytes(b"half of a photo")

    def load(paths, backbone):
        is_broken = [b"half" in path.read_bytes() for path in paths]
        read = [i for i, broken in enumerate(is_broken) if not broken]
        reasons = {i: "damaged" for i, broken in enumerate(is_broken) if broken}
        return sessions.describe_some(read, sessions.create_features([0] * len(read)))._replace(
            reasons=reasons
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(photos, "load_all", load)
        assert photos.find_new(session) == {"new": 2, "unreadable": 1, "gone": 0}
        result = views.describe_result(session)
        assert result["unreadable"] == [{"name": "c.png", "reason": "damaged"}]
        shutil.copy(folder / "IMG_0000.png", folder / "c.png")
        assert photos.find_new(session) == {"new": 1, "unreadable": 0, "gone": 0}
        assert photos.find_new(session) == {"new": 0, "unreadable": 0, "gone": 0}
    assert views.describe_result(session)["num_unreadable"] == 0
    assert views.describe(session)["counts"]["images"] == 33
    assert read_states(session)["IMG_0003.png"] == ("label", "cat")
    decide(session, 32, "cat")
    assert read_states(open_ready(folder, [*kinds, 0, 0, 0])) == read_states(session)


def test_answers_go_into_the_columns_of_another_table(folder):
    """Into those that its rows have shown, whatever their headers and the numbers say."""
    create_photos(folder, 3)
    (folder / LABELS_CSV).write_text("id,img,kind\n1,IMG_0002.png,cat\n2,IMG_0001.png,dog\n")
    session = open_ready(folder, [0] * 3)
    assert read_states(session)["IMG_0002.png"] == ("label", "cat")
    decide(session, 0, "cat")
    decide(session, 1, "", decision="none")
    session.follow_table()
    last = (folder / LABELS_CSV).read_text().splitlines()[-2:]
    assert last[0] == ",IMG_0000.png,cat"
    assert last[1].startswith(",IMG_0001.png,,none,2")
    assert read_states(open_ready(folder, [0] * 3)) == read_states(session)


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


@pytest.mark.usefixtures("kinds")
def test_the_extra_and_folders_without_images_name_the_remedy(tmp_path, folder, monkeypatch):
    (tmp_path / "empty").mkdir()
    for name, remedy in (("missing", "not a folder"), ("empty", "no photo")):
        with pytest.raises(UserError, match=remedy):
            commands.label(str(tmp_path / name), "cat,dog", 0, no_browser=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: False)
        with pytest.raises(UserError, match="photos is not writable: change its permissions"):
            open_session(folder)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install '\.\[label,pretrained\]'"):
        commands.label(str(tmp_path), None, 0, no_browser=True)


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
