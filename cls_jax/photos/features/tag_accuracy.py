"""What to expect of the tags of unlabeled images.

The share of images with all tags right is an `Estimate` as of classes. The precision and recall of
each tag are counted on labels that are predicted without them, with Wilson's intervals. What their
constants are chosen by and how often the intervals hold: experiments/results/tags.md.

What is known of tags is int8 [B, T]: 1 with a tag, 0 without it, -1 if it is open. An image is
unlabeled if all are.

Shape suffixes: B images, T tags, L labeled images.
"""

import math
from typing import NamedTuple

import numpy as np

from cls_jax.photos.features.accuracy import (
    Estimate,
    center,
    correct_estimate,
    count_labels,
    estimate_share,
    wilson_interval,
)
from cls_jax.photos.features.grouping import find_firsts
from cls_jax.photos.features.tags import find_right

# With 20 labels, only tags that chance favors are predicted often enough to be judged.
_MIN_LABELS = 30
_MIN_COUNTED = 5  # Images with a tag, and as many predicted to have it, that are enough.
# Variance for each one of independent images: held-out labels are predicted from each other.
_EXCESS = 1.5


class Share(NamedTuple):
    """A share in percent, with the ends of its 95% interval."""

    share: float
    low: float
    high: float


class TagFigures(NamedTuple):
    """What to expect of a tag on the unlabeled images. None if it is too early to say."""

    precision: Share | None  # Of the images predicted to have it, those that do.
    recall: Share | None  # Of the images that have it, those that are predicted to.


def estimate_tags(
    probabilities_BT: np.ndarray,
    held_out_BT: np.ndarray,
    known_BT: np.ndarray,
    groups_B: np.ndarray,
    thresholds_T: np.ndarray | float = 0.5,
) -> Estimate | None:
    """Estimates the share of unlabeled images with all tags right.

    Errors of tags depend on each other, so that the mean of `confide` is up to 11 points off. The
    held-out labels correct it as random images do in `correct_estimate`, but as they may be no
    random ones, the interval is as wide as without them.

    Random images that were checked improve it by `correct_tags`.

    Args:
        probabilities_BT: Of the inferred tags, floating.
        held_out_BT: Those of labeled images without the labels of their group, floating, and NaN
            for others.
        known_BT: What is known of the images.
        groups_B: Groups of near-copies, int.
        thresholds_T: From which probability on an image has a tag.

    Returns:
        Its classes are the tags that an image has, and those with one label the ones that all such
        images are near-copies of each other. None without labels or without unlabeled images.
    """
    is_open = (known_BT < 0).all(axis=1)
    if is_open.all() or not is_open.any():
        return None
    images, tags = np.nonzero(known_BT == 1)
    counts = count_labels(tags, groups_B[images])
    labeled = np.flatnonzero(~is_open)
    labeled = labeled[find_firsts(groups_B[labeled])]
    confidences = confide(probabilities_BT[is_open], thresholds_T)
    estimate = estimate_share(confidences, counts, len(labeled))
    if estimate.accuracy is None:
        return estimate
    corrected = correct_tags(estimate, held_out_BT[labeled], known_BT[labeled], thresholds_T)
    assert corrected.accuracy is not None, "the estimate has an accuracy"
    return center(estimate, corrected.accuracy / 100)


def correct_tags(
    estimate: Estimate,
    held_out_LT: np.ndarray,
    known_LT: np.ndarray,
    thresholds_T: np.ndarray | float = 0.5,
) -> Estimate:
    """The estimate by what is known of random images, see `correct_estimate`.

    They are predicted without their own labels, but with those of each other: what had been guessed
    before they were checked is that of a classifier with fewer labels, and its confidence another
    one. On everyday photos with 20 labels and 20 checks, the interval then held in 82% of the
    draws instead of 92% (experiments/results/tags.md).
    """
    held_LT = np.where(known_LT < 0, 0, held_out_LT)  # What is open counts as right, surely.
    is_right = find_right(held_LT, known_LT, np.asarray(thresholds_T))
    return correct_estimate(estimate, is_right.tolist(), confide(held_LT, thresholds_T).tolist())


def confide(probabilities_BT: np.ndarray, thresholds_T: np.ndarray | float = 0.5) -> np.ndarray:
    """The probability that all tags of an image are right, float64 [B].

    Tags are right independently of each other. Probabilities are floating.
    """
    p_BT = probabilities_BT.astype(np.float64)
    return np.prod(np.where(p_BT >= thresholds_T, p_BT, 1 - p_BT), axis=1)


def estimate_each(
    probabilities_BT: np.ndarray,
    held_out_BT: np.ndarray,
    known_BT: np.ndarray,
    groups_B: np.ndarray,
    thresholds_T: np.ndarray | float = 0.5,
) -> list[TagFigures]:
    """Estimates the precision and recall of each tag on the unlabeled images, T in all.

    They are counted on labels that are predicted without those of their group, of which only the
    first counts. For the arguments, see `estimate_tags`. Pass the `known` of random images alone if
    labels were suggested, which are harder to predict than others.
    """
    labeled = np.flatnonzero((known_BT >= 0).any(axis=1))
    rows = labeled[find_firsts(groups_B[labeled])]
    p_oT = probabilities_BT[(known_BT < 0).all(axis=1)].astype(np.float64)
    says_oT = p_oT >= thresholds_T
    expected = zip(says_oT.sum(axis=0), p_oT.sum(axis=0), strict=True)
    columns = zip((held_out_BT[rows] >= thresholds_T).T, known_BT[rows].T, expected, strict=True)
    is_early = np.isfinite(held_out_BT).any(axis=1).sum() < _MIN_LABELS
    return [
        TagFigures(None, None)
        if is_early
        else _judge(has_L[has_L >= 0] == 1, says_L[has_L >= 0], num_said, num_with)
        for says_L, has_L, (num_said, num_with) in columns
    ]


def _judge(has_n: np.ndarray, says_n: np.ndarray, num_said: float, num_with: float) -> TagFigures:
    """The figures of a tag, from whether n images have it and are predicted to have it, bool.

    Of the other images, `num_said` are predicted to have it, and about `num_with` have it. They are
    a sample, too.
    """
    if min(has_n.sum(), says_n.sum()) < _MIN_COUNTED:
        return TagFigures(None, None)
    num_right = float((has_n & says_n).sum())
    shares = []
    for counted, others in ((float(says_n.sum()), num_said), (float(has_n.sum()), num_with)):
        others = max(others, 1.0)
        effective = 1 / (_EXCESS * (1 / counted + 1 / others))
        low, high = wilson_interval(num_right / counted * effective, effective)
        # The share of so many images is a multiple of what one is of them.
        low, high = math.floor(low * others) / others, min(math.ceil(high * others) / others, 1.0)
        shares.append(Share(100 * num_right / counted, 100 * low, 100 * high))
    return TagFigures(precision=shares[0], recall=shares[1])


def describe_tag(figures: TagFigures) -> str:
    """A few words about the figures of a tag, the same wherever they are shown."""
    said = [
        f"{name} about {value.share:.0f}% ({value.low:.0f} to {value.high:.0f}%)"
        for name, value in figures._asdict().items()
        if value is not None
    ]
    return ", ".join(said) or "too early to say"
