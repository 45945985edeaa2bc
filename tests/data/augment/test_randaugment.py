"""The augmentations against the Python Imaging Library (PIL), whose results they reproduce.

Every comparison is exact. Blends and autocontrast are floating-point arithmetic that PIL truncates;
they agree to the bit where PIL was compiled without fused multiply-add, as on x86-64.
"""

import math

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from cls_jax.data.augment import tf_augment
from cls_jax.data.augment.randaugment import (
    OPS,
    UNIFORMS_PER_OP,
    OpKind,
    count_strong_uniforms,
    create_table,
    sample_ops,
)

POOL = tuple(OPS)
DIGIT_POOL = (
    "identity",
    "brightness",
    "contrast",
    "rotate",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
)
SHAPES = [(32, 32, 3), (16, 16, 1), (20, 28, 3)]
SIGNS = (-1, 1)


def create_images(shape: tuple[int, int, int]) -> np.ndarray:
    """Returns uint8 [7, *shape]: noise, smooth scenes, a gradient, low contrast and constants."""
    height, width, channels = shape
    rng = np.random.default_rng(0)
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(channels), indexing="ij")
    ramp = (255 * (x + y + 3 * c) / (height + width + 3 * channels)).astype(int)
    waves = 128 + 60 * np.sin(x / 5 + c) + 50 * np.cos(y / 7 - 2 * c)
    images = [
        rng.integers(0, 256, shape),
        rng.integers(90, 110, shape),
        ramp,
        waves + rng.normal(0, 5, shape),
        ramp // 8 + 40 * c,
        np.where(x < width // 3, 30, 200) + 9 * c,
        np.full(shape, 77),
    ]
    return np.stack(images).clip(0, 255).astype(np.uint8)


def to_pil(image: np.ndarray) -> Image.Image:
    return Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)


def to_array(image: Image.Image) -> np.ndarray:
    return np.asarray(image).reshape(image.height, image.width, -1)


def apply_pil_op(name: str, image: Image.Image, level: int, sign: int) -> Image.Image:
    """Returns what the authors' code computes for one operation."""
    width, height = image.size
    strength = level * 0.3 / 10
    factor = level * 0.9 / 10 + 0.05
    matrices = {
        "shear_x": (1, sign * strength, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, sign * strength, 1, 0),
        "translate_x": (1, 0, sign * int(strength * width), 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, sign * int(strength * height)),
    }
    if name in matrices:
        return image.transform(image.size, Image.Transform.AFFINE, matrices[name])
    others = {
        "autocontrast": lambda: ImageOps.autocontrast(image),
        "brightness": lambda: ImageEnhance.Brightness(image).enhance(factor),
        "color": lambda: ImageEnhance.Color(image).enhance(factor),
        "contrast": lambda: ImageEnhance.Contrast(image).enhance(factor),
        "equalize": lambda: ImageOps.equalize(image),
        "identity": lambda: image,
        "posterize": lambda: ImageOps.posterize(image, 4 + int(level * 4 / 10)),
        "rotate": lambda: image.rotate(sign * int(level * 30 / 10)),
        "sharpness": lambda: ImageEnhance.Sharpness(image).enhance(factor),
        "solarize": lambda: ImageOps.solarize(image, 256 - int(level * 256 / 10)),
    }
    return others[name]()


def flip_and_shift_numpy(
    image: np.ndarray, uniforms: np.ndarray, flip: bool, shift: int
) -> np.ndarray:
    """Returns the weak view of one image by padding and cropping."""
    height, width = image.shape[:2]
    if flip and uniforms[0] < 0.5:
        image = image[:, ::-1]
    top, left = (int(u * (2 * shift + 1)) for u in uniforms[1:])
    padded = np.pad(image, [(shift, shift), (shift, shift), (0, 0)], mode="reflect")
    return padded[top : top + height, left : left + width]


def cutout_pil(image: Image.Image, uniforms: np.ndarray, size: int) -> Image.Image:
    """Returns a copy of `image` with the authors' rectangle drawn on it."""
    width, height = image.size
    y0, x0 = (
        int(max(0, float(u) * n - size / 2)) for u, n in zip(uniforms, (height, width), strict=True)
    )
    image = image.copy()
    corners = (x0, y0, min(width, x0 + size), min(height, y0 + size))
    ImageDraw.Draw(image).rectangle(corners, 127 if image.mode == "L" else (127, 127, 127))
    return image


def strong_augment_pil(image: np.ndarray, uniforms: np.ndarray, shift: int, cut: int) -> np.ndarray:
    """Returns the strong view of one image, decoding `uniforms` as documented."""
    image = to_pil(flip_and_shift_numpy(image, uniforms[:3], True, shift))
    for op, level, application, sign in uniforms[3:-2].reshape(-1, UNIFORMS_PER_OP):
        if application < 0.5:
            name, sign = POOL[int(op * len(POOL))], -1 if sign < 0.5 else 1
            image = apply_pil_op(name, image, 1 + int(level * 9), sign)
    return to_array(cutout_pil(image, uniforms[-2:], cut))


def random_uniforms(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).random(shape, np.float32)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", POOL)
def test_every_operation_level_and_sign_equals_pil(name, shape):
    images = create_images(shape)
    table = create_table([name], *shape[:2])
    for level in range(1, 10):
        for index, sign in enumerate(SIGNS):
            draws = tf.tile([[0, level, index]], [len(images), 1])
            expected = [to_array(apply_pil_op(name, to_pil(i), level, sign)) for i in images]
            result = tf_augment.apply_ops(tf.constant(images), draws, table)
            np.testing.assert_array_equal(result, expected, f"level {level}, sign {sign}")


