"""What similar images are found by, beside the features that the heads see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.models import FEATURES, MODELS
from cls_jax.models.layers import DESCRIPTORS, pool_descriptor
from cls_jax.models.vit import VisionTransformer


def test_descriptors_are_generalized_means_weighted_by_a_gaussian():
    x = np.random.default_rng(0).normal(size=(2, 5, 7, 3)).astype(np.float32)
    rows = (np.arange(5) - 2) / 5
    columns = (np.arange(7) - 3) / 7
    weights = np.exp(-(rows[:, None] ** 2 + columns**2) / (2 * 0.35**2))
    weights /= weights.sum()
    expected = np.cbrt((weights[..., None] * np.maximum(x, 0) ** 3).sum(axis=(1, 2)))
    np.testing.assert_allclose(pool_descriptor(jnp.asarray(x)), expected, rtol=1e-5)


def test_what_is_in_the_middle_counts_more():
    middle, corner = np.zeros((2, 1, 7, 7, 1), np.float32)
    middle[0, 3, 3], corner[0, 0, 0] = 1, 1
    assert pool_descriptor(jnp.asarray(middle)) > 1.5 * pool_descriptor(jnp.asarray(corner))


@pytest.mark.parametrize("name", ["wide_resnet", "vit"])
def test_descriptors_stand_beside_the_features(name, one_block):
    if name == "vit":
        model = VisionTransformer(num_classes=3, width=12, depth=1, num_heads=3)
    else:
        model = MODELS[name].create(num_classes=3)
    images = np.random.default_rng(0).random((2, 32, 32, 3), np.float32)
    variables = jax.jit(model.init)(jax.random.key(0), images)
    apply = jax.jit(model.apply, static_argnames="head")
    features = apply(variables, images, head=FEATURES)
    same, descriptors = np.split(apply(variables, images, head=DESCRIPTORS), 2, axis=1)
    np.testing.assert_allclose(same, features, rtol=1e-5, atol=1e-6)
    # A vision transformer does not pool.
    assert np.allclose(descriptors, features, rtol=1e-3) == (name == "vit")
