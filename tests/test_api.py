"""Training and prediction from Python."""

import numpy as np
import pytest
from PIL import Image

import cls_jax
from tests.conftest import create_tiny_config
from tests.methods.tiny_model import tiny_model

__all__ = ["tiny_model"]
pytestmark = pytest.mark.usefixtures("tiny_model")


@pytest.fixture
def images(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name, level in {"dark": 20, "light": 200}.items():
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(4):
            Image.new("L", (8, 8), level + i).save(tmp_path / "photos" / name / f"{i}.png")
    return tmp_path / "photos"


def test_a_folder_is_trained_on_and_predicted(images):
    settings = {"data__image_size": 8, "data__pipeline": "device", "mesh__data": 1}
    settings |= {"data__randaugment_ops": 0, "num_steps": 2, "batch_size": 4}
    run = cls_jax.train("~/photos", "~/mine", method="supervised", **settings)
    assert run.workdir == images.parent / "mine"
    assert run.result["step"] == 2
    files = sorted(map(str, images.rglob("*.png")))
    expected = cls_jax.load("~/mine").predict(files)
    assert set(expected.label) <= {"dark", "light"}
    for ours, theirs in zip(run.predict(map(Image.open, files)), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_configuration_is_trained_with_changes_and_stays_as_it_was(tmp_path):
    config = create_tiny_config("20,supervised")
    run = cls_jax.train(config, tmp_path / "run", num_steps=2, optimizer__learning_rate=0.01)
    assert (run.result["step"], run.result["method"]) == (2, "supervised")
    assert cls_jax.load(run).config.optimizer.learning_rate == 0.01
    assert config.num_steps == 6
    with pytest.raises(cls_jax.UserError, match="mu=0 is invalid"):
        cls_jax.train(config, tmp_path / "other", mu=0)
    for option, remedy in (("start_from", "Set model__init instead"), ("again", "another workdir")):
        with pytest.raises(cls_jax.UserError, match=remedy):
            cls_jax.train(config, **{option: run})


def test_mistakes_are_user_errors(images):
    for settings, remedy in (
        ({"data__sead": 1}, "has no key data.sead"),
        ({"data__image_size": "large"}, "data.image_size cannot be 'large'"),
        ({"method": "fixmatsch"}, "choose one of"),
    ):
        with pytest.raises(cls_jax.UserError, match=remedy):
            cls_jax.train(images, **settings)
    assert not (images.parent / "runs").exists()
