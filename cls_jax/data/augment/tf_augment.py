"""The weak and strong views of a batch of images, in TensorFlow operations on the whole batch.

Every function is pure: its randomness comes in as uniforms in [0, 1), and each row of the result
depends on the same row of the arguments only. Images are uint8 [n, height, width, channels] with
1 or 3 channels. The weak view is flip-and-shift; the strong view adds RandAugment and cutout, as
in FixMatch (Sohn et al., 2020) and CLS, and equals what their PIL code computes.
"""

import tensorflow as tf

from cls_jax.data.augment.randaugment import (
    CUTOUT_UNIFORMS,
    CUTOUT_VALUE,
    UNIFORMS_PER_OP,
    WEAK_UNIFORMS,
    OpKind,
    OpTable,
    count_strong_uniforms,
    sample_ops,
)


def strong_augment(
    images: tf.Tensor, uniforms: tf.Tensor, table: OpTable, *, flip: bool, shift: int, cut: int
) -> tf.Tensor:
    """Returns the strong view: `flip_and_shift`, then `randaugment`, then `cutout`.

    Args:
        images: uint8 [n, height, width, channels].
        uniforms: float32 [n, count_strong_uniforms(num_ops)], whose width says how many operations.
        table: the RandAugment pool, made for this height and width.
        flip: whether images may be mirrored.
        shift: the largest shift in pixels.
        cut: the size of the square cut out; 0 for none.
    """
    sizes = [WEAK_UNIFORMS, uniforms.shape[1] - count_strong_uniforms(0), CUTOUT_UNIFORMS]
    weak, ops, square = tf.split(uniforms, sizes, axis=1)
    images = flip_and_shift(images, weak, flip, shift)
    images = randaugment(images, ops, table)
    return cutout(images, square, cut) if cut else images


def flip_and_shift(images: tf.Tensor, uniforms: tf.Tensor, flip: bool, shift: int) -> tf.Tensor:
    """Returns images mirrored with probability one half (if `flip`), then shifted.

    The shift is uniform over -`shift`..`shift` pixels on each axis; what comes in from outside is
    the image's reflection about its edge pixels, as in NumPy's `reflect` padding.

    Args:
        images: uint8 [n, height, width, channels], larger than `shift` on both axes.
        uniforms: float32 [n, WEAK_UNIFORMS]: flip, vertical shift, horizontal shift.
        flip: whether images may be mirrored.
        shift: the largest shift in pixels.

    Raises:
        ValueError: the images are too small to be reflected `shift` pixels far.
    """
    height, width = images.shape[1:3]
    if shift >= min(height, width):
        raise ValueError(f"A shift of {shift} needs images larger than that, not {height}x{width}.")
    offsets = tf.cast(tf.floor(uniforms[:, 1:] * (2 * shift + 1)), tf.int32) - shift
    rows = _reflect(tf.range(height) + offsets[:, :1], height)
    columns = _reflect(tf.range(width) + offsets[:, 1:], width)
    if flip:
        columns = tf.where(uniforms[:, :1] < 0.5, width - 1 - columns, columns)
    return _gather_pixels(images, rows[:, :, None], columns[:, None, :])


def randaugment(images: tf.Tensor, uniforms: tf.Tensor, table: OpTable) -> tf.Tensor:
    """Returns images after one random operation per `UNIFORMS_PER_OP` uniforms, in turn.

    Args:
        images: uint8 [n, height, width, channels].
        uniforms: float32 [n, UNIFORMS_PER_OP * num_ops], as `sample_ops` takes them in each round.
        table: the pool, made for this height and width.
    """
    for start in range(0, uniforms.shape[1], UNIFORMS_PER_OP):
        draws = sample_ops(uniforms[:, start : start + UNIFORMS_PER_OP], table)
        images = apply_ops(images, tf.cast(tf.stack(draws, axis=1), tf.int32), table)
    return images


