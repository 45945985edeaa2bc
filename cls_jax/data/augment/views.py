"""The weak and the strong view of a batch of images.

The weak view is flip-and-shift. The strong view adds RandAugment and cutout, as in FixMatch (Sohn
et al., 2020). There are two presets (`data.randaugment`):

"authors" is the released code of CLS: flip and shift, then two operations at whole levels, each
applied every second time, then a gray square of fixed size.

"torchssl" is TorchSSL, the code that FlexMatch, FreeMatch and SoftMatch report with: three
operations, always applied, at continuous levels, and a square of random size, all of it *before*
flip and shift. (Its successor USB draws the same, but flips and shifts first.)

A view is a pure function of its images and of uniform random numbers in [0, 1), computed image by
image, so a batch can be cut anywhere. `tf_augment` and `jax_augment` implement the operations on
pixels, `floor`, `where`, `gather_pixels`, `apply_ops` and `cutout`, in TensorFlow for the host and
in JAX for the accelerator.
"""

import dataclasses
from types import ModuleType
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from cls_jax.data.augment.randaugment import (
    PARAMETER_MAX,
    UNIFORMS_PER_OP,
    OpTable,
    create_table,
    sample_ops,
)

Array = Any  # TensorFlow's or JAX's.

# Random numbers that every view takes for each image: flip, vertical shift, horizontal shift.
WEAK_UNIFORMS = 3

# TorchSSL draws levels from an interval. 256 levels of it, and of its mirror image, are as good:
# solarize and posterize have no more results, brightness changes by less than a gray level per
# level, and an image of 32 pixels moves by 1/27 of a pixel.
_NUM_STEPS = 256
_CONTINUOUS = tuple((k + 0.5) * PARAMETER_MAX / _NUM_STEPS for k in range(_NUM_STEPS))
_TORCHSSL_OPS = 3
_TORCHSSL_MAX_CUTOUT = 0.5  # Of the image's width.
_TORCHSSL_COLOR = (125, 123, 114)  # CIFAR-10's mean.


@dataclasses.dataclass(frozen=True, eq=False)
class Augmentation:
    """All parameters of the views of a dataset."""

    flip: bool  # Whether images may be mirrored.
    shift: int  # The largest, in pixels.
    table: OpTable  # The RandAugment pool.
    num_ops: int  # Operations per image.
    cutout: float  # Side of the square cut out in pixels, its largest if `is_torchssl`. 0 for none.
    color: tuple[int, ...]  # Of the square, C values.
    is_torchssl: bool = False  # Whether the square's side is random, and flip and shift come last.

    def count_uniforms(self, view: str) -> int:
        """How many random numbers a view, "weak" or "strong", takes for each image."""
        if view == "weak":
            return WEAK_UNIFORMS
        # The square's row and column, and its side where that is random.
        return WEAK_UNIFORMS + UNIFORMS_PER_OP * self.num_ops + (3 if self.is_torchssl else 2)


def create_augmentation(data_config: ConfigDict, image_shape: tuple[int, int, int]) -> Augmentation:
    """Builds the preset `data_config.randaugment` for images of one shape, (H, W, C).

    Of the single settings, "torchssl" uses only `randaugment_pool` and whether `cutout` is 0
    (none). `randaugment_ops`, `randaugment_levels` and any other `cutout` only concern "authors".
    """
    height, width, channels = image_shape
    pool = data_config.randaugment_pool
    if data_config.randaugment == "torchssl":
        table = create_table(pool, height, width, _CONTINUOUS, is_torchssl=True)
        cutout = _TORCHSSL_MAX_CUTOUT * width if data_config.cutout else 0
        # 123 is the same color in gray.
        color: tuple[int, ...] = _TORCHSSL_COLOR if channels == 3 else (123,) * channels
        return Augmentation(
            flip=data_config.flip,
            shift=data_config.shift,
            table=table,
            num_ops=_TORCHSSL_OPS,
            cutout=cutout,
            color=color,
            is_torchssl=True,
        )
    # The authors' m = 10 is an exclusive bound: levels 1 to 9.
    table = create_table(pool, height, width, range(1, data_config.randaugment_levels))
    return Augmentation(
        flip=data_config.flip,
        shift=data_config.shift,
        table=table,
        num_ops=data_config.randaugment_ops,
        cutout=data_config.cutout,
        color=(127,) * channels,
    )


def augment(
    images: Array, uniforms: Array, view: str, augmentation: Augmentation, backend: ModuleType
) -> Array:
    """Computes the view "weak" or "strong" of images uint8 [n, H, W, C].

    `uniforms` are float32 [n, augmentation.count_uniforms(view)] in [0, 1), and `backend` is the
    module `tf_augment` or `jax_augment`.
    """
    if view == "weak":
        return _flip_and_shift(images, uniforms, augmentation, backend)
    if not augmentation.is_torchssl:
        images = _flip_and_shift(images, uniforms, augmentation, backend)
    end = WEAK_UNIFORMS
    for _ in range(augmentation.num_ops):
        start = end
        end = start + UNIFORMS_PER_OP
        op, level, sign = sample_ops(uniforms[:, start:end], augmentation.table)
        images = backend.apply_ops(images, op, level, sign, augmentation.table)
    if augmentation.cutout:
        center = uniforms[:, end : end + 2]
        side = augmentation.cutout
        if augmentation.is_torchssl:
            side = uniforms[:, end + 2 :] * side
        images = backend.cutout(images, center, side, augmentation.color)
    if augmentation.is_torchssl:
        images = _flip_and_shift(images, uniforms, augmentation, backend)
    return images


def _flip_and_shift(
    images: Array, uniforms: Array, augmentation: Augmentation, backend: ModuleType
) -> Array:
    """Mirrors images, uint8 [n, H, W, C], with probability one half (if `flip`), and shifts them.

    The shift is uniform over -`shift`..`shift` pixels on each axis. Pixels from outside are
    reflections about the edge pixels, as in NumPy's `reflect` padding. Images must be larger than
    `shift`. The first three of `uniforms` are for the flip, the vertical and the horizontal shift.
    """
    height, width = images.shape[1:3]
    shift = augmentation.shift
    offsets = backend.floor(uniforms[:, 1:WEAK_UNIFORMS] * (2 * shift + 1)) - shift
    rows = _reflect(offsets[:, :1] + np.arange(height, dtype=np.int32), height)
    columns = _reflect(offsets[:, 1:] + np.arange(width, dtype=np.int32), width)
    if augmentation.flip:
        columns = backend.where(uniforms[:, :1] < 0.5, width - 1 - columns, columns)
    return backend.gather_pixels(images, rows[:, :, None], columns[:, None, :])


def _reflect(positions: Array, size: int) -> Array:
    return size - 1 - abs(size - 1 - abs(positions))
