"""A whole run on images of five channels with 12 bits each, and what is refused about channels."""

import contextlib
import json
import runpy
import sys

import numpy as np
import pytest
from PIL import Image

import cls_jax
from cls_jax.cli.plan import describe_folder, plan_run
from cls_jax.config import read_config
from cls_jax.data.datasets import load_dataset
from cls_jax.data.pipelines import create_pipeline
from cls_jax.data.sources.folder import summarize_folder
from cls_jax.errors import UserError
from cls_jax.inference.classifier import load
from cls_jax.inference.evaluate_run import evaluate_folder, evaluate_run
from cls_jax.inference.export import EXAMPLE, PREPROCESSING, export_run
from cls_jax.inference.predict_files import predict_files
from cls_jax.inference.suggest import suggest_files
from cls_jax.labeling.start import _load_features, open_session
from cls_jax.report.data import collect_run
from cls_jax.report.page import write_report
from cls_jax.training.progress import select_images
from cls_jax.training.start import create_setup
from cls_jax.training.step import make_batch_fn
from tests.conftest import load_config
from tests.outcomes import read_table
from tests.report.pages import Page

TINY = {
    **{"num_steps": 4, "batch_size": 4, "mu": 2, "log_every": 1, "eval_every": 4},
    **{"checkpoint_every": 4, "mesh__network": 1, "mesh__data": 1, "data__image_size": 8},
    "data__randaugment_ops": 0,
}


