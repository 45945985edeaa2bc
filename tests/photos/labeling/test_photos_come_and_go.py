"""Photos come later, cannot be read or are gone, and no answer is lost or on another one."""

import importlib.util
import os
import shutil
import unittest.mock

import pytest
from PIL import Image

from cls_jax.errors import UserError
from cls_jax.photos.cli import commands
from cls_jax.photos.folder.label_table import LABELS_CSV
from cls_jax.photos.images.files import find_digests
from cls_jax.photos.images.store import Store, get_cache_folder
from cls_jax.photos.labeling import photos, views
from cls_jax.photos.labeling.answers import RefusedError
from cls_jax.photos.labeling.changes import Change, ConflictError, describe_class, rename_class
from cls_jax.photos.labeling.classifier import SessionClassifier
from cls_jax.photos.labeling.known import get_path, list_paths
from cls_jax.photos.labeling.photos import open_session
from tests.outcomes import read_table
from tests.photos.labeling.sessions import (
    create_features,
    create_photos,
    decide,
    decide_all,
    describe_some,
    open_ready,
    read_states,
    read_training,
)

NOTHING = {"new": 0, "replaced": 0, "unreadable": 0, "gone": 0}


def load_all(paths, report=None, backbones=None):
    """The feature pass without a network. Half a photo is damaged."""
    readable = [i for i, path in enumerate(paths) if b"half" not in path.read_bytes()]
    found = describe_some(readable, create_features([0] * len(readable)))
    digests = find_digests(Store(get_cache_folder()), [str(path) for path in paths], reads=True)
    return found._replace(
        reasons=dict.fromkeys(set(range(len(paths))) - {*readable}, "damaged"),
        digests=dict(zip(paths, digests, strict=True)),
    )


def test_a_file_that_is_gone_takes_no_answer_and_gives_none_away(session, folder, kinds):
    decide(session, 3, "cat")
    (folder / "camera").mkdir()
    for image in (3, 4):
        (folder / f"IMG_000{image}.png").rename(folder / "camera" / f"IMG_000{image}.png")
    with pytest.raises(RefusedError, match=r"IMG_0004\.png is no longer in the folder"):
        decide(session, 4, "dog")
    decide(session, 5, "dog")
    assert read_states(open_ready(folder, kinds)) == {"IMG_0005.png": ("label", "dog")}
    with pytest.raises(UserError, match="only the class 'dog'"):
        read_training(folder)


def test_a_photo_that_is_gone_is_shown_nowhere_until_it_is_back(session, folder):
    decide_all(session, ["dog", "cat", "cat", "dog"])
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
    assert photos.find_new(session) == NOTHING | {"gone": 1}
    assert not {f"IMG_{image:04}.png" for image in (gone, answered)} & list_shown()
    counts = views.describe(session)["counts"]
    assert (counts["images"], counts["labeled"]) == (28, 3)
    for image in (gone, answered):
        path = folder / f"IMG_{image:04}.png"
        (folder.parent / path.name).rename(path)
    assert photos.find_new(session) == NOTHING
    assert read_states(session)[f"IMG_{answered:04}.png"] == ("label", "dog")
    assert len(list_shown()) == 30


def test_a_label_stays_with_its_content_and_not_with_the_name(folder, kinds, monkeypatch):
    """A photo that is replaced is another one: it is asked again, and undo gives it the label."""
    monkeypatch.setattr(photos, "load_all", load_all)
    for path in folder.iterdir():  # No longer links to one file.
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
    session = open_session(folder)
    session.load(lambda report: load_all(list_paths(session.known)))
    decide_all(session, ["cat"] * 4)
    for name in ("IMG_0001.png", "IMG_0008.png"):
        Image.new("RGB", (20, 30), "teal").save(folder / name)
    os.utime(folder / "IMG_0002.png", (1e9, 1e9))  # The same content.
    assert photos.find_new(session, "w") == NOTHING | {"replaced": 2}
    assert photos.find_new(session, "w") == NOTHING
    assert set(read_states(session)) == {f"IMG_000{i}.png" for i in (0, 2, 3)}
    state = views.describe(session, "w")
    assert state["counts"]["images"] == 30
    asked = {one["name"]: one["image"] for one in state["next"][:2]}
    assert asked == {"IMG_0001.png": 30, "IMG_0008.png": 31}  # With pictures of their own.
    session.undo("w")
    assert views.describe_image(session.known, 30)["label"] == "cat"
    (folder / "IMG_0003.png").write_bytes(b"half of a photo")
    assert photos.find_new(session, "w") == NOTHING | {"replaced": 1, "unreadable": 1}
    assert "IMG_0003.png" not in read_states(session)


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
        lambda: session.change("w", rename_class, "cat", "owl"),
        lambda: session.change("w", describe_class, "cat", "has whiskers"),
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


