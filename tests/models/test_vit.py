"""Vision transformers, which have no BatchNorm, in every kind of training step."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.errors import UserError
from cls_jax.methods import get_method
from cls_jax.models import MODELS, Entry, VisionTransformer, count_parameters
from cls_jax.models import vit as vit_lib
from cls_jax.models.weights.layout import VIT
from cls_jax.parallel.mesh import BATCH_SPECS, to_shardings
from cls_jax.training.loop import train
from cls_jax.training.setup import create_model, create_train_setup
from cls_jax.training.start import restore_run
from cls_jax.training.step import create_train_step
from tests.conftest import DATASET_SPEC, create_raw_batch, create_tiny_config


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("vit_tiny", 5_717_416), ("vit_small", 22_050_664), ("vit_base", 86_567_656)],
)
def test_parameter_count_is_timms(name, parameters):
    model = MODELS[name].create(num_classes=1000)
    images = jax.ShapeDtypeStruct((1, 224, 224, 3), np.float32)
    variables = jax.eval_shape(model.init, jax.random.key(0), images)
    assert count_parameters(variables["params"]) == parameters
    assert variables.keys() == {"params"}


def test_images_that_patches_do_not_divide_are_refused():
    config = create_tiny_config(model__name="vit_tiny", data__image_size=40)
    with pytest.raises(UserError, match="choose a multiple of 16"):
        create_model(config, get_method("cls"), 10)


@pytest.mark.parametrize("tokens", [16, 17])
def test_attention_on_an_nvidia_gpu_is_cudnns(monkeypatch, tokens):
    """Lowered for a GPU that this machine need not have. Elsewhere the same program has XLA's."""
    x = jnp.ones((2, tokens, 3, 64), jnp.bfloat16)
    expected = np.asarray(vit_lib.attend(x, x, x))
    fake = types.SimpleNamespace(cudnn_get_version=lambda: 91000)
    monkeypatch.setattr(vit_lib, "_has_cudnn", lambda: True)
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.cuda_versions", fake)
    differentiate = jax.jit(jax.grad(lambda x: jnp.sum(vit_lib.attend(x, x, x))))
    text = differentiate.trace(x).lower(lowering_platforms=("cuda",)).as_text()
    assert "__cudnn$fmhaSoftmaxBackward" in text
    assert np.isfinite(np.asarray(differentiate(x), np.float32)).all()
    np.testing.assert_array_equal(np.asarray(jax.jit(vit_lib.attend)(x, x, x)), expected)


def test_rematerialization_by_block_keeps_less_of_a_transformer_for_the_gradient():
    images = jax.ShapeDtypeStruct((8, 32, 32, 3), jnp.float32)
    sizes = {}
    for remat in (False, True):
        model = VisionTransformer(10, width=64, depth=6, num_heads=2, patch=4, remat=remat)
        params = jax.eval_shape(model.init, jax.random.key(0), images)

        def differentiate(params, images, model=model):
            _, pull_back = jax.vjp(lambda params: model.apply(params, images, train=True), params)
            return pull_back  # A pytree of what it kept.

        kept = jax.tree.leaves(jax.eval_shape(differentiate, params, images))
        sizes[remat] = sum(leaf.size * leaf.dtype.itemsize for leaf in kept)
    assert sizes[True] < 0.5 * sizes[False], sizes


@pytest.fixture
def tiny_vit(monkeypatch):
    """`model.name=vit_tiny` is one block on patches of 4 pixels."""
    tiny = functools.partial(VisionTransformer, width=16, depth=1, num_heads=2, patch=4)
    monkeypatch.setitem(MODELS, "vit_tiny", Entry(tiny, "tiny", VIT, patch=4))


@pytest.mark.usefixtures("tiny_vit")
def test_networks_without_batch_norm_train():
    config = create_tiny_config("20,remixmatch", model__name="vit_tiny", batch_size=4)
    setup = create_train_setup(config, DATASET_SPEC)
    assert jax.tree.leaves(setup.state_shapes.batch_stats) == []
    state = setup.init_state()
    before = jax.device_get(state.params)
    batch = create_raw_batch(config, len(setup.method.unlabeled_views))
    batch = jax.device_put(batch, to_shardings(setup.mesh, BATCH_SPECS))
    state, metrics = create_train_step(setup)(state, batch)
    assert np.isfinite(metrics["train/loss"])
    moved = jax.tree.map(lambda a, b: np.any(a != b), before, jax.device_get(state.params))
    assert all(any(jax.tree.leaves(moved[name])) for name in ("pos_embed", "block1", "head"))


@pytest.mark.usefixtures("tiny_vit")
def test_a_run_without_batch_norm_is_saved_and_restored(tmp_path):
    config = create_tiny_config("20,supervised", model__name="vit_tiny", num_steps=2)
    train(config, tmp_path / "run")
    _, state, step = restore_run(tmp_path / "run")
    assert step == 2
    assert np.isfinite(state.params["block1"]["attn"]["qkv"]["kernel"]).all()
