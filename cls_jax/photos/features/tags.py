"""Tags of all images, where an image may have several, inferred from a few given ones.

Each tag is a question of its own, yes or no, and all are answered at once by ridge regression
(Hoerl and Kennard, 1970) on the same features: those of the last layer and of all stages,
standardized over all images, labeled or not, and at unit length. Answers to labeled images without
their own labels follow from the same decomposition (Allen's PRESS, 1974) and calibrate the scores
(Platt, 1999): one slope for all tags, and an offset for each that is close to 0 unless its labels
say otherwise.

Shape suffixes: B images, C features, T tags, L labeled images, R components.
"""

from typing import NamedTuple

import numpy as np
import scipy.optimize
import scipy.special

from cls_jax.photos.features.heads import standardize
from cls_jax.photos.features.marks import Marks, groups, mark_labels
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.features.relations import Relations

# Of squared weights, where images have unit length. From .1 to .3, mean average precisions on the
# development folders are within .3 points.
_PENALTY = 0.2
_OFFSET_PENALTY = 1.0  # Of squared offsets, in nats.
_SLOPE_PENALTY = 0.1  # Of the square of the slope's logarithm over that of the prior one.
_SLOPE = 4.0  # Without labels that say otherwise.
SMALLEST_NORM = 1e-12  # Of features that an image has.


class TagHead(NamedTuple):
    """What turns the features of an image into the probability of each tag."""

    mean: np.ndarray  # float32 [C].
    deviation: np.ndarray  # float32 [C].
    kernel: np.ndarray  # float32 [C, T], for standardized features at unit length.
    bias: np.ndarray  # float32 [T].

    def scale(self, features_BC: np.ndarray) -> np.ndarray:
        """Standardized features at unit length, float32 [B, C], of floating ones."""
        return _scale(features_BC, self.mean, self.deviation)

    def compute_probabilities(self, scaled_BC: np.ndarray) -> np.ndarray:
        """Probabilities of tags, float32 [B, T], given features of `scale`."""
        return np.asarray(scipy.special.expit(scaled_BC @ self.kernel + self.bias), np.float32)


class InferredTags(NamedTuple):
    """Tags of all images."""

    marks: Marks  # What was given.
    probabilities: np.ndarray  # float32 [B, T], 0 or 1 where given.
    # Without the labels of an image's group, float32 [B, T]. NaN if not given.
    held_out: np.ndarray
    head: TagHead


