"""Images of a dataset as pictures on the page: encoded, augmented, and by class."""

import base64
import io
from typing import Any

import jax
import numpy as np
from PIL import Image

from cls_jax.data.augment import jax_augment
from cls_jax.data.augment.randaugment import WEAK_UNIFORMS, count_strong_uniforms, create_table
from cls_jax.methods import get_method
from cls_jax.report.data import RunData

# Larger images are reduced: a page holds hundreds.
MAX_SIDE = 96
# From this side on WebP is a fraction of PNG; below, every pixel counts.
_LOSSY_SIDE = 64
_NUM_AUGMENTED = 6
_NUM_DRAWS = 2
_NUM_LABELED = 120
_MAX_LABELED_PER_CLASS = 6


def encode_image(image: np.ndarray, is_exact: bool = False) -> str:
    """A data URI with at most `MAX_SIDE` pixels per side, unless it is to be exact.

    Args:
        image: uint8 [H, W, C] of 1 (gray), 3 (RGB) or 4 (RGBA) channels.
        is_exact: whether to keep every pixel.
    """
    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    if not is_exact:
        picture.thumbnail((MAX_SIDE, MAX_SIDE))
    kind = "png" if is_exact or max(picture.size) < _LOSSY_SIDE else "webp"
    buffer = io.BytesIO()
    picture.save(buffer, kind, **({"optimize": True} if kind == "png" else {"quality": 85}))
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def view_augmented(run: RunData) -> dict[str, Any] | None:
    """A few labeled images as they are, and as the networks see them."""
    if run.dataset is None or run.labeled is None or len(run.dataset.train_images) == 0:
        return None
    labels = np.asarray(run.dataset.train_labels)[run.labeled]
    # One image of each class before any class comes again.
    first = np.sort(np.unique(labels, return_index=True)[1])
    order = [*first, *np.setdiff1d(np.arange(len(labels)), first)]
    chosen = run.labeled[order[:_NUM_AUGMENTED]]
    images, data = run.dataset.train_images[chosen], run.config.data
    columns = [("original", images)]
    repeated = np.concatenate([images] * _NUM_DRAWS)
    for name, augment in (("weak", augment_weakly), ("strong", augment_strongly)):
        columns += [(name, draw) for draw in np.split(augment(repeated, data), _NUM_DRAWS)]
    method = get_method(run.config.method.name)
    return {"indices": chosen, "columns": columns, "method": method}


def augment_weakly(images: np.ndarray, data_config) -> np.ndarray:
    """One draw of the weak view: uint8 [n, H, W, C] to the same; `data_config` is `config.data`."""
    uniforms = np.random.default_rng(0).random((len(images), WEAK_UNIFORMS), np.float32)
    augment = jax.jit(jax_augment.flip_and_shift, static_argnums=(2, 3))
    return np.asarray(augment(images, uniforms, data_config.flip, data_config.shift))


def augment_strongly(images: np.ndarray, data_config) -> np.ndarray:
    """One draw of the strong view; arguments and result as for `augment_weakly`."""
    size, levels = images.shape[1:3], data_config.randaugment_levels
    table = create_table(data_config.randaugment_pool, *size, levels)
    count = count_strong_uniforms(data_config.randaugment_ops)
    uniforms = np.random.default_rng(1).random((len(images), count), np.float32)
    options = {"flip": data_config.flip, "shift": data_config.shift, "cut": data_config.cutout}
    augment = jax.jit(lambda *arrays: jax_augment.strong_augment(*arrays, table, **options))
    return np.asarray(augment(images, uniforms))


def view_labeled(run: RunData) -> dict[str, Any] | None:
    """Some of the labeled images of each class: its name, how many, indices and images shown."""
    if run.dataset is None or run.labeled is None:
        return None
    labels = np.asarray(run.dataset.train_labels)[run.labeled]
    num_classes = min(len(run.class_names), _NUM_LABELED)
    per_class = min(_NUM_LABELED // num_classes, _MAX_LABELED_PER_CLASS)
    classes = []
    for k, name in enumerate(run.class_names[:num_classes]):
        indices = run.labeled[labels == k]
        if len(indices):
            shown = indices[:per_class]
            classes.append((name, len(indices), shown, run.dataset.train_images[shown]))
    return {"classes": classes, "num_classes": num_classes}
