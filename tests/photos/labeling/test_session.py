"""Decisions reach the disk before anything else, and come back as they were, also in training."""

import os
import pathlib
import tempfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cls_jax.photos.folder.label_table import LABELS_CSV
from cls_jax.photos.labeling import views
from cls_jax.photos.labeling.answers import RefusedError
from cls_jax.photos.labeling.changes import (
    Change,
    ConflictError,
    describe_class,
    rename_class,
    set_example,
)
from cls_jax.photos.labeling.photos import open_session
from tests.photos.labeling import sessions
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
