"""CutMix: boxes, shares and partners."""

import jax
import jax.numpy as jnp
import numpy as np

from cls_jax.methods import cutmix as cutmix_lib

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
