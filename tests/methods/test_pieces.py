"""Pieces of losses: alignment, CutMix, MixUp, and logarithms where a probability is 0 or 1.

The losses themselves, with given draws, are compared with NumPy in `test_oracles.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.batch import DatasetSpec
from cls_jax.methods import METHODS, alignment
from cls_jax.methods import cutmix as cutmix_lib
from cls_jax.methods.losses import (
    MIN_PROBABILITY,
    compute_entropy,
    log_one_minus_softmax,
    make_pseudo_labels,
)
from cls_jax.methods.mixmatch import mixup, sharpen
from tests.methods.oracles import softmax

K = 5
UNEQUAL = [0.5, 0.2, 0.1, 0.15, 0.05]


def test_alignment_keeps_probabilities_of_zero_finite():
    logits = np.random.default_rng(0).normal(0, 1e5, (1, 20, K)).astype(np.float32)
    means = np.float32([[1.0, 0, 0, 0, 0]])
    aligned = np.asarray(jax.nn.softmax(alignment.align(logits, means, means[:, ::-1])))
    assert np.all(np.isfinite(aligned))
    np.testing.assert_array_equal(aligned.argmax(-1), logits.argmax(-1))


@pytest.mark.parametrize(
    ("name", "align_to", "start"),
    [
        ("softmatch", "labels", UNEQUAL),
        ("softmatch", "uniform", [1 / K] * K),
        ("adamatch", "predicted", [1 / K] * K),
        ("cls_plus", None, UNEQUAL),
    ],
)
def test_means_start_at_the_target_so_that_alignment_begins_as_the_identity(name, align_to, start):
    spec = DatasetSpec((1, 1, 1), K, 30, 27, UNEQUAL)
    state = METHODS[name].create_state({"align_to": align_to}, spec)
    for leaf in ("target", "predicted"):
        np.testing.assert_allclose(state[leaf], start, rtol=1e-6)


KEY = jax.random.key(0)
sample_boxes = jax.jit(cutmix_lib.sample_boxes, static_argnums=(2, 3))


def test_mixed_image_is_share_itself_and_the_rest_its_partner():
    """Every pixel of image i has the value i. Images need not be square."""
    images = jnp.broadcast_to(jnp.arange(6.0)[:, None, None, None], (6, 8, 12, 1))
    mix = jax.jit(cutmix_lib.cutmix)(KEY, images, jnp.arange(6))
    np.testing.assert_array_equal(mix.partner, [1, 0, 3, 2, 5, 4])
    for i, image in enumerate(np.asarray(mix.images)):
        assert set(np.unique(image)) <= {i, int(mix.partner[i])}
        np.testing.assert_allclose(np.mean(image == i), mix.share[i], atol=1e-6)
    assert np.any(mix.share < 1)


def test_every_pixel_is_pasted_about_equally_often_and_shares_are_at_least_one_half():
    boxes = np.asarray(sample_boxes(KEY, jnp.arange(4000), 32, 32))
    share = 1 - boxes.mean((1, 2))
    assert share.min() >= 0.5 - 1e-6
    # Uncut boxes have a quarter of the area on average. What the border cuts off is less than half.
    assert 0.75 < share.mean() < 0.875
    np.testing.assert_allclose(boxes.mean(0), boxes.mean(0)[::-1, ::-1], atol=0.04)


def test_an_images_box_depends_on_the_image_and_not_on_its_place():
    """So the loss does not depend on how many devices share the batch."""
    index = jnp.array([7, 3, 11, 5])
    boxes = sample_boxes(KEY, index, 16, 16)
    np.testing.assert_array_equal(boxes[::-1], sample_boxes(KEY, index[::-1], 16, 16))
    assert np.any(boxes != sample_boxes(KEY, index + 1, 16, 16))
    assert np.any(boxes != sample_boxes(jax.random.key(1), index, 16, 16))


@pytest.mark.parametrize("gap", [0.0, 1.0, 10.0, 15.0, 20.0, 100.0, 1e4])
def test_log_one_minus_p_is_exact_and_its_gradient_finite_up_to_saturation(gap):
    logits = np.array([gap, 0.0, -1.0])
    rest = softmax(logits)[1:].sum()  # 1 - p without cancellation.
    value = log_one_minus_softmax(jnp.asarray(logits, jnp.float32))
    np.testing.assert_allclose(value[0], np.log(max(rest, MIN_PROBABILITY)), rtol=1e-5)
    gradient = jax.jacobian(log_one_minus_softmax)(jnp.asarray(logits, jnp.float32))
    assert jnp.all(jnp.isfinite(value))
    assert jnp.all(jnp.isfinite(gradient))


def test_entropy_is_finite_with_finite_gradients_where_a_probability_underflows():
    logits = jnp.array([200.0, 0.0, -200.0])  # exp(-200) is 0 in float32.

    def entropy(logits):
        return compute_entropy(jax.nn.log_softmax(logits))

    assert jnp.exp(jax.nn.log_softmax(logits))[1] == 0
    assert entropy(logits) == 0
    assert jnp.all(jnp.isfinite(jax.grad(entropy)(logits)))


def test_weight_of_a_label_spans_zero_to_one_and_has_no_gradient():
    differentiate = jax.grad(lambda logits: make_pseudo_labels(logits).weight.sum())
    assert not np.any(differentiate(jnp.array([[2.0, 1.0, 0.0]])))
    assert make_pseudo_labels(jnp.array([[1000.0, 0.0, 0.0]])).weight == 1.0
    assert 0 <= make_pseudo_labels(jnp.zeros((1, 3))).weight < 1e-6  # Rounding goes below 0.


@pytest.mark.parametrize("alpha", [0.1, 0.75, 5.0])
def test_images_and_targets_are_mixed_alike_across_groups(alpha):
    """With one-hot images the mixture can be read off, at least half of which is the image."""
    images = jnp.eye(1000).reshape(1000, 20, 50, 1)
    split = [images[:300], images[300:]]
    targets = [group.reshape(1, len(group), 1000) for group in split]
    mixed, mixed_targets = mixup(jax.random.key(3), split, targets, alpha)
    assert [len(group) for group in mixed] == [300, 700]
    rows = np.concatenate(mixed).reshape(1000, 1000)
    np.testing.assert_allclose(rows, np.concatenate(mixed_targets, axis=1)[0], atol=1e-6)
    np.testing.assert_allclose(rows.sum(axis=1), 1, atol=1e-6)
    assert rows[:300, 300:].sum() > 0  # Labeled images meet unlabeled ones.
    own = np.diag(rows)
    assert own.min() >= 0.5
    # λ ~ Beta(α, α) has the variance 1 / (4 (2α + 1)), as has λ' around ½.
    np.testing.assert_allclose(np.mean((own - 0.5) ** 2), 1 / (8 * alpha + 4), rtol=0.1)
    other, _ = mixup(jax.random.key(4), split, targets, alpha)
    assert np.any(other[0] != mixed[0])


def test_sharpening_survives_zero():
    p = np.array([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0]])
    expected = p**2 / (p**2).sum(-1, keepdims=True)
    np.testing.assert_allclose(sharpen(jnp.asarray(p), 0.5), expected, atol=1e-6)
