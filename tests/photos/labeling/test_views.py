"""What the page shows follows the labels: accuracies, proposals, questions, suspect labels.

The accuracy is that of one fit, and of the run that is saved from the same answers.
"""

import numpy as np
import pytest
from PIL import Image

from cls_jax.config import with_values
from cls_jax.models.weights.backbones import BUILTIN
from cls_jax.photos.features.accuracy import Estimate, count_labels, describe_estimate
from cls_jax.photos.features.backbones import Backbones
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.folder.dataset import load_folder
from cls_jax.photos.folder.log import NO_MARKS
from cls_jax.photos.labeling import photos, proposals, views
from cls_jax.photos.labeling.changes import Change, rename_class
from cls_jax.photos.labeling.classifier import SessionClassifier
from cls_jax.photos.labeling.known import Counts, Features, list_paths, list_trainable
from cls_jax.photos.labeling.photos import open_session
from cls_jax.photos.labeling.proposals import Classified
from cls_jax.photos.labeling.training import FINE_TUNE, INSTANT, Training
from cls_jax.photos.start.fit_labels import fit_labels
from cls_jax.photos.start.frozen import RunFeatures
from tests.conftest import load_config
from tests.photos.labeling.pages import press, show
from tests.photos.labeling.sessions import (
    CLASSES,
    create_features,
    create_photos,
    decide,
    decide_all,
    describe_some,
    fit,
    list_check,
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
    assert classifier.get().accuracy_in_short == f"{about}% {others}"  # Of one fit until the next.
    assert classifier.get().namer == f"{who} after 11 answers"
    classifier._wait()
    early = "Too early to say: 2 of 3 classes have only one answer."
    assert classifier.describe()["accuracy"] == early
    assert classifier.get().accuracy_in_short == "Too early to say how many are named right"


def test_views_follow_the_labels(answered, kinds):
    rows = {label: {kinds[i] for i in images} for label, images in list_check(answered).items()}
    assert [*rows.items()] == [("a", {0}), ("b", {1}), ("c", {2})]
    assert views.describe_suspects(answered.known)["images"] == []
    result = views.describe_result(answered)
    assert result["proposed"] == [7, 7, 7]
    assert result["mixed"] == []  # There is no classifier yet.
    decide(answered, 9, "b")  # Is of kind a.
    classifier = fit(answered)
    suspects = views.describe_suspects(answered.known)["images"]
    assert [(image["image"], image["proposals"][0]["label"]) for image in suspects] == [(9, "a")]
    answered.add_class("owl")
    assert views.describe_result(answered)["proposed"][3:] == [0]
    decide(answered, 9, "b")  # A repeated label counts as confirmed.
    classifier._wait()
    assert views.describe_suspects(answered.known)["images"] == []
    labels = ["abc"[kind] for kind in kinds]
    labels[9] = "b"
    assert [row["label"] for row in classifier.list_rows()] == labels


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
    assert "a" not in list_check(session)
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
    marked, *others = list_check(session)["cat"]
    session.mark([marked], "cat")
    assert list_check(session)["cat"][: len(others)] == others
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


def test_a_class_is_mixed_up_with_the_one_that_unsure_photos_may_be():
    p_BK = np.array(
        [[0.6, 0.4, 0], [0.45, 0.55, 0], [0.1, 0.5, 0.4], [1, 0, 0], [0, 0.35, 0.65], [0.3, 0.7, 0]]
    )
    mixed = proposals.doubt(p_BK, "abc", None)
    assert [(one.unsure, one.partner) for one in mixed] == [(1, "b"), (3, "a"), (1, "b")]
    assert [one.images.tolist() for one in mixed] == [[1, 0, 5], [1, 0, 5], [2, 4]]
    sure = proposals.doubt(np.eye(3), "abc", None)
    assert all((one.unsure, one.partner, len(one.images)) == (0, "", 0) for one in sure)


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


NAMES = ("zebra", "ape", "newt")  # Not in the order in which they are named first.


@pytest.fixture
def features(folder, monkeypatch, tmp_path):
    """Those of each photo of the folder, which is written, by its name. Two are exact copies."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder.mkdir()
    rng = np.random.default_rng(0)
    values = create_features([i % 3 for i in range(60)]) + rng.normal(0, 0.15, (60, 32))
    found = {f"{i:02}.png": row.astype(np.float32) for i, row in enumerate(values)}
    for name in found:
        pixels = rng.integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(folder / name)
    for i in (0, 41):  # Of a labeled photo, and of one without a label.
        (folder / f"copy of {i}.png").write_bytes((folder / f"{i:02}.png").read_bytes())
        found[f"copy of {i}.png"] = found[f"{i:02}.png"]
    return found


@pytest.mark.parametrize("is_deep", [False, True])
def test_a_run_with_the_same_answers_states_the_same_figure(folder, features, is_deep):
    """But for the whitening of stages, which a session fits to photos that a run leaves out."""

    def gather(names):
        rows = np.stack([features[name] for name in names])
        stages = rows if is_deep else rows[:, :0]
        return Features(np.arange(len(rows)), FrozenFeatures(rows, rows, stages))

    session = open_session(folder)
    session.share_out("w")  # Photos that are asked while the others are read come first.
    names = [path.name for path in list_paths(session.known)]
    session.load(lambda report: gather(names))
    classifier = SessionClassifier(session)

    def answer(name, **decision):
        image = views.find_image(session.known, name)["image"]
        decide(session, image, decision.pop("label", ""), **decision)

    for i in range(20):
        answer(f"{i:02}.png", label=NAMES[i % 3])
    before = classifier._wait().inferred.estimate
    for i in range(20, 26):
        answer(f"{i:02}.png", decision=("none", "skip")[i % 2])
    (folder / "30.png").unlink()
    session.leave_out_missing()
    fitted = classifier._wait()

    values = {"data.data_dir": str(folder), "data.image_size": 8}
    dataset = load_folder(with_values(load_config("folder", "all"), values).data)
    labeled = np.flatnonzero(dataset.train.labels >= 0)
    of_run = gather(dataset.train.files).frozen
    run = fit_labels(
        dataset, labeled, RunFeatures(None, np.arange(len(dataset.train)), of_run, {})
    ).inferred
    assert fitted.class_names == list(dataset.class_names) == sorted(NAMES)
    exact = 0.1 if is_deep else 1e-6
    assert fitted.inferred.figures == pytest.approx(run.figures, abs=100 * exact)
    assert fitted.inferred.estimate != before
    assert fitted.inferred.estimate.images == before.images - 7
    who = "the instant classifier"
    assert classifier.describe()["accuracy"] == describe_estimate(run.estimate, who)
    # Photos that the fit leaves out are named, too: they may be taken back.
    rows = [views.find_image(session.known, name)["image"] for name in dataset.train.files]
    np.testing.assert_allclose(fitted.probabilities[rows], run.probabilities, atol=exact)
    assert fitted.probabilities.sum(axis=1) == pytest.approx(1, abs=1e-5)
    copy = views.find_image(session.known, "copy of 0.png")["image"]
    assert fitted.class_names[fitted.probabilities[copy].argmax()] == NAMES[0]


def test_new_photos_and_those_whose_answer_is_undone_are_part_of_the_figure(answered, folder):
    classifier = SessionClassifier(answered)
    assert classifier._wait().inferred.estimate.images == 21
    decide(answered, 20, "", decision="none")
    assert classifier._wait().inferred.estimate.images == 20
    answered.undo("w")
    names = [path.name for path in list_paths(answered.known)]
    for i in range(3):
        (folder / f"new {i}.png").write_bytes((folder / names[i]).read_bytes())
        names.append(f"new {i}.png")
    found = describe_some(range(3), -create_features([0, 1, 2]))
    before = answered.known.labels_version
    answered.extend(names, names, NO_MARKS, {}, lambda paths: found)
    assert classifier._wait().inferred.estimate.images == 24
    assert answered.known.labels_version == before  # Trained networks still know all labels.


def test_next_and_result_state_the_same_figure_of_the_same_answers(visit, folder):
    """Though the classifier is newer than the last answer."""
    session = open_ready(folder, create_photos(folder, 40), CLASSES)
    with visit(session) as page:
        live = page.locator(".live")
        decide_all(session, CLASSES[:2], "other")
        show(page, "result")
        page.wait_for_selector(".accuracy:has-text('Too early to say')")
        show(page, "next")
        page.wait_for_selector(".live:has-text('Too early to say')")
        # Fewer than the ten after which it learns by itself.
        decide_all(session, (CLASSES * 3)[2:8], "other", start=2)
        page.wait_for_selector("#count:has-text('8 of')")
        assert live.inner_text().startswith("Too early to say")
        show(page, "result")
        page.wait_for_selector(".accuracy:text-matches('^About [0-9]+%')")
        about = page.locator(".accuracy").inner_text().split("%")[0]
        show(page, "next")
        said = f"{about}% of photos of these 3 classes are named right, after 8 answers"
        assert live.inner_text() == said
        decide_all(session, (CLASSES * 6)[8:18], "other", start=8)  # It learns by itself.
        page.wait_for_selector(".live:text-matches('are named right, after 18 answers$')")
        said = live.inner_text()
        for _ in range(3):
            press(page, "1")
        assert live.inner_text() == said
        show(page, "result")
        page.wait_for_selector(".about:has-text('Learned from 21 labels')")
        page.wait_for_selector("p:has-text('instant classifier after 21 answers')")
        show(page, "next")
        assert live.inner_text().endswith("are named right, after 21 answers")
