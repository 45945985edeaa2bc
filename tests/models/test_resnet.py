"""ResNet-18, and the Wide ResNet of the authors' code."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.models import ResNet18, WideResNet
from cls_jax.models.wide_resnet import Block

pytestmark = pytest.mark.usefixtures("whole_networks")


@pytest.fixture(scope="module")
def resnet():
    model = ResNet18(num_classes=10, stem="cifar", dropout_rate=0.5, extra_heads=(("rotation", 4),))
    return model, jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 4, 4, 3)))


@pytest.fixture(scope="module")
def apply(resnet):
    """The compiled network on two images: variables and the options of `model.apply` → logits."""
    x = jax.random.normal(jax.random.key(1), (2, 4, 4, 3))
    apply = jax.jit(resnet[0].apply, static_argnames=("dropout",))
    return lambda params, **options: apply({**resnet[1], "params": params}, x, **options)


def test_blocks_begin_as_their_shortcuts(resnet, apply):
    """What their convolutions compute does not reach the logits yet."""
    params = resnet[1]["params"]

    def change(path, leaf):
        return leaf + 0.1 if path[-2].key in ("conv1", "conv2") else leaf

    changed = jax.tree_util.tree_map_with_path(change, params)
    np.testing.assert_array_equal(apply(params), apply(changed))


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
