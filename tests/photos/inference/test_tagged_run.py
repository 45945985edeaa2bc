"""A run whose photos have several tags, from a folder to its report and export."""

import csv
import json
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

import cls_jax
from cls_jax.errors import UserError
from cls_jax.models import MODELS
from cls_jax.models.weights.layout import Weights, to_torch
from cls_jax.models.weights.sources import to_safetensors
from cls_jax.photos.cli import commands
from cls_jax.photos.inference import export
from cls_jax.photos.inference.evaluate_run import evaluate_folder, evaluate_run
from cls_jax.photos.inference.scores import PER_CLASS
from cls_jax.photos.report.outcome import describe_outcome
from cls_jax.photos.report.page import REPORT, write_report
from tests.outcomes import read_table
from tests.photos.helpers import COLORS, write_image

SIZE = 16


def write_halves(root, num_labeled, num_test, num_images=60):
    """Images with up to two colors, one on either side, and `labels.csv`. Returns the root."""
    rng, rows = np.random.default_rng(0), [("file", "label", "split")]
    for i in range(num_images):
        pixels = rng.integers(0, 60, (SIZE, SIZE, 3))
        sides = rng.integers(0, 4, 2)  # 3 is none.
        for half, color in enumerate(sides):
            pixels[:, half * SIZE // 2 :][:, : SIZE // 2, color : color + 1] += 160
        tags = sorted({COLORS[color] for color in sides if color < 3})
        write_image(root / f"{i}.png", pixels)
        if i >= num_labeled and i % 4 == 0:
            tags = ["blue"]  # Which is often wrong, so that there are mistakes.
        if i < num_labeled + num_test:
            rows.append((f"{i}.png", ";".join(tags) or ";", "train" if i < num_labeled else "test"))
    with (root / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return root


@pytest.fixture(scope="module")
def run(one_block, tmp_path_factory):
    root = tmp_path_factory.mktemp("tagged")
    images = write_halves(root / "images", num_labeled=24, num_test=16)
    entry = MODELS["wide_resnet"]
    model = entry.create(num_classes=3, depth=10, width=2)
    variables = jax.jit(model.init)(jax.random.key(0), np.zeros((1, SIZE, SIZE, 3), np.float32))
    weights = root / "model.safetensors"
    weights.write_bytes(to_safetensors(Weights(to_torch(variables, entry.layout))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        yield cls_jax.train(
            images,
            root / "run",
            instant=True,
            model__init=str(weights),
            model__depth=10,
            model__width=2,
            data__image_size=SIZE,
            data__tags=True,
            data__randaugment_ops=0,
        )


def test_figures_are_those_of_its_predictions(run, capsys):
    root, result = run.workdir.parent / "images", run.result
    rows = [row for row in read_table(root / "labels.csv") if row["split"] == "test"]
    found = run.predict([root / row["file"] for row in rows])
    labels = [row["label"].strip(";") for row in rows]
    is_right = [
        ";".join(sorted(tags)) == label for tags, label in zip(found.tags, labels, strict=True)
    ]
    assert result["test_accuracy"] == 100 * np.mean(is_right)
    assert result["test_accuracy_low"] < result["test_accuracy"] < result["test_accuracy_high"]
    assert result["labels_tags"] == result["labels_classes"] == 3
    expected = f"About {result['labels_accuracy']:.0f}% of the other photos have all tags right by"
    assert any(said.startswith(expected) for said in describe_outcome(result))
    assert result["test_mean_average_precision"] > 70
    assert [row["tag"] for row in result["per_class"]] == sorted(COLORS)
    figures = read_table(run.workdir / PER_CLASS)
    assert [row["tag"] for row in figures[:3]] == sorted(COLORS)
    names = {path.name for path in run.workdir.iterdir()}
    assert not names & {"unknown.json", "calibration.json", "suspects.csv"}
    before = result.copy()
    commands.evaluate(str(run.workdir))
    said = capsys.readouterr().out
    assert f"{result['test_accuracy']:6.2f}%  images with all tags right, too high" in said
    assert "16 of 16 images are near-copies" in said  # All are alike.
    assert f"{result['test_mean_average_precision']:6.2f}%  mean average precision" in said
    assert "95% interval of all tags right: " in said
    assert json.loads((run.workdir / "result.json").read_text()) == before
    commands.runs(str(run.workdir.parent))
    said = capsys.readouterr().out
    assert f"% all tags right, mean AP {result['test_mean_average_precision']:.1f}% (test)" in said


def test_another_folder_is_read_as_the_runs_and_has_no_other_tags(run, tmp_path):
    root = shutil.copytree(run.workdir.parent / "images", tmp_path / "other")
    table = (root / "labels.csv").read_text()
    found = evaluate_folder(run.workdir, str(root))
    same = evaluate_run(run.workdir)
    assert found.figures == same.figures
    assert found.accuracies["test/accuracy"] == same.accuracies["test/accuracy"]
    (root / "labels.csv").write_text(table.replace("blue", "Blue"))
    assert evaluate_folder(run.workdir, str(root)).figures == same.figures
    (root / "labels.csv").write_text(table.replace("red;", "pink;").replace("red", "pink;x"))
    with pytest.raises(UserError, match="does not have the tags 'pink', 'x': rename or remove"):
        evaluate_folder(run.workdir, str(root))


def test_test_images_that_are_added_may_have_any_set_of_its_tags(run, tmp_path):
    """So the dataset has labels that the run has never seen."""
    images = shutil.copytree(run.workdir.parent / "images", tmp_path / "images")
    workdir = shutil.copytree(run.workdir, tmp_path / "run")
    (workdir / REPORT).unlink()
    write_image(images / "new.png", np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3)))
    with (images / "labels.csv").open("a") as file:
        file.write("new.png,blue;green;red,test\n")
    found = evaluate_run(workdir, str(images))
    assert found.num_images == 17
    page = write_report(workdir, str(images)).read_text()
    assert "Missing from this page" not in page
    assert "of 17 test images" in page


def test_its_report_has_no_section_about_classes(run):
    page = (run.workdir / REPORT).read_text()
    assert page.count("<section id=") == page.count("<section")
    for name in ("photos", "figures", "tags", "labeled", "configuration", "sessions"):
        assert f'<section id="{name}">' in page
    for name in ("classes", "mistakes", "suspects", "calibration", "labelers"):
        assert f'<section id="{name}">' not in page
    assert "Missing from this page" not in page


@pytest.mark.parametrize("has_onnx", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_its_export_prints_the_tags(run, tmp_path, has_onnx, monkeypatch):
    if not has_onnx:
        monkeypatch.setitem(sys.modules, "jax2onnx", None)
    missing = export.export_run(run.workdir, tmp_path / "exported")
    assert len(missing) == (not has_onnx)
    exported = tmp_path / "exported"
    assert json.loads((exported / export.LABELS).read_text()) == sorted(COLORS)
    assert json.loads((exported / export.THRESHOLDS).read_text()) == [0.5] * 3
    files = [run.workdir.parent / "images" / f"{i}.png" for i in range(8)]
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
        named = zip(sorted(COLORS), p_T, strict=True)
        said = [f"{tag} ({p:.4f})" for tag, p in named if tag in tags]
        lines.append(f"{file}: {', '.join(said) or 'no tag'}")
    assert outcome.stdout.splitlines() == lines
    assert "no tag" in outcome.stdout
