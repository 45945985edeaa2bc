"""ResNet-18 and the stems of all architectures."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.methods import get_method
from cls_jax.models import MODELS, STEMS, ResNet18, WideResNet, count_parameters, resolve_stem
from cls_jax.models.layers import Head, pool_stem
from cls_jax.training.setup import create_model
from tests.conftest import create_tiny_config

pytestmark = pytest.mark.usefixtures("whole_networks")


def create_abstract(model, size):
    images = jax.ShapeDtypeStruct((2, size, size, 3), jnp.float32)
    return images, jax.eval_shape(model.init, jax.random.key(0), images)


def get_shapes(model, size):
    """Shapes of what leaves every module, by its name."""
    images, variables = create_abstract(model, size)
    _, state = jax.eval_shape(
        lambda v, x: model.apply(v, x, capture_intermediates=True, mutable=["intermediates"]),
        variables,
        images,
    )
    return {
        name: module["__call__"][0].shape
        for name, module in state["intermediates"].items()
        if name != "__call__"
    }


def test_parameter_count_is_torchvisions():
    _, variables = create_abstract(ResNet18(num_classes=1000), 224)
    assert count_parameters(variables["params"]) == 11_689_512


@pytest.mark.parametrize(
    ("stem", "size", "expected"),
    [("cifar", 32, 32), ("small", 64, 32), ("imagenet", 224, 56)],
)
@pytest.mark.parametrize("module", [ResNet18, WideResNet])
def test_stem_leaves_the_blocks_as_many_pixels(module, stem, size, expected):
    shapes = get_shapes(module(num_classes=5, stem=stem), size)
    assert shapes["stage1_block1"][1:3] == (expected, expected)
    assert shapes["head"] == (2, 5)


@pytest.mark.parametrize(
    ("size", "expected"),
    [(32, "cifar"), (48, "small"), (64, "small"), (96, "imagenet"), (224, "imagenet")],
)
def test_automatic_stem_suits_the_images(size, expected):
    assert resolve_stem("auto", size) == expected
    assert resolve_stem("cifar", size) == "cifar"


def test_wide_resnet_keeps_its_parameters_whatever_the_stem():
    counts = {}
    for stem in STEMS:
        _, variables = create_abstract(WideResNet(num_classes=10, stem=stem), 32)
        counts[stem] = count_parameters(variables["params"])
    assert counts["cifar"] == counts["small"] == 1_467_610
    assert counts["imagenet"] == 1_467_610 + (49 - 9) * 3 * 16


@pytest.mark.parametrize("module", [ResNet18, WideResNet])
def test_bfloat16_keeps_parameters_statistics_and_logits_in_float32(module):
    model = module(num_classes=10, stem="cifar", dtype=jnp.bfloat16)
    images, variables = create_abstract(model, 32)
    logits, updated = jax.eval_shape(
        lambda v, x: model.apply(v, x, train=True, mutable=["batch_stats"]), variables, images
    )
    leaves = jax.tree.leaves((variables, updated, logits))
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype("float32")}


@pytest.fixture(scope="module")
def small():
    model = ResNet18(
        num_classes=10, stem="cifar", dropout_rate=0.5, extra_heads=(Head("rotation", 4),)
    )
    return model, jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 4, 4, 3)))


@pytest.fixture(scope="module")
def apply(small):
    """The compiled network on two images: variables and the options of `model.apply` → logits."""
    x = jax.random.normal(jax.random.key(1), (2, 4, 4, 3))
    apply = jax.jit(small[0].apply, static_argnames=("dropout",))
    return lambda params, **options: apply({**small[1], "params": params}, x, **options)


def test_dropout_heads_and_determinism(small, apply):
    model, variables = small
    # Blocks begin as their shortcuts.
    params = jax.tree.map(lambda leaf: leaf + 0.1, variables["params"])
    np.testing.assert_array_equal(apply(params), apply(params))
    dropped = [apply(params, dropout=True, rngs={"dropout": jax.random.key(i)}) for i in (0, 1)]
    assert np.abs(dropped[0] - dropped[1]).max() > 1e-3
    images = jax.ShapeDtypeStruct((2, 4, 4, 3), jnp.float32)
    rotation = jax.eval_shape(lambda v, x: model.apply(v, x, head="rotation"), variables, images)
    assert rotation.shape == (2, 4)


def test_blocks_begin_as_their_shortcuts(small, apply):
    """What their convolutions compute does not reach the logits yet."""
    params = small[1]["params"]

    def change(path, leaf):
        return leaf + 0.1 if path[-2].key in ("conv1", "conv2") else leaf

    changed = jax.tree_util.tree_map_with_path(change, params)
    np.testing.assert_array_equal(apply(params), apply(changed))


@pytest.mark.parametrize("size", [7, 8])
def test_maxima_equal_flax_and_have_its_gradient(size):
    x = jax.random.normal(jax.random.key(0), (2, size, size, 3))

    def pool(x):
        return nn.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))

    def differentiate(pool):
        return jax.grad(lambda x: jnp.sum(jnp.sin(pool(x))))(x)

    ours = functools.partial(pool_stem, "imagenet")
    np.testing.assert_allclose(ours(x), pool(x), rtol=1e-6)
    np.testing.assert_allclose(differentiate(ours), differentiate(pool), rtol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_configuration_chooses_the_architecture(name):
    config = create_tiny_config(model__name=name, model__stem="auto", data__image_size=112)
    model = create_model(config, get_method("cls"), 10)
    assert type(model) is type(MODELS[name].create(num_classes=10))
    assert "stem" not in MODELS[name].keys or model.stem == "imagenet"
