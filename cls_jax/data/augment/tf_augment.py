"""The parts of a view in TensorFlow operations on a whole batch. See `views`.

Results are bitwise identical to PIL's. Images are uint8 [n, height, width, channels]. Unless there
are 3 channels, each is treated as PIL treats a gray image (see `_gray`).
"""

from collections.abc import Sequence

from cls_jax.data.augment.randaugment import OpKind, OpTable
from cls_jax.data.host_tensorflow import tf

where = tf.where


def floor(numbers: tf.Tensor) -> tf.Tensor:
    """The largest integers up to float32 numbers, int32."""
    return tf.cast(tf.floor(numbers), tf.int32)


def gather_pixels(images: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
    """Takes each image's pixels at `rows` and `columns`, int32 [n, height, width]."""
    height, width, channels = images.shape[1:]
    first = tf.range(tf.shape(images)[0])[:, None, None] * height
    pixels = tf.reshape(images, [-1, channels])
    return tf.gather(pixels, (first + rows) * width + columns)


def apply_ops(
    images: tf.Tensor, op: tf.Tensor, level: tf.Tensor, sign: tf.Tensor, table: OpTable
) -> tf.Tensor:
    """Returns images after one operation each, by rows of a table for their height and width.

    `op`, `level` and `sign` (0 or 1) are integers [n]. Images are sorted by kind, so that
    each pays only for its own.
    """
    draws = tf.cast(tf.stack([op, level, sign], axis=1), tf.int32)
    kinds = tf.gather_nd(table.kinds, draws[:, :2])
    members = tf.dynamic_partition(tf.range(tf.shape(images)[0]), kinds, len(OpKind))
    parts = [
        _TRANSFORMS[kind](tf.gather(images, chosen), tf.gather(draws, chosen), table)
        for kind, chosen in zip(OpKind, members, strict=True)
    ]
    return tf.ensure_shape(tf.dynamic_stitch(members, parts), images.shape)


def cutout(
    images: tf.Tensor, uniforms: tf.Tensor, side: float | tf.Tensor, color: Sequence[int]
) -> tf.Tensor:
    """Returns images with a square of one color around a random center, clipped at the edges.

    The corners follow the authors' code, whose rectangle includes both: the square covers
    `side` + 1 pixels each way where it fits. `uniforms`, float32 [n, 2], are for the center's row
    and column. `side` is a number or float32 [n, 1], and `color` has C values.
    """
    height, width, channels = images.shape[1:]
    centers = uniforms * tf.constant([height, width], tf.float32)
    first = tf.cast(tf.maximum(centers - side / 2, 0), tf.int32)
    last = tf.cast(tf.cast(first, tf.float32) + side, tf.int32)
    y = tf.range(height)
    x = tf.repeat(tf.range(width), channels)
    rows = (first[:, :1] <= y) & (y <= last[:, :1])
    columns = (first[:, 1:] <= x) & (x <= last[:, 1:])
    # Rows of width * channels values: selecting in runs of `channels` takes twice as long.
    flat = tf.reshape(images, [-1, height, width * channels])
    square = rows[:, :, None] & columns[:, None, :]
    fill = tf.constant([*color] * width, tf.uint8)
    return tf.reshape(tf.where(square, fill, flat), tf.shape(images))


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
    total = tf.reduce_sum(_gray(images), [1, 2], keepdims=True)
    return _blend((2 * total + pixels) // (2 * pixels), images, draws, table)


def _color(images: tf.Tensor, draws: tf.Tensor, table: OpTable) -> tf.Tensor:
    return _blend(_gray(images), images, draws, table)


def _sharpness(images: tf.Tensor, draws: tf.Tensor, table: OpTable) -> tf.Tensor:
    """PIL's SMOOTH filter, (1 1 1, 1 5 1, 1 1 1) / 13, leaves the border pixels as they are."""
    values = tf.cast(images, tf.int32)
    inner = values[:, 1:-1, 1:-1]
    rows = values[:, :-2] + values[:, 1:-1] + values[:, 2:]
    total = rows[:, :, :-2] + rows[:, :, 1:-1] + rows[:, :, 2:] + 4 * inner
    smooth = (total + 6) // 13  # To nearest. 13 is odd, so there are no ties.
    change = tf.pad(smooth - inner, [[0, 0], [1, 1], [1, 1], [0, 0]])
    return _blend(values + change, images, draws, table)


def _affine(images: tf.Tensor, draws: tf.Tensor, table: OpTable) -> tf.Tensor:
    height, width = images.shape[1:3]
    a, b, c, d, e, f = tf.unstack(tf.gather_nd(table.affines, draws)[:, :, None, None], axis=1)
    x = tf.range(width)
    y = tf.range(height)[:, None]
    columns = tf.bitwise.right_shift(a * x + b * y + c, 16)
    rows = tf.bitwise.right_shift(d * x + e * y + f, 16)
    inside_x = tf.clip_by_value(columns, 0, width - 1)
    inside_y = tf.clip_by_value(rows, 0, height - 1)
    inside = tf.cast((columns == inside_x) & (rows == inside_y), tf.uint8)
    return gather_pixels(images, inside_y, inside_x) * inside[..., None]


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


def _gray(images: tf.Tensor) -> tf.Tensor:
    """Returns PIL's gray image, int32 [n, height, width, 1], of 3 channels.

    With any other number of channels, each is its own gray image, int32 [n, height, width, C]: then
    contrast is relative to each channel's mean, and color changes nothing.
    """
    values = tf.cast(images, tf.int32)
    if images.shape[3] != 3:
        return values
    red, green, blue = tf.split(values, 3, axis=3)
    return tf.bitwise.right_shift(red * 19595 + green * 38470 + blue * 7471 + 0x8000, 16)


def _blend(base: tf.Tensor, images: tf.Tensor, draws: tf.Tensor, table: OpTable) -> tf.Tensor:
    """Returns base + factor * (images - base), truncated, in single precision as PIL does it."""
    factors = tf.gather(table.factors, draws[:, 1])[:, None, None, None]
    base = tf.cast(base, tf.float32)
    return tf.cast(base + factors * (tf.cast(images, tf.float32) - base), tf.uint8)
