"""What architectures share: sizes, stems, types, heads, and descriptors of similar images."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.models import (
    MODELS,
    ResNet18,
    WideResNet,
    count_parameters,
    resolve_stem,
)
from cls_jax.models.layers import pool_descriptor, pool_stem

pytestmark = pytest.mark.usefixtures("whole_networks")


def create_abstract(model, size):
    images = jax.ShapeDtypeStruct((2, size, size, 3), jnp.float32)
    return images, jax.eval_shape(model.init, jax.random.key(0), images)


@pytest.mark.parametrize(
    ("model", "size", "expected"),
    [
        (WideResNet(10), 32, 1_467_610),  # The paper's.
        (WideResNet(100, width=8), 32, 23_401_012),  # The paper's.
        (WideResNet(10, stem="small"), 32, 1_467_610),
        (WideResNet(10, stem="imagenet"), 32, 1_467_610 + (49 - 9) * 3 * 16),
        (ResNet18(1000), 224, 11_689_512),  # torchvision's.
        *(
            (MODELS[name].create(1000), 224, count)  # timm's.
            for name, count in (
                ("vit_tiny", 5_717_416),
                ("vit_small", 22_050_664),
                ("vit_base", 86_567_656),
            )
        ),
    ],
)
def test_numbers_of_parameters_are_the_published_ones(model, size, expected):
    _, variables = create_abstract(model, size)
    assert count_parameters(variables["params"]) == expected


@pytest.mark.parametrize(
    ("stem", "size", "expected"), [("cifar", 32, 32), ("small", 64, 32), ("imagenet", 224, 56)]
)
@pytest.mark.parametrize("module", [ResNet18, WideResNet])
def test_stem_suits_the_images_and_leaves_the_blocks_as_many_pixels(module, stem, size, expected):
    stems = [resolve_stem("auto", size) for size in (47, 48, 95, 96)]
    assert stems == ["cifar", "small", "small", "imagenet"]
    assert resolve_stem("cifar", size) == "cifar"
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

    def pool(x):
        return nn.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))

    def differentiate(pool):
        return jax.grad(lambda x: jnp.sum(jnp.sin(pool(x))))(x)

    ours = functools.partial(pool_stem, "imagenet")
    np.testing.assert_allclose(ours(x), pool(x), rtol=1e-6)
    np.testing.assert_allclose(differentiate(ours), differentiate(pool), rtol=1e-6)


def test_descriptors_are_generalized_means_weighted_by_a_gaussian():
    x = np.random.default_rng(0).normal(size=(2, 5, 7, 3)).astype(np.float32)
    rows = (np.arange(5) - 2) / 5
    columns = (np.arange(7) - 3) / 7
    weights = np.exp(-(rows[:, None] ** 2 + columns**2) / (2 * 0.35**2))
    weights /= weights.sum()
    expected = np.cbrt((weights[..., None] * np.maximum(x, 0) ** 3).sum(axis=(1, 2)))
    np.testing.assert_allclose(pool_descriptor(jnp.asarray(x)), expected, rtol=1e-5)


@pytest.mark.parametrize("module", [ResNet18, WideResNet])
def test_bfloat16_keeps_parameters_statistics_and_logits_in_float32(module):
    model = module(num_classes=10, stem="cifar", dtype=jnp.bfloat16)
    images, variables = create_abstract(model, 32)
    logits, updated = jax.eval_shape(
        lambda v, x: model.apply(v, x, train=True, mutable=["batch_stats"]), variables, images
    )
    leaves = jax.tree.leaves((variables, updated, logits))
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype("float32")}
