"""What the page shows follows the labels: accuracies, proposals, questions, suspect labels."""

import csv

import numpy as np
import pytest

from cls_jax.errors import UserError
from cls_jax.models.weights.backbones import BUILTIN
from cls_jax.photos.cli import commands
from cls_jax.photos.features.accuracy import Estimate, count_labels, describe_estimate
from cls_jax.photos.features.backbones import Backbones
from cls_jax.photos.labeling import photos, proposals, views
from cls_jax.photos.labeling.changes import Change, rename_class
from cls_jax.photos.labeling.classifier import SessionClassifier
from cls_jax.photos.labeling.known import Counts, list_paths, list_trainable
from cls_jax.photos.labeling.photos import open_session
from cls_jax.photos.labeling.proposals import Classified
from cls_jax.photos.labeling.training import FINE_TUNE, INSTANT, Training
from tests.photos.labeling.sessions import (
    CLASSES,
    create_features,
    decide,
    decide_all,
    describe_some,
    fit,
    open_ready,
)

NETWORKS = ("efficientnet_lite2", "efficientnet_lite0,efficientnet_lite2")


def test_accuracies_count_copies_once(folder, kinds):
    features = create_features(kinds)
    features[[9, 12]] = features[0]
    session = open_ready(folder, kinds, features=features)
    for image in (*range(9), 9, 12):
        decide(session, image, "abc"[kinds[image]])
    classifier = SessionClassifier(session)
    fitted = classifier._wait()
    described = classifier.describe()
    assert described["labels"] == 11
    rows = list_trainable(session.known)
    counts = count_labels(fitted.labels[rows], fitted.inferred.groups)
    assert counts.tolist() == [3, 3, 3]
    who = "the instant classifier"
    assert described["accuracy"] == describe_estimate(fitted.inferred.estimate, who)
    assert described["accuracy"].endswith(f"are named right by {who} (90 to 100%).")
    about = described["accuracy"].split("%")[0]
    others = "of the other photos are named right, after 11 answers"
    for image in (1, 2, 4, 5):  # Two of three classes keep one answer.
        decide(session, image, "", decision="skip")
    assert classifier.describe_shortly() == f"{about}% {others}"  # Of one fit until the next.
    assert classifier.describe_namer() == f"{who} after 11 answers"
    classifier._wait()
    early = "Too early to say: 2 of 3 classes have only one answer."
    assert classifier.describe()["accuracy"] == early
    assert classifier.describe_shortly() == "Too early to say how many are named right"


def test_views_follow_the_labels(answered, kinds):
    rows = views.describe_check(answered)["rows"]
    assert [row["label"] for row in rows] == ["a", "b", "c"]
    for k, row in enumerate(rows):
        assert {kinds[image["image"]] for image in row["images"]} == {k}
    assert views.describe_suspects(answered.known)["images"] == []
    result = views.describe_result(answered)
    assert result["proposed"] == [7, 7, 7]
    assert result["mixed"] == []  # There is no classifier yet.
    decide(answered, 9, "b")  # Is of kind a.
    classifier = fit(answered)
    suspects = views.describe_suspects(answered.known)["images"]
    assert [(image["image"], image["proposals"][0]["label"]) for image in suspects] == [(9, "a")]
    decide(answered, 9, "b")  # A repeated label counts as confirmed.
    classifier._wait()
    assert views.describe_suspects(answered.known)["images"] == []
    head, *table = csv.reader("".join(SessionClassifier(answered).write_table())[1:].splitlines())
    assert head == ["file", "label", "source", "probability"]
    labels = ["abc"[kind] for kind in kinds]
    assert [row[1] for row in table] == [*labels[:9], "b", *labels[10:]]


def test_proposals_follow_the_classifier_with_the_next_answer(folder, kinds):
    session = open_ready(folder, kinds)
    classifier = SessionClassifier(session)
    for image in range(10):
        assert not classifier._thread.is_alive()
        decide(session, image, "abc"[kinds[image]])
        classifier.follow()
    fitted = classifier._wait()
    of_graph = views.describe_image(session.known, 20)["proposals"]
    for read in (lambda: decide(session, 10, "d"), lambda: views.describe_check(session)):
        read()
        p_K = fitted.probabilities[20]
        order = np.argsort(-p_K)
        proposals = views.describe_image(session.known, 20)["proposals"][:3]
        expected = [{"label": "abc"[k], "probability": round(float(p_K[k]), 4)} for k in order]
        assert proposals == expected != of_graph[:3]
    session.change("w", rename_class, "a", "e")  # The classifier does not know this class.
    assert "a" not in {row["label"] for row in views.describe_check(session)["rows"]}
    assert views.describe_image(session.known, 20)["proposals"][0]["label"] in "bcde"