def _scale(features_BC: np.ndarray, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Standardized features at unit length, float32 [B, C]."""
    scaled = (features_BC.astype(np.float32) - mean) / deviation
    return scaled / np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True), SMALLEST_NORM)


def group_tagged(
    relations: Relations, marks: Marks, sources_B: np.ndarray | None = None
) -> np.ndarray:
    """See `marks.groups`. Near-copies belong together whatever their tags: bursts differ by one."""
    is_labeled = (marks.values >= 0).any(axis=1)
    return groups(relations, mark_labels(np.where(is_labeled, 0, -1), 1), sources_B)


def infer_tags(
    features: FrozenFeatures, marks: Marks, groups_B: np.ndarray | None = None
) -> InferredTags:
    """Infers the tags of all images.

    Labels are held out with those of their group, int [B], such as near-copies. None for images
    that are alone.
    """
    inputs_BC = join_depths(features)
    _, mean, deviation = standardize(inputs_BC)
    inputs_BC = _scale(inputs_BC, mean, deviation)
    groups_B = np.arange(len(inputs_BC)) if groups_B is None else groups_B
    is_given = marks.values >= 0
    kernel = np.zeros((inputs_BC.shape[1] + 1, marks.num_classes), np.float32)
    scores_BT = np.full(is_given.shape, np.nan, np.float32)
    # Most often, the same images have labels of all tags.
    _, patterns = np.unique(is_given, axis=1, return_inverse=True)
    for pattern in range(patterns.max(initial=-1) + 1):
        tags = np.flatnonzero(patterns == pattern)
        rows = np.flatnonzero(is_given[:, tags[0]])
        if len(rows):
            targets_LT = 2.0 * marks.values[np.ix_(rows, tags)] - 1
            kernel[:, tags], scores_BT[np.ix_(rows, tags)] = _fit(
                inputs_BC[rows], targets_LT, groups_B[rows]
            )
    slope, offsets_T = _calibrate(scores_BT, marks)
    bias = (slope * kernel[-1] + offsets_T).astype(np.float32)
    head = TagHead(mean, deviation, np.float32(slope) * kernel[:-1], bias)
    probabilities = head.compute_probabilities(inputs_BC)
    return InferredTags(
        marks=marks,
        probabilities=np.where(is_given, marks.values, probabilities).astype(np.float32),
        held_out=scipy.special.expit(slope * scores_BT + offsets_T).astype(np.float32),
        head=head,
    )


def join_depths(features: FrozenFeatures) -> np.ndarray:
    """Features of the last layer and of all stages of the first network, float32 [B, C]."""
    return np.concatenate([features.pooled, features.stages], axis=1, dtype=np.float32)


def _fit(
    inputs_LC: np.ndarray, targets_LT: np.ndarray, groups_L: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Ridge regression: the kernel [C + 1, T], the last row the bias, and held-out scores [L, T].

    A residual without the labels of a group is (I - H)⁻¹ times that with them, where H is the part
    of X (XᵀX + λI)⁻¹ Xᵀ for the group.
    """
    x = np.pad(inputs_LC.astype(float), ((0, 0), (0, 1)), constant_values=1)
    if len(x) <= x.shape[1]:
        smoothed = np.linalg.solve(x @ x.T + _PENALTY * np.eye(len(x)), x).T
    else:
        smoothed = np.linalg.solve(x.T @ x + _PENALTY * np.eye(x.shape[1]), x.T)
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


def _calibrate(scores_BT: np.ndarray, marks: Marks) -> tuple[float, np.ndarray]:
    """The slope of all scores and the offset of each tag, float [T], fitted to held-out labels.

    Minimizes the negative log-likelihood and penalties, a convex problem.
    """
    given, tags = np.nonzero(marks.values >= 0)
    signs, scores = 2.0 * marks.values[given, tags] - 1, scores_BT[given, tags].astype(float)
    num_tags = marks.num_classes

    def compute_loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        slope, offsets_T = values[0], values[1:]
        margins = signs * (slope * scores + offsets_T[tags])
        slopes = -signs * scipy.special.expit(-margins)
        away = slope - _SLOPE
        loss = np.logaddexp(0, -margins).sum() + _SLOPE_PENALTY / 2 * away**2
        loss += _OFFSET_PENALTY / 2 * (offsets_T @ offsets_T)
        of_offsets = np.bincount(tags, slopes, num_tags) + _OFFSET_PENALTY * offsets_T
        return loss, np.append(slopes @ scores + _SLOPE_PENALTY * away, of_offsets)

    found = scipy.optimize.minimize(
        compute_loss,
        np.append(_SLOPE, np.zeros(num_tags)),
        jac=True,
        bounds=[(0, None)] + [(None, None)] * num_tags,
        method="L-BFGS-B",
    )
    return float(found.x[0]), found.x[1:]


def find_right(p_BT: np.ndarray, values_BT: np.ndarray, thresholds_T: np.ndarray) -> np.ndarray:
    """Which images have all tags right, bool [B], by the values of `Marks`. Open ones are."""
    return np.asarray((((p_BT >= thresholds_T) == values_BT) | (values_BT < 0)).all(axis=1))


def choose_thresholds(inferred: InferredTags, precision: float = 0.0) -> np.ndarray:
    """The probability from which on an image has each tag, float32 [T].

    The smallest one at which so many of the given images that it selects have the tag, by their
    held-out probabilities, or 1 if there is none. With a precision of 0, it is 0.5.
    """
    thresholds = np.full(inferred.marks.num_classes, 0.5, np.float32)
    for t in range(len(thresholds) if precision else 0):
        p_B, values_B = inferred.held_out[:, t], inferred.marks.values[:, t]
        given = np.flatnonzero(values_B >= 0)
        order = given[np.argsort(-p_B[given], kind="stable")]
        p_L = np.append(p_B[order], -1)
        shares_L = np.cumsum(values_B[order]) / np.arange(1, len(p_L))
        # Those of equal probability are selected together.
        reached = np.flatnonzero((shares_L >= precision) & (p_L[:-1] > p_L[1:]))
        thresholds[t] = p_L[reached[-1]] if len(reached) else 1
    return thresholds
