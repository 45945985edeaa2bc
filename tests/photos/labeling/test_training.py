"""Trainings from the page: they are planned, started and ended early. Their runs are used there."""

import functools
import json
import os
import signal
import sys
import threading
import time
import types
import unittest.mock

import numpy as np
import pytest

from cls_jax.config import to_json, with_values
from cls_jax.parallel.preemption import FINISH
from cls_jax.photos.images.files import ImageBatch
from cls_jax.photos.inference.classifier import create_prediction
from cls_jax.photos.inference.list_runs import RUNS, find_newest
from cls_jax.photos.labeling import start, trained, training, views
from cls_jax.photos.labeling.answers import RefusedError
from cls_jax.photos.labeling.classifier import SessionClassifier
from cls_jax.photos.labeling.known import Counts
from cls_jax.photos.labeling.progress import describe_end, estimate_left, read_offer
from cls_jax.photos.labeling.session import JAX_THREAD
from cls_jax.photos.labeling.training import FINE_TUNE, INSTANT, FolderRuns, Training
from cls_jax.photos.labeling.verbs import VERBS, Parts
from cls_jax.runs.folder import CONFIG, write_result
from cls_jax.runs.metrics import METRICS
from cls_jax.runs.sessions import lock_run_folder
from tests.conftest import load_config, one_of
from tests.photos.helpers import write_images
from tests.photos.labeling.pages import DESKTOP, PHONE, SETTLE_MS, find_violations, hear, show
from tests.photos.labeling.sessions import create_photos, decide, decide_all, fit, open_ready

SHORT = (
    "Error: 2 minutes are too short for a training that is worth having on this machine now: "
    "about 9 minutes are needed. Pass --minutes 9, or --instant for a classifier without."
)
PLANNED = "3 minutes: 60 steps of about 1.00 s at 160 pixels"
# `cls-jax` where a step at 96 pixels takes as many seconds as are given first.
STUB = """
import sys
from cls_jax.photos.cli import console
from cls_jax.photos.plan import measure, plan
from cls_jax.photos.plan.estimate import Measurement
from cls_jax.photos.plan.rules import Resources

seconds = float(sys.argv.pop(1))

def measure_run(config, summary):
    size = config.data.image_size
    return Measurement(5.0, seconds * (size / 96) ** 2, "", size, config.batch_size)

measure.measure_run, measure.time_prediction = measure_run, lambda config: 1.0
plan.find_resources = lambda: Resources(False, 2**33, False, has_pretrained=True)
console.main()
"""


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write_run(name, folder, time, predictor="trained", num_labels=9, is_finished=True, **others):
    """What a list reads of a run. Its networks are stubs."""
    workdir = RUNS / name
    workdir.mkdir(parents=True)
    values = {"data.name": "folder", "data.data_dir": str(folder)}
    (workdir / CONFIG).write_text(to_json(with_values(load_config("folder", "all"), values)))
    result = {
        "step": 1,
        "test_accuracy": None,
        "num_labels": num_labels,
        "predictor": predictor,
        "predictor_gain_images": 20,  # Those have chosen it.
        **others,
    }
    if is_finished:
        write_result(workdir, result)
    (workdir / METRICS).touch()
    (workdir / "report.html").write_text(f"<title>{name}</title>")
    for path in workdir.iterdir():
        os.utime(path, (time, time))
    return workdir


@pytest.mark.parametrize(
    ("printed", "offer"),
    [
        (SHORT, (SHORT[7:].partition(" Pass")[0], 9, False)),
        (f"Steps:       60\nTime:        {PLANNED}\nRun:", (PLANNED, 3, True)),
        (f"{PLANNED}\nTraining: 60 steps", None),
    ],
)
def test_what_is_printed_about_the_time_is_offered(printed, offer):
    assert read_offer(printed) == offer


