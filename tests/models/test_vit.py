"""Vision transformers, which have no BatchNorm, in every kind of training step."""

import functools

import jax
import numpy as np
import pytest

from cls_jax.errors import UserError
from cls_jax.methods import get_method
from cls_jax.models import MODELS, Entry, VisionTransformer
from cls_jax.models.weights.layout import VIT
from cls_jax.training.loop import train
from cls_jax.training.setup import create_model
from cls_jax.training.start import restore_run
from tests.conftest import create_tiny_config


def test_images_that_patches_do_not_divide_are_refused():
    config = create_tiny_config(model__name="vit_tiny", data__image_size=40)
    with pytest.raises(UserError, match="choose a multiple of 16"):
        create_model(config, get_method("cls"), 10)


def test_a_run_without_batch_norm_trains_and_is_restored(tmp_path, monkeypatch):
    tiny = functools.partial(VisionTransformer, width=16, depth=1, num_heads=2, patch=4)
    monkeypatch.setitem(MODELS, "vit_tiny", Entry(tiny, "tiny", VIT, patch=4))
    changes = {"model__name": "vit_tiny", "batch_size": 4, "num_steps": 2}
    train(create_tiny_config("20,remixmatch", **changes), tmp_path / "run")
    setup, state, step = restore_run(tmp_path / "run")
    assert step == 2
    assert jax.tree.leaves(state.batch_stats) == []
    start = jax.device_get(setup.init_state().params)
    moved = jax.tree.map(lambda a, b: np.isfinite(b).all() and np.any(a != b), start, state.params)
    assert all(any(jax.tree.leaves(moved[name])) for name in ("pos_embed", "block1", "head"))