def test_uncertain_photos_are_asked_first_once_few_classes_have_one_answer(answered, kinds):
    by_coverage = list(answered._questions.next)
    unsure = by_coverage[-1]
    labels = np.array([kinds[i] if i < 9 else -1 for i in range(30)])
    sure = np.tile(np.float32([0.99, 0.01, 0]), (30, 1))
    sure[unsure] = 1 / 3
    answered.adopt(Classified(["a", "b", "c"], labels, sure, (), is_early=False))
    assert answered._questions.next == by_coverage
    views.describe_check(answered)
    assert answered._questions.next[0] == unsure
    answered.adopt(Classified(["a", "b", "c"], labels, sure, (), is_early=True))
    views.describe_check(answered)
    assert answered._questions.next == by_coverage


def test_a_class_that_a_photo_was_marked_not_to_be_is_proposed_in_no_view(session):
    decide_all(session, CLASSES * 2)

    def read_row(label):
        rows = {row["label"]: row["images"] for row in views.describe_check(session)["rows"]}
        return [image["image"] for image in rows[label]]

    marked, *others = read_row("cat")
    session.mark([marked], "cat")
    assert read_row("cat")[: len(others)] == others
    first = views.describe(session)["next"][0]
    assert (first["image"], first["proposals"][0]["label"] != "cat") == (marked, True)
    columns = views.describe_photos(session)
    suggested = columns["label"][columns["image"].index(marked)]
    assert columns["labels"][suggested] != "cat"
    session.mark(others[:2], "cat")
    asked = [one["image"] for one in views.describe(session)["next"]]
    assert asked[:3] == [marked, *others[:2]]  # What is shown stays.
    decide(session, marked, "cat")  # The mark ends with the answer.
    assert views.describe_image(session.known, marked)["proposals"][0]["label"] == "cat"


def test_a_class_without_a_label_is_in_no_proposal(folder, kinds):
    session = open_ready(folder, kinds)
    session.add_class("cat")
    assert views.describe_check(session)["rows"] == []
    assert views.describe_result(session)["proposed"] == [0]
    decide(session, 0, "dog")
    decide(session, 1, "fox")
    session.add_class("owl")
    rows = views.describe_check(session)["rows"]
    assert [row["label"] for row in rows if row["images"]] == ["dog", "fox"]
    proposed = views.describe_result(session)["proposed"]
    assert (proposed[0], proposed[3:], sum(proposed)) == (0, [0], 28)


@pytest.mark.parametrize(
    ("backbone", "saved", "trained"),
    [
        ("", ["--backbone", "efficientnet_lite0"], []),
        *[(names, ["--backbone", names], ["--backbone", names]) for names in NETWORKS],
    ],
)
def test_the_networks_of_a_session_see_new_photos_and_train(
    folder, kinds, monkeypatch, backbone, saved, trained
):
    opened = []

    def extract(files, networks, report):
        opened.append(networks)
        features = create_features([0] * len(files))
        found = describe_some(range(len(files)), features).frozen
        return found._replace(others=(found,) * (len(networks) - 1))

    monkeypatch.setattr(photos, "read_backbones", lambda inits: inits)
    monkeypatch.setattr(photos, "extract_all_features", extract)
    backbones = Backbones.read(backbone)
    session = open_session(folder, backbones=backbones)
    session.load(lambda report: photos.load_all(list_paths(session.known), report, backbones))
    (folder / "new.png").write_bytes((folder / "IMG_0000.png").read_bytes())
    assert photos.find_new(session)["new"] == 1
    names = (backbone or "efficientnet_lite0").split(",")
    assert opened == [tuple(f"{BUILTIN}{name}" for name in names)] * 2
    frozen = session.known.relations.features
    assert len(frozen.others) == len(names) - 1
    state = views.describe(session)
    titles = [f"EfficientNet-Lite{name[-1]}" for name in names]
    assert all(title in state["networks"] for title in titles)
    assert " ".join(trained) in state["command"]
    training = Training(folder, backbones=backbones)
    monkeypatch.setattr(training, "_launch", lambda _: None)
    training.start(INSTANT, Counts(2, 4, 0, 27))
    assert training._command[-3:] == ["--instant", *saved]
    training.start(FINE_TUNE, Counts(2, 4, 0, 15), 2)  # There are no 20 photos to check.
    assert training._command[5:] == ["2", *trained]
    with pytest.raises(UserError, match="There is no backbone 'lite9'"):
        commands.label(str(folder), None, 0, no_browser=True, backbone="lite9")


