"""The parts of a view in JAX, for the accelerator. See `views`.

The same functions of the same random numbers as in `tf_augment`. Shapes are static here, so images
cannot be sorted by kind. Instead, each round applies one table lookup, one blend and one gather to
all images, which leave images that did not draw them unchanged.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from cls_jax.data.augment.randaugment import OpKind, OpTable

where = jnp.where


def floor(numbers: jax.Array) -> jax.Array:
    """The largest integers up to float32 numbers, int32."""
    return jnp.floor(numbers).astype(jnp.int32)


def gather_pixels(images: jax.Array, rows: jax.Array, columns: jax.Array) -> jax.Array:
    """Takes each image's pixels at `rows` and `columns`, int32 [n, height, width]."""
    n, height, width, channels = images.shape
    places = (rows * width + columns).reshape(n, height * width, 1)
    pixels = images.reshape(n, height * width, channels)
    return jnp.take_along_axis(pixels, places, axis=1).reshape(images.shape)


def apply_ops(
    images: jax.Array, op: jax.Array, level: jax.Array, sign: jax.Array, table: OpTable
) -> jax.Array:
    """Applies one operation to each image, uint8 [n, H, W, C]. See `tf_augment.apply_ops`."""
    op, level, sign = (jnp.asarray(draw).astype(jnp.int32) for draw in (op, level, sign))
    kinds = jnp.asarray(table.kinds)[op, level]
    present = {OpKind(kind) for kind in table.kinds.ravel()}
    if present & {OpKind.LOOKUP, OpKind.AUTOCONTRAST, OpKind.EQUALIZE}:
        images = _look_up(images, kinds, jnp.asarray(table.lookups)[op, level], present)
    if present & {OpKind.CONTRAST, OpKind.COLOR, OpKind.SHARPNESS}:
        images = _blend(images, kinds, jnp.asarray(table.factors)[level])
    if OpKind.AFFINE in present:
        # Other operations have the identity in the table.
        images = _transform(images, jnp.asarray(table.affines)[op, level, sign])
    return images


def cutout(
    images: jax.Array, uniforms: jax.Array, side: float | jax.Array, color: Sequence[int]
) -> jax.Array:
    """Covers a square of each image, uint8 [n, H, W, C]. See `tf_augment.cutout`."""
    height, width = images.shape[1:3]
    centers = uniforms * jnp.array([height, width], jnp.float32)
    first = jnp.maximum(centers - side / 2, 0).astype(jnp.int32)
    last = (first + side).astype(jnp.int32)
    y = jnp.arange(height)
    x = jnp.arange(width)
    rows = (first[:, :1] <= y) & (y <= last[:, :1])
    columns = (first[:, 1:] <= x) & (x <= last[:, 1:])
    square = rows[:, :, None, None] & columns[:, None, :, None]
    return jnp.where(square, jnp.array(color, jnp.uint8), images)


def _look_up(
    images: jax.Array, kinds: jax.Array, lookups: jax.Array, present: set[OpKind]
) -> jax.Array:
    """Replaces values by a table for each image and channel."""
    n, height, width, channels = images.shape
    planes = images.transpose(0, 3, 1, 2).reshape(n, channels, height * width)
    tables = jnp.broadcast_to(lookups[:, None], (n, channels, 256))
    if OpKind.AUTOCONTRAST in present:
        stretched = _create_autocontrast_tables(planes)
        tables = jnp.where((kinds == OpKind.AUTOCONTRAST)[:, None, None], stretched, tables)
    if OpKind.EQUALIZE in present:
        equalized = _create_equalize_tables(planes)
        tables = jnp.where((kinds == OpKind.EQUALIZE)[:, None, None], equalized, tables)
    planes = jnp.take_along_axis(tables, planes.astype(jnp.int32), axis=2)
    return planes.reshape(n, channels, height, width).transpose(0, 2, 3, 1)


