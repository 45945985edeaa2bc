"""Heads from features before the first step and after the last one, across interruptions."""

import shutil

import pytest

from cls_jax.config import read_config
from cls_jax.errors import UserError
from cls_jax.photos.start import stages
from cls_jax.photos.start.stages import train_with_stages
from cls_jax.runs.checkpoint import Checkpointer
from cls_jax.runs.folder import CONFIG, read_mean_and_std
from cls_jax.training.loop import run_training
from tests.conftest import create_tiny_config, train_interrupted
from tests.outcomes import describe_difference, read_end


@pytest.mark.slow
def test_a_run_starts_from_another_and_resumes_exactly_without_it(trained_run, tmp_path):
    source, workdir = tmp_path / "source", tmp_path / "run"
    shutil.copytree(trained_run, source)
    config = create_tiny_config("20,fixmatch", model__init=str(source), data__mean=(), data__std=())
    config.model.init_head, config.model.final_head = "probe", "inferred"
    train_with_stages(config, tmp_path / "whole")
    train_interrupted(config, workdir, 3, train=train_with_stages)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "fit_final_heads", None)
        with pytest.raises(TypeError):
            train_with_stages(config, workdir)
    assert Checkpointer(workdir, 3).latest_step() == config.num_steps - 1
    assert read_config(workdir / CONFIG).model.init == str(source)
    assert read_mean_and_std(workdir) == ((0.3053,), (0.3186,))  # Of the source's configuration.
    shutil.rmtree(source)
    assert train_with_stages(config, workdir)[0]["step"] == config.num_steps
    assert not describe_difference(read_end(workdir), read_end(tmp_path / "whole"))
    with pytest.raises(UserError, match=r"set model\.init to a \.safetensors file"):
        train_with_stages(config, tmp_path / "new")


@pytest.mark.parametrize(
    "changes",
    [{"model__init_head": "probe"}, {"model__final_head": "inferred"}, {"method__inferred": 1.0}],
)
def test_the_core_alone_refuses_what_needs_features(changes, tmp_path):
    config = create_tiny_config(model__init="a.safetensors", data__mean=(0.5,), **changes)
    config.data.std = (0.5,)
    with pytest.raises(UserError, match=r"part of cls_jax\.photos: train with main\.py"):
        run_training(config, tmp_path)
