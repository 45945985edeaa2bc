"""Images of a dataset as pictures of a page, and how augmentation changes them."""

import base64
import io
from collections.abc import Iterable

import jax
import numpy as np
from PIL import Image

from cls_jax.data.augment import jax_augment
from cls_jax.data.augment.randaugment import WEAK_UNIFORMS, count_strong_uniforms, create_table
from cls_jax.report.markup import Html, tag

# Larger images become smaller: a page holds hundreds.
MAX_SIDE = 96
# From this side on WebP is a fraction of PNG; below, every pixel counts.
_LOSSY_SIDE = 64


def draw_image(image: np.ndarray, description: str) -> Html:
    """An image as an element of a page.

    Args:
        image: uint8 [H, W, C] of 1 (grey), 3 (RGB) or 4 (RGBA) channels.
        description: for those who cannot see it.
    """
    height, width = image.shape[:2]
    return tag(
        "img",
        src=encode_image(image),
        alt=description,
        title=description,
        width=MAX_SIDE,
        height=max(round(MAX_SIDE * height / width), 1),
        class_="pixels" if max(height, width) < MAX_SIDE else None,
    )


def encode_image(image: np.ndarray) -> str:
    """Returns uint8 [H, W, C] as a data URI, with at most `MAX_SIDE` pixels a side."""
    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    picture.thumbnail((MAX_SIDE, MAX_SIDE))
    buffer = io.BytesIO()
    if max(picture.size) >= _LOSSY_SIDE:
        kind = "webp"
        picture.save(buffer, "WEBP", quality=85)
    else:
        kind = "png"
        picture.save(buffer, "PNG", optimize=True)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def draw_gallery(pictures: Iterable[tuple[Html, Html | str]]) -> Html:
    """Pictures with a caption each, as many in a row as there is room for."""
    figures = (tag("figure", picture, tag("figcaption", caption)) for picture, caption in pictures)
    return tag("div", *figures, class_="gallery")


def augment_weakly(images: np.ndarray, data_config, seed: int) -> np.ndarray:
    """One draw of the weak view.

    Args:
        images: uint8 [n, H, W, C].
        data_config: `config.data`.
        seed: of the draw.

    Returns:
        uint8 [n, H, W, C].
    """
    uniforms = _draw_uniforms(len(images), WEAK_UNIFORMS, seed)
    augment = jax.jit(jax_augment.flip_and_shift, static_argnums=(2, 3))
    return np.asarray(augment(images, uniforms, data_config.flip, data_config.shift))


def augment_strongly(images: np.ndarray, data_config, seed: int) -> np.ndarray:
    """One draw of the strong view; arguments and result as of `augment_weakly`."""
    height, width = images.shape[1:3]
    pool, levels = data_config.randaugment_pool, data_config.randaugment_levels
    table = create_table(pool, height, width, levels)

    @jax.jit
    def augment(images, uniforms):
        return jax_augment.strong_augment(
            images,
            uniforms,
            table,
            flip=data_config.flip,
            shift=data_config.shift,
            cut=data_config.cutout,
        )

    count = count_strong_uniforms(data_config.randaugment_ops)
    return np.asarray(augment(images, _draw_uniforms(len(images), count, seed)))


def _draw_uniforms(num_images: int, count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((num_images, count), np.float32)
