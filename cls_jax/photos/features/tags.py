"""Tags of all images, where an image may have several, inferred from a few given ones.

Each tag is a question of its own, yes or no, and all are answered at once by ridge regression
(Hoerl and Kennard, 1970) on the same features: those of the last layer and of all stages, and the
same smoothed over similar images, labeled or not (`relations`). Answers to labeled images without
their own labels follow from the same decomposition (Allen's PRESS, 1974). They say how much the
smoothed features count and how strong the penalty is, which is best for one folder at .1 and for
another at 1 (experiments/results/tags.md). They also calibrate the scores (Platt, 1999): one slope
for all tags, and an offset for each that is close to 0 unless its labels say otherwise.

Shape suffixes: B images, C features, R smoothed features, T tags, L labeled images.
"""

import math
from typing import NamedTuple

import numpy as np
import scipy.special

from cls_jax.data.sampling import take_rows
from cls_jax.photos.features.grouping import groups
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.features.relations import Relations, scale, take_blocks

_SHARES = 0.0, 0.25, 0.5, 0.75, 1.0  # Of smoothed features.
_PENALTIES = 0.06, 0.125, 0.25, 0.5, 1.0  # Of squared weights, where images have unit length.
_MAX_CHOOSING = 300  # Labeled images by which both are chosen, in less than a second.
_OFFSET_PENALTY = 1.0  # Of squared offsets, in nats.
_SLOPE_PENALTY = 0.1  # Of the square of the slope's logarithm over that of the prior one.
_SLOPE = 4.0  # Without labels that say otherwise.
_PRIOR_COUNT = 10  # Given images whose probabilities are right, by which others are judged.


class TagHead(NamedTuple):
    """What turns the features of an image into the probability of each tag."""

    mean: np.ndarray  # float32 [C].
    deviation: np.ndarray  # float32 [C].
    kernel: np.ndarray  # float32 [C, T], for scaled features.
    bias: np.ndarray  # float32 [T].

    def predict(self, features: FrozenFeatures) -> np.ndarray:
        """Probabilities of tags, float32 [B, T]."""
        scaled = (scale(block, self.mean, self.deviation) for block in take_blocks(features))
        logits_BT = np.concatenate([x_BC @ self.kernel + self.bias for x_BC in scaled])
        return np.asarray(scipy.special.expit(logits_BT), np.float32)


class InferredTags(NamedTuple):
    """Tags of all images."""

    given: np.ndarray  # int8 [B, T]: 1 with a tag, 0 without it, -1 if it is open.
    probabilities: np.ndarray  # float32 [B, T], 0 or 1 where given.
    # Without the labels of an image's group, float32 [B, T]. NaN if not given.
    held_out: np.ndarray
    head: TagHead


def group_tagged(
    relations: Relations, given_BT: np.ndarray, sources_B: np.ndarray | None = None
) -> np.ndarray:
    """See `groups`. Near-copies belong together whatever their tags: bursts differ by one."""
    is_labeled = (given_BT >= 0).any(axis=1)
    return groups(relations, np.where(is_labeled, 0, -1), 1, sources_B)