def test_labels_of_unreadable_photos_are_no_others(folder):
    create_photos(folder, 3, ["1.png", "camera/1.png", "camera/2.png"])
    (folder / LABELS_CSV).write_text("file,label\n1.png,cat\n2.png,dog\n")
    session = open_session(folder)
    session.load(lambda report: describe_some([1, 2], create_features([0, 1])))
    assert read_states(session) == {"camera/2.png": ("label", "dog")}


def test_a_failure_of_the_feature_pass_is_shown(folder, kinds):
    session = open_session(folder, ["cat"])

    def fail(report):
        report(3, 30)
        state = views.describe(session)
        assert (state["phase"], state["progress"]) == ("reading", (3, 30))
        with pytest.raises(RefusedError, match="no such photo"):
            get_path(session.known, 29)
        with pytest.raises(RefusedError, match="still being read"):
            session.change("w", rename_class, "cat", "dog")
        raise UserError("The weights are missing.")

    with pytest.raises(UserError):
        session.load(fail)
    state = views.describe(session)
    assert (state["phase"], state["message"]) == ("failed", "The weights are missing.")
    assert (
        views.describe_check(session)["rows"]
        == views.describe_suspects(session.known)["images"]
        == []
    )


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
        # Nothing is suggested.
        assert sum(label >= 0 for label in views.describe_photos(session)["label"]) == 8
        with pytest.raises(RefusedError, match="not been read yet"):
            views.find_similar(session.known, item["image"])
        gone = views.describe(session, "w")["next"][0]  # Deleted before it is answered.
        (folder / gone["name"]).unlink()
        asked[gone["image"]] = gone["name"]
        readable = [i for i, name in enumerate(names) if name not in (names[4], gone["name"])]
        return describe_some(readable, create_features(kinds)[readable])

    session.load(load)
    assert [session.known.files[image] for image in asked] == list(asked.values())
    *_, gone = asked
    counts = {"images": 28, "labeled": 8, "none": 0, "skipped": 0}
    assert views.describe(session)["counts"] == counts
    rows = read_table(folder / LABELS_CSV)
    known = {row["label"] for row in rows}  # Eight random photos may leave a kind out.
    for image, path in enumerate(list_paths(session.known)):
        item = views.describe_image(session.known, image)
        if image not in asked and "abc"[kind_of[path.name]] in known:
            # The features are those of this photo.
            assert item["proposals"][0]["label"] == "abc"[kind_of[path.name]]
    assert [row["decision"].split()[0] for row in rows] == ["check"] * 8
    session.undo("w")
    decide(session, gone - 1, "a")
    with pytest.raises(ConflictError):
        decide(session, gone, "a")


def test_photos_that_come_later_are_offered_and_broken_ones_tried_again(folder, kinds, monkeypatch):
    session = open_ready(folder, kinds, ["cat"])
    decide(session, 3, "cat")
    (folder / "labeled" / "dog").mkdir(parents=True)
    for name in ("labeled/dog/a.png", "b.png"):
        shutil.copy(folder / "IMG_0000.png", folder / name)
    (folder / "c.png").write_bytes(b"half of a photo")
    fail = unittest.mock.Mock(side_effect=OSError("unreadable drive"))
    monkeypatch.setattr(photos, "load_all", fail)
    with pytest.raises(OSError, match="unreadable drive"):
        photos.find_new(session)
    assert "dog" not in session.known.class_names
    monkeypatch.setattr(photos, "load_all", load_all)
    assert photos.find_new(session) == NOTHING | {"new": 2, "unreadable": 1}
    result = views.describe_result(session)
    assert result["unreadable"] == [{"name": "c.png", "reason": "damaged"}]
    shutil.copy(folder / "IMG_0000.png", folder / "c.png")
    assert photos.find_new(session) == NOTHING | {"new": 1}
    assert photos.find_new(session) == NOTHING
    assert views.describe_result(session)["num_unreadable"] == 0
    assert views.describe(session)["counts"]["images"] == 33
    assert read_states(session)["IMG_0003.png"] == ("label", "cat")
    decide(session, 32, "cat")
    assert read_states(open_ready(folder, [*kinds, 0, 0, 0])) == read_states(session)


@pytest.mark.usefixtures("kinds")
def test_what_cannot_be_labeled_names_the_remedy(tmp_path, folder, monkeypatch):
    (tmp_path / "empty").mkdir()
    for name, remedy, options in (
        ("missing", "not a folder", {}),
        ("empty", "no photo", {}),
        ("photos", "There is no backbone 'lite9'", {"backbone": "lite9"}),
    ):
        with pytest.raises(UserError, match=remedy):
            commands.label(str(tmp_path / name), "cat,dog", 0, no_browser=True, **options)
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: False)
        with pytest.raises(UserError, match="photos is not writable: change its permissions"):
            open_session(folder)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install '\.\[label,pretrained\]'"):
        commands.label(str(tmp_path), None, 0, no_browser=True)
