"""Both interpreters of the augmentations against Pillow, whose results they reproduce.

TensorFlow agrees to the bit where Pillow was compiled without fused multiply-add, as on x86-64.
JAX computes blends and autocontrast in another precision, hence within one gray level.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import ImageFilter

from cls_jax.data.augment import jax_augment
from cls_jax.data.augment.randaugment import OPS, OpKind
from cls_jax.data.augment.views import augment, create_augmentation
from tests.conftest import create_tiny_config
from tests.core.data.augment import pil_views
from tests.core.data.augment.pil_views import POOL, to_array, to_pil

# Without those of floating-point arithmetic, whose rounding could grow in a later operation.
EXACT_POOL = tuple(
    name
    for name, op in OPS.items()
    if op.kind in (OpKind.KEEP, OpKind.LOOKUP, OpKind.EQUALIZE, OpKind.AFFINE)
)
SHAPES = [(16, 16, 1), (20, 28, 3)]
LEVELS = (1, 2, 3, 64, 101, 128, 200, 255, 256)  # Of 256.
PRESETS = {
    "authors": (pil_views.apply_authors_op, range(1, 10), pil_views.make_authors_view),
    "torchssl": (pil_views.apply_torchssl_op, LEVELS, pil_views.make_torchssl_view),
}
# `make test` has one shape of each preset. The color of TorchSSL's square differs by channel.
PRESETS_AND_SHAPES = pytest.mark.parametrize(
    ("preset", "shape"),
    [
        *(("authors", SHAPES[0]), ("torchssl", SHAPES[1])),
        pytest.param("authors", SHAPES[1], marks=pytest.mark.slow),
        pytest.param("torchssl", SHAPES[0], marks=pytest.mark.slow),
    ],
)


@pytest.fixture(params=["jax", "tf"])
def backend(request):
    """(module, from NumPy, whether it is exact)."""
    if request.param == "jax":
        return jax_augment, jnp.asarray, False
    tf = pytest.importorskip("tensorflow")
    from cls_jax.data.augment import tf_augment

    return tf_augment, tf.constant, True


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


def make_augmentation(shape, preset="authors", **changes):
    config = create_tiny_config(data__randaugment=preset, data__randaugment_ops=2)
    data = {"flip": True, "shift": 4, "randaugment_pool": POOL, "cutout": 16} | changes
    config.data.update(data)
    return create_augmentation(config.data, shape)


def make_view(backend, images, uniforms, view, augmentation):
    module, from_numpy, _ = backend

    def run(images, uniforms):
        return augment(images, uniforms, view, augmentation, module)

    run = jax.jit(run) if module is jax_augment else run
    return np.asarray(run(from_numpy(images), from_numpy(uniforms)))


@PRESETS_AND_SHAPES
def test_every_operation_level_and_sign_equals_pil(backend, preset, shape):
    module, from_numpy, is_exact = backend
    apply_pil_op, levels, _ = PRESETS[preset]
    table = make_augmentation(shape, preset).table
    draws = [(op, level, sign) for op in range(14) for level in levels for sign in (0, 1)]
    images = create_images(shape)
    expected = [
        [to_array(apply_pil_op(POOL[op], to_pil(image), level, 2 * sign - 1)) for image in images]
        for op, level, sign in draws
    ]
    columns = [from_numpy(column) for column in np.repeat(draws, len(images), axis=0).T]

    def apply_ops(images, *draws):
        return module.apply_ops(images, *draws, table)

    apply_ops = jax.jit(apply_ops) if module is jax_augment else apply_ops
    result = apply_ops(from_numpy(np.tile(images, (len(draws), 1, 1, 1))), *columns)
    result = np.asarray(result, int).reshape(np.shape(expected))
    for draw, ours, theirs in zip(draws, result, np.array(expected, int), strict=True):
        is_close = is_exact or POOL[draw[0]] in EXACT_POOL
        assert np.abs(ours - theirs).max() <= (0 if is_close else 1), (POOL[draw[0]], *draw[1:])


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weak_view_equals_padding_and_cropping(backend, shape, flip):
    shift = 4
    steps = (np.arange(2 * shift + 1) + 0.5) / (2 * shift + 1)
    uniforms = np.stack(np.meshgrid([0.2, 0.5, 0.7], steps, steps), axis=-1).reshape(-1, 3)
    uniforms = uniforms.astype(np.float32)
    images = np.resize(create_images(shape), (len(uniforms), *shape))
    expected = [
        pil_views.flip_and_shift(i, u, flip, shift) for i, u in zip(images, uniforms, strict=True)
    ]
    augmentation = make_augmentation(shape, flip=flip, shift=shift)
    result = make_view(backend, images, uniforms, "weak", augmentation)
    np.testing.assert_array_equal(result, expected)


@PRESETS_AND_SHAPES
def test_strong_view_equals_pil_end_to_end(backend, preset, shape):
    pool = POOL if backend[2] else EXACT_POOL
    augmentation = make_augmentation(shape, preset, randaugment_pool=pool)
    size = 500, augmentation.count_uniforms("strong")
    uniforms = np.random.default_rng(1).random(size, np.float32)
    uniforms[0], uniforms[1] = 0, np.nextafter(np.float32(1), np.float32(0))
    images = np.resize(create_images(shape), (len(uniforms), *shape))
    make_expected = PRESETS[preset][2]
    expected = [make_expected(i, u, 4, 16, pool) for i, u in zip(images, uniforms, strict=True)]
    result = make_view(backend, images, uniforms, "strong", augmentation)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_smoothing_equals_pils_filter(shape):
    """Exactly: in a blend of sharpness, an error of one gray level could pass for rounding."""
    images = create_images(shape)
    expected = [to_array(to_pil(image).filter(ImageFilter.SMOOTH)) for image in images]
    np.testing.assert_array_equal(jax_augment._smooth(jnp.asarray(images)), expected)