def infer_tags(
    relations: Relations, given_BT: np.ndarray, groups_B: np.ndarray | None = None
) -> InferredTags:
    """Infers the tags of all images from given ones, see `InferredTags`.

    Labels are held out with those of their group, int [B], such as near-copies. None for images
    that are alone.
    """
    features, smoothing = relations.features, relations.smoothing
    groups_B = np.arange(len(relations)) if groups_B is None else groups_B
    is_given = given_BT >= 0
    labeled = np.flatnonzero(is_given.any(axis=1))
    groups_L, targets_LT = groups_B[labeled], 2.0 * given_BT[labeled] - 1
    of_labeled = features.convert(lambda columns: columns[labeled])
    x_LC = scale(of_labeled, smoothing.mean, smoothing.deviation)
    x_LR, share = x_LC @ smoothing.kernel, 0.0
    kernel = np.zeros((x_LC.shape[1] + x_LR.shape[1] + 1, given_BT.shape[1]), np.float32)
    scores_LT = np.full(targets_LT.shape, np.nan, np.float32)
    for i, (rows, tags) in enumerate(_find_parts(is_given[labeled])):
        targets = targets_LT[np.ix_(rows, tags)]
        if i == 0:
            share, penalty = _choose(x_LC[rows], x_LR[rows], targets, groups_L[rows])
        inputs = [math.sqrt(1 - share) * x_LC[rows], math.sqrt(share) * x_LR[rows]]
        kernel[:, tags], scores_LT[np.ix_(rows, tags)] = _fit(
            np.concatenate(inputs, axis=1), targets, groups_L[rows], penalty
        )
    slope, offsets_T = _calibrate(scores_LT, given_BT[labeled])
    of_scaled, of_smoothed, bias = np.split(kernel, [x_LC.shape[1], len(kernel) - 1])
    kernel = math.sqrt(1 - share) * of_scaled + smoothing.kernel @ (math.sqrt(share) * of_smoothed)
    bias = (slope * bias[0] + offsets_T).astype(np.float32)
    head = TagHead(smoothing.mean, smoothing.deviation, np.float32(slope) * kernel, bias)
    held_out = np.full(is_given.shape, np.nan, np.float32)
    held_out[labeled] = scipy.special.expit(slope * scores_LT + offsets_T)
    return InferredTags(
        given=given_BT,
        probabilities=np.where(is_given, np.float32(given_BT), head.predict(features)),
        held_out=held_out,
        head=head,
    )


