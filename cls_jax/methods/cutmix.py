"""CutMix (Yun et al., 2019) of unlabeled images: a box in each shows its partner.

Boxes and partners, and hence the loss, do not depend on the number of devices that share the
batch, as long as every device has an even number of images.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cls_jax.methods.losses import positive_cross_entropy


class Mix(NamedTuple):
    """Mixed images and their composition. B images on this device."""

    images: jax.Array  # float32 [B, H, W, C].
    share: jax.Array  # float32 [B] in [½, 1], the share that still shows the image itself.
    partner: np.ndarray  # int [B], index of the image that covers the rest.


def cutmix(key: jax.Array, images: jax.Array, index: jax.Array) -> Mix:
    """Pastes into each image [B, H, W, C] a box of its partner.

    Neighbors in the batch are partners. The stream's order is random, so this is a random pairing,
    and it needs no image of another device. If a device has an odd number of images, the last one
    is its own partner. The key is the same on all devices, and each image draws its box by its
    `index` in the training images, int32 [B].
    """
    partner = np.minimum(np.arange(len(images)) ^ 1, len(images) - 1)
    is_pasted = sample_boxes(key, index, images.shape[1], images.shape[2])
    mixed = jnp.where(is_pasted[..., None], images[partner], images)
    return Mix(mixed, 1 - jnp.mean(is_pasted, axis=(1, 2)), partner)


def sample_boxes(key: jax.Array, index: jax.Array, height: int, width: int) -> jax.Array:
    """Where the partner shows, bool [B, H, W]: a box of min(β, 1 - β) of the area, β ~ U(0, 1).

    The center is uniform, and the box is clipped at the border (the CutMix authors' code).
    """
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(index)
    beta, row, column = jax.vmap(lambda key: jax.random.uniform(key, (3,), jnp.float32))(keys).T
    side = jnp.sqrt(jnp.minimum(beta, 1 - beta))  # Relative to the image's.
    return _is_inside(row, side, height)[:, :, None] & _is_inside(column, side, width)[:, None, :]


def _is_inside(center: jax.Array, side: jax.Array, size: int) -> jax.Array:
    """Which of the pixels 0 to size - 1 are inside an interval of whole pixels, bool [B, size]."""
    half = jnp.floor(side * size) // 2
    middle = jnp.floor(center * size)
    pixels = jnp.arange(size)
    return (pixels >= (middle - half)[:, None]) & (pixels < (middle + half)[:, None])


def cutmix_loss(mix: Mix, logits: jax.Array, labels: jax.Array, weights: jax.Array) -> jax.Array:
    """Mean of λ · weight · CE(label) + (1 - λ) · partner's weight · CE(partner's label), [N].

    λ is the mix's share. The logits float32 [N, B, K] belong to the mixed images. The labels int32
    and weights float32 [N, B] belong to the images that were mixed.
    """
    own = mix.share * weights * positive_cross_entropy(logits, labels)
    partners = weights[:, mix.partner] * positive_cross_entropy(logits, labels[:, mix.partner])
    return jnp.mean(own + (1 - mix.share) * partners, axis=-1)