@pytest.mark.parametrize(
    ("code", "printed", "has_saved", "is_planning", "phase", "said"),
    [
        (0, "", True, False, "done", "Better"),
        (2, SHORT, False, False, "planned", ""),
        (0, SHORT.replace("Error", "Time"), False, True, "planned", ""),
        (-15, "", True, False, "stopped", "To continue, run"),
        (143, "", False, False, "stopped", "Nothing was saved"),
        (-15, "", False, True, "none", ""),
        (2, "x\nError: No space left.\n", False, False, "failed", "No space left."),
        (-9, "", False, False, "failed", "It ended unexpectedly."),
    ],
)
def test_how_it_has_ended_is_said(code, printed, has_saved, is_planning, phase, said):
    end = describe_end(code, printed, has_saved, "Better: …", is_planning)
    assert end["phase"] == phase
    assert said in end["message"]
    assert bool(end["message"]) == bool(said)


ROWS = [{"step": 10, "perf/steps_per_second": 0.5}, {"step": 20, "test/accuracy": 80.0}]


@pytest.mark.parametrize(
    ("rows", "num_steps", "seconds", "planned", "left"),
    [
        (ROWS, 60, 100, 0, 80),
        (ROWS, 60, 100, 600, 500),
        (ROWS, 60, 590, 600, 80),
        ([], 0, 590, 0, None),
        ([], 0, 700, 600, 0),
    ],
)
def test_the_time_left_is_that_of_the_steps_or_the_plan(rows, num_steps, seconds, planned, left):
    assert estimate_left(rows, num_steps, seconds, planned) == left


def test_a_training_that_this_machine_cannot_do_in_the_time_is_not_done(tmp_path, monkeypatch):
    """With an invented clock: 2 minutes are not enough for 40 steps of 15 seconds."""
    monkeypatch.setattr(
        training,
        "_write_arguments",
        lambda words: [sys.executable, "-c", STUB, "30", *words],
    )
    folder = write_images(tmp_path / "photos", {"cat": 6, "dog": 6}, (48, 48, 3))
    saved = write_run("saved", folder, 500, predictor=None, num_labels=12)
    page, counts = Training(folder), Counts(2, 12, 6, open=0)
    page.start(FINE_TUNE, counts, 2)
    page.wait()
    state = page.describe()
    assert state["phase"] == "planned", state["message"]
    assert not state["offer"]["is_possible"]
    assert FolderRuns(folder).find_used() == saved
    (row,) = FolderRuns(folder).describe()
    assert (row["name"], row["labels"], row["is_used"]) == ("runs/saved", 12, True)
    page.plan(counts, state["offer"]["minutes"])
    page.wait()
    offer = page.describe()["offer"]
    assert offer["is_possible"]
    assert "40 steps of about 15.00 s at 96 pixels" in offer["sentence"]


