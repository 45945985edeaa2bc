"""A run on photos that have several tags, from the plan to predictions, report and export."""

import json
import pickle
import re
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest

import cls_jax
from cls_jax.errors import UserError
from cls_jax.photos.cli import commands
from cls_jax.photos.inference import export
from cls_jax.photos.inference.assessment import evaluate_folder, evaluate_run
from cls_jax.photos.plan import plan
from cls_jax.photos.plan.describe import describe_folder
from cls_jax.photos.plan.plan import Request, plan_config, plan_run
from cls_jax.photos.plan.rules import create_folder_config
from cls_jax.photos.report.outcome import describe_expected
from cls_jax.photos.report.page import REPORT, write_report
from cls_jax.photos.start.scores import PER_CLASS
from tests.outcomes import read_table
from tests.photos.helpers import write_image, write_weights

SIZE = 16
TAGS = ("red", "stripes")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of gray images that are reddish, striped, both or neither, and some labels."""
    root = tmp_path_factory.mktemp("tagged") / "photos"
    rng = np.random.default_rng(0)
    lines = [",".join(["file", *TAGS, "split"])]
    for part, count in (("train", 40), ("test", 12)):
        for i in range(count):
            pixels = rng.integers(60, 120, (SIZE, SIZE, 3))
            has = {"red": i % 2 == 1, "stripes": i // 2 % 2 == 1}
            pixels[..., 0] += 130 * has["red"]
            pixels[::2] //= 1 + 3 * has["stripes"]
            name = f"{part}{i}.png"
            write_image(root / name, pixels)
            split = part if part == "test" else ""
            if part == "test" or i < 16:
                lines.append(",".join([name, *(str(int(has[tag])) for tag in TAGS), split]))
    # One test label is wrong, so that there are mistakes.
    table = "\n".join(lines).replace("test3.png,1,1", "test3.png,0,1")
    (root / "labels.csv").write_text(table)
    return root


@pytest.fixture(scope="module")
def settings(one_block, photos):
    """Of a tiny network with random weights."""
    weights = write_weights(photos.parent / "model.safetensors", SIZE)
    tiny = {"model.depth": 10, "model.width": 2, "data.image_size": SIZE, "data.tags": True}
    return tiny | {"model.init": str(weights)}


def train(photos, name, settings):
    """Fits an instant classifier beside the photos."""
    values = {key.replace(".", "__"): value for key, value in settings.items()}
    return cls_jax.train(photos, photos.parent / name, instant=True, **values)


@pytest.fixture(scope="module")
def run(photos, settings):
    return train(photos, "run", settings)


def test_a_run_with_tags_says_what_it_has_learned(run):
    result = run.result
    assert (result["labels_tags"], result["num_labels"], result["method"]) == (2, 16, "instant")
    assert result["test_accuracy"] == result["test_accuracy_instant"] > 80
    assert result["test_mean_average_precision"] > 80
    assert result["test_accuracy_probe"] is None
    low, high = (result[f"labels_accuracy_{end}"] for end in ("low", "high"))
    assert low < result["labels_accuracy"] < high
    assert " of the other photos are tagged without a mistake by " in describe_expected(result)
    rows = read_table(run.workdir / "pseudo_labels.csv")
    assert len(rows) == 24
    assert {row["label"] for row in rows} == {";", "red", "red;stripes", "stripes"}
    assert all(0 <= float(row["weight"]) <= 1 for row in rows)


def test_python_and_the_terminal_say_the_tags_of_new_photos(run, photos, tmp_path, capsys):
    files = [photos / f"test{i}.png" for i in range(12)]
    found = run.predict(files)
    assert found.class_names.tolist() == list(TAGS)
    truth = [
        {tag for tag, has in zip(TAGS, (i % 2, i // 2 % 2), strict=True) if has} for i in range(12)
    ]
    assert np.mean([said == has for said, has in zip(found.tags, truth, strict=True)]) > 0.8
    assert found.foreign.shape == (12,)
    classifier = cls_jax.load(run)
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict(files).probabilities, found.probabilities)
    commands.predict(str(run.workdir), [str(photos)], output=str(tmp_path / "p.csv"), has_tags=True)
    rows = {row["file"].split("/")[-1]: row for row in read_table(tmp_path / "p.csv")}
    assert list(rows["test0.png"]) == ["file", "tags", *TAGS, "foreign", "error"]
    assert [set(filter(None, rows[file.name]["tags"].split(";"))) for file in files] == [
        *found.tags
    ]
    # A photo of something else is unlike all of the folder.
    assert classifier.predict(np.full((1, SIZE, SIZE, 3), 255, np.uint8)).foreign
    with pytest.raises(UserError, match="these have tags: remove it"):
        commands.predict(str(run.workdir), [str(photos)], sort_into=str(tmp_path / "sorted"))


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
    assert json.loads((run.workdir / "result.json").read_text()) == result  # As before.
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
    # No section is about what only classes have.
    sections = re.findall('<section id="(.*?)">', page)
    assert sections == ["next", "photos", "classes", "tags", "labeled", "configuration", "sessions"]


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


def test_a_precision_raises_thresholds(run, photos, settings):
    strict = train(photos, "strict", settings | {"model.tag_precision": 0.99})
    thresholds = cls_jax.load(strict).thresholds
    assert cls_jax.load(run).thresholds.tolist() == [0.5, 0.5]
    assert ((thresholds > 0) & (thresholds != 0.5)).all()


ONLY = "is for photos that have one class each: remove it"
OF_CLASSES = {
    "num_labels": 4,
    "data.validation": 0.5,
    "data.imbalance": 2.0,
    "model.inferred_by": "builtin:efficientnet_lite2",
    "model.init_head": "probe",
}
PROBE = {"model.init_head": "probe", "num_steps": 0}


@pytest.mark.parametrize(
    ("changes", "options", "remedy"),
    [
        *(({key: value}, {"instant": True}, f"^{key} {ONLY}") for key, value in OF_CLASSES.items()),
        (PROBE, {}, rf"^model\.init_head {ONLY}"),
        ({"model.init_head": "random"}, {"instant": True}, r"remove model\.init_head=random"),
        *(
            ({}, {"method": method}, r"^Only the instant classifier .* add --instant")
            for method in (None, "cls", "supervised")
        ),
    ],
)
def test_what_only_classes_have_is_refused(photos, settings, changes, options, remedy):
    with pytest.raises(UserError, match=remedy):
        plan_run(Request(photos, settings=settings | changes, **options))


def test_a_training_by_main_py_names_the_instant_classifier(photos):
    config = create_folder_config(str(photos), "fixmatch")
    config.data.tags = True
    with pytest.raises(UserError, match="add --instant"):
        plan_config(config, None)


def test_a_plan_counts_tags(photos, settings):
    planned = plan_run(Request(photos, instant=True, settings=settings))
    assert describe_folder(planned.summary)[:3] == [
        "Images:      16 labeled, 24 unlabeled and 12 test images; 2 tags with labels:",
        "  red      8",
        "  stripes  8",
    ]
    assert planned.config.model.inferred_by == ""


def test_a_precision_without_tags_is_refused(photos, settings, monkeypatch):
    settings = settings | {"data.tags": False, "model.tag_precision": 0.9}
    monkeypatch.setattr(plan, "summarize_folder", lambda root, _: types.SimpleNamespace(root=root))
    with pytest.raises(UserError, match="--precision is for photos with tags"):
        plan_run(Request(photos, instant=True, settings=settings))
