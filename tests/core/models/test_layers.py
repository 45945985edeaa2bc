"""The layers of architectures against Flax, XLA and published numbers."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from cls_jax import models
from cls_jax.models import MODELS, ResNet18, WideResNet, resnet
from cls_jax.models.convolutions import (
    LOWERINGS,
    DepthwiseConv,
    convolve,
    convolve_grouped,
    depthwise_conv,
    traced_for,
)
from cls_jax.models.efficientnet import LITE0, EfficientNetLite
from cls_jax.models.layers import BatchNorm, gelu, pool_descriptor, pool_stem
from cls_jax.models.wide_resnet import Block
from cls_jax.parallel.mesh import DATA_AXIS, create_mesh
from tests.outcomes import assert_close

pytestmark = pytest.mark.usefixtures("whole_networks")


def create_abstract(model, size):
    images = jax.ShapeDtypeStruct((2, size, size, 3), jnp.float32)
    return images, jax.eval_shape(model.init, jax.random.key(0), images)


@pytest.mark.parametrize(
    ("model", "size", "expected"),
    [  # The paper's, torchvision's and timm's.
        (WideResNet(10), 32, 1_467_610),
        pytest.param(WideResNet(100, width=8), 32, 23_401_012, marks=pytest.mark.slow),
        (WideResNet(10, stem="imagenet"), 32, 1_467_610 + (49 - 9) * 3 * 16),
        *((ResNet18(1000), 224, 11_689_512), (MODELS["vit_tiny"].create(1000), 224, 5_717_416)),
        pytest.param(MODELS["vit_small"].create(1000), 224, 22_050_664, marks=pytest.mark.slow),
        pytest.param(MODELS["vit_base"].create(1000), 224, 86_567_656, marks=pytest.mark.slow),
        (MODELS["mobilenetv4_conv_medium"].create(1000), 64, 9_715_512),
        (MODELS["convnext_nano"].create(1000), 64, 15_593_560),
    ],
)
def test_numbers_of_parameters_are_the_published_ones(model, size, expected):
    _, variables = create_abstract(model, size)
    assert models.count_parameters(variables["params"]) == expected


@pytest.mark.parametrize(
    ("stem", "size", "expected"), [("cifar", 32, 32), ("small", 64, 32), ("imagenet", 224, 56)]
)
@pytest.mark.parametrize("module", [ResNet18, WideResNet])
def test_stem_suits_the_images_and_leaves_the_blocks_as_many_pixels(module, stem, size, expected):
    stems = [models.resolve_stem("auto", size) for size in (47, 48, 95, 96)]
    assert stems == ["cifar", "small", "small", "imagenet"]
    assert models.resolve_stem("cifar", size) == "cifar"
    model = module(num_classes=5, stem=stem)
    images, variables = create_abstract(model, size)
    _, state = jax.eval_shape(
        lambda v, x: model.apply(v, x, capture_intermediates=True, mutable=["intermediates"]),
        variables,
        images,
    )
    (block,) = state["intermediates"]["stage1_block1"]["__call__"]
    assert block.shape[1:3] == (expected, expected)


@pytest.mark.parametrize("size", [7, 8])
def test_maxima_equal_flax_and_have_its_gradient(size):
    x = jax.random.normal(jax.random.key(0), (2, size, size, 3))
    options = {"window_shape": (3, 3), "strides": (2, 2), "padding": ((1, 1), (1, 1))}
    pools = functools.partial(pool_stem, "imagenet"), functools.partial(nn.max_pool, **options)
    np.testing.assert_allclose(*(pool(x) for pool in pools), rtol=1e-6)
    slopes = (jax.grad(lambda x, pool=pool: jnp.sum(jnp.sin(pool(x))))(x) for pool in pools)
    np.testing.assert_allclose(*slopes, rtol=1e-6)


def test_descriptors_are_generalized_means_weighted_by_a_gaussian():
    x = np.random.default_rng(0).normal(size=(2, 5, 7, 3)).astype(np.float32)
    rows = (np.arange(5) - 2) / 5
    columns = (np.arange(7) - 3) / 7
    weights = np.exp(-(rows[:, None] ** 2 + columns**2) / (2 * 0.35**2))
    weights /= weights.sum()
    expected = np.cbrt((weights[..., None] * np.maximum(x, 0) ** 3).sum(axis=(1, 2)))
    np.testing.assert_allclose(pool_descriptor(jnp.asarray(x)), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(jnp.float32, 1e-7), (jnp.bfloat16, jnp.finfo(jnp.bfloat16).eps)]
)
def test_gelu_is_the_exact_one_and_can_be_differentiated_on_a_mesh(dtype, tolerance):
    def differentiate(function, x, weights):
        outputs, pull_back = jax.vjp(function, x)
        return outputs, *pull_back(weights)

    x = jnp.concatenate([jnp.linspace(-15, 15, 4001), jnp.linspace(-1e-3, 1e-3, 99)]).astype(dtype)
    weights = jnp.where(jnp.arange(x.size) % 2, 1, -1).astype(dtype)
    outputs, gradients = jax.jit(
        jax.shard_map(
            functools.partial(differentiate, gelu),
            mesh=create_mesh(1, [4], network=1, data=4),
            in_specs=P(DATA_AXIS),
            out_specs=P(DATA_AXIS),
        )
    )(x, weights)
    exact = functools.partial(jax.nn.gelu, approximate=False)
    expected = jax.jit(functools.partial(differentiate, exact))(x, weights)
    assert outputs.dtype == gradients.dtype == dtype
    np.testing.assert_array_equal(outputs, expected[0])
    assert_close(gradients, expected[1], rtol=tolerance, atol=tolerance)


@pytest.fixture
def narrow_resnet(monkeypatch):
    """Stages of ResNets have few channels."""
    monkeypatch.setattr(resnet, "_STAGES", ((8, 1), (16, 2)))
    return functools.partial(ResNet18, blocks_per_stage=(1, 1))


def test_blocks_begin_as_their_shortcuts(narrow_resnet):
    """What their convolutions compute does not reach the logits yet."""
    model = narrow_resnet(num_classes=10, stem="cifar")
    variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 4, 4, 3)))

    def change(path, leaf):
        return leaf + 0.1 if path[-2].key in ("conv1", "conv2") else leaf

    changed = jax.tree_util.tree_map_with_path(change, variables)
    x, apply = jax.random.normal(jax.random.key(1), (2, 4, 4, 3)), jax.jit(model.apply)
    np.testing.assert_array_equal(apply(variables, x), apply(changed, x))


@pytest.mark.parametrize(
    "module",
    [
        None,
        functools.partial(WideResNet, depth=10, width=1),
        functools.partial(EfficientNetLite, table=LITE0[:2]),
    ],
    ids=["resnet", "wide_resnet", "efficientnet"],
)
def test_dropout_depends_on_its_key_and_only_where_asked_for(narrow_resnet, module):
    model = (module or narrow_resnet)(num_classes=3, dropout_rate=0.5)
    x = jnp.ones((2, 16, 16, 3))
    variables = jax.jit(model.init)(jax.random.key(0), x)
    variables = jax.tree.map(lambda leaf: leaf + 0.01, variables)  # Blocks begin as shortcuts.
    apply = jax.jit(model.apply, static_argnames="dropout")
    keys = [{"dropout": jax.random.key(i)} for i in range(2)]
    first, second = (apply(variables, x, dropout=True, rngs=key) for key in keys)
    assert np.abs(first - second).max() > 1e-3
    np.testing.assert_array_equal(apply(variables, x, rngs=keys[0]), apply(variables, x))


def test_kernels_are_drawn_with_the_authors_deviations():
    model = WideResNet(num_classes=10, depth=10, width=2)
    params = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 8, 8, 3)))["params"]
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


OURS = BatchNorm(epsilon=1e-5)
FLAX = nn.BatchNorm(momentum=0.0, epsilon=1e-5)
X = 2.0 + 3.0 * jax.random.normal(jax.random.key(0), (6, 4, 4, 5))


@pytest.fixture(scope="module")
def variables():
    variables, theirs = (norm.init(jax.random.key(1), X, False) for norm in (OURS, FLAX))
    assert_close(variables, theirs)
    # Away from ones and zeros, which would hide a factor.
    return jax.tree.map(lambda leaf: leaf + jnp.linspace(0.5, 1.0, 5), variables)


def compute(norm, variables, x, use_running_average):
    """Output, running statistics, and the gradients of a loss by parameters and images."""

    def loss(params, x):
        y, updated = norm.apply(
            {**variables, "params": params},
            x,
            use_running_average=use_running_average,
            mutable=["batch_stats"],
        )
        return jnp.sum(jnp.sin(y)), (y, updated)

    (_, rest), gradients = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(
        variables["params"], x
    )
    return rest, gradients


@pytest.mark.parametrize("use_running_average", [False, True])
def test_output_statistics_and_gradients_are_flaxs(variables, use_running_average):
    ours, theirs = (compute(norm, variables, X, use_running_average) for norm in (OURS, FLAX))
    assert_close(ours, theirs, rtol=1e-5, atol=5e-6)


def test_frozen_statistics_normalize_in_training_and_stay(variables):
    frozen = compute(OURS.clone(frozen=True), variables, X, False)
    jax.tree.map(np.testing.assert_array_equal, frozen, compute(OURS, variables, X, True))
    _, updated = frozen[0]
    jax.tree.map(np.testing.assert_array_equal, updated["batch_stats"], variables["batch_stats"])


@pytest.mark.parametrize("is_centered", [False, True])
def test_gradient_exists_for_stacked_rematerialized_and_spread_networks(is_centered):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 4, 5, 6, 3)).astype(np.float32)
    filters = rng.normal(size=(2, 3, 3, 1, 3)).astype(np.float32)

    def compute_gradients(convolve, x, filters):
        apply = jax.checkpoint(lambda x, filters: convolve(x, filters, 2, is_centered))
        loss = lambda x, filters: jnp.sum(jnp.sin(jax.vmap(apply)(x, filters)))  # noqa: E731
        return jax.grad(loss, argnums=(0, 1))(x, filters)

    spread = jax.shard_map(
        lambda x, filters: compute_gradients(depthwise_conv, x, filters),
        mesh=create_mesh(2, [4], network=2, data=2),
        in_specs=(P("network", "data"), P("network")),  # As in a step.
        out_specs=(P("network", "data"), P("network")),
    )
    expected = compute_gradients(convolve_grouped, x, filters)
    for gradients in (compute_gradients(depthwise_conv, x, filters), jax.jit(spread)(x, filters)):
        assert_close(gradients, expected, rtol=1e-4, atol=1e-5)


def convolve_and_pull(convolve, x, filters, stride, is_centered=False):
    """The convolved images and the gradients of both arguments, for an arbitrary gradient."""
    y, pull = jax.vjp(lambda x, filters: convolve(x, filters, stride, is_centered), x, filters)
    y_bar = jnp.cos(jnp.arange(y.size)).reshape(y.shape)
    return y, pull(y_bar.astype(jnp.bfloat16).astype(y.dtype))


@pytest.mark.parametrize(("stride", "is_centered"), [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize(
    ("k", "dtype"), [(3, jnp.float32), (5, jnp.float32), (7, jnp.float32), (3, jnp.bfloat16)]
)
def test_every_platform_convolves_channels_alike(dtype, k, stride, is_centered):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 10, 9, 6)).astype(dtype)
    filters = rng.normal(size=(k, k, 1, 6)).astype(dtype)
    # Of the same numbers, so that only sums are rounded differently.
    wide = x.astype(np.float32), filters.astype(np.float32)
    compute = jax.jit(
        functools.partial(convolve_and_pull, stride=stride, is_centered=is_centered),
        static_argnums=0,
    )
    expected = compute(convolve_grouped, *wide)
    tolerance = 1e-5 if dtype == jnp.float32 else 2e-2
    scale = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected))
    for lowering in LOWERINGS.values():
        found = compute(functools.partial(convolve, lowering=lowering), x, filters)
        assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype(dtype)}
        found = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), found)
        assert_close(found, expected, rtol=tolerance, atol=tolerance * scale)


def test_remat_does_not_compute_depthwise_convolutions_again():
    class DepthwiseBlock(nn.Module):
        @nn.compact
        def __call__(self, x):
            return jnp.sin(DepthwiseConv(kernel_size=3)(jnp.sin(x)))

    def count_products(remat):
        block = WideResNet(10, remat=remat).block_layer(DepthwiseBlock, train=True)()
        loss = lambda variables, x: jnp.sum(jnp.sin(block.apply(variables, x)))  # noqa: E731
        x = jnp.ones((2, 5, 5, 3))
        variables = block.init(jax.random.key(0), x)
        text = jax.jit(jax.grad(loss)).lower(variables, x).as_text()
        return text.count("stablehlo.multiply")

    assert count_products(remat=True) == count_products(remat=False)


def test_a_centered_kernel_of_even_size_is_refused():
    with pytest.raises(ValueError, match="odd size, and not 4"):
        depthwise_conv(jnp.ones((2, 5, 5, 3)), jnp.ones((4, 4, 1, 3)), 1, is_centered=True)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_depthwise_convolution_is_one_on_a_gpu_only_where_it_is_tuned(stride):
    """And its gradient never. Lowered for platforms that this machine does not have."""
    x, filters = jnp.zeros((2, 8, 8, 16)), jnp.zeros((3, 3, 1, 16))
    pull = lambda x, filters: convolve_and_pull(depthwise_conv, x, filters, stride)[1]  # noqa: E731
    forward = lambda x, filters: depthwise_conv(x, filters, stride)  # noqa: E731

    def count(function, platform):
        traced = jax.jit(lambda *given: function(*given)).trace(x, filters)
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        return text.count("stablehlo.convolution"), text.count("feature_group_count = 16")

    for platform in ("cuda", "rocm", "tpu", "cpu"):
        assert count(forward, platform) == count(pull, platform) == (0, 0)
    with traced_for("tuned"):
        for platform in ("cuda", "rocm", "tpu"):
            assert count(forward, platform) == (1, 1)
            assert count(pull, platform) == (0, 0)
        assert count(forward, "cpu") == (0, 0)
