"""The accuracy to expect on the unlabeled images, estimated from the inferred labels.

It is the mean confidence on the unlabeled images. Labels that predict each other are no measure:
suggested images are far from each other, so each is harder to predict than the rest of the folder,
and classes with one label cannot be judged at all. Such an estimate was 6 to 12 points too low on
average (experiments/results/labeling.md). While many classes have a single label, the confidence is
too high, and there is no estimate.

Shape suffixes: B images, K classes.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

# With a larger share of labels that are the only ones of their class, the confidence is too high.
_MAX_SINGLE = 0.25
# Standard deviation of the error that more labels do not reduce.
_SYSTEMATIC = 0.03
_ROUNDING = 1e-9
_QUANTILE = 1.96  # Of the normal distribution, for 95%.


class Estimate(NamedTuple):
    """The expected accuracy on the unlabeled images."""

    classes: float  # Those with a label.
    classes_with_one_label: float  # Near-copies count once.
    # In percent, with the ends of the 95% interval. None if it is too early to say.
    accuracy: float | None = None
    accuracy_low: float | None = None
    accuracy_high: float | None = None


def count_labels(labels_B: np.ndarray, groups_B: np.ndarray) -> np.ndarray:
    """The labels of each class that has one, int [K]. Near-copies with the same label count once.

    Labels are int [B], -1 for images without one, and groups of near-copies int [B].
    """
    is_labeled = labels_B >= 0
    pairs = np.unique(np.stack([labels_B[is_labeled], groups_B[is_labeled]]), axis=1)
    return np.unique(pairs[0], return_counts=True)[1]


def is_too_early(counts_K: np.ndarray) -> bool:
    """Whether over 25% of the labels are the only ones of their class. See `count_labels`."""
    return bool((counts_K == 1).sum() > _MAX_SINGLE * counts_K.sum())


def estimate_accuracy(
    probabilities_BK: np.ndarray, labels_B: np.ndarray, groups_B: np.ndarray
) -> Estimate | None:
    """Estimates the accuracy of inferred labels on the unlabeled images.

    With the mean confidence c of n labels, the interval is c ± 1.96 √(c (1 - c) / n + 0.03²).

    Args:
        probabilities_BK: Of the inferred labels, floating.
        labels_B: The given labels, int, -1 for unlabeled images.
        groups_B: Groups of near-copies, int.

    Returns:
        None without labels or without unlabeled images.
    """
    is_open = labels_B < 0
    if is_open.all() or not is_open.any():
        return None
    counts = count_labels(labels_B, groups_B)
    estimate = Estimate(len(counts), int((counts == 1).sum()))
    if is_too_early(counts):
        return estimate
    share = float(probabilities_BK[is_open].max(axis=1).mean(dtype=np.float64))
    margin = _QUANTILE * math.sqrt(share * (1 - share) / counts.sum() + _SYSTEMATIC**2)
    return estimate._replace(
        accuracy=100 * share,
        accuracy_low=100 * max(share - margin, 0.0),
        accuracy_high=100 * min(share + margin, 1.0),
    )


def choose_to_check(confidences_B: np.ndarray, num_right: int, share: float) -> np.ndarray:
    """The fewest images to look at so that a share of all are expected to be right.

    Images that are looked at count as right, as `num_right` others with a label do. Each of the
    rest is right with its confidence.

    Args:
        confidences_B: The highest inferred probabilities of the unlabeled images, floating.
        num_right: The number of labeled images.
        share: From 0 to 1, of the labeled and unlabeled images together.

    Returns:
        Indices of the least confident images, int, the least confident first.
    """
    order = np.argsort(confidences_B, kind="stable")
    # Wrong ones that are expected if only the first 0, 1, 2 and so on are looked at.
    wrong = np.append(np.cumsum(1.0 - confidences_B[order][::-1])[::-1], 0.0)
    most = (1 - share) * (len(order) + num_right)
    return order[: int((wrong <= most + _ROUNDING).argmax())]


def read_estimate(result: Mapping[str, Any]) -> Estimate | None:
    """The estimate in the contents of `result.json`. None if there is none."""
    values: dict[str, Any] = {name: result.get(f"labels_{name}") for name in Estimate._fields}
    if None in (values["classes"], values["classes_with_one_label"]):
        return None
    return Estimate(**values)


def describe_estimate(estimate: Estimate) -> str:
    """A sentence about the estimate, the same wherever it is shown."""
    if estimate.accuracy is None:
        single, classes = int(estimate.classes_with_one_label), int(estimate.classes)
        have = "class has" if classes == 1 else "classes have"
        return f"Too early to say: {single:,} of {classes:,} {have} only one answer."
    return (
        f"About {estimate.accuracy:.0f}% of the other photos are named right "
        f"({estimate.accuracy_low:.0f} to {estimate.accuracy_high:.0f}%)."
    )