def _find_parts(is_given_LT: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Images, and the tags that all of these and no others have labels of, both int.

    Those with the most labels come first. Most often, all images have labels of all tags.
    """
    _, patterns = np.unique(is_given_LT, axis=1, return_inverse=True)
    alike = [np.flatnonzero(patterns == each) for each in range(patterns.max(initial=-1) + 1)]
    parts = [(np.flatnonzero(is_given_LT[:, tags[0]]), tags) for tags in alike]
    return sorted(
        (part for part in parts if len(part[0])), key=lambda part: -part[0].size * part[1].size
    )


def _choose(
    x_LC: np.ndarray, x_LR: np.ndarray, targets_LT: np.ndarray, groups_L: np.ndarray
) -> tuple[float, float]:
    """The share of smoothed features, and the penalty, by labels that are held out.

    Means over all pairs, where errors are normal ones of one deviation, all deviations and pairs
    were equally likely before, and the held-out labels are independent (the pseudo-likelihood of a
    Gaussian process: Rasmussen and Williams, 2006, section 5.4.2).
    """
    chosen = take_rows(np.arange(len(x_LC)), _MAX_CHOOSING)
    x_LC, x_LR, targets_LT, groups_L = (
        each[chosen].astype(float) for each in (x_LC, x_LR, targets_LT, groups_L)
    )
    products, of_smoothed, errors = x_LC @ x_LC.T, x_LR @ x_LR.T, []
    for share in _SHARES:  # Of inputs with these products, and as many features as images.
        values, axes = np.linalg.eigh((1 - share) * products + share * of_smoothed)
        inputs = axes * np.sqrt(np.maximum(values, 0))
        fits = (_fit(inputs, targets_LT, groups_L, penalty) for penalty in _PENALTIES)
        errors.append([np.square(targets_LT - held_out).mean() for _, held_out in fits])
    weights = scipy.special.softmax(-targets_LT.size / 2 * np.log(np.maximum(errors, 1e-12)))
    logarithm = weights.sum(axis=0) @ np.log(_PENALTIES)
    share = min(float(weights.sum(axis=1) @ np.array(_SHARES)), 1.0)  # Rounding may exceed it.
    return share, math.exp(logarithm)


def _fit(
    inputs_LC: np.ndarray, targets_LT: np.ndarray, groups_L: np.ndarray, penalty: float
) -> tuple[np.ndarray, np.ndarray]:
    """Ridge regression: the kernel [C + 1, T], the last row the bias, and held-out scores [L, T].

    A residual without the labels of a group is (I - H)⁻¹ times that with them, where H is the part
    of X (XᵀX + λI)⁻¹ Xᵀ for the group.
    """
    x = np.pad(inputs_LC.astype(float), ((0, 0), (0, 1)), constant_values=1)
    if len(x) <= x.shape[1]:
        smoothed = np.linalg.solve(x @ x.T + penalty * np.eye(len(x)), x).T
    else:
        smoothed = np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T)
    kernel = smoothed @ targets_LT  # `smoothed` is (XᵀX + λI)⁻¹ Xᵀ.
    residuals = targets_LT - x @ kernel
    _, places, sizes = np.unique(groups_L, return_inverse=True, return_counts=True)
    leverages = np.einsum("lc,cl->l", x, smoothed)
    held_out = targets_LT - residuals / (1 - leverages)[:, None]
    for group in np.flatnonzero(sizes > 1):
        rows = np.flatnonzero(places == group)
        matrix = np.eye(len(rows)) - x[rows] @ smoothed[:, rows]
        held_out[rows] = targets_LT[rows] - np.linalg.solve(matrix, residuals[rows])
    return kernel, held_out


def _calibrate(scores_LT: np.ndarray, values_LT: np.ndarray) -> tuple[float, np.ndarray]:
    """The slope of all scores and the offset of each tag, float [T], fitted to held-out labels.

    Minimizes the negative log-likelihood and penalties, a convex problem.
    """
    from scipy.optimize import minimize  # Takes some tenths of a second.

    given, tags = np.nonzero(values_LT >= 0)
    signs, scores = 2.0 * values_LT[given, tags] - 1, scores_LT[given, tags].astype(float)
    num_tags = values_LT.shape[1]

    def compute_loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        slope, offsets_T = values[0], values[1:]
        margins = signs * (slope * scores + offsets_T[tags])
        slopes = -signs * scipy.special.expit(-margins)
        away = slope - _SLOPE
        loss = np.logaddexp(0, -margins).sum() + _SLOPE_PENALTY / 2 * away**2
        loss += _OFFSET_PENALTY / 2 * (offsets_T @ offsets_T)
        of_offsets = np.bincount(tags, slopes, num_tags) + _OFFSET_PENALTY * offsets_T
        return loss, np.append(slopes @ scores + _SLOPE_PENALTY * away, of_offsets)

    found = minimize(
        compute_loss,
        np.append(_SLOPE, np.zeros(num_tags)),
        jac=True,
        bounds=[(0, None)] + [(None, None)] * num_tags,
        method="L-BFGS-B",
    )
    return float(found.x[0]), found.x[1:]


def find_right(p_BT: np.ndarray, known_BT: np.ndarray, thresholds_T: np.ndarray) -> np.ndarray:
    """Which images have all tags right, bool [B], given what is known. Open tags are."""
    return np.asarray((((p_BT >= thresholds_T) == known_BT) | (known_BT < 0)).all(axis=1))


def choose_thresholds(inferred: InferredTags, precision: float = 0.0) -> np.ndarray:
    """The probability from which on an image has each tag, float32 [T].

    The smallest one at which so many of the images that it selects are expected to have the tag, or
    1 if there is none. With a precision of 0, it is 0.5.

    Expected is the mean probability, of given images the held-out one, and less if fewer of these
    have the tag than that: the smallest threshold at which the given ones have the precision is one
    that chance favors, and 74, 84 and 88% of the others had the tag with 20, 60 and 200 labels,
    instead of 90% (experiments/results/tags.md).
    """
    if not precision:
        return np.full(inferred.given.shape[1], 0.5, np.float32)
    p_BT = np.where(inferred.given >= 0, inferred.held_out, inferred.probabilities)
    order = np.argsort(-p_BT, axis=0, kind="stable")
    p_BT, values_BT = (np.take_along_axis(each, order, axis=0) for each in (p_BT, inferred.given))
    errors_BT = np.cumsum(np.where(values_BT >= 0, values_BT - p_BT, 0), axis=0)
    errors_BT /= _PRIOR_COUNT + np.cumsum(values_BT >= 0, axis=0)
    means_BT = np.cumsum(p_BT, axis=0) / np.arange(1, len(p_BT) + 1)[:, None]
    # Those of equal probability are selected together.
    is_last = p_BT > np.pad(p_BT[1:], ((0, 1), (0, 0)), constant_values=-1)
    is_reached = is_last & (means_BT + np.minimum(errors_BT, 0) >= precision)
    return np.where(is_reached, p_BT, 1).min(axis=0, initial=1).astype(np.float32)