def _create_autocontrast_tables(planes: jax.Array) -> jax.Array:
    """PIL.ImageOps.autocontrast, in integers.

    PIL truncates a product in double precision, which may be just below the exact integer, so a
    value may differ by one.
    """
    low = planes.min(axis=2, keepdims=True).astype(jnp.int32)
    high = planes.max(axis=2, keepdims=True).astype(jnp.int32)
    values = jnp.arange(256)
    stretched = 255 * (values - low) // jnp.maximum(high - low, 1)
    return jnp.where(high > low, jnp.clip(stretched, 0, 255), values).astype(jnp.uint8)


def _create_equalize_tables(planes: jax.Array) -> jax.Array:
    """PIL.ImageOps.equalize: integer arithmetic, and no change where `step` is 0."""
    n, channels, num_pixels = planes.shape
    bins = jnp.arange(n * channels)[:, None] * 256 + planes.reshape(n * channels, num_pixels)
    counts = jnp.zeros(n * channels * 256, jnp.int32).at[bins.ravel()].add(1)
    counts = counts.reshape(n, channels, 256)
    brightest = planes.max(axis=2, keepdims=True).astype(jnp.int32)
    step = (num_pixels - jnp.take_along_axis(counts, brightest, axis=2)) // 255
    below = jnp.cumsum(counts, axis=2) - counts
    tables = jnp.minimum((step // 2 + below) // jnp.maximum(step, 1), 255)
    return jnp.where(step > 0, tables, jnp.arange(256)).astype(jnp.uint8)


def _blend(images: jax.Array, kinds: jax.Array, factors: jax.Array) -> jax.Array:
    """Returns base + factor * (images - base), truncated. The base follows from the kind."""
    kinds = kinds[:, None, None, None]
    factors = factors[:, None, None, None]
    gray = _gray(images)
    num_pixels = images.shape[1] * images.shape[2]
    mean = (2 * gray.sum((1, 2), keepdims=True) + num_pixels) // (2 * num_pixels)
    base = jnp.where(kinds == OpKind.CONTRAST, mean, gray)
    base = jnp.where(kinds == OpKind.SHARPNESS, _smooth(images), base).astype(jnp.float32)
    blended = base + factors * (images.astype(jnp.float32) - base)
    is_drawn = (kinds == OpKind.CONTRAST) | (kinds == OpKind.COLOR) | (kinds == OpKind.SHARPNESS)
    return jnp.where(is_drawn, blended.astype(jnp.uint8), images)


def _gray(images: jax.Array) -> jax.Array:
    """Returns PIL's gray image, int32 [n, height, width, 1 or C]. See `tf_augment._gray`."""
    values = images.astype(jnp.int32)
    if images.shape[3] != 3:
        return values
    weights = jnp.array([19595, 38470, 7471])
    return (jnp.sum(values * weights, axis=3, keepdims=True) + 0x8000) >> 16


def _smooth(images: jax.Array) -> jax.Array:
    """PIL's SMOOTH filter, (1 1 1, 1 5 1, 1 1 1) / 13, int32. Leaves the border as it is."""
    values = images.astype(jnp.int32)
    inner = values[:, 1:-1, 1:-1]
    rows = values[:, :-2] + values[:, 1:-1] + values[:, 2:]
    total = rows[:, :, :-2] + rows[:, :, 1:-1] + rows[:, :, 2:] + 4 * inner
    return values.at[:, 1:-1, 1:-1].set((2 * total + 13) // 26)


def _transform(images: jax.Array, affines: jax.Array) -> jax.Array:
    """Nearest samples at the positions given by `OpTable.affines`, black outside."""
    height, width = images.shape[1:3]
    a, b, c, d, e, f = (affines[:, i, None, None] for i in range(6))
    x = jnp.arange(width)
    y = jnp.arange(height)[:, None]
    columns = (a * x + b * y + c) >> 16
    rows = (d * x + e * y + f) >> 16
    inside_x = jnp.clip(columns, 0, width - 1)
    inside_y = jnp.clip(rows, 0, height - 1)
    inside = (columns == inside_x) & (rows == inside_y)
    return jnp.where(inside[..., None], gather_pixels(images, inside_y, inside_x), jnp.uint8(0))
