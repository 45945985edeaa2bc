"""Images of a dataset as pictures on the page: encoded, augmented, and by class."""

import base64
import io
from typing import Any

import jax
import numpy as np
from PIL import Image

from cls_jax.data.augment import jax_augment
from cls_jax.data.augment.views import augment, create_augmentation
from cls_jax.methods import get_method
from cls_jax.report.data import RunData

# Larger images are reduced: a page holds hundreds.
MAX_SIDE = 96
# From this side on, WebP takes a fraction of PNG's bytes; in smaller images every pixel counts.
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
    for seed, view in enumerate(("weak", "strong")):
        draws = augment_images(repeated, view, data, seed)
        columns += [(view, draw) for draw in np.split(draws, _NUM_DRAWS)]
    method = get_method(run.config.method.name)
    return {"indices": chosen, "columns": columns, "method": method}


def augment_images(images: np.ndarray, view: str, data_config, seed: int) -> np.ndarray:
    """One draw of a view, "weak" or "strong": uint8 [n, H, W, C] to the same.

    `data_config` is `config.data`.
    """
    augmentation = create_augmentation(data_config, images.shape[1:])
    shape = (len(images), augmentation.count_uniforms(view))
    uniforms = np.random.default_rng(seed).random(shape, np.float32)
    make_view = jax.jit(lambda *arrays: augment(*arrays, view, augmentation, jax_augment))
    return np.asarray(make_view(images, uniforms))


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
