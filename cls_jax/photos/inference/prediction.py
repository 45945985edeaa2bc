"""Predictions derived from the probabilities of the networks.

They are defined like the pseudo-labels in training, see methods/losses.py.
Shape suffixes: N networks, B images, K classes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cls_jax.photos.features.decide import decide, rank_classes
from cls_jax.photos.features.graph import compute_weight
from cls_jax.photos.inference.calibration import Calibration, apply_calibration

_NUM_TOP = 5


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
        calibrated_confidence: float32 [B], the confidence after calibration, or None for a run
            without calibration.
        abstain: bool [B], whether that is below the calibration's threshold. None without one.
        unknown: float32 [B] from 0 to 1. Near 1, the image may belong to no class. Above 0.97, an
            instant classifier says that it is unlike all images of the folder. None for a run
            without it. See `score_images`.
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
    calibrated_confidence: np.ndarray | None = None
    abstain: np.ndarray | None = None
    unknown: np.ndarray | None = None


def create_prediction(
    p_NBK: np.ndarray,
    class_names: Sequence[str],
    calibration: Calibration | None = None,
    unknown: np.ndarray | None = None,
) -> Prediction:
    """Derives a `Prediction` from the networks' probabilities, float32 [N, B, K]."""
    names = np.asarray(list(class_names), dtype=str)
    p_BK = p_NBK.mean(axis=0)
    best_NB, said = decide(p_NBK).best, decide(p_BK)
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
        unknown=unknown,
    )
    if calibration is None:
        return prediction
    q_BK = apply_calibration(p_BK, calibration.temperature, calibration.uniform_share)
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
