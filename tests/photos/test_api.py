"""Training and prediction from Python, and the quickstart notebook."""

import re

import numpy as np
import pytest
from PIL import Image

import cls_jax
from cls_jax.photos import api
from tests.conftest import ROOT, create_tiny_config
from tests.photos.helpers import write_images

NOTEBOOK = ROOT / "docs" / "quickstart.ipynb"
SMALLER = {
    "num_steps=200": "num_steps=12, eval_every=12, checkpoint_every=12, batch_size=10, mu=2, "
    "data__randaugment_ops=0",
    "zip(digits.images, digits.target, strict=True)": "zip(digits.images[:450], digits.target)",
}
# As the fixture does in its own process.
TINY_MODEL = """
from tests.core.methods.tiny_model import use_tiny_model
tiny = use_tiny_model()
tiny.__enter__()
"""


@pytest.mark.slow
def test_quickstart_trains_and_ends_in_pictures(tmp_path, monkeypatch):
    """In a kernel of its own, as a user runs it, with fewer images and steps and a tiny network."""
    nbclient = pytest.importorskip("nbclient", reason="make test installs it")
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
    text = NOTEBOOK.read_text("utf-8")
    for passage, smaller in SMALLER.items():
        assert text.count(passage) == 1
        text = text.replace(passage, smaller)
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # It is stored without them.
    notebook.cells.insert(0, nbformat.v4.new_code_cell(TINY_MODEL))
    client = nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    printed = "".join(output.get("text", "") for cell in cells for output in cell.outputs)
    assert float(re.search(r"Test accuracy: ([\d.]+) %", printed)[1]) > 20
    assert "image/png" in cells[-1].outputs[-1].data


pytestmark = pytest.mark.usefixtures("tiny_model")


@pytest.fixture(autouse=True)
def no_reports(monkeypatch):
    """They take seconds. That `train` writes one is checked by `test_instant.py`."""
    monkeypatch.setattr(api, "draw_report", lambda run: None)


@pytest.fixture
def images(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return write_images(tmp_path / "photos", {"ant": 4, "bee": 4}, (8, 8))


def test_a_folder_is_trained_on_and_predicted(images):
    settings = {"data__image_size": 8, "data__pipeline": "device", "mesh__data": 1}
    settings |= {"data__randaugment_ops": 0, "num_steps": 2, "batch_size": 4}
    run = cls_jax.train("~/photos", "~/mine", method="supervised", **settings)
    assert run.workdir == images.parent / "mine"
    assert run.result["step"] == 2
    files = sorted(map(str, images.rglob("*.png")))
    expected = cls_jax.load("~/mine").predict(files)
    assert set(expected.label) <= {"ant", "bee"}
    for ours, theirs in zip(run.predict(map(Image.open, files)), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_configuration_is_trained_with_changes_and_stays_as_it_was(tmp_path):
    config = create_tiny_config("20,supervised")
    run = cls_jax.train(config, tmp_path / "run", num_steps=2, optimizer__learning_rate=0.01)
    assert (run.result["step"], run.result["method"]) == (2, "supervised")
    assert run.config.optimizer.learning_rate == 0.01
    assert config.num_steps == 6
    again = cls_jax.train(run.config, tmp_path / "run", log_every=2)  # It is frozen.
    assert again.result == run.result
    assert (again.config.log_every, again.config.optimizer.learning_rate) == (2, 0.01)
    with pytest.raises(cls_jax.UserError, match="mu=0 is invalid"):
        cls_jax.train(config, tmp_path / "other", mu=0)
    for option, value in (
        *(("method", "supervised"), ("start_from", run), ("instant", True)),
        *(("minutes", 0), ("again", True), ("backbone", "efficientnet_lite0")),
    ):
        with pytest.raises(cls_jax.UserError, match=f"^{option} is for folders of images"):
            cls_jax.train(config, **{option: value})


def test_mistakes_are_user_errors(images):
    for settings, remedy in (
        ({"data__sead": 1}, "has no key data.sead"),
        ({"data__image_size": "large"}, "data.image_size cannot be 'large'"),
        ({"method": "fixmatsch"}, "choose one of"),
    ):
        with pytest.raises(cls_jax.UserError, match=remedy):
            cls_jax.train(images, **settings)
    assert not (images.parent / "runs").exists()
