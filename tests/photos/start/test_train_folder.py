"""Whole runs on a folder of images: without a test set, interrupted, and with other images."""

import json
import shutil

import numpy as np
import pytest

from cls_jax.errors import UserError
from cls_jax.photos.cli import commands
from cls_jax.photos.folder.dataset import open_dataset
from cls_jax.photos.inference.assessment import evaluate_run
from cls_jax.photos.report.data import collect_run
from cls_jax.photos.start.stages import train_with_stages
from cls_jax.runs.metrics import read_metrics
from cls_jax.training.prepare import restore_run
from tests.conftest import load_config, train_interrupted
from tests.outcomes import describe_difference, read_end, read_table
from tests.photos.helpers import write_image, write_images

pytestmark = pytest.mark.usefixtures("tiny_model")
TINY = {
    "num_steps": 6,
    "batch_size": 8,
    "mu": 2,
    "mesh.network": 1,
    "mesh.data": 1,
    "log_every": 1,
    "eval_every": 3,
    "checkpoint_every": 2,
    "data.image_size": 8,
    "data.randaugment_ops": 0,
}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """12 labeled images, unequally many of each of three classes, 30 unlabeled, one damaged."""
    root = tmp_path_factory.mktemp("data") / "pets, all"
    write_images(root, {"labeled/ant": 2, "labeled/bee": 7, "labeled/cat": 3, "unlabeled": 30})
    (root / "unlabeled" / 'a "name".jpg').write_text("no image")
    return root


def create_config(root, **changes):
    config = load_config("folder", f"{root},cls")
    config.update_from_flattened_dict(TINY | changes)
    return config