@pytest.mark.parametrize("viewport", one_of(DESKTOP, PHONE))
def test_the_page_offers_what_is_possible_and_lists_the_runs(visit, begun, folder, axe, viewport):
    """The process is played by the test: planned too short, planned, trained, and in vain."""
    older, newer = (
        write_run(name, folder, time, predictor="instant")
        for name, time in (("a", 1000), ("b", 2000))
    )
    page_training, started = Training(folder), []
    state = page_training._state
    state |= {"kind": FINE_TUNE, "curve": [], "step": 0, "steps": 0, "message": ""}

    def plan(counts, minutes):
        offer = read_offer(SHORT if minutes < 9 else "Time:        9 minutes: 40 steps")
        state.update(phase="planned", minutes=minutes, offer=offer._asdict())

    def begin(kind, counts, minutes):
        started.append((kind, minutes))
        sentence = "Not clear: of 20 random photos, … The instant classifier is kept."
        state.update(phase="done", minutes=minutes, message=sentence)
        return newer

    page_training.plan, page_training.start = plan, begin
    with visit(begun, viewport, page_training) as page:
        show(page, "result")
        minutes, accept = page.get_by_label("Minutes:"), page.locator("#accept:visible")
        minutes.fill("2")
        page.locator("#train").press("Enter")
        page.wait_for_selector(".training p:has-text('about 9 minutes are needed')")
        assert accept.inner_text().startswith("Train for 9 minutes: until about ")
        page.wait_for_selector(".runs li:nth-child(2)")
        page.evaluate(axe)
        assert find_violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        minutes.fill("9")
        page.locator("#train").press("Enter")
        page.wait_for_selector(".training p:text-is('9 minutes: 40 steps')")
        assert accept.inner_text().startswith("Start training: until about ")
        assert not started
        show(page, "photos")
        show(page, "result")
        assert minutes.input_value() == "9"
        accept.press("Enter")
        page.wait_for_selector(".training p:has-text('is kept.')")
        page.wait_for_selector(".training .command + p:text-is('In use: runs/b.')")
        assert started == [(FINE_TUNE, 9)]
        assert page.locator(".runs .used .name").inner_text() == "runs/b"
        with page.context.expect_page() as opened:
            page.get_by_label("Report: runs/a").press("Enter")
        opened.value.wait_for_load_state()
        assert opened.value.title() == "a"
        page.get_by_label("Use: runs/a").press("Enter")
        page.wait_for_selector(".runs .used .name:text-is('runs/a')")
        assert find_newest() == older
        page.wait_for_timeout(SETTLE_MS)
        page.get_by_label("Delete: runs/b").press("Enter")
        page.get_by_label("Delete for good: runs/b").press("Enter")
        page.wait_for_timeout(SETTLE_MS)
        assert newer.exists()  # The first press asks.
        page.get_by_label("Delete for good: runs/b").press("Enter")
        hear(page, "runs/b deleted")
        page.wait_for_function("() => document.querySelectorAll('.runs li').length === 1")
        assert not newer.exists()


def test_a_training_that_is_stopped_before_it_begins_leaves_nothing(
    folder, kinds, tmp_path, monkeypatch, capsys
):
    """No later session would see it: the terminal does not ask, nor say how to resume it."""
    begin = "import os, sys, time; os.makedirs(sys.argv[1] + '/checkpoints/1'); time.sleep(600)"
    monkeypatch.setattr(
        training,
        "_write_arguments",
        lambda words: [sys.executable, "-c", begin, words[words.index("--workdir") + 1]],
    )
    (tmp_path / "runs").mkdir()
    page = Training(folder)
    run = page.start(FINE_TUNE, Counts(2, 12, 0, open=0), 10)
    while not (run / "checkpoints" / "1").exists():
        time.sleep(0.01)
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("builtins.input", lambda _: "n")
    assert start._end(page) is False
    said = capsys.readouterr().out
    assert "Nothing was saved" in said
    assert "To continue" not in said
    assert not run.exists()


def test_a_training_of_an_earlier_session_is_seen_until_it_ends(folder, tmp_path, monkeypatch):
    write_run("saved", folder, 500, predictor=None)
    busy = write_run("busy", folder, 1000, is_finished=False)
    page, said = Training(folder), "began in an earlier session is still running: runs/busy"
    with lock_run_folder(busy):
        assert said in page.describe()["message"]
        assert [row["name"] for row in page.runs.describe()] == ["runs/saved"]
        with pytest.raises(RefusedError, match=said):
            page.start(FINE_TUNE, Counts(2, 12, 0, open=0), 1)
        assert Training(tmp_path).describe()["phase"] == "none"  # That of another folder.
    assert page.describe()["phase"] == "none"
    assert [row["name"] for row in page.runs.describe()] == ["runs/busy", "runs/saved"]


@pytest.mark.parametrize(
    ("num_classes", "code", "why"),
    [(1, 0, "Label photos of two classes first"), (2, None, "Training is in progress")],
)
def test_nothing_starts_without_two_classes_or_during_a_training(folder, num_classes, code, why):
    page = Training(folder)
    page._process = types.SimpleNamespace(poll=lambda: code)
    with pytest.raises(RefusedError, match=why):
        page.start(INSTANT, Counts(num_classes, 9, 0, open=9))
    assert page.describe()["phase"] == "none"


