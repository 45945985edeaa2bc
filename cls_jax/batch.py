"""The data that flows from the input stream into a step: raw bytes, then normalized floats.

V views, B labeled and U = μB unlabeled images of H x W pixels and C channels.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# A NumPy or JAX array, or its counterpart in a tree of the same structure: a shape or a partition
# spec.
Leaf = Any
PyTree = Any  # Leaves in nested containers.


class DatasetSpec(NamedTuple):
    """The properties of a dataset that networks and a method's initial state depend on."""

    image_shape: tuple[int, int, int]  # (H, W, C).
    num_classes: int  # K.
    num_images: int  # Training images, which `Batch.u_index` counts.
    num_unlabeled: int = 0  # Those in the unlabeled stream.
    class_frequencies: tuple[float, ...] = ()  # Shares of the K classes in the labeled images.

    def split(self, labels: np.ndarray, num_unlabeled: int) -> "DatasetSpec":
        """A copy with the last two fields, given the labels int [m] of the labeled images."""
        counts = np.bincount(labels, minlength=self.num_classes)
        shares = tuple((counts / counts.sum()).tolist())
        return self._replace(num_unlabeled=num_unlabeled, class_frequencies=shares)


class RawBatch(NamedTuple):
    """The batch of one step as it travels to the device."""

    x: Leaf  # uint8 [B, H, W, C], the labeled view of labeled images.
    y: Leaf  # int32 [B], their classes.
    u: Leaf  # uint8 [V, U, H, W, C], each view of the unlabeled images.
    u_index: Leaf  # int32 [U], which training images they are.
    u_truth: Leaf  # int32 [U], their true classes, or -1 where unknown. Only monitors read it.


class Batch(NamedTuple):
    """The input of a method's loss."""

    x: jax.Array  # float32 [B, H, W, C], normalized.
    y: jax.Array  # int32 [B].
    u: jax.Array  # float32 [V, U, H, W, C], normalized.
    u_index: jax.Array  # int32 [U], which training images they are.
    mix: PyTree = None  # A `methods.cutmix.Mix` of the first view, for methods that want one.


def normalize(images: jax.Array, mean: Sequence[float], std: Sequence[float]) -> jax.Array:
    """(image / 255 - mean) / std, per channel, float32 [..., C], for images uint8 [..., C].

    Mean and standard deviation are C numbers, or one for all channels, on the scale from 0 to 1.
    """
    center = jnp.asarray(mean, jnp.float32)
    scale = jnp.asarray(std, jnp.float32)
    return (images.astype(jnp.float32) / 255.0 - center) / scale
