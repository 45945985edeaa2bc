"""Measures of predictions, in NumPy. m images, K classes."""

from typing import NamedTuple

import numpy as np
import scipy.stats

NUM_BINS = 15  # Guo et al., On Calibration of Modern Neural Networks, 2017.


class Calibration(NamedTuple):
    """A reliability diagram of B bins of equal width; NaN in empty bins."""

    counts: np.ndarray  # int64 [B], predictions whose confidence falls into each bin.
    confidence: np.ndarray  # float64 [B], their mean confidence.
    accuracy: np.ndarray  # float64 [B], the share of them that is right.
    error: float  # The expected calibration error, between 0 and 1.


def wilson_interval(num_correct: int, num_images: int) -> tuple[float, float]:
    """The 95 % Wilson score interval of a share, between 0 and 1; `num_images` is at least 1."""
    interval = scipy.stats.binomtest(num_correct, num_images).proportion_ci(0.95, "wilson")
    return float(interval.low), float(interval.high)


def compute_calibration(
    probabilities: np.ndarray, labels: np.ndarray, num_bins: int = NUM_BINS
) -> Calibration:
    """Compares the confidence of float [m, K] with its accuracy on int [m], m ≥ 1.

    scikit-learn's `calibration_curve` does not return the counts, which the error needs.
    """
    confidence = probabilities.max(axis=-1).astype(np.float64)
    is_right = probabilities.argmax(axis=-1) == labels
    # Rounding may lift a probability above 1, where there is no bin.
    (mean_confidence, accuracy), _, places = scipy.stats.binned_statistic(
        np.minimum(confidence, 1.0), [confidence, is_right], bins=num_bins, range=(0, 1)
    )
    counts = np.bincount(places - 1, minlength=num_bins)
    error = np.nansum(counts * np.abs(accuracy - mean_confidence)) / len(labels)
    return Calibration(counts, mean_confidence, accuracy, float(error))


def find_confused_pairs(confusions: np.ndarray, limit: int) -> list[tuple[int, int, int]]:
    """The most frequent mistakes in int [K, K]: at most `limit` of (true, predicted, count)."""
    mistakes = confusions - np.diag(np.diag(confusions))
    order = np.argsort(-mistakes, axis=None, kind="stable")[:limit]
    pairs = zip(*np.unravel_index(order, mistakes.shape), strict=True)
    return [(int(i), int(j), int(mistakes[i, j])) for i, j in pairs if mistakes[i, j] > 0]


def find_mistakes(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Positions, int64, of misclassified images of known class, most confident first.

    Args:
        probabilities: float [m, K].
        labels: int [m], negative where unknown.
    """
    wrong = np.flatnonzero((labels >= 0) & (probabilities.argmax(axis=-1) != labels))
    return wrong[np.argsort(-probabilities[wrong].max(axis=-1), kind="stable")]


def find_disagreements(probabilities: np.ndarray) -> np.ndarray:
    """Positions, int64, of images that two networks classify differently.

    Those where both are confident come first. `probabilities` are float [2, m, K].
    """
    first, second = probabilities.argmax(axis=-1)
    differ = np.flatnonzero(first != second)
    confidence = probabilities.max(axis=-1).min(axis=0)[differ]
    return differ[np.argsort(-confidence, kind="stable")]
