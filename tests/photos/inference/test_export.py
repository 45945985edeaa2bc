"""Exported networks predict what ours predict, without this project."""

import json
import re
import shutil
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from cls_jax.errors import UserError
from cls_jax.models.convolutions import depthwise_conv
from cls_jax.models.ensemble import take_network
from cls_jax.models.weights.hub import WEIGHTS_FILE
from cls_jax.photos.cli import commands
from cls_jax.photos.inference import export
from cls_jax.photos.inference.run import load
from cls_jax.photos.shell import find_version
from cls_jax.runs.folder import CONFIG
from cls_jax.training.prepare import read_weights, restore_run
from tests.conftest import ROOT, create_tiny_config


@pytest.fixture(scope="module")
def exported(trained_run, tmp_path_factory):
    output = tmp_path_factory.mktemp("export") / "new" / "folder"
    export.export_run(trained_run, output)
    return output


def test_model_predicts_what_the_run_predicts_for_any_batch_size(classifier, dataset, exported):
    data, images = create_tiny_config().data, dataset.test.images
    model = jax.export.deserialize(bytearray((exported / export.MODEL).read_bytes()))
    assert model.platforms == ("cpu", "cuda", "tpu")
    assert str(ROOT).encode() not in (exported / export.MODEL).read_bytes()  # Its source files.
    expected = classifier.predict(images)
    for size in (1, 7, 450):
        probabilities = np.asarray(model.call(images[:size]))
        np.testing.assert_allclose(probabilities, expected.probabilities[:size], atol=1e-5)
    labels = np.asarray(json.loads((exported / export.LABELS).read_text()))
    np.testing.assert_array_equal(labels[probabilities.argmax(axis=-1)], expected.label)
    stored = json.loads((exported / export.PREPROCESSING).read_text())
    assert [stored[key] for key in ("height", "width", "color")] == [8, 8, "gray"]
    assert (stored["square"], stored["bit_depth"]) == ("crop", 16)
    inside = stored["inside_the_model"]
    assert (inside["mean"], inside["std"]) == (list(data.mean), list(data.std))


def test_weights_are_those_of_network_1_and_start_another_run(trained_run, exported):
    data = create_tiny_config().data
    expected = jax.device_get(take_network(restore_run(trained_run)[1].ema_params, 0))
    for init in (exported, exported / WEIGHTS_FILE, trained_run):
        weights = read_weights(str(init))
        assert weights.normalization == (data.mean, data.std)
        np.testing.assert_array_equal(weights.arrays["head.weight"].T, expected["head"]["kernel"])
        kernel = weights.arrays["stage1_block1.conv1.weight"].transpose(2, 3, 1, 0)
        np.testing.assert_array_equal(kernel, expected["stage1_block1"]["conv1"]["kernel"])


def test_example_runs_where_this_project_is_not(classifier, exported, tmp_path):
    file, deep = tmp_path / "Größe 1.png", tmp_path / "12 bits.png"
    noise = np.random.default_rng(0).integers(0, 256, (30, 20), dtype=np.uint8)
    Image.fromarray(noise).save(file)
    Image.fromarray(noise.astype(np.uint16) * 16).save(deep)
    exported = shutil.copytree(exported, tmp_path / "exported")
    stored = json.loads((exported / export.PREPROCESSING).read_text())
    (exported / export.PREPROCESSING).write_text(json.dumps(stored | {"bit_depth": 12}))
    (tmp_path / "cls_jax.py").write_text("raise ImportError('not installed')")
    outcome = subprocess.run(
        [sys.executable, exported / export.EXAMPLE, file, deep],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "JAX_PLATFORMS": "cpu", "PYTHONIOENCODING": "utf-8"},
    )
    assert outcome.returncode == 0, outcome.stderr
    prediction = classifier.predict([file])
    first, second = outcome.stdout.splitlines()
    assert first == f"{file}: {prediction.label[0]} ({prediction.confidence[0]:.4f})"
    label, confidence = re.fullmatch(rf"{deep}: (.*) \((.*)\)", second).groups()
    assert label == prediction.label[0]
    assert float(confidence) == pytest.approx(prediction.confidence[0], abs=0.02)


IMAGES = export.create_images((8, 8, 1))


@pytest.fixture
def no_converter(monkeypatch):
    """Without jax2onnx, which takes seconds that most tests need not spend."""
    monkeypatch.setitem(sys.modules, "jax2onnx", None)