def test_level_zero_leaves_images_alone():
    table = create_table(POOL, 32, 32)
    assert (table.kinds[:, 0] == OpKind.KEEP).all()
    assert table.factors[0] == 1
    assert (table.lookups[:, 0] == np.arange(256)).all()
    assert (table.affines[:, 0] == [65536, 0, 32768, 0, 65536, 32768]).all()


@pytest.mark.parametrize("pool", [POOL, DIGIT_POOL, ("equalize",)], ids=len)
def test_table_has_a_row_for_each_operation_and_level(pool):
    table = create_table(pool, 20, 28, levels=7)
    n = len(pool)
    assert table.pool == pool
    assert (table.kinds.shape, table.kinds.dtype) == ((n, 7), np.int32)
    assert (table.factors.shape, table.factors.dtype) == ((7,), np.float32)
    assert (table.lookups.shape, table.lookups.dtype) == ((n, 7, 256), np.uint8)
    assert (table.affines.shape, table.affines.dtype) == ((n, 7, 2, 6), np.int32)


def test_bad_pools_and_levels_say_what_to_do():
    known = ", ".join(POOL)
    with pytest.raises(ValueError, match=f"operation 'invert'; choose from: {known}"):
        create_table(["rotate", "invert"], 32, 32)
    with pytest.raises(ValueError, match=f"pool is empty; name at least one of: {known}"):
        create_table([], 32, 32)
    with pytest.raises(ValueError, match="levels is 11; choose from 2 to 10"):
        create_table(POOL, 32, 32, levels=11)


def test_shift_beyond_the_image_is_refused():
    with pytest.raises(ValueError, match="A shift of 4 needs images larger than that, not 4x8"):
        tf_augment.flip_and_shift(tf.zeros([1, 4, 8, 1], tf.uint8), tf.zeros([1, 3]), True, 4)


def test_decoded_draws_are_uniform_and_applied_half_of_the_time():
    n = 50_000
    op, level, sign = sample_ops(random_uniforms(n, UNIFORMS_PER_OP), create_table(POOL, 32, 32))
    applied = level > 0
    assert abs(applied.mean() - 0.5) < 4 * math.sqrt(0.25 / n)
    for values, choices in [(op, range(14)), (level[applied], range(1, 10)), (sign, range(2))]:
        counts = np.array([(values == choice).sum() for choice in choices])
        expected = len(values) / len(choices)
        assert counts.sum() == len(values)
        # Pearson's statistic has this mean and this variance; four deviations.
        freedom = len(choices) - 1
        chi_square = ((counts - expected) ** 2 / expected).sum()
        assert chi_square < freedom + 4 * math.sqrt(2 * freedom)


def test_decoding_is_the_same_in_numpy_and_tensorflow_up_to_the_last_uniform():
    uniforms = random_uniforms(1000, UNIFORMS_PER_OP)
    uniforms[0], uniforms[1] = 0, np.nextafter(np.float32(1), np.float32(0))
    table = create_table(POOL, 32, 32)
    draws = sample_ops(uniforms, table)
    np.testing.assert_array_equal(draws, sample_ops(tf.constant(uniforms), table))
    assert [d[0] for d in draws] == [0, 1, 0]
    assert [d[1] for d in draws] == [13, 0, 1]


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_flip_and_shift_equals_padding_and_cropping(shape, flip):
    shift = 4
    steps = (np.arange(2 * shift + 1) + 0.5) / (2 * shift + 1)
    uniforms = np.stack(np.meshgrid([0.2, 0.7], steps, steps), axis=-1).reshape(-1, 3)
    uniforms = uniforms.astype(np.float32)
    images = np.resize(create_images(shape), (len(uniforms), *shape))
    expected = [
        flip_and_shift_numpy(i, u, flip, shift) for i, u in zip(images, uniforms, strict=True)
    ]
    result = tf_augment.flip_and_shift(tf.constant(images), uniforms, flip, shift)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("size", [0, 7, 16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cutout_equals_pil_rectangle(shape, size):
    uniforms = random_uniforms(200, 2)
    images = np.resize(create_images(shape), (len(uniforms), *shape))
    expected = [
        to_array(cutout_pil(to_pil(i), u, size)) for i, u in zip(images, uniforms, strict=True)
    ]
    result = tf_augment.cutout(tf.constant(images), uniforms, size)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_strong_view_equals_pil_end_to_end(shape):
    uniforms = random_uniforms(500, count_strong_uniforms(2))
    images = np.resize(create_images(shape), (len(uniforms), *shape))
    expected = [strong_augment_pil(i, u, 4, 16) for i, u in zip(images, uniforms, strict=True)]
    table = create_table(POOL, *shape[:2])
    result = tf_augment.strong_augment(
        tf.constant(images), uniforms, table, flip=True, shift=4, cut=16
    )
    np.testing.assert_array_equal(result, expected)


def test_strong_view_in_a_dataset_depends_on_an_image_and_its_uniforms_only():
    uniforms = random_uniforms(30, count_strong_uniforms(2))
    images = np.resize(create_images((32, 32, 3)), (30, 32, 32, 3))
    table = create_table(POOL, 32, 32)

    def augment(images, uniforms):
        return tf_augment.strong_augment(images, uniforms, table, flip=True, shift=4, cut=16)

    whole = augment(tf.constant(images), uniforms).numpy()
    dataset = tf.data.Dataset.from_tensor_slices((images, uniforms)).batch(7).map(augment)
    assert dataset.element_spec == tf.TensorSpec([None, 32, 32, 3], tf.uint8)
    np.testing.assert_array_equal(np.concatenate(list(dataset.as_numpy_iterator())), whole)
    np.testing.assert_array_equal(augment(tf.constant(images[::-3]), uniforms[::-3]), whole[::-3])
