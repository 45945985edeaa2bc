"""Whole runs: the contents of the folder, and that interruptions leave no trace in it."""

import json
import shutil

import numpy as np
import pytest

from cls_jax.config import with_values
from cls_jax.data.datasets import load_dataset
from cls_jax.errors import UserError
from cls_jax.runs.folder import (
    create_run_folder,
    load_labeled_indices,
    read_result,
    write_labeled_indices,
)
from cls_jax.runs.metrics import read_metrics
from cls_jax.runs.sessions import LOCK, read_sessions
from cls_jax.training import loop
from cls_jax.training import step as step_lib
from cls_jax.training.evaluate import create_evaluate
from cls_jax.training.loop import run_training
from cls_jax.training.prepare import restore_run
from cls_jax.training.setup import TrainSetup
from tests.conftest import create_tiny_config, note_compilations, train_interrupted
from tests.core.methods.tiny_model import use_tiny_model
from tests.outcomes import describe_difference, read_end


def test_folder_holds_what_is_promised_and_evaluation_repeats_its_figures(trained_run):
    workdir, result = trained_run, read_result(trained_run)
    assert (result["dataset"], result["num_labels"], result["method"]) == ("digits", 20, "cls")
    labeled = json.loads((workdir / "labeled_indices.json").read_text())
    assert [(name, len(rows)) for name, rows in labeled.items()] == [(str(i), 2) for i in range(10)]
    rows = read_metrics(workdir)
    # What a step and an evaluation compute is in `test_step.py`.
    names = ("train/loss", "monitors/distance_networks", "perf/steps_per_second", "test/accuracy")
    assert set().union(*rows).issuperset(names)
    assert [row["step"] for row in rows if "train/loss" in row] == list(range(6))
    evaluations = [row for row in rows if "test/accuracy" in row]
    assert [row["step"] for row in evaluations] == [3, 6]
    assert list(workdir.glob("events.out.tfevents.*"))
    setup, state, step = restore_run(workdir)
    test = load_dataset(create_tiny_config()).test
    accuracies = create_evaluate(setup)(state, test.images, test.labels)
    assert {"step": step, **accuracies} == evaluations[-1]


def test_resumed_run_equals_uninterrupted_run(trained_run, tmp_path, monkeypatch):
    """It dies after the checkpoints of steps 2 and 4.

    Each session compiles the step once, and makes an initial state only without a checkpoint. A run
    that dies before the first one is in `test_train_folder.py`.
    """
    with note_compilations("train_step") as compiled:
        for session in (1, 2):
            train_interrupted(create_tiny_config(), tmp_path / "run", num_batches=3)
            assert len(compiled) == session
            monkeypatch.setattr(TrainSetup, "init_state", None)
        result, _ = run_training(create_tiny_config(), tmp_path / "run")
        assert len(compiled) == 3

    assert result["train_seconds"] > 0
    assert [row["first_step"] for row in read_sessions(tmp_path / "run")] == [0, 2, 4]
    assert describe_difference(read_end(tmp_path / "run"), read_end(trained_run)) is None


def test_finished_run_is_left_alone_and_another_configuration_refused(trained_run, capsys):
    workdir, expected = trained_run, read_result(trained_run)
    before = {path: path.stat().st_mtime_ns for path in workdir.rglob("*")}
    assert run_training(create_tiny_config(), workdir)[0] == expected
    assert "is finished" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"method\.tau: 0\.85 → 0\.5.*new --workdir"):
        run_training(create_tiny_config(method__tau=0.5), workdir)
    assert {path: path.stat().st_mtime_ns for path in workdir.rglob("*")} == before


def test_a_list_of_labels_means_the_same_images_when_some_are_held_out(tmp_path):
    config = create_tiny_config("20", data__validation=0.2)
    whole, dataset = load_dataset(create_tiny_config()), load_dataset(config)
    labeled = np.flatnonzero(dataset.train.labels < 3)[30:50]
    write_labeled_indices(tmp_path, dataset.numbers[labeled], whole)
    listed = (tmp_path / "labeled_indices.json").read_bytes()
    for _ in range(2):
        found = load_labeled_indices(tmp_path, dataset, 20, config.seed)
        assert set(found.tolist()) == set(labeled.tolist())
        create_run_folder(tmp_path, config, found, dataset)
        assert (tmp_path / "labeled_indices.json").read_bytes() == listed
    shown = whole.train.images[dataset.numbers[found]]
    np.testing.assert_array_equal(dataset.train.images[found], shown)


