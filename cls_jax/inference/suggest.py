"""Suggestions of images to label next: those that represent most of the networks' uncertainty.

An image's score is (1 - w) + D. The confidence weight w is that of the mean probabilities; D is
the disagreement between the networks, the generalized Jensen-Shannon divergence
[H(mean of p) - mean of H(p)] / log N, from 0 (they agree) to 1 (each is certain of another class).
With the entropy of the mean alone, two networks that are certain of two different classes would
rank behind an image about which both are undecided.

Images are then chosen greedily (facility location): each adds the most to the sum over all images
of score times similarity to the nearest chosen image. Representative images come before outliers,
and a duplicate of a chosen image adds nothing. The similarity is 1 - the Hellinger distance between
the networks' probabilities, from 0 to 1, so the choice depends on predictions alone.

Shape suffixes: N networks, B images, K classes, M chosen images.
"""

import numpy as np

from cls_jax.inference.prediction import compute_entropy, compute_weight

# Rows of the similarity matrix computed at once; 20 MB for 5,000 images.
_ROWS_AT_A_TIME = 1000
# Sums in another order differ in the last digits; an upper bound must not fall below its value.
_ROUNDING = 1.0001


def compute_scores(p_NBK: np.ndarray) -> np.ndarray:
    """Uncertainty of each image, float32 [B] in [0, 2].

    Args:
        p_NBK: float32 [N, B, K], the networks' probabilities.
    """
    p_BK = p_NBK.mean(axis=0)
    scores = 1.0 - compute_weight(p_BK)
    if len(p_NBK) > 1:
        divergence = compute_entropy(p_BK) - compute_entropy(p_NBK).mean(axis=0)
        scores = scores + np.clip(divergence / np.log(len(p_NBK)), 0.0, 1.0)
    return scores.astype(np.float32)


def choose_diverse(p_NBK: np.ndarray, num_images: int) -> np.ndarray:
    """Chooses images greedily by how much uncertainty their labels would resolve.

    Args:
        p_NBK: float32 [N, B, K].
        num_images: M; all images if there are fewer.

    Returns:
        int64 [min(M, B)], indices of images, the most helpful first.
    """
    scores = compute_scores(p_NBK)
    roots = _to_unit_rows(p_NBK)
    covered = np.zeros(len(scores), np.float32)  # Similarity to the nearest chosen image.
    # Lazy greedy: the gain of an image only falls as others are chosen, so an old value is an upper
    # bound, and only the image with the highest bound is evaluated again.
    bounds = _bound_gains(roots, scores)
    chosen: list[int] = []
    while len(chosen) < min(num_images, len(scores)):
        best = int(np.argmax(bounds))
        similarity = _compute_similarities(roots, roots[best])
        bounds[best] = scores @ np.maximum(similarity - covered, 0)
        if np.argmax(bounds) == best:
            chosen.append(best)
            covered = np.maximum(covered, similarity)
            bounds[best] = -1
    return np.asarray(chosen, np.int64)


def _to_unit_rows(p_NBK: np.ndarray) -> np.ndarray:
    """Square roots of probabilities, [B, N K], whose products are affinities from 0 to 1."""
    num_networks, num_images, num_classes = p_NBK.shape
    by_image = np.sqrt(p_NBK / num_networks).transpose(1, 0, 2)
    return by_image.reshape(num_images, num_networks * num_classes)


def _bound_gains(roots: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Each image's gain while none is chosen, rounded up, [B]."""
    parts = np.array_split(roots, max(1, len(roots) // _ROWS_AT_A_TIME))
    gains = np.concatenate([_compute_similarities(roots, part) @ scores for part in parts])
    return gains * _ROUNDING


def _compute_similarities(roots: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """1 - the Hellinger distance between the predictions for `rows` and for all images."""
    # Rounding leaves about 1e-7 between duplicates; its root would count as a distance.
    squared = 1 - rows @ roots.T
    return 1 - np.sqrt(np.where(squared < 1e-6, 0, squared))