def test_the_rest_without_a_converter(trained_run, tmp_path, no_converter, monkeypatch, capsys):
    exported = tmp_path / "exported"
    commands.export(str(trained_run), str(exported))
    assert "pip install '.[onnx]'" in capsys.readouterr().out
    files = export.MODEL, export.LABELS, export.PREPROCESSING, export.EXAMPLE
    assert {path.name for path in exported.iterdir()} == {*files, WEIGHTS_FILE, "README.md"}
    # Another export replaces it.
    for name in (export.ONNX_MODEL, export.LABELS, ".DS_Store"):
        (exported / name).write_text("of an older run")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    missing = {export.ONNX_MODEL: "onnx", WEIGHTS_FILE: "pretrained"}
    sentences = export.export_run(trained_run, exported)
    for sentence, (file, extra) in zip(sentences, missing.items(), strict=True):
        assert sentence.startswith(f"{file} needs the extra {extra}: pip install")
        assert not (exported / file).exists()
    assert json.loads((exported / export.LABELS).read_text())
    (exported / "notes.txt").write_text("mine")
    (tmp_path / "README.md").write_text("mine")
    for output in (exported, tmp_path, tmp_path / "README.md", trained_run):
        with pytest.raises(UserError, match="not an earlier export: choose a new folder"):
            export.check_output(output)
    with pytest.raises(UserError, match=r"cannot be written .* choose another folder"):
        export.export_run(trained_run, tmp_path / "README.md" / "out")
    assert (tmp_path / "README.md").read_text() == "mine"


def test_a_wrong_model_is_not_written(trained_run, tmp_path, monkeypatch, no_converter):
    create = export.create_function

    def create_wrong(*arguments):
        function = create(*arguments)
        return lambda images: jax.numpy.roll(function(images), 1, axis=-1)

    monkeypatch.setattr(export, "create_function", create_wrong)
    with pytest.raises(UserError, match="The exported model differs from the run by"):
        export.export_run(trained_run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_networks_trained_in_bfloat16_are_exported_in_float32(
    run_copy, exported, tmp_path, no_converter
):
    """As few runtimes have bfloat16: the same probabilities as of the run in float32."""
    config = (run_copy / CONFIG).read_text()
    assert config.count('"float32"') == 1
    (run_copy / CONFIG).write_text(config.replace('"float32"', '"bfloat16"'))
    assert load(run_copy).networks.ensemble.model.dtype == jnp.bfloat16
    export.export_run(run_copy, tmp_path / "out")
    models = [(folder / export.MODEL).read_bytes() for folder in (tmp_path / "out", exported)]
    found, expected = (jax.export.deserialize(bytearray(model)).call(IMAGES) for model in models)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_onnx_predicts_what_the_run_predicts_for_any_batch_size(classifier, exported):
    onnx, onnxruntime, _ = map(pytest.importorskip, ("onnx", "onnxruntime", "jax2onnx"))
    model = onnx.load(exported / export.ONNX_MODEL)
    # The runtime would warn at every start about wrong shapes and unused constants.
    assert not model.graph.value_info
    used = {name for node in model.graph.node for name in node.input}
    assert {constant.name for constant in model.graph.initializer} <= used
    session = onnxruntime.InferenceSession(exported / export.ONNX_MODEL)
    found = session.get_modelmeta().custom_metadata_map
    for key, name in (("class_names", export.LABELS), ("preprocessing", export.PREPROCESSING)):
        assert json.loads(found[key]) == json.loads((exported / name).read_text())
    assert found["version"] == find_version()
    assert session.get_inputs()[0].type == "tensor(uint8)"
    expected = classifier.predict(IMAGES).probabilities
    for size in (1, 7, 64):
        (probabilities,) = session.run(None, {"images": IMAGES[:size]})
        np.testing.assert_allclose(probabilities, expected[:size], atol=1e-5)


def test_onnx_is_left_out_where_it_is_wrong_and_why_is_said(capsys, monkeypatch):
    """With depthwise convolutions, whose form XLA chooses by platform as no ONNX model can."""
    for name in ("onnxruntime", "jax2onnx"):
        pytest.importorskip(name)
    kernel = np.random.default_rng(0).normal(size=(3, 3, 1, 4)).astype(np.float32)

    def function(images):
        return depthwise_conv(images.astype(jnp.float32) / 255, kernel, 2).mean(axis=(1, 2))

    images = np.random.default_rng(1).integers(0, 256, (3, 9, 9, 4), dtype=np.uint8)
    right = np.asarray(function(images))
    model, reason = export.convert_to_onnx(function, images, right, {})
    assert (bool(model), reason) == (True, None)
    for wrong, found in ((right + 2e-4, "2.0e-04"), (right * np.nan, "nan"), (right[1:], "inf")):
        model, reason = export.convert_to_onnx(function, images, wrong, {})
        assert model is None
        assert f"differ by {found}" in reason
    assert capsys.readouterr().out == ""
    converter = types.SimpleNamespace(to_onnx=lambda *_, **__: 1 / 0, __spec__="it is installed")
    monkeypatch.setitem(sys.modules, "jax2onnx", converter)
    model, reason = export.convert_to_onnx(function, images, right, {})
    assert model is None
    assert "a converter failed (ZeroDivisionError: division by zero): use model" in reason