def test_run_that_does_not_fit_leaves_no_folder_behind_and_foreign_ones_alone(tmp_path):
    frozen = {"model__bn_frozen": True}, {"optimizer__frozen_stages": 1}  # Of random weights.
    for changes in ({"num_labels": 25}, {"mesh__data": 3}, *frozen):
        with pytest.raises(UserError):
            run_training(create_tiny_config(**changes), tmp_path / "run")
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="is not empty and not the folder of a run"):
        run_training(create_tiny_config(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("is_budget_given", [False, True])
def test_what_ends_before_the_first_step_leaves_room_for_the_corrected_command(
    tmp_path, monkeypatch, is_budget_given
):
    """Otherwise a run of another configuration, or labels drawn for it, would be in its way."""
    workdir, dataset = tmp_path / "run", load_dataset(create_tiny_config())
    if is_budget_given:
        write_labeled_indices(workdir, np.flatnonzero(dataset.train.labels < 2)[:20], dataset)
    before = set(workdir.glob("*"))
    with use_tiny_model():
        with monkeypatch.context() as patch:
            patch.setattr(loop, "create_evaluate", lambda *_: None)
            patch.setattr(step_lib, "get_device_memory", lambda device: 2**10)
            with pytest.raises(UserError, match="A step needs"):
                run_training(create_tiny_config(), workdir)
        assert {path for path in workdir.iterdir() if path.name != LOCK} == before
        train_interrupted(create_tiny_config(num_steps=2, seed=1), workdir, num_batches=1)
    labeled = json.loads((workdir / "labeled_indices.json").read_text())
    assert (len(labeled["0"]) > 2) == is_budget_given
    with pytest.raises(UserError, match="a run of another configuration"):  # That had begun.
        run_training(create_tiny_config(), workdir)


@pytest.fixture
def set_accuracies(monkeypatch):
    """Evaluations find these accuracies, in percent, by step, and on the test images the rest."""

    def set_accuracies(accuracies):
        def evaluate(state, images, labels, should_stop, split):
            accuracy = accuracies[int(state.step)]
            accuracy = 100 - accuracy if split == "test" else accuracy
            return {f"{split}/accuracy": accuracy, f"{split}/accuracy_ensemble": accuracy}

        monkeypatch.setattr(loop, "create_evaluate", lambda *_: evaluate)

    with use_tiny_model():
        yield set_accuracies


@pytest.mark.slow
def test_more_steps_leave_a_finished_run_what_it_has_however_often_they_are_killed(
    set_accuracies, tmp_path, capsys
):
    set_accuracies({3: 60.0, 4: 90.0, 6: 70.0, 8: 80.0})
    run, undisturbed = tmp_path / "run", tmp_path / "undisturbed"
    config, more, most = (
        create_tiny_config(num_steps=steps, data__validation=0.1) for steps in (4, 6, 8)
    )
    finished, _ = run_training(config, run)
    shutil.copytree(run, undisturbed)
    content = {name: (run / name).read_bytes() for name in ("metrics.jsonl", "config.json")}

    # Until its first step, a continuation changes nothing: a mistyped number can be corrected.
    train_interrupted(more, run, num_batches=0)
    assert {name: (run / name).read_bytes() for name in content} == content
    assert run_training(config, run)[0] == finished
    train_interrupted(more, run, num_batches=1)
    for steps in (4, 8):  # From the first step on, it is an unfinished run.
        with pytest.raises(UserError, match=f"num_steps: 6 → {steps}"):
            run_training(with_values(config, {"num_steps": steps}), run)
    for goal in (more, most):
        train_interrupted(goal, run, num_batches=1)
        result, _ = run_training(goal, run)
        run_training(goal, undisturbed)
        assert describe_difference(read_end(run), read_end(undisturbed)) is None
    assert "was finished at step 6 and continues to step 8" in capsys.readouterr().out

    evaluated = [row["step"] for row in read_metrics(run) if "test/accuracy" in row]
    assert evaluated == [3, 4, 6, 8]
    assert (result["validation_best_step"], result["step"]) == (4, 8)
    assert restore_run(run, step="best").step == 4
    assert (run / "metrics.jsonl").read_bytes().startswith(content["metrics.jsonl"])


def test_a_finished_run_whose_last_state_is_gone_is_not_begun_again(trained_run, tmp_path):
    run, more = shutil.copytree(trained_run, tmp_path / "run"), create_tiny_config(num_steps=8)
    metrics = (run / "metrics.jsonl").read_bytes()
    shutil.rmtree(run / "checkpoints" / "6" / "state")
    with pytest.raises(UserError, match=r"step 6 in .* is damaged"):
        run_training(more, run)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(UserError, match=r"finished at step 6 and .* restore checkpoints/ from a b"):
        run_training(more, run)
    assert (run / "metrics.jsonl").read_bytes() == metrics


def test_the_state_that_was_best_on_validation_images_is_kept(set_accuracies, tmp_path):
    """Also where the run dies after a better step, before the next checkpoint, and resumes."""
    set_accuracies({1: 30.0, 2: 50.0, 3: 60.0, 4: 50.0, 5: 60.0, 6: 40.0})
    config = create_tiny_config(data__validation=0.1, eval_every=1, keep_checkpoints=1)
    workdir = tmp_path / "run"
    train_interrupted(config, workdir, num_batches=3)  # Step 3 is evaluated, but not saved.
    assert [path.name for path in (workdir / "best_checkpoint").iterdir()] == ["3"]
    result, _ = run_training(config, workdir)
    assert [path.name for path in (workdir / "best_checkpoint").iterdir()] == ["3"]
    assert (result["validation_best_step"], restore_run(workdir)[2]) == (3, 6)
    _, state, step = restore_run(workdir, step="best")
    assert (step, int(state.step)) == (3, 3)
    assert restore_run(workdir, step=6)[2] == 6
    for wrong in ("5", "newest", "-1"):
        with pytest.raises(UserError, match=rf"no checkpoint of step '{wrong}': choose 3, 6 o"):
            restore_run(workdir, step=wrong)


def test_a_run_without_validation_images_says_why_it_has_no_best_step(trained_run):
    with pytest.raises(UserError, match=r"where a run has validation images.*: choose 2, 4, 6"):
        restore_run(trained_run, step="best")
    assert restore_run(trained_run, step=4)[2] == 4
