"""Which images to label next: those of which the networks know least, no two alike.

An image's score is (1 - w) + D. The confidence weight w is that of the mean probabilities; D is
how much the networks contradict each other, the generalised Jensen-Shannon divergence
[H(mean of p) - mean of H(p)] / log N, from 0 (they say the same) to 1 (each is certain of another
class). The entropy of the mean alone would put two networks certain of two classes behind any
image of which both know nothing.

Images are then chosen one by one, each the one with the highest score times its distance to the
nearest already chosen. The distance is Hellinger's between what the networks say, from 0 to 1, so
an image's duplicate counts nothing once the image itself is chosen. Nothing but probabilities is
looked at: the choice is that of any networks, and the same for the same predictions.

Shape suffixes: N networks, B images, K classes, M chosen images.
"""

import numpy as np

from cls_jax.prediction import compute_entropy, compute_weight


def compute_scores(p_NBK: np.ndarray) -> np.ndarray:
    """How much a label would help by itself, float32 [B] in [0, 2].

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
    """Chooses images greedily by score times distance to the nearest already chosen.

    Args:
        p_NBK: float32 [N, B, K].
        num_images: M; all images if there are fewer.

    Returns:
        int64 [min(M, B)], indices of images, the one whose label would help most first.
    """
    scores = compute_scores(p_NBK)
    roots = np.sqrt(p_NBK)
    nearest = np.ones(len(scores))  # Distances are at most 1.
    is_left = np.ones(len(scores), bool)
    chosen = []
    for _ in range(min(num_images, len(scores))):
        # Where only duplicates are left, the scores alone decide.
        value = scores * nearest if np.any(nearest[is_left] > 0) else scores
        best = int(np.argmax(np.where(is_left, value, -1.0)))
        chosen.append(best)
        is_left[best] = False
        nearest = np.minimum(nearest, _compute_distances(roots, best))
    return np.asarray(chosen, np.int64)


def _compute_distances(roots_NBK: np.ndarray, index: int) -> np.ndarray:
    """Hellinger distances of all images to one, their squares averaged over the networks."""
    affinity = np.sum(roots_NBK * roots_NBK[:, index : index + 1], axis=-1).mean(axis=0)
    # Rounding leaves about 1e-7 between duplicates, whose root would count as a distance.
    return np.sqrt(np.where(affinity > 1 - 1e-6, 0.0, 1.0 - affinity))
