"""Which proposals to check, and which labels to doubt.

Shape suffixes: B images, K classes, L labeled images.
"""

import numpy as np


def find_confident(
    probabilities_BK: np.ndarray, is_open_B: np.ndarray, label: int, num_images: int
) -> np.ndarray:
    """The open images whose most probable class is `label`, the most certain first; int [M]."""
    rows = np.flatnonzero(is_open_B & (probabilities_BK.argmax(axis=1) == label))
    order = np.argsort(-probabilities_BK[rows, label], kind="stable")
    return rows[order[:num_images]]


def find_doubtful(
    probabilities_LK: np.ndarray, labels_L: np.ndarray, is_open_L: np.ndarray, num_images: int
) -> np.ndarray:
    """Labels that the others contradict, the likeliest mistakes first.

    Args:
        probabilities_LK: The probabilities of each labeled image given all other labels.
        labels_L: Its own label.
        is_open_L: bool, whether it may be doubted.
        num_images: The largest number to return.

    Returns:
        int [M], rows of `probabilities_LK`.
    """
    if not len(labels_L):
        return np.zeros(0, int)
    rows = np.arange(len(labels_L))
    margin = probabilities_LK.max(axis=1) - probabilities_LK[rows, labels_L]
    doubtful = rows[is_open_L & (probabilities_LK.argmax(axis=1) != labels_L) & (margin > 0)]
    return doubtful[np.argsort(-margin[doubtful], kind="stable")][:num_images]