def apply_ops(images: tf.Tensor, draws: tf.Tensor, table: OpTable) -> tf.Tensor:
    """Returns images after one operation each, given as int32 [n, 3]: operation, level, sign.

    Images are sorted by kind first, so that each pays for its own kind only.
    """
    kinds = tf.gather_nd(table.kinds, draws[:, :2])
    members = tf.dynamic_partition(tf.range(tf.shape(images)[0]), kinds, len(OpKind))
    parts = [
        _TRANSFORMS[kind](tf.gather(images, chosen), tf.gather(draws, chosen), table)
        for kind, chosen in zip(OpKind, members, strict=True)
    ]
    return tf.ensure_shape(tf.dynamic_stitch(members, parts), images.shape)


def cutout(images: tf.Tensor, uniforms: tf.Tensor, size: int) -> tf.Tensor:
    """Returns images with a grey square around a random centre, clipped at the image's edge.

    The corners are those of the authors' code, whose rectangle includes both: the square covers
    `size` + 1 pixels a side where it fits.

    Args:
        images: uint8 [n, height, width, channels].
        uniforms: float32 [n, CUTOUT_UNIFORMS]: the centre's row and column.
        size: the nominal size in pixels.
    """
    height, width, channels = images.shape[1:]
    centres = uniforms * tf.constant([height, width], tf.float32)
    first = tf.cast(tf.maximum(centres - size / 2, 0), tf.int32)
    rows = _covered(tf.range(height), first[:, :1], size)
    columns = _covered(tf.repeat(tf.range(width), channels), first[:, 1:], size)
    # Rows of width * channels values: selecting in runs of `channels` takes twice as long.
    flat = tf.reshape(images, [-1, height, width * channels])
    square = rows[:, :, None] & columns[:, None, :]
    return tf.reshape(tf.where(square, tf.constant(CUTOUT_VALUE, tf.uint8), flat), tf.shape(images))


def _covered(positions: tf.Tensor, first: tf.Tensor, size: int) -> tf.Tensor:
    return (first <= positions) & (positions <= first + size)


def _reflect(positions: tf.Tensor, size: int) -> tf.Tensor:
    return size - 1 - tf.abs(size - 1 - tf.abs(positions))


