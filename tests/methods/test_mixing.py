"""What MixMatch and ReMixMatch are made of: draws, interleaving, rotations.

Their losses, with given draws, are compared in `test_oracles.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.methods import METHODS
from cls_jax.methods.mixmatch import (
    interleave,
    mixup,
    rotate_quarters,
    sample_lambda,
    sharpen,
)
from tests.methods.oracles import interleave_rows


@pytest.mark.parametrize("alpha", [0.1, 0.75, 5.0])
def test_every_image_keeps_at_least_half_of_itself(alpha):
    share = sample_lambda(jax.random.key(0), 2000, alpha)
    assert share.min() >= 0.5
    assert share.max() <= 1.0
    # λ ~ Beta(α, α) has the variance 1 / (4 (2α + 1)), as has λ' around ½.
    np.testing.assert_allclose(jnp.mean((share - 0.5) ** 2), 1 / (8 * alpha + 4), rtol=0.1)


def test_images_and_targets_are_mixed_alike_across_groups():
    """With one-hot images the mixture can be read off."""
    images = jnp.eye(12).reshape(12, 3, 4, 1)
    targets = jnp.eye(12)[None]
    groups = [(images[:4], targets[:, :4]), (images[4:], targets[:, 4:])]
    mixed = mixup(jax.random.key(3), groups, 0.75)
    assert [len(group[0]) for group in mixed] == [4, 8]
    for (image, target), start in zip(mixed, (0, 4), strict=True):
        np.testing.assert_allclose(image.reshape(len(image), 12), target[0], atol=1e-6)
        np.testing.assert_allclose(target.sum(-1), 1, atol=1e-6)
        own = target[0][np.arange(len(image)), start + np.arange(len(image))]
        assert own.min() >= 0.5
    crossing = np.asarray(mixed[0][1][0][:, 4:]).sum()
    assert crossing > 0  # Labeled images meet unlabeled ones.


def test_draws_depend_on_the_key():
    images, targets = jnp.arange(8.0).reshape(8, 1, 1, 1), jnp.ones((1, 8, 3))
    first, second = (mixup(jax.random.key(i), [(images, targets)], 0.75)[0][0] for i in range(2))
    assert np.any(np.asarray(first) != np.asarray(second))


def test_sharpening_is_the_power_and_survives_zero():
    p = np.array([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0]])
    expected = p**2 / (p**2).sum(-1, keepdims=True)
    np.testing.assert_allclose(sharpen(jnp.asarray(p), 0.5), expected, atol=1e-6)


@pytest.mark.parametrize("sizes", [(6, 6, 6), (7, 7, 7), (5, 5, 5, 5), (4, 9, 9)])
def test_interleaving_equals_googles_and_can_be_undone(sizes):
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    chunks = interleave([jnp.asarray(group)[:, None] for group in rows], sizes)
    for chunk, expected in zip(chunks, interleave_rows(sizes), strict=True):
        np.testing.assert_array_equal(chunk[:, 0], expected)
    logits = [jnp.stack([chunk, -chunk]) for chunk in chunks]  # [N, rows, K].
    for group, expected in zip(interleave(logits, sizes, axis=1, inverse=True), rows, strict=True):
        np.testing.assert_array_equal(group[0, :, 0], expected)
        np.testing.assert_array_equal(group[1, :, 0], -expected)


@pytest.mark.parametrize("num_images", [1, 6, 8, 13])
def test_quarters_of_the_batch_are_rotated_by_what_their_labels_say(num_images):
    images = np.random.default_rng(0).normal(size=(num_images, 3, 3, 2))
    rotated, turns = rotate_quarters(jnp.asarray(images, jnp.float32))
    for image, original, k in zip(rotated, images, turns, strict=True):
        np.testing.assert_allclose(image, np.rot90(original, int(k)), rtol=1e-6)
    counts = np.bincount(turns, minlength=4)
    assert counts.max() - counts.min() <= 1


def test_the_rotation_head_has_a_class_for_each_quarter_turn():
    assert METHODS["remixmatch"].get_extra_heads({}, 10) == (("rotation", 4, False, True),)
