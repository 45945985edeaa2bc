"""Which images to label next: those that stand for most of what the networks are unsure of.

An image's score is (1 - w) + D. The confidence weight w is that of the mean probabilities; D is
how much the networks contradict each other, the generalised Jensen-Shannon divergence
[H(mean of p) - mean of H(p)] / log N, from 0 (they say the same) to 1 (each is certain of another
class). The entropy of the mean alone would put two networks certain of two classes behind any
image of which both know nothing.

Images are then chosen one by one, each the one whose label would settle most of the doubt that is
left. A label settles the doubt about its own image, and about others the more, the more alike they
are: the sum over all images of score times similarity, less what the images already chosen settle
(a facility location). So images that stand for many are chosen before odd ones, and the duplicate
of a chosen image counts nothing. The similarity is 1 - Hellinger's distance between what the
networks say, from 0 to 1: nothing but probabilities is looked at, and the choice is that of any
networks and the same for the same predictions.

Shape suffixes: N networks, B images, K classes, M chosen images.
"""

import numpy as np

from cls_jax.inference.prediction import compute_entropy, compute_weight

# Of the similarities of all images to all; 20 MB of them for 5,000 images.
_ROWS_AT_A_TIME = 1000
# Sums in another order differ in the last digits; a bound must not lie below.
_ROUNDING = 1.0001


def compute_scores(p_NBK: np.ndarray) -> np.ndarray:
    """How much the networks doubt each image, float32 [B] in [0, 2].

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
    """Chooses images greedily by how much doubt their labels would settle.

    Args:
        p_NBK: float32 [N, B, K].
        num_images: M; all images if there are fewer.

    Returns:
        int64 [min(M, B)], indices of images, the one that settles most first.
    """
    scores = compute_scores(p_NBK)
    roots = _to_unit_rows(p_NBK)
    settled = np.zeros(len(scores), np.float32)
    # What a label would settle only falls as others are chosen: an old value is a bound, and only
    # the image with the highest has to be looked at again.
    bounds = _settle_with_nothing_chosen(roots, scores)
    chosen: list[int] = []
    while len(chosen) < min(num_images, len(scores)):
        best = int(np.argmax(bounds))
        similarity = _compute_similarities(roots, roots[best])
        bounds[best] = scores @ np.maximum(similarity - settled, 0)
        if np.argmax(bounds) == best:
            chosen.append(best)
            settled = np.maximum(settled, similarity)
            bounds[best] = -1
    return np.asarray(chosen, np.int64)


def _to_unit_rows(p_NBK: np.ndarray) -> np.ndarray:
    """Square roots of probabilities, [B, N K], whose products are affinities from 0 to 1."""
    num_networks, num_images, num_classes = p_NBK.shape
    by_image = np.sqrt(p_NBK / num_networks).transpose(1, 0, 2)
    return by_image.reshape(num_images, num_networks * num_classes)


def _settle_with_nothing_chosen(roots: np.ndarray, scores: np.ndarray) -> np.ndarray:
    parts = np.array_split(roots, max(1, len(roots) // _ROWS_AT_A_TIME))
    settled = np.concatenate([_compute_similarities(roots, part) @ scores for part in parts])
    return settled * _ROUNDING


def _compute_similarities(roots: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """1 - Hellinger's distance between what the networks say of `rows` and of all images."""
    # Rounding leaves about 1e-7 between duplicates, whose root would count as a distance.
    squared = 1 - rows @ roots.T
    return 1 - np.sqrt(np.where(squared < 1e-6, 0, squared))
