"""A run as a function from images to classes or tags, and the predictions that it returns.

These are defined like the pseudo-labels in training, see methods/losses.py.
Shape suffixes: N networks, B images, K classes, T tags.
"""

import dataclasses
import hashlib
import itertools
import os
import pathlib
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from cls_jax.data.resize import ImageError
from cls_jax.data.types import ImageSource
from cls_jax.errors import UserError
from cls_jax.photos.features.decide import decide, rank_classes
from cls_jax.photos.features.graph import compute_weight
from cls_jax.photos.images.decode import ImageLike
from cls_jax.photos.images.files import ImageBatch, read_ahead
from cls_jax.photos.inference.calibration import Calibration, apply_calibration
from cls_jax.photos.inference.inputs import (
    ImageInput,
    check_source,
    is_source,
    iterate_inputs,
)
from cls_jax.photos.inference.networks import Networks
from cls_jax.photos.inference.unknown import FolderImages, UnknownScore
from cls_jax.photos.start.scores import Scoring

_NUM_TOP = 5  # Classes.


class Prediction(NamedTuple):
    """Predictions of B images. All arrays except `class_names` have one entry per image.

    Attributes:
        label: str [B], the class with the highest mean probability over the networks.
        confidence: float32 [B], that probability.
        weight: float32 [B] in [0, 1], w = 1 - H(p) / log K of the mean probabilities p: 0 where
            the prediction is uniform, 1 where it is one-hot.
        network_labels: str [N, B], each network's most probable class.
        agree: bool [B], whether these are the same. True for a single network.
        complementary_label: str [B], the class with the lowest mean probability.
        probabilities: float32 [B, K], the mean over networks.
        network_probabilities: float32 [N, B, K].
        class_names: str [K].
        second_label: str [B], the runner-up to `label`.
        second_confidence: float32 [B], its probability, after calibration if the run has one.
        calibrated_confidence: float32 [B], the confidence after calibration, or None for a run
            without calibration.
        abstain: bool [B], whether that is below the calibration's threshold. None without one.
        unknown: float32 [B] from 0 to 1. Near 1, the image may belong to no class, although it
            resembles others of the folder. None for a run without it. See `UnknownScore`.
        foreign: bool [B], whether the image is unlike all images of the folder. None for trained
            networks. See `FolderImages`.
    """

    label: np.ndarray
    confidence: np.ndarray
    weight: np.ndarray
    network_labels: np.ndarray
    agree: np.ndarray
    complementary_label: np.ndarray
    probabilities: np.ndarray
    network_probabilities: np.ndarray
    class_names: np.ndarray
    second_label: np.ndarray
    second_confidence: np.ndarray
    calibrated_confidence: np.ndarray | None = None
    abstain: np.ndarray | None = None
    unknown: np.ndarray | None = None
    foreign: np.ndarray | None = None


class TaggedPrediction(NamedTuple):
    """Predictions of B images that may have several tags, or none.

    Attributes:
        tags: The tags of each image, those that are at least as probable as their thresholds.
        probabilities: float32 [B, T]. They are calibrated, and do not add up to 1.
        class_names: str [T], the tags.
        thresholds: float32 [T].
        foreign: bool [B], as that of a `Prediction`.
    """

    tags: tuple[frozenset[str], ...]
    probabilities: np.ndarray
    class_names: np.ndarray
    thresholds: np.ndarray
    foreign: np.ndarray | None = None


