"""What comes of a run whose photos have several tags: figures, the report and the export."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from cls_jax.errors import UserError
from cls_jax.photos.cli import commands
from cls_jax.photos.inference import export
from cls_jax.photos.inference.evaluate_run import evaluate_folder, evaluate_run
from cls_jax.photos.inference.scores import PER_CLASS
from cls_jax.photos.report.page import REPORT, write_report
from tests.outcomes import read_table
from tests.photos.helpers import write_image
from tests.photos.start.test_tagged_run import SIZE, TAGS, photos, settings, train

__all__ = ["photos", "settings"]


@pytest.fixture(scope="module")
def run(photos, settings):
    """With some wrong test labels, so that there are mistakes, and its report."""
    table = photos / "labels.csv"
    table.write_text(table.read_text().replace("test3.png,1,1", "test3.png,0,1"))
    return train(photos, "run", settings)


def test_figures_are_those_of_its_predictions(run, photos, capsys):
    result = run.result
    rows = [row for row in read_table(photos / "labels.csv") if row["split"] == "test"]
    found = run.predict([photos / row["file"] for row in rows])
    truth = [{tag for tag in TAGS if row[tag] == "1"} for row in rows]
    is_right = [tags == has for tags, has in zip(found.tags, truth, strict=True)]
    assert result["test_accuracy"] == pytest.approx(100 * np.mean(is_right))
    assert result["test_accuracy_low"] < result["test_accuracy"] < result["test_accuracy_high"]
    assert [row["tag"] for row in result["per_class"]] == list(TAGS)
    assert [row["tag"] for row in read_table(run.workdir / PER_CLASS)[:2]] == list(TAGS)
    names = {path.name for path in run.workdir.iterdir()}
    assert not names & {"unknown.json", "calibration.json", "suspects.csv"}
    commands.evaluate(str(run.workdir))
    said = capsys.readouterr().out
    assert f"{result['test_accuracy']:6.2f}%  images with all tags right, " in said
    assert f"{result['test_mean_average_precision']:6.2f}%  mean average precision" in said
    assert "95% interval of all tags right: " in said
    assert json.loads((run.workdir / "result.json").read_text()) == result
    commands.runs(str(run.workdir.parent))
    said = capsys.readouterr().out
    assert f"% all tags right, mean AP {result['test_mean_average_precision']:.1f}% (test)" in said


def test_another_folder_is_read_as_the_runs_and_has_no_other_tags(run, photos, tmp_path):
    root = shutil.copytree(photos, tmp_path / "other")
    table = (root / "labels.csv").read_text()
    (root / "labels.csv").write_text(table.replace("red", "Red"))
    found, same = evaluate_folder(run.workdir, str(root)), evaluate_run(run.workdir)
    assert found.figures == same.figures
    assert found.accuracies["test/accuracy"] == same.accuracies["test/accuracy"]
    (root / "labels.csv").write_text(table.replace("red", "pink"))
    with pytest.raises(UserError, match="does not have the tag 'pink': rename or remove it in"):
        evaluate_folder(run.workdir, str(root))


def test_test_images_that_are_added_may_have_any_set_of_its_tags(run, photos, tmp_path):
    """So the dataset has labels that the run has never seen."""
    images = shutil.copytree(photos, tmp_path / "images")
    workdir = shutil.copytree(run.workdir, tmp_path / "run")
    (workdir / REPORT).unlink()
    write_image(images / "new.png", np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3)))
    with (images / "labels.csv").open("a") as file:
        file.write("\nnew.png,1,,test")
    assert evaluate_run(workdir, str(images)).num_images == 13
    page = write_report(workdir, str(images)).read_text()
    assert "Missing from this page" not in page
    assert "of 13 test images" in page


def test_its_report_has_no_section_about_classes(run):
    page = (run.workdir / REPORT).read_text()
    for name in ("photos", "classes", "tags", "labeled", "configuration", "sessions"):
        assert f'<section id="{name}">' in page
    for name in ("mistakes", "suspects", "calibration", "labelers"):
        assert f'<section id="{name}">' not in page
    assert "Missing from this page" not in page


@pytest.mark.parametrize("has_onnx", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_its_export_prints_the_tags(run, photos, tmp_path, has_onnx, monkeypatch):
    if not has_onnx:
        monkeypatch.setitem(sys.modules, "jax2onnx", None)
    exported = tmp_path / "exported"
    assert len(export.export_run(run.workdir, exported)) == (not has_onnx)
    assert json.loads((exported / export.LABELS).read_text()) == list(TAGS)
    assert json.loads((exported / export.THRESHOLDS).read_text()) == [0.5] * 2
    files = [photos / f"test{i}.png" for i in range(8)]
    expected = run.predict(files)
    outcome = subprocess.run(
        [sys.executable, exported / export.EXAMPLE, *files],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"JAX_PLATFORMS": "cpu", "PYTHONIOENCODING": "utf-8"},
    )
    lines = []
    for file, tags, p_T in zip(files, expected.tags, expected.probabilities, strict=True):
        said = [f"{tag} ({p:.4f})" for tag, p in zip(TAGS, p_T, strict=True) if tag in tags]
        lines.append(f"{file}: {', '.join(said) or 'no tag'}")
    assert outcome.stdout.splitlines() == lines
    assert "no tag" in outcome.stdout
