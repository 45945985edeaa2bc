"""Held-out images that are near-copies of training images: resized, compressed, mirrored or turned.

Such images test what a classifier remembers. By the features of stages, the most similar training
image is nearly always the right one. Where these say that two images are near-copies, as among the
training images, that is enough. They do not where images are small or all alike, so pixels decide
about the most similar one: parts of both must correlate after mirroring, turning or cropping it.

Shape suffixes: B training images, C features.
"""

from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

from cls_jax.data.types import ImageSource
from cls_jax.photos.features.near_copies import MIN_FEATURES
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.features.relations import Relations

# Whitened cosine from which on pixels are compared, and the correlation of near-copies. Chosen on
# clothing, faces and hands (experiments/results/near_copies.md).
_MIN_COSINE, _MIN_CORRELATION = 0.4, 0.93
_MIN_UNTURNED = 0.7  # Of near-copies, the lowest was 0.81; 95% of other pairs are below.
_SIDE, _CORE = 32, 24  # Pixels of a view, and of the part of the other image that is looked for.
_ANGLES = (-6, -3, 0, 3, 6)  # Degrees.
_CROPPED = (0, 0.06, 0.14)  # Of the side.
_IMAGES_AT_ONCE = 256


def find_copies(
    relations: Relations,
    train: ImageSource,
    features: FrozenFeatures,
    read: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """The training image that each of n others is a near-copy of, int [n], or -1.

    Args:
        relations: Those of the B training images.
        train: The same images, uint8 [B, H, W, C].
        features: Those of the others, by the same network.
        read: Returns images of the others by their rows, uint8 [k, H, W, C] for int [k].
    """
    num_images = len(features.descriptors)
    if features.stages.shape[1] < MIN_FEATURES or len(relations) < 2 or not num_images:
        return np.full(num_images, -1)
    similar, closeness = relations.find_similar(features)
    closest = np.arange(num_images), closeness.argmax(axis=1)
    is_copy = closeness[closest] >= 0
    copies = np.where(is_copy, similar.indices[closest], -1)
    unsure = np.flatnonzero(~is_copy & (similar.cosines[:, 0] >= _MIN_COSINE))
    for start in range(0, len(unsure), _IMAGES_AT_ONCE):
        rows = unsure[start : start + _IMAGES_AT_ONCE]
        candidates = similar.indices[rows, 0]
        for i, k, image, candidate in zip(
            rows, candidates, read(rows), train[candidates], strict=True
        ):
            if look_alike(image, candidate):
                copies[i] = k
    return copies


def measure_without_copies(
    is_right: np.ndarray, is_copy: np.ndarray, part: str = "test"
) -> dict[str, float]:
    """The accuracy in percent on images that are no copies. Empty if none or all are.

    By which predictions are right, and which images are copies, both bool [B]. It is named as those
    of `compute_accuracies`.
    """
    if is_copy.all() or not is_copy.any():
        return {}
    return {f"{part}/accuracy_without_copies": 100 * float(is_right[~is_copy].mean())}


def look_alike(image: np.ndarray, other: np.ndarray) -> bool:
    """Whether two images, uint8 [H, W, C], of any size each, are near-copies by their pixels.

    Without turning, which takes most of the time, near-copies correlate by 0.8 and more.
    """
    is_similar = correlate(image, other, (0,)) >= _MIN_UNTURNED
    return is_similar and correlate(image, other) >= _MIN_CORRELATION


def correlate(image: np.ndarray, other: np.ndarray, angles: Sequence[float] = _ANGLES) -> float:
    """The largest correlation of an image's center with a view of another one, from -1 to 1.

    Images are uint8 [H, W, C]. Views are mirrored, cropped, and turned by `angles`, in degrees.
    """
    margin = (_SIDE - _CORE) // 2
    core = _view(_shrink(image))[margin:-margin, margin:-margin].reshape(-1)
    core = core - core.mean()
    small = _shrink(other)
    turned = [small.rotate(angle, Image.Resampling.BICUBIC) for angle in angles]
    views = np.stack([_view(each, share) for each in turned for share in _CROPPED])
    views = np.concatenate([views, views[..., ::-1]]) - views.mean()
    windows = np.lib.stride_tricks.sliding_window_view(views, (_CORE, _CORE), axis=(1, 2))
    parts = windows.reshape(-1, len(core))
    # The sum of the core is 0, so parts need no mean of 0 for their product with it.
    squares = np.einsum("ij,ij->i", parts, parts) - parts.sum(axis=1) ** 2 / len(core)
    norms = np.sqrt(np.maximum(squares, 1e-6)) * np.linalg.norm(core)
    return float((parts @ core / np.maximum(norms, 1e-6)).max())


def _shrink(image: np.ndarray) -> Image.Image:
    """A gray image of 64 x 64 pixels."""
    rgb = Image.fromarray(np.broadcast_to(image, (*image.shape[:2], 3)))
    small = np.asarray(rgb.resize((2 * _SIDE, 2 * _SIDE), Image.Resampling.BOX))
    return Image.fromarray(small.mean(axis=-1).astype(np.uint8))


def _view(small: Image.Image, cropped: float = 0) -> np.ndarray:
    """A view, float32 [32, 32], cropped by a share on each side."""
    edge = cropped * _SIDE
    box = (edge, edge, small.width - edge, small.height - edge)
    return np.asarray(small.resize((_SIDE, _SIDE), Image.Resampling.BOX, box), np.float32)