def _gather_pixels(images: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
    """Returns images whose pixels are those at `rows` and `columns`, int32 [n, height, width]."""
    height, width, channels = images.shape[1:]
    first = tf.range(tf.shape(images)[0])[:, None, None] * height
    pixels = tf.reshape(images, [-1, channels])
    return tf.gather(pixels, (first + rows) * width + columns)


# One transform per kind. Each takes images, their draws (int32 [n, 3]) and the table.


def _keep(images: tf.Tensor, draws: tf.Tensor, table: OpTable) -> tf.Tensor:
    return images


def _lookup(images: tf.Tensor, draws: tf.Tensor, table: OpTable) -> tf.Tensor:
    lookups = tf.gather_nd(table.lookups, draws[:, :2])
    return tf.gather(lookups, tf.cast(images, tf.int32), batch_dims=1)


def _autocontrast(images: tf.Tensor, draws: tf.Tensor, table: OpTable) -> tf.Tensor:
    # Double precision and this order, since PIL truncates.
    low = tf.cast(tf.reduce_min(images, [1, 2], keepdims=True), tf.float64)
    high = tf.cast(tf.reduce_max(images, [1, 2], keepdims=True), tf.float64)
    scale = 255 / tf.maximum(high - low, 1)
    stretched = tf.cast(tf.cast(images, tf.float64) * scale - low * scale, tf.uint8)
    return tf.where(high > low, stretched, images)


def _equalize(images: tf.Tensor, draws: tf.Tensor, table: OpTable) -> tf.Tensor:
    """See PIL.ImageOps.equalize: integer arithmetic, and no change where `step` is 0."""
    channels = images.shape[3]
    bins = tf.range(tf.shape(images)[0] * channels) * 256
    slots = tf.cast(images, tf.int32) + tf.reshape(bins, [-1, 1, 1, channels])
    counts = tf.math.unsorted_segment_sum(tf.ones_like(slots), slots, tf.size(bins) * 256)
    counts = tf.reshape(counts, [-1, 256])
    brightest = tf.reshape(tf.reduce_max(slots, [1, 2]), [-1])
    step = tf.reduce_sum(counts, 1) - tf.gather(tf.reshape(counts, [-1]), brightest)
    step = step[:, None] // 255
    below = tf.cumsum(counts, axis=1, exclusive=True)
    lookups = tf.minimum((step // 2 + below) // tf.maximum(step, 1), 255)
    lookups = tf.cast(tf.where(step > 0, lookups, tf.range(256)), tf.uint8)
    return tf.gather(tf.reshape(lookups, [-1]), slots)


def _contrast(images: tf.Tensor, draws: tf.Tensor, table: OpTable) -> tf.Tensor:
    pixels = images.shape[1] * images.shape[2]
    total = tf.reduce_sum(_grey(images), [1, 2], keepdims=True)
    return _blend((2 * total + pixels) // (2 * pixels), images, draws, table)


def _color(images: tf.Tensor, draws: tf.Tensor, table: OpTable) -> tf.Tensor:
    return _blend(_grey(images), images, draws, table)


def _sharpness(images: tf.Tensor, draws: tf.Tensor, table: OpTable) -> tf.Tensor:
    """PIL's SMOOTH filter, (1 1 1, 1 5 1, 1 1 1) / 13, leaves the border pixels as they are."""
    values = tf.cast(images, tf.int32)
    inner = values[:, 1:-1, 1:-1]
    rows = values[:, :-2] + values[:, 1:-1] + values[:, 2:]
    total = rows[:, :, :-2] + rows[:, :, 1:-1] + rows[:, :, 2:] + 4 * inner
    smooth = (total + 6) // 13  # To nearest; 13 is odd, so there are no ties.
    change = tf.pad(smooth - inner, [[0, 0], [1, 1], [1, 1], [0, 0]])
    return _blend(values + change, images, draws, table)


def _affine(images: tf.Tensor, draws: tf.Tensor, table: OpTable) -> tf.Tensor:
    height, width = images.shape[1:3]
    a, b, c, d, e, f = tf.unstack(tf.gather_nd(table.affines, draws)[:, :, None, None], axis=1)
    x, y = tf.range(width), tf.range(height)[:, None]
    columns = tf.bitwise.right_shift(a * x + b * y + c, 16)
    rows = tf.bitwise.right_shift(d * x + e * y + f, 16)
    inside_x = tf.clip_by_value(columns, 0, width - 1)
    inside_y = tf.clip_by_value(rows, 0, height - 1)
    inside = tf.cast((columns == inside_x) & (rows == inside_y), tf.uint8)
    return _gather_pixels(images, inside_y, inside_x) * inside[..., None]


_TRANSFORMS = {
    OpKind.KEEP: _keep,
    OpKind.LOOKUP: _lookup,
    OpKind.AUTOCONTRAST: _autocontrast,
    OpKind.EQUALIZE: _equalize,
    OpKind.CONTRAST: _contrast,
    OpKind.COLOR: _color,
    OpKind.SHARPNESS: _sharpness,
    OpKind.AFFINE: _affine,
}


def _grey(images: tf.Tensor) -> tf.Tensor:
    """Returns PIL's grey image, int32 [n, height, width, 1]."""
    values = tf.cast(images, tf.int32)
    if images.shape[3] == 1:
        return values
    red, green, blue = tf.split(values, 3, axis=3)
    return tf.bitwise.right_shift(red * 19595 + green * 38470 + blue * 7471 + 0x8000, 16)


def _blend(base: tf.Tensor, images: tf.Tensor, draws: tf.Tensor, table: OpTable) -> tf.Tensor:
    """Returns base + factor * (images - base), truncated, in single precision as PIL does it."""
    factors = tf.gather(table.factors, draws[:, 1])[:, None, None, None]
    base = tf.cast(base, tf.float32)
    return tf.cast(base + factors * (tf.cast(images, tf.float32) - base), tf.uint8)
