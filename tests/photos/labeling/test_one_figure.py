"""The page states the figure of the run that is saved from the same answers, and of one fit."""

import numpy as np
import pytest
from PIL import Image

from cls_jax.config import with_values
from cls_jax.photos.features.accuracy import describe_estimate
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.folder.dataset import load_folder
from cls_jax.photos.folder.log import NO_MARKS
from cls_jax.photos.labeling import views
from cls_jax.photos.labeling.classifier import SessionClassifier
from cls_jax.photos.labeling.known import Features, list_paths
from cls_jax.photos.labeling.photos import open_session
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
    open_ready,
)

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