@pytest.fixture(scope="module")
def finished(images, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "run"
    return workdir, train_with_stages(create_config(images), workdir)[0]


def test_without_a_test_set_there_are_monitors_and_no_accuracy(finished, images, capsys):
    workdir, result = finished
    assert result["test_accuracy"] is result["test_accuracy_best"] is None
    rows = read_metrics(workdir)
    overlaps = [row["monitors/pseudo_label_overlap"] for row in rows]
    assert result["monitors"]["pseudo_label_overlap"] == pytest.approx(np.mean(overlaps))
    assert not any("test/accuracy" in row for row in rows)
    commands.train_config(create_config(images), str(workdir))
    output = capsys.readouterr().out
    assert "No test set. Averages over the last logged batches (step 6):" in output
    assert "Evaluate again" not in output


def test_folder_records_what_was_used_and_what_was_skipped(finished):
    workdir, _ = finished
    labeled = json.loads((workdir / "labeled_indices.json").read_text())
    assert {name: len(rows) for name, rows in labeled.items()} == {"ant": 2, "bee": 7, "cat": 3}
    assert (workdir / "skipped_files.csv").read_text().splitlines() == [
        "file,reason",
        '"unlabeled/a ""name"".jpg",not an image of a known format',
    ]
    description = json.loads((workdir / "dataset.json").read_text())
    assert json.loads((workdir / "config.json").read_text())["data"]["mean"] == []
    setup, _, _ = restore_run(workdir)
    assert list(setup.config.data.mean) == description["mean"]
    assert list(setup.config.data.std) == description["std"]


def test_run_resumes_exactly_only_with_its_images(finished, images, tmp_path, capsys):
    config, workdir, new = create_config(images), tmp_path / "run", images / "unlabeled" / "new.png"
    train_interrupted(config, workdir, num_batches=1, train=train_with_stages)
    assert not (workdir / "checkpoints" / "2").exists()  # From the beginning again.
    assert "cls on pets, all: 12 labels, 42 training and 0 test images" in capsys.readouterr().out
    train_interrupted(
        create_config(images / "labeled"),
        tmp_path / "labeled",
        num_batches=0,
        train=train_with_stages,
    )
    assert "Warning: Every training image is labeled" in capsys.readouterr().out
    write_image(new, np.zeros((8, 8, 3)))
    try:
        with pytest.raises(UserError, match="are not those with which the run in"):
            train_with_stages(config, workdir)
    finally:
        new.unlink()
    train_with_stages(config, workdir)
    assert describe_difference(read_end(workdir), read_end(finished[0])) is None


def test_share_of_the_labeled_images_validates(images, tmp_path, capsys, monkeypatch):
    """And an accuracy of pseudo-labels that is unknown is no NaN to be found."""
    monkeypatch.setattr("cls_jax.photos.report.after_training.draw_report", lambda _: None)
    config = create_config(images, **{"data.validation": 0.25, "debug_nans": True})
    workdir = tmp_path / "run"
    for sentence in ("Validation accuracy after 6 steps:", "is finished"):
        commands.train_config(config, str(workdir))
        output = capsys.readouterr().out
        assert sentence in output
        assert "No test set" not in output
    evaluated = [row for row in read_metrics(workdir) if "validation/accuracy" in row]
    assert [row["step"] for row in evaluated] == [3, 6]
    assert None in [row.get("monitors/pseudo_label_accuracy", 0) for row in read_metrics(workdir)]
    result = json.loads((workdir / "result.json").read_text())
    assert result["validation_accuracy"] == evaluated[-1]["validation/accuracy"]
    assert (result["num_labels"], result["test_accuracy"]) == (9, None)
    held = {*open_dataset(config).validation.files}
    assert len(held) == 3
    assert held.isdisjoint(row["file"] for row in read_table(workdir / "labeled_files.csv"))


def test_test_set_may_be_added_later_and_elsewhere_and_classes_stay(finished, images, tmp_path):
    # Evaluation adds the figures of each class to the result.
    workdir = shutil.copytree(finished[0], tmp_path / "run")
    with pytest.raises(UserError, match="has no test images: add them as test/"):
        evaluate_run(workdir)
    moved = shutil.copytree(images, tmp_path / "moved")
    write_image(moved / "test/bee/1.png", np.full((9, 11, 3), 255))
    accuracies = evaluate_run(workdir, str(moved)).accuracies
    predictions = collect_run(workdir, str(moved)).predictions
    assert predictions.is_test
    assert accuracies["test/accuracy"] == 100 - 100 * len(predictions.mistakes)
    (moved / "labeled/ant").rename(moved / "labeled/wasp")
    with pytest.raises(UserError, match=r"\(bee, cat, wasp\) differ from those"):
        evaluate_run(workdir, str(moved))


def test_test_images_that_came_after_the_training_change_nothing(finished, images, capsys):
    workdir, _ = finished
    commands.train_config(create_config(images), str(workdir))
    files = [workdir / name for name in ("result.json", "report.html", "unknown.json")]
    before = [path.read_bytes() for path in files]
    write_image(images / "test/bee/1.png", np.full((9, 11, 3), 255))
    try:
        commands.train_config(create_config(images), str(workdir))
        evaluate_run(shutil.copytree(workdir, workdir.with_name("copy")))
    finally:
        shutil.rmtree(images / "test")
    assert f" evaluate {workdir}\nAverages over the last" in capsys.readouterr().out
    assert [path.read_bytes() for path in files] == before
    result = json.loads((workdir.with_name("copy") / "result.json").read_text())
    assert "per_class" not in result  # Beside an accuracy of null.


def test_evaluation_on_training_images_is_told(finished, images, tmp_path, capsys):
    copy = shutil.copytree(images, tmp_path / "copy")
    (copy / "labeled/ant").rename(copy / "labeled/Ant")  # Another spelling of a class.
    (copy / "labeled/bee/0.png").unlink()
    commands.evaluate(str(finished[0]), str(copy))
    said = capsys.readouterr()
    assert f"Accuracy on 11 labeled images in {copy}" in said.out
    assert "11 of 11 images are near-copies of training images" in said.out
    assert "network 1 (EMA weights), with near-copies" in said.out
    assert "to report" not in said.out
    for path in copy.glob("labeled/*/*.png"):  # Of the same names and another content.
        write_image(path, np.zeros((8, 8, 3)))
    hidden = images.rename(images.with_name("hidden"))  # The run's own images are not needed.
    try:
        commands.evaluate(str(finished[0]), str(copy))
    finally:
        hidden.rename(images)
    assert "training images were not looked for: the run's were" in capsys.readouterr().out
