"""How good predictions are, in NumPy. m images, K classes, N networks."""

import math
from typing import NamedTuple

import numpy as np

NUM_BINS = 15  # Guo et al., On Calibration of Modern Neural Ensemble, 2017.
_Z_95 = 1.959964


class Calibration(NamedTuple):
    """A reliability diagram; B bins of equal width.

    Attributes:
        counts: int64 [B], predictions whose confidence falls into each bin.
        confidence: float64 [B], their mean confidence; NaN where there are none.
        accuracy: float64 [B], which share of them is right; NaN where there are none.
        error: the expected calibration error, between 0 and 1.
    """

    counts: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray
    error: float


def wilson_interval(num_correct: int, num_images: int) -> tuple[float, float]:
    """The Wilson score interval of a share, at 95 %.

    Args:
        num_correct: from 0 to `num_images`.
        num_images: at least 1.

    Returns:
        Its ends, between 0 and 1.
    """
    share, z2 = num_correct / num_images, _Z_95**2
    centre = (share + z2 / (2 * num_images)) / (1 + z2 / num_images)
    variance = share * (1 - share) / num_images + z2 / (4 * num_images**2)
    half = _Z_95 * math.sqrt(variance) / (1 + z2 / num_images)
    return max(0.0, centre - half), min(1.0, centre + half)


def confusion_matrix(labels: np.ndarray, predicted: np.ndarray, num_classes: int) -> np.ndarray:
    """The confusion matrix.

    Args:
        labels: int [m], true classes.
        predicted: int [m].
        num_classes: K.

    Returns:
        int64 [K, K], true classes by row.
    """
    pairs = labels.astype(np.int64) * num_classes + predicted
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def find_confused_pairs(confusions: np.ndarray, limit: int) -> list[tuple[int, int, int]]:
    """The most frequent mistakes.

    Args:
        confusions: int [K, K], see `confusion_matrix`.
        limit: how many at most.

    Returns:
        (true class, predicted class, count), most frequent first.
    """
    mistakes = confusions - np.diag(np.diag(confusions))
    order = np.argsort(-mistakes, axis=None, kind="stable")[:limit]
    rows, columns = np.unravel_index(order, mistakes.shape)
    return [
        (int(row), int(column), int(mistakes[row, column]))
        for row, column in zip(rows, columns, strict=True)
        if mistakes[row, column] > 0
    ]


def compute_calibration(
    probabilities: np.ndarray, labels: np.ndarray, num_bins: int = NUM_BINS
) -> Calibration:
    """Compares how sure predictions are with how often they are right.

    Args:
        probabilities: float [m, K].
        labels: int [m], m ≥ 1.
        num_bins: B, of equal width over confidences from 0 to 1.
    """
    confidence = probabilities.max(axis=-1).astype(np.float64)
    is_right = (probabilities.argmax(axis=-1) == labels).astype(np.float64)
    # Bins are open below and closed above, so that certainty has a place.
    places = np.clip(np.ceil(confidence * num_bins).astype(int) - 1, 0, num_bins - 1)
    counts = np.bincount(places, minlength=num_bins)
    divisor = np.where(counts > 0, counts, np.nan)
    mean_confidence = np.bincount(places, confidence, num_bins) / divisor
    accuracy = np.bincount(places, is_right, num_bins) / divisor
    gaps = np.nan_to_num(np.abs(accuracy - mean_confidence))
    return Calibration(
        counts, mean_confidence, accuracy, float(np.sum(counts * gaps) / len(labels))
    )


def find_confident_mistakes(
    probabilities: np.ndarray, labels: np.ndarray, limit: int
) -> np.ndarray:
    """Images whose label was missed, the surest first.

    Args:
        probabilities: float [m, K].
        labels: int [m].
        limit: how many at most.

    Returns:
        int [≤ limit], positions among the m images.
    """
    wrong = np.flatnonzero(probabilities.argmax(axis=-1) != labels)
    order = np.argsort(-probabilities[wrong].max(axis=-1), kind="stable")
    return wrong[order[:limit]]


def find_disagreements(probabilities: np.ndarray, limit: int | None = None) -> np.ndarray:
    """Images that two networks take for different classes, those first where both are sure.

    Args:
        probabilities: float [2, m, K].
        limit: how many at most.

    Returns:
        int [≤ limit], positions among the m images.
    """
    first, second = probabilities.argmax(axis=-1)
    differ = np.flatnonzero(first != second)
    sureness = probabilities.max(axis=-1).min(axis=0)[differ]
    return differ[np.argsort(-sureness, kind="stable")[:limit]]
