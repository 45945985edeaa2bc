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


def test_dropout_heads_and_determinism(resnet, apply):
    model, variables = resnet
    # Blocks begin as their shortcuts.
    params = jax.tree.map(lambda leaf: leaf + 0.1, variables["params"])
    np.testing.assert_array_equal(apply(params), apply(params))
    dropped = [apply(params, dropout=True, rngs={"dropout": jax.random.key(i)}) for i in (0, 1)]
    assert np.abs(dropped[0] - dropped[1]).max() > 1e-3
    images = jax.ShapeDtypeStruct((2, 4, 4, 3), jnp.float32)
    rotation = jax.eval_shape(lambda v, x: model.apply(v, x, head="rotation"), variables, images)
    assert rotation.shape == (2, 4)


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


def test_first_norm_of_stages_2_and_3_is_dead_and_all_else_alive(wide_resnet):
    model, variables = wide_resnet
    x = jax.random.normal(jax.random.key(1), (4, 8, 8, 3))

    def loss(params):
        logits, _ = model.apply(
            {**variables, "params": params}, x, train=True, mutable=["batch_stats"]
        )
        return jnp.sum(jnp.sin(logits))

    gradients = jax.tree_util.tree_leaves_with_path(jax.jit(jax.grad(loss))(variables["params"]))
    dead = {path[0].key + "/" + path[1].key for path, leaf in gradients if not np.any(leaf)}
    assert dead == {"stage2_block1/norm1", "stage3_block1/norm1"}


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


def test_depth_that_is_not_6n_plus_4_is_refused():
    with pytest.raises(ValueError, match="6n \\+ 4"):
        WideResNet(num_classes=10, depth=12).init(jax.random.key(0), jnp.zeros((1, 8, 8, 3)))