def test_a_class_is_mixed_up_with_the_one_that_unsure_photos_may_be():
    p_BK = np.array(
        [[0.6, 0.4, 0], [0.45, 0.55, 0], [0.1, 0.5, 0.4], [1, 0, 0], [0, 0.35, 0.65], [0.3, 0.7, 0]]
    )
    mixed = proposals.find_mixed(p_BK, np.array([False] * 3 + [True] + [False] * 2))
    assert [partner for partner, _ in mixed] == [1, 0, 1]
    assert [rows.tolist() for _, rows in mixed] == [[1, 0, 5], [1, 0, 5], [2, 4]]
    sure = proposals.find_mixed(p_BK, np.ones(6, bool))
    assert not any(len(rows) for _, rows in sure)


def test_the_result_has_a_line_for_each_class(answered):
    assert views.describe_result(answered)["mixed"] == []
    classifier = fit(answered)
    estimate = Estimate(3, 0, 50.0, 40.0, 60.0, confidence=99.9, checks=20)  # Nothing is sure.
    result = views.describe_result(answered, estimate)
    assert len(result["mixed"]) == 3
    for k, row in enumerate(result["mixed"]):
        assert row["unsure"] == result["proposed"][k]
        assert row["partner"] in set("abc") - {"abc"[k]}
        for image in row["images"]:
            first, second, *_ = views.describe_image(answered.known, image)["proposals"]
            assert {first["label"], second["label"]} == {"abc"[k], row["partner"]}
    mixed = views.describe_result(answered, classifier.estimate())["mixed"]
    assert sum(row["unsure"] for row in mixed) < sum(result["proposed"])


@pytest.mark.parametrize("name", ["labels.csv", "given.csv"])
def test_photos_about_which_people_differ_are_suspect_until_one_is_answered(folder, kinds, name):
    votes = {0: "aab", 1: "bb", 2: "ac", 3: "cac"}
    rows = [f"IMG_{i:04}.png,p{n},{v}" for i, each in votes.items() for n, v in enumerate(each)]
    (folder / name).write_text("\n".join(["image,annotator,label", *rows]) + "\n")
    session = open_ready(folder, kinds)

    def list_suspects():
        found = views.describe_suspects(session.known)["images"]
        return {(each["image"], each["label"], each["proposals"][0]["label"]) for each in found}

    assert list_suspects() == {(0, "a", "b"), (3, "c", "a")}
    decide(session, 0, "a")
    assert list_suspects() == {(3, "c", "a")}


def test_the_strip_has_answers_and_not_the_photos_of_a_renaming(session, folder, kinds):
    decide_all(session, ["cat", "cat", "cat", "dog"])
    for new in ("lynx", "Lynx", "dog"):
        name = session.known.marks.get(session.known.files[0]).label
        session.change("w", rename_class, name, new)
        assert [one["image"] for one in views.describe(session)["recent"]] == [3, 2, 1, 0]
    session.undo("w")
    session.change("w", rename_class, "Lynx", "")
    session.undo("w")
    for one in (session, open_ready(folder, kinds)):
        assert [item["image"] for item in views.describe(one)["recent"]] == [3, 2, 1, 0]
    session.decide([Change(i, "label", "Lynx", 0) for i in (8, 7)], "w")
    for one in (session, open_ready(folder, kinds)):
        assert [item["image"] for item in views.describe(one)["recent"]] == [7, 8, 3, 2, 1, 0]
