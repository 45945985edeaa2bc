"""A run as a function from images to classes."""

import dataclasses
import hashlib
import itertools
import os
import pathlib
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from cls_jax.data.resize import ImageError
from cls_jax.data.types import ImageSource
from cls_jax.photos.images.decode import ImageLike
from cls_jax.photos.images.files import ImageBatch, read_ahead
from cls_jax.photos.inference.calibration import Calibration
from cls_jax.photos.inference.foreign import FolderImages, score_images
from cls_jax.photos.inference.forks import refuse_forked_child
from cls_jax.photos.inference.inputs import (
    ImageInput,
    check_source,
    is_source,
    iterate_inputs,
)
from cls_jax.photos.inference.networks import Networks
from cls_jax.photos.inference.prediction import Prediction, create_prediction
from cls_jax.photos.inference.unknown import UnknownScore


class Classifier:
    """The EMA networks of a run, or the frozen network of an instant classifier.

    `open.load` opens one. Several threads may use it at a time. Pickling keeps the folder and the
    fingerprint, see `open`: a process that unpickles it reads the networks from the folder.

    Attributes:
        workdir: The folder that it was read from, an absolute path.
        networks: The networks as a function of images.
        class_names: The names of the K classes.
        image_shape: The shape (H, W, C) of the images.
        num_networks: N.
        step: The training step of the checkpoint, 0 for an instant classifier.
        calibration: The calibration of this checkpoint, or None.
        unknown: The score of this checkpoint for images that belong to no class, or None.
        folder_images: The images of the folder that new ones are compared with, or None.
    """

    def __init__(
        self,
        workdir: pathlib.Path,
        networks: Networks,
        class_names: tuple[str, ...],
        step: int,
        calibration: Calibration | None = None,
        unknown: UnknownScore | None = None,
        folder_images: FolderImages | None = None,
    ):
        """Wraps what a run has read."""
        self.workdir = workdir.absolute()
        self.networks = networks
        self.class_names = class_names
        self.step = step
        self.calibration = calibration
        self.unknown = unknown
        self.folder_images = folder_images
        self.image_shape = networks.format.shape
        self.num_networks = networks.num_networks

    def predict(self, images: ImageSource | ImageInput | Iterable[ImageInput]) -> Prediction:
        """Predicts the classes of images with confidences.

        `images` are uint8 [n, H, W, C] of `image_shape`, or one image or any number of them, of any
        size. An image is a path, the `bytes` of an image file (never a path), a file opened for
        reading bytes, a PIL image, or an array uint8 [h, w] or [h, w, 1, 3 or 4]. Raises an
        ImageError, a kind of ValueError, that names what was given if it cannot be read as an
        image, and a UserError in a process forked from one that had used JAX.
        """
        refuse_forked_child()
        if is_source(images):
            check_source(images, self.image_shape)
            sources: Iterable[Any] = [images]
        else:
            sources = self._decode(iterate_inputs(images))
        parts = [self._predict_images(source) for source in sources]
        p_NBK = np.concatenate([p for p, _ in parts], axis=1)
        scores = [score for _, score in parts]
        unknown = None if scores[0] is None else np.concatenate(scores)
        return create_prediction(p_NBK, self.class_names, self.calibration, unknown)

    def _decode(self, images: Iterable[ImageLike]) -> Iterator[np.ndarray]:
        """Images batch by batch, after an empty batch."""
        yield np.zeros((0, *self.image_shape), np.uint8)
        numbers = itertools.count(1)
        for batch in self.read_files(images):
            for file, error, number in zip(batch.files, batch.errors, numbers, strict=False):
                if error is not None:
                    name = file if isinstance(file, str | os.PathLike) else f"Image {number}"
                    raise ImageError(f"{name} cannot be read: {error}.")
            yield batch.images

    def _predict_images(self, images: ImageSource) -> tuple[np.ndarray, Any]:
        """Probabilities float32 [N, n, K], and scores for belonging to no class, float32 [n]."""
        if self.unknown is None and self.folder_images is None:
            return self.networks.predict_probabilities(images), None
        p_NBK, f_BC = self.networks.predict_with_features(images)
        return p_NBK, score_images(f_BC, self.unknown, self.folder_images)

    def read_files(self, files: Iterable[ImageLike]) -> Generator[ImageBatch, None, None]:
        """Decodes images as the run decoded its own, in batches for the networks."""
        networks = self.networks
        return read_ahead(files, self.image_shape, networks.batch_size, networks.format.decoding)

    def compute_fingerprint(self) -> str:
        """A hash of everything that decides a prediction: weights, formats, calibration."""
        networks = self.networks
        # The arrays are those of all networks, shared or not, and the order of a set varies.
        ensemble = dataclasses.replace(networks.ensemble, shared=frozenset())
        decisive = networks.name, ensemble, networks.format, self.class_names
        digest = hashlib.sha256(repr((decisive, self.calibration, self.unknown)).encode())
        for leaf in jax.tree.leaves(jax.device_get((networks.variables, self.folder_images))):
            digest.update(np.ascontiguousarray(leaf).data)
        return digest.hexdigest()