def save(path, level, channels=5):
    """Noise around a level of 12 bits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(len(str(path)) + level)
    levels = level + rng.integers(0, 1096, (12, 10, channels))
    levels[0, 0] = 4095
    np.save(path, levels.astype(np.uint16))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("data") / "bands"
    for folder, count in {
        "labeled/ant": 4,
        "labeled/bee": 4,
        "unlabeled": 8,
        "test/ant": 3,
    }.items():
        for i in range(count):
            save(root / folder / f"{i}.npy", level=10 * i + (2000 if "bee" in folder else 100))
    save(root / "test/bee/0.npy", 2000)
    save(root / "test/ant/like a bee.npy", 2000)  # So that there are mistakes.
    return root


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setitem(sys.modules, "jax2onnx", None)  # It takes seconds.
        yield


@pytest.fixture(scope="module")
def workdir(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    return cls_jax.train(folder, path, method="fixmatch", **TINY).workdir


def test_channels_and_bits_are_those_of_the_files(workdir, folder):
    assert "Channels:    5" in describe_folder(summarize_folder(folder))
    data = read_config(workdir / "config.json").data
    assert (data.channels, data.bit_depth) == (5, 12)
    stored = json.loads((workdir / "dataset.json").read_text())
    assert stored["image_shape"] == [8, 8, 5]
    assert len(stored["mean"]) == len(stored["std"]) == 5
    assert min(stored["mean"]) > 0.2


@pytest.mark.parametrize("pipeline", ["tfdata", "device"])
def test_batches_have_all_channels_and_tensorboard_shows_three(workdir, pipeline):
    config = read_config(workdir / "config.json")
    if pipeline == "tfdata":
        pytest.importorskip("tensorflow")
    config.data.pipeline, dataset = pipeline, load_dataset(config)
    indices = np.arange(16, dtype=np.int32)
    setup, spec = create_setup(config, dataset, indices[:4], indices)
    inputs, specs, create_batch = create_pipeline(spec, dataset, setup.mesh, 0, 1)
    with contextlib.closing(inputs):
        batch = make_batch_fn(setup, create_batch, specs)(setup.init_state(), next(inputs))
    assert (batch.x.shape, batch.u.shape) == ((4, 8, 8, 5), (2, 8, 8, 8, 5))
    assert len(np.unique(np.asarray(batch.u).mean(axis=(0, 1, 2, 3)))) == 5
    views = select_images(batch, spec)
    assert [images.shape[1:] for images in views.values()] == [(8, 8, 3)] * 3
    np.testing.assert_array_equal(views["views/labeled_weak"], batch.x[..., :3])


def test_run_predicts_files_and_says_which_have_other_channels(workdir, folder, tmp_path):
    Image.new("RGB", (9, 9)).save(tmp_path / "colors.png")
    files = [*sorted(map(str, folder.glob("test/*/*.npy"))), str(tmp_path / "colors.png")]
    predict_files(load(workdir), files, tmp_path / "out" / "p.csv")
    rows = read_table(tmp_path / "out" / "p.csv")
    assert [bool(row["label"]) for row in rows] == [True] * 5 + [False]
    assert rows[5]["error"] == "3 channel(s) instead of 5"


def test_run_is_evaluated_reported_and_asked_for_images_to_label(workdir, folder):
    assert evaluate_run(workdir).accuracies["test/accuracy"] >= 0
    assert evaluate_folder(workdir, str(folder))[1:] == (5, 0)
    run = collect_run(workdir)
    assert run.notes == []
    assert run.take_picture(0, is_test=True).pixels.shape == (8, 8, 3)  # The first channels.
    assert run.heat_maps
    assert len(Page(write_report(workdir).read_text()).find("img")) > 20
    for source in (workdir, folder):
        rows = suggest_files(source, 2)
        assert {row["file"].split("/")[-2] for row in rows} == {"unlabeled"}


def test_export_classifies_the_same_files(workdir, folder, tmp_path, monkeypatch, capsys):
    export_run(workdir, tmp_path / "exported")
    stored = json.loads((tmp_path / "exported" / PREPROCESSING).read_text())
    assert stored["color"] == "5 channels"
    assert len(stored["inside_the_model"]["mean"]) == 5
    file = str(folder / "test/bee/0.npy")
    monkeypatch.setattr(sys, "argv", ["example.py", file])
    runpy.run_path(str(tmp_path / "exported" / EXAMPLE))
    prediction = load(workdir).predict([file])
    label, confidence = prediction.label[0], prediction.confidence[0]
    printed = capsys.readouterr().out.split(f"{file}: {label} (")[1]
    assert float(printed.rstrip(")\n")) == pytest.approx(confidence, abs=0.02)
    np.save(tmp_path / "other.npy", np.zeros((9, 9, 4), np.uint8))
    monkeypatch.setattr(sys, "argv", ["example.py", str(tmp_path / "other.npy")])
    with pytest.raises(SystemExit, match="has 4 channels, and the model expects 5"):
        runpy.run_path(str(tmp_path / "exported" / EXAMPLE))


def test_pretrained_networks_and_the_labeling_page_are_refused(folder):
    for settings in ({"settings": {"model.init": "builtin:efficientnet_lite0"}}, {"instant": True}):
        with pytest.raises(UserError, match=r"data\.channels is 5: .* --config\.model\.init= to"):
            plan_run(folder, **settings)
    with pytest.raises(UserError, match=r"have 5 channels, .* or in labels\.csv"):
        _load_features(open_session(folder), lambda done, total: None)


@pytest.mark.parametrize(("other", "count"), [("rgb.png", 3), ("four.npy", 4)])
def test_a_mixture_of_channels_names_two_files(tmp_path, other, count):
    for i in range(3):
        save(tmp_path / f"labeled/ant/{i}.npy", 100)
        save(tmp_path / f"labeled/bee/{i}.npy", 2000)
    path = tmp_path / "labeled/bee" / other
    if path.suffix == ".png":
        Image.new("RGB", (9, 9)).save(path)
    else:
        save(path, 0, channels=count)
    with pytest.raises(UserError, match=rf"{other} has {count} channel.*\.npy has 5: keep only"):
        summarize_folder(tmp_path)
    config = load_config("folder", str(tmp_path))
    config.data.channels = 5
    with pytest.raises(
        UserError, match=rf"{other}' has {count} .* of 5, which 'labeled/ant/0.npy'"
    ):
        load_dataset(config)
    config.data.channels = 2  # Of none of them.
    with pytest.raises(UserError, match=r"has 5 channel\(s\) instead of 2: keep only"):
        load_dataset(config)