@pytest.mark.usefixtures("kinds")
def test_training_longer_keeps_checked_photos_out_or_asks_for_them(folder, monkeypatch):
    training = Training(folder)
    monkeypatch.setattr(training, "_launch", lambda *_: None)
    training.start(INSTANT, Counts(3, 100, 0, 900))
    before = training.describe()
    for num_checks, needed in ((0, "20 random photos"), (19, "1 more random photo")):
        for act in (training.plan, functools.partial(training.start, FINE_TUNE)):
            with pytest.raises(RefusedError, match=f"Check {needed} first"):
                act(Counts(3, 100, num_checks, open=900), 1)
            assert training.describe() == before
    for counts, share in ((Counts(3, 100, 30, 900), "0.3"), (Counts(3, 30, 20, 0), "0.5")):
        training.start(FINE_TUNE, counts, 1)
        assert training._command[-1] == f"--config.data.validation={share}"
    training.start(FINE_TUNE, Counts(3, 100, 0, open=19), 1)  # There are no 20 to check.
    assert not any("validation" in word for word in training._command)
    create_photos(folder, 3, [f"val/cat/{i}.png" for i in range(3)])  # These compare them instead.
    training.start(FINE_TUNE, Counts(3, 100, 30, 900), 1)
    assert not any("validation" in word for word in training._command)


def test_a_plan_has_a_forecast_by_the_last_one(folder):
    page = Training(folder)
    for took in (None, 200):
        page._process = types.SimpleNamespace(poll=lambda: None)
        page._state |= {"phase": "planning", "kind": FINE_TUNE, "minutes": 600, "steps": 0}
        page._is_planning, page._start_time = True, time.monotonic() - 10
        expected = took or training._PLAN_SECONDS
        assert expected - 12 <= page.describe()["left"] <= expected - 10
        page._process.poll, page._start_time = lambda: 0, time.monotonic() - 200
        page.describe()


@pytest.mark.parametrize(
    ("step", "finishes", "sent"),
    [(0, True, signal.SIGTERM), (3, True, FINISH), (3, False, signal.SIGTERM)],
)
def test_stop_and_keep_ends_with_the_step_that_it_is_at(folder, step, finishes, sent):
    page, received = Training(folder), []
    page._process = types.SimpleNamespace(poll=lambda: None, send_signal=received.append)
    page._state |= {"phase": "running", "step": step}
    for _ in range(2):  # The second time, it is stopping already.
        page.stop(finishes=finishes)
    assert received == [sent]


