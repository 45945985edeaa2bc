"""The report of a run that was really trained."""

import re
import shutil

import numpy as np
import pytest

from cls_jax.cli import commands
from cls_jax.data.datasets import load_dataset
from cls_jax.inference.classifier import load
from cls_jax.inference.scores import PER_CLASS, compute_reliability
from cls_jax.inference.suspects import SUSPECTS
from cls_jax.report.page import REPORT, write_report
from cls_jax.runs.folder import DATASET, LABELED_INDICES, RESULT, read_result
from cls_jax.runs.result import wilson_interval
from cls_jax.runs.sessions import SESSIONS, read_sessions
from tests.conftest import create_tiny_config, train_interrupted
from tests.outcomes import read_table
from tests.report.pages import Page


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run that was interrupted once, its configuration, and its page at that time."""
    workdir = tmp_path_factory.mktemp("report") / "run"
    config = create_tiny_config(eval_every=6)
    train_interrupted(config, workdir, 5)
    unfinished = Page(write_report(workdir).read_text())
    commands.train_config(config, str(workdir))
    return workdir, config, unfinished


@pytest.fixture
def copy(run, tmp_path):
    """The run once more, to be damaged."""
    return shutil.copytree(run[0], tmp_path / "run")


def read_page(workdir):
    return Page((workdir / REPORT).read_text())


def test_training_writes_it_with_the_figures_of_the_result(run):
    workdir, config, _ = run
    page, result, dataset = read_page(workdir), read_result(workdir), load_dataset(config)
    p_NBK = load(workdir).predict_probabilities(dataset.test_images)
    predicted, labels = p_NBK.argmax(axis=-1), dataset.test_labels
    num_right = int(np.sum(predicted[0] == labels))
    errors = [compute_reliability(p_BK, labels).error for p_BK in (p_NBK[0], p_NBK.mean(axis=0))]
    for text in (
        f"{num_right} of 450 test images correctly: {result['test_accuracy']:.1f}%",
        f"{result['test_accuracy_ensemble']:.1f}%",
        "{:.1f}–{:.1f}%".format(*(100 * end for end in wilson_interval(num_right, 450))),
        *(f"Expected calibration error {100 * error:.1f}%" for error in errors),
        f"differ on {np.sum(predicted[0] != predicted[1])}",
        "cls · finished",
        *(row[key] for row in read_sessions(workdir) for key in ("command", "hardware")),
    ):
        assert text in page.text
    assert not page.find("aside")
    named = [row["class"] for row in read_table(workdir / PER_CLASS)]
    assert named[:-2] == list(dataset.class_names)
    assert (workdir / SUSPECTS).exists()


def test_a_report_that_fails_never_fails_the_training(copy, run, capsys, monkeypatch):
    (copy / REPORT).unlink()
    monkeypatch.setattr("cls_jax.report.page.collect_run", lambda *_: 1 / 0)
    commands.train_config(run[1], str(copy))
    assert "The report could not be drawn (division by zero)" in capsys.readouterr().out
    monkeypatch.undo()
    commands.train_config(run[1], str(copy))
    assert str(copy / REPORT) in capsys.readouterr().out


def test_an_unfinished_run_shows_its_newest_checkpoint(run):
    workdir, _, page = run
    # The checkpoint of step 4 may or may not have become whole before the end.
    assert re.search(r"unfinished: \d of 6 steps.*checkpoint of step [24]\)", page.text, re.DOTALL)
    assert "not measured yet" in page.text
    first, again = (row["first_step"] for row in read_sessions(workdir))
    assert first == 0
    assert again in (2, 4)


@pytest.mark.parametrize(
    ("damaged", "notes", "kept"),
    [
        ({"checkpoints": None}, ["No predictions: "], {"training", "views", "labeled"}),
        ({DATASET: "{}"}, ["The classes are unknown: "], {"training", "configuration"}),
        (
            {RESULT: "{", LABELED_INDICES: "[]", SESSIONS: "[]\n{", "metrics.jsonl": "\xff{"},
            ["The result cannot be read: ", "The labeled images are unknown: "],
            {"classes", "configuration"},
        ),
    ],
)
def test_missing_and_damaged_files_are_named_and_the_rest_is_shown(copy, damaged, notes, kept):
    for name, text in damaged.items():
        if text is None:
            shutil.rmtree(copy / name)
        else:
            (copy / name).write_text(text, encoding="latin-1")
    page = Page(write_report(copy).read_text())
    assert kept <= {attributes["id"] for attributes in page.find("section")}
    assert all(note in page.text for note in notes)