class Classifier:
    """The EMA networks of a run, or the frozen network of an instant classifier.

    `run.load` opens one. Several threads may use it at a time. Pickling keeps the folder and the
    fingerprint: a process that unpickles it reads the networks from the folder.

    Attributes:
        workdir: The folder that it was read from, an absolute path.
        networks: The networks as a function of images.
        class_names: The names of the K classes or tags.
        scoring: How its predictions are compared with labels.
        image_shape: The shape (H, W, C) of the images.
        num_networks: N.
        step: The training step of the checkpoint, 0 for an instant classifier.
        calibration: The calibration of this checkpoint, or None.
        unknown: The score of this checkpoint for images that belong to no class, or None.
        folder_images: The images of the folder that new ones are compared with, or None.
        thresholds: An image has a tag from this probability on, float32 [T]. None of classes.
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
        thresholds: np.ndarray | None = None,
    ):
        """Wraps what a run has read."""
        self.workdir = workdir.absolute()
        self.networks = networks
        self.class_names = class_names
        self.step = step
        self.calibration = calibration
        self.unknown = unknown
        self.folder_images = folder_images
        self.thresholds = thresholds
        self.scoring = Scoring(class_names, thresholds)
        self.image_shape = networks.format.shape
        self.num_networks = networks.num_networks

    def predict(self, images: ImageSource | ImageInput | Iterable[ImageInput]) -> Prediction:
        """Predicts the classes of images, a `Prediction`, or their tags, a `TaggedPrediction`.

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
        p_NBK = np.concatenate([p for p, _, _ in parts], axis=1)
        unknown = _join([scores for _, scores, _ in parts])
        foreign = _join([are_foreign for _, _, are_foreign in parts])
        if self.thresholds is None:
            prediction = create_prediction(p_NBK, self.class_names, self.calibration)
            return prediction._replace(unknown=unknown, foreign=foreign)
        names, p_BT = np.asarray(self.class_names, dtype=str), p_NBK.mean(axis=0)
        tags = tuple(frozenset(names[has_T].tolist()) for has_T in p_BT >= self.thresholds)
        tagged: Any = TaggedPrediction(tags, p_BT, names, self.thresholds, foreign)
        return tagged

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

    def _predict_images(self, images: ImageSource) -> tuple[np.ndarray, Any, Any]:
        """Probabilities float32 [N, n, K], and `unknown` and `foreign` of a `Prediction`."""
        p_NBK, f_BC = self.networks.predict_with_features(images)
        unknown = None if self.unknown is None else self.unknown.apply(f_BC)
        foreign = None if self.folder_images is None else self.folder_images.find_foreign(f_BC)
        return p_NBK, unknown, foreign

    def read_files(self, files: Iterable[ImageLike]) -> Generator[ImageBatch, None, None]:
        """Decodes images as the run decoded its own, in batches for the networks."""
        networks = self.networks
        return read_ahead(files, self.image_shape, networks.batch_size, networks.format.decoding)

    def compute_fingerprint(self) -> str:
        """A hash of everything that decides a prediction, such as weights and thresholds."""
        networks = self.networks
        # The arrays are those of all networks, shared or not, and the order of a set varies.
        ensemble = dataclasses.replace(networks.ensemble, shared=frozenset())
        decisive = networks.name, ensemble, networks.format, self.class_names
        digest = hashlib.sha256(repr((decisive, self.calibration, self.unknown)).encode())
        arrays = networks.variables, self.folder_images, self.thresholds
        for leaf in jax.tree.leaves(jax.device_get(arrays)):
            digest.update(np.ascontiguousarray(leaf).data)
        return digest.hexdigest()


def _join(parts: Sequence[np.ndarray | None]) -> Any:
    """The parts of a column one after the other, or None for a column that a run does not have."""
    return None if parts[0] is None else np.concatenate(parts)  # type: ignore[arg-type]


def create_prediction(
    p_NBK: np.ndarray,
    class_names: Sequence[str],
    calibration: Calibration | None = None,
) -> Prediction:
    """Derives a `Prediction` from the networks' probabilities, float32 [N, B, K]."""
    names = np.asarray(list(class_names), dtype=str)
    p_BK = p_NBK.mean(axis=0)
    q_BK = p_BK
    if calibration is not None:
        q_BK = apply_calibration(p_BK, calibration.temperature, calibration.uniform_share)
    best_NB, said, second = decide(p_NBK).best, decide(p_BK), rank_classes(p_BK, 2)[:, -1:]
    prediction = Prediction(
        label=names[said.best],
        confidence=said.confidence,
        weight=compute_weight(p_BK),
        network_labels=names[best_NB],
        agree=(best_NB == best_NB[0]).all(axis=0),
        complementary_label=names[decide(-p_BK).best],
        probabilities=p_BK,
        network_probabilities=p_NBK,
        class_names=names,
        second_label=names[second[:, 0]],
        second_confidence=np.take_along_axis(q_BK, second, axis=1)[:, 0].astype(np.float32),
    )
    if calibration is None:
        return prediction
    confidence = decide(q_BK).confidence.astype(np.float32)
    return prediction._replace(
        calibrated_confidence=confidence, abstain=confidence < calibration.abstain_below
    )


def describe_top(p_K: np.ndarray, class_names: Sequence[str] | np.ndarray) -> str:
    """The most probable classes as "name:probability", joined by ";".

    A ";" or a backslash in a name is escaped by a backslash.
    """
    top = rank_classes(p_K, _NUM_TOP)
    names = [class_names[k].replace("\\", "\\\\").replace(";", "\\;") for k in top]
    return ";".join(f"{name}:{p:.4f}" for name, p in zip(names, p_K[top], strict=True))


_lacks_threads = False  # Whether this process was forked after JAX had started.


def _note_fork() -> None:
    """Remembers in a forked process that JAX's threads stayed behind, if there were any."""
    global _lacks_threads
    bridge = sys.modules.get("jax._src.xla_bridge")  # JAX itself says nowhere else.
    if bridge is not None and bridge.backends_are_initialized():
        _lacks_threads = True


if hasattr(os, "register_at_fork"):  # Windows has no forks.
    os.register_at_fork(after_in_child=_note_fork)


def refuse_forked_child() -> None:
    """Raises a UserError in a process that was forked after JAX had started.

    A fork has none of the threads with which JAX computes, and would wait for them forever.
    """
    if _lacks_threads:
        raise UserError(
            "This process was forked from one in which JAX had started, so it cannot compute: "
            "start workers with 'spawn', as multiprocessing.get_context('spawn') does, or load the "
            "classifier in each worker and not before (cls-jax help predict)."
        )