def test_the_curve_is_the_accuracy_on_held_out_photos_where_it_is_known(
    folder, tmp_path, monkeypatch
):
    page = Training(folder)
    page._run, page._process = tmp_path, types.SimpleNamespace(poll=lambda: None)
    page._state |= {"phase": "running", "minutes": 1, "message": ""}
    rows = [{"step": n, "train/loss": 3 - n, "perf/steps_per_second": 1} for n in range(3)]
    (tmp_path / "config.json").write_text('{"num_steps": 9}')
    for num_evaluated, of, points in (
        (1, "Loss", [(0, 3), (1, 2), (2, 1)]),
        (2, "Accuracy on the held-out photos", [(0, 50.0), (1, 50.0)]),
    ):
        for row in rows[:num_evaluated]:
            row["validation/accuracy"] = 50.0
        (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        state = page.describe()
        assert (state["curve_of"], state["curve"], state["step"]) == (of, points, 2)
    monkeypatch.setattr(training, "read_metrics", None)
    assert page.describe()["curve"] == points  # The file is not read again until it grows.


def test_the_runs_of_a_folder_are_listed_used_and_deleted(folder, kinds, tmp_path):
    older, newer = (write_run(name, folder, time) for name, time in (("a", 1000), ("b", 2000)))
    other = write_run("other", tmp_path / "elsewhere", 1500)
    (RUNS / "notes").mkdir()
    page = Training(folder)
    for act, names, used in (
        (lambda: None, ["runs/b", "runs/a"], newer),
        (lambda: page.use("runs/a"), ["runs/a", "runs/b"], older),  # In a terminal, too.
        (lambda: page.delete("runs/a"), ["runs/b"], newer),
    ):
        act()
        expected = [(name, name == str(used)) for name in names]
        assert [(row["name"], row["is_used"]) for row in page.runs.describe()] == expected
        assert page.find_used_run() == find_newest() == used
    assert not older.exists()
    for name in ("runs/a", "runs/other", "runs/notes", str(other), "runs/../runs/b", "", "runs"):
        for act in (page.use, page.delete):
            with pytest.raises(RefusedError, match="no such run"):
                act(name)
    assert newer.exists()
    assert other.exists()


def test_a_training_that_did_not_help_takes_no_place_and_its_labels_count(folder, kinds, tmp_path):
    """Nor does one that was stopped. Unless a person says so."""
    page = Training(folder)
    for act, used in (
        (lambda: write_run("stopped", folder, 400, is_finished=False), "stopped"),
        (lambda: write_run("saved", folder, 500, predictor=None, num_labels=86), "saved"),
        (lambda: write_run("in-vain", folder, 1000, predictor="instant", num_labels=66), "saved"),
        (lambda: write_run("unfinished", folder, 1500, is_finished=False), "saved"),
        (lambda: write_run("elsewhere", tmp_path / "elsewhere", 200), "saved"),
        (lambda: page.use("runs/in-vain"), "in-vain"),
        (lambda: page.use("runs/saved"), "saved"),
        # Better than what has learned fewer labels.
        (lambda: write_run("more", folder, 2e9, predictor="instant", num_labels=99), "more"),
        (lambda: write_run("helped", folder, 3e9, num_labels=66), "helped"),
    ):
        act()
        assert page.runs.find_used() == find_newest() == RUNS / used
    assert [row["name"] for row in page.runs.describe() if row["is_used"]] == ["runs/helped"]


class StubNetworks:
    """Networks that name every photo "c", but cannot read the last two."""

    class_names = ("c", "b", "a")

    def read_files(self, files):
        errors = [None] * (len(files) - 2) + ["broken"] * 2
        yield ImageBatch(files, errors, np.zeros((len(files) - 2, 1, 1, 3), np.uint8))

    def predict(self, images):
        return create_prediction(np.tile(np.float32([0.8, 0.1, 0.1]), (1, len(images), 1)), "cba")


@pytest.fixture
def load(monkeypatch):
    """Loads stubs in place of the networks of a run."""
    load = unittest.mock.Mock(return_value=StubNetworks())
    monkeypatch.setattr(trained, "load", load)
    return load


def name_photos(session, networks, classifier):
    """The labels of all photos, once the newest networks have named them."""
    networks.follow()
    for thread in [one for one in threading.enumerate() if one.name == JAX_THREAD]:
        thread.join()
    views.describe_check(session)
    return [row["label"] for row in classifier.list_rows()]


@pytest.mark.usefixtures("load")
def test_trained_networks_name_the_photos_while_they_are_the_better_classifier(
    answered, folder, kinds, monkeypatch
):
    runs = []
    networks = trained.TrainedNetworks(answered, lambda: runs[-1] if runs else None)
    classifier = fit(answered, networks)

    def follow(**chosen):
        runs.append(write_run(f"run-{len(runs)}", folder, 2000, num_labels=None, **chosen))
        labels = name_photos(answered, networks, classifier)
        images = (views.describe_image(answered.known, image) for image in (18, 28))
        proposed = [image["proposals"][0]["label"] for image in images]
        return proposed, set(labels[9:28]), labels[28]

    by_instant = ["a", "b"], {"a", "b", "c"}, "b"
    assert follow(predictor="instant") == by_instant
    assert follow(predictor_gain_images=None) == by_instant  # Nothing has compared them.
    compared = {
        "predictor_gain_images": 20,
        "predictor_images": "random",
        "predictor_right_trained": 19,
        "predictor_right_instant": 12,
    }
    assert follow(**compared) == (["c", "b"], {"c"}, "b"), networks.message
    # The page says which classifier its figures are of, and none of the other's.
    assert classifier.get().namer == f"the trained networks of {runs[-1]}"
    assert classifier.describe()["accuracy"].startswith("Better: of 20 random photos")
    assert classifier.estimate().accuracy is None
    assert classifier.get() is classifier.get()  # Not computed for each request.
    assert classifier.get().predict(["elsewhere"], None).argmax() == 2  # Of "abc".
    checked = {image: "abc"[kinds[image]] for image in range(2, 23)}
    monkeypatch.setattr(trained, "list_checked", lambda known: checked)
    assert classifier.describe()["accuracy"] == (
        f"About 33% of the other photos are named right by the trained networks of {runs[-1]} "
        "(17 to 55%), measured on 21 random photos."
    )
    shortly = "About 33% of the other photos are named right by the trained networks"
    assert classifier.get().accuracy_in_short == shortly
    decide_all(answered, "abcabcabca", start=9)  # Which the networks have not learned.
    assert {row["label"] for row in classifier.list_rows()[19:]} == {"a", "b", "c"}
    assert classifier.get().namer == "the instant classifier after 19 answers"


@pytest.mark.usefixtures("answered")
def test_a_page_that_is_opened_again_predicts_with_the_run_in_use(folder, kinds, load):
    run = write_run("trained", folder, 2000)
    write_run("instant", folder, 1000, predictor="instant")
    session, runs = open_ready(folder, kinds), Training(folder)  # Another session.
    networks = trained.TrainedNetworks(session, runs.find_used_run)
    classifier = fit(session, networks)
    labels = name_photos(session, networks, classifier)
    assert set(labels[9:28]) == {"c"}, networks.message  # As the stub says.
    for act, name, classes in (
        (runs.use, "runs/instant", "abc"),
        (runs.use, "runs/trained", "c"),
        (runs.delete, "runs/trained", "abc"),
    ):
        act(name)
        assert set(name_photos(session, networks, classifier)[9:28]) == {*classes}, name
    assert load.call_args_list == [unittest.mock.call(run)] * 2


@pytest.mark.usefixtures("load")
def test_networks_of_an_earlier_session_that_miss_ten_answers_are_not_used(folder, kinds):
    decide_all(open_ready(folder, kinds), ("abc" * 7)[:19])
    session = open_ready(folder, kinds)
    # Ten random photos were no part of the training, but those that its networks were chosen by.
    kept_out = {"predictor_images": "random", "predictor_gain_images": 10}
    for name, others, is_used in (("trained", {}, False), ("checked", kept_out, True)):
        run = write_run(name, folder, 2000, num_labels=9, **others)
        networks = trained.TrainedNetworks(session, lambda run=run: run)
        name_photos(session, networks, SessionClassifier(session, networks))
        assert bool(networks.find("abc")) == is_used


@pytest.mark.usefixtures("load")
def test_networks_are_not_used_after_ten_changes_since_their_training_began(answered, folder):
    """Though as many photos have a label."""
    run = write_run("trained", folder, 2000, num_labels=9)
    page = types.SimpleNamespace(start=lambda *_: run, find_used_run=lambda: run)
    parts = Parts(answered, page)
    VERBS["train"].run(parts, (FINE_TUNE, 1), "w")
    decide_all(answered, "cab" * 3)
    name_photos(answered, parts.trained, parts.classifier)
    assert parts.trained.find("abc")
    decide(answered, 0, "a")
    assert parts.trained.find("abc") is None
