"""ResNet-18, and the Wide ResNet of the authors' code."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.models import EfficientNetLite0, ResNet18, WideResNet
from cls_jax.models.wide_resnet import Block

pytestmark = pytest.mark.usefixtures("whole_networks")


@pytest.fixture(scope="module")
def resnet():
    model = ResNet18(num_classes=10, stem="cifar")
    return model, jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 4, 4, 3)))


def test_blocks_begin_as_their_shortcuts(resnet):
    """What their convolutions compute does not reach the logits yet."""
    model, variables = resnet

    def change(path, leaf):
        return leaf + 0.1 if path[-2].key in ("conv1", "conv2") else leaf

    changed = jax.tree_util.tree_map_with_path(change, variables)
    x, apply = jax.random.normal(jax.random.key(1), (2, 4, 4, 3)), jax.jit(model.apply)
    np.testing.assert_array_equal(apply(variables, x), apply(changed, x))


@pytest.mark.parametrize("module", [ResNet18, WideResNet, EfficientNetLite0])
def test_dropout_depends_on_its_key_and_only_where_asked_for(module):
    model, x = module(num_classes=3, dropout_rate=0.5), jnp.ones((2, 32, 32, 3))
    variables = jax.jit(model.init)(jax.random.key(0), x)
    variables = jax.tree.map(lambda leaf: leaf + 0.01, variables)  # Blocks begin as shortcuts.
    apply = jax.jit(model.apply, static_argnames="dropout")
    keys = [{"dropout": jax.random.key(i)} for i in range(2)]
    first, second = (apply(variables, x, dropout=True, rngs=key) for key in keys)
    assert np.abs(first - second).max() > 1e-3
    np.testing.assert_array_equal(apply(variables, x, rngs=keys[0]), apply(variables, x))


@pytest.fixture(scope="module")
def wide_resnet():
    model = WideResNet(num_classes=10, depth=10, width=2)
    return model, jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 8, 8, 3)))


def test_kernels_are_drawn_with_the_authors_deviations(wide_resnet):
    params = wide_resnet[1]["params"]
    kernel = params["stage3_block1"]["conv2"]["kernel"]  # 3 x 3, 128 channels out.
    np.testing.assert_allclose(kernel.std(), np.sqrt(2 / (9 * 128)), rtol=0.02)
    head = params["head"]["kernel"]  # Glorot: 2 / (in + out).
    np.testing.assert_allclose(head.std(), np.sqrt(2 / (128 + 10)), rtol=0.1)
    np.testing.assert_array_equal(params["head"]["bias"], 0)


@pytest.mark.parametrize("is_activated", [True, False])
def test_projections_of_stage_1_take_activated_inputs_and_others_raw_ones(is_activated):
    """As in the authors' code. Without its last convolution, a block is its shortcut."""
    model, x = WideResNet(num_classes=10), jax.random.normal(jax.random.key(1), (2, 4, 4, 3))
    settings = {"conv": model.conv_layer(), "norm": model.norm_layer(), "activation": nn.relu}
    block = Block(8, 1, is_activated, **settings, dropout_rate=0.0)
    variables = block.init(jax.random.key(0), x, False, False)
    params = variables["params"]
    params["conv2"]["kernel"] *= 0
    expected = (nn.relu(x) if is_activated else x) @ params["projection"]["kernel"][0, 0]
    np.testing.assert_allclose(block.apply(variables, x, False, False), expected, atol=1e-4)
