"""The accuracy to expect on the unlabeled images, estimated from the inferred labels.

It is the mean confidence on the unlabeled images. Labels that predict each other are no measure:
suggested images are far from each other, so each is harder to predict than the rest of the folder,
and classes with one label cannot be judged at all. Such an estimate was 6 to 12 points too low on
average (experiments/results/labeling.md). While many classes have a single label, the confidence is
too high, and there is no estimate.

Photos of one source, such as a patient, a camera, a site or a video, are alike, so a figure for
other photos of the folder's sources says little about those of a new one. Labels that are predicted
without those of their source tell that accuracy.

Shape suffixes: B images, K classes, L labeled images, S sources.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.special

from cls_jax.io import write_count
from cls_jax.photos.features.decide import decide

# With a larger share of labels that are the only ones of their class, the confidence is too high.
_MAX_SINGLE = 0.25
# Standard deviation of the error that more labels do not reduce.
_SYSTEMATIC = 0.03
# Errors for each one that the confidences leave.
_EXCESS = 1.5
_SURE = 0.9
_LEAST_LEFT = 1e-4  # Even by the highest confidence.
_ROUNDING = 1e-9
_LEARNED = 1.15  # Deviation for each one that is left once random images are learned.
_QUANTILE = statistics.NormalDist().inv_cdf(0.975)  # Of 95% intervals.
_QUANTILE_BELOW = 1.28  # For 90% on one side.
_STUDENT = 0.975  # The quantile of Student's t for 95%.
MIN_CHECKS = 20  # Random photos that are enough for an estimate.
MIN_SOURCES = 5  # With fewer sources, their scatter says next to nothing.


class Estimate(NamedTuple):
    """The expected accuracy on the unlabeled images."""

    classes: float  # Those with a label.
    classes_with_one_label: float  # Near-copies count once.
    # In percent, with the ends of the 95% interval. None if it is too early to say.
    accuracy: float | None = None
    accuracy_low: float | None = None
    accuracy_high: float | None = None
    # The mean confidence and its standard deviation in percent, on how many images.
    confidence: float | None = None
    confidence_deviation: float | None = None
    images: float | None = None
    # The standard deviation of the confidence's error, in points. None if it is too early to say.
    confidence_error: float | None = None
    checks: float | None = None  # Random photos that measured the accuracy.


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

    With the mean confidence c on B unlabeled images and n labels, the interval is
    c ± 1.96 √(c (1 - c) (1 / n + 1 / B) + 0.03²): it holds for these images, not only on average.

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
    confidences = decide(probabilities_BK[is_open]).confidence.astype(np.float64)
    return estimate_share(confidences, counts, int(counts.sum()))


def estimate_share(confidences_B: np.ndarray, counts_K: np.ndarray, num_labels: int) -> Estimate:
    """Estimates the share of images that are right from their confidences, float64 [B].

    Args:
        confidences_B: The probability that an image is right.
        counts_K: The labels of each class that has one, see `count_labels`.
        num_labels: The number n of labeled images, see `estimate_accuracy`.
    """
    share = float(confidences_B.mean())
    estimate = Estimate(
        len(counts_K),
        int((counts_K == 1).sum()),
        confidence=100 * share,
        confidence_deviation=100 * float(confidences_B.std()),
        images=len(confidences_B),
    )
    if is_too_early(counts_K):
        return estimate
    scatter = share * (1 - share) * (1 / num_labels + 1 / len(confidences_B))
    error = math.sqrt(scatter + _SYSTEMATIC**2)
    return center(estimate._replace(confidence_error=100 * error), share)


def center(estimate: Estimate, share: float) -> Estimate:
    """The estimate of a share, from 0 to 1, with an interval by the error of the confidence."""
    assert estimate.confidence_error is not None, "it is too early"
    margin = _QUANTILE * estimate.confidence_error / 100
    return estimate._replace(
        accuracy=100 * share,
        accuracy_low=100 * max(share - margin, 0.0),
        accuracy_high=100 * min(share + margin, 1.0),
    )


def find_sure(confidences_B: np.ndarray, estimate: Estimate | None) -> np.ndarray:
    """Which images are right with a probability of 90% or more, bool [B].

    Each is wrong with 1.5 times the probability that its confidence leaves, or more if random
    images were wrong more often than that: the most confident ones are wrong more often than they
    should be. Of those found on four folders, 97% were right (experiments/results/labeling.md).

    Args:
        confidences_B: The highest inferred probabilities, floating.
        estimate: Of the unlabeled images, by `correct_estimate`. None if it is not known.
    """
    excess = _EXCESS * (_compare_errors(estimate) if estimate else 1.0)
    return np.asarray(excess * (1.0 - confidences_B) <= 1 - _SURE + _ROUNDING)


def choose_to_check(
    confidences_B: np.ndarray, num_right: int, share: float, estimate: Estimate
) -> np.ndarray:
    """The fewest images to look at so that a share of all is right, in nine of ten folders.

    Images that are looked at count as right, as `num_right` others with a label do. The rest is
    expected to be as accurate as the lower end of the estimate's one-sided 90% interval. An image
    is wrong in proportion to the square root of what its confidence leaves: with the plain
    confidence, too few of the wrong ones are expected among the most confident images
    (experiments/results/labeling.md).

    Args:
        confidences_B: The highest inferred probabilities of the unlabeled images, floating.
        num_right: The number of labeled images.
        share: From 0 to 1, of the labeled and unlabeled images together.
        estimate: Of the unlabeled images, by `correct_estimate`. Its accuracy is known.

    Returns:
        Indices of the least confident images, int, the least confident first.
    """
    assert estimate.accuracy is not None, "it is too early"
    assert estimate.accuracy_low is not None, "it is too early"
    order = np.argsort(confidences_B, kind="stable")
    below = _QUANTILE_BELOW / _QUANTILE * (estimate.accuracy - estimate.accuracy_low)
    low = min(max(estimate.accuracy - below, 0.0), 100.0) / 100
    errors = _spread_errors(confidences_B[order], 1 - low)
    # Wrong ones that are expected if only the first 0, 1, 2 and so on are looked at.
    wrong = np.append(np.cumsum(errors[::-1])[::-1], 0.0)
    most = (1 - share) * (len(order) + num_right)
    return order[: np.flatnonzero(wrong <= most + _ROUNDING)[0]]


def _spread_errors(confidences_B: np.ndarray, mean: float) -> np.ndarray:
    """Probabilities of errors with some mean, float [B].

    At most 1, and in proportion to the square root of what the confidences leave.
    """
    from scipy.optimize import brentq  # Takes some tenths of a second.

    weights_B = np.sqrt(np.maximum(1.0 - confidences_B.astype(np.float64), _LEAST_LEFT))

    def exceed(factor: float) -> float:
        return float(np.minimum(factor * weights_B, 1.0).mean()) - mean

    if not len(weights_B) or mean >= 1:
        return np.ones(len(weights_B))
    highest = 1 / weights_B.min()  # Here all are 1.
    return np.minimum(brentq(exceed, 0.0, highest) * weights_B, 1.0)


def _compare_errors(estimate: Estimate) -> float:
    """Errors for each one that the confidences leave, by random images. At least 1."""
    accuracy, confidence = estimate.accuracy, estimate.confidence
    if not estimate.checks or accuracy is None or confidence is None or confidence >= 100:
        return 1.0
    return max((100 - accuracy) / (100 - confidence), 1.0)


def correct_estimate(
    estimate: Estimate, is_right: Sequence[bool], confidences: Sequence[float]
) -> Estimate:
    """The estimate by M random images whose true class is known. The same with fewer than 20.

    Confidences c tell how accurate a classifier believes to be, and random images correct that
    (Angelopoulos et al., Prediction-powered inference, arXiv 2301.09633, with λ = 1) by the shift
    mean(right) - mean_checked(c). The variance of the sum of mean_all(c) and the shift is
    var(right - c) / M + var_all(c) / B. For this variance, a right and a wrong image are added: if
    all M are right, as of 20 by a classifier of 97% in half of all draws, the interval would
    otherwise almost vanish and hold the truth in 43 to 90% of the cases instead of 94 or more.

    20 images alone are less exact than the mean confidence. So the shift is multiplied by
    w = e² / (e² + var(right - c) / M), the weight that is best if the error of the mean confidence
    has the standard deviation e: that of `estimate_accuracy`, or the size of the shift if it is
    larger. Both together are more exact than each: the variance is then w var(right - c) / M. The
    interval has 1.15 times its deviation, at most that of the random images alone, since the
    classifier learns the checked images and is then better than it was checked to be. While it is
    too early to say, the weight is 1.

    Args:
        estimate: By `estimate_accuracy`.
        is_right: Whether the classifier named each image right, before it learned the answer [M].
        confidences: What it then thought of that, from 0 to 1 [M].
    """
    num_checks = len(is_right)
    confidence, deviation = estimate.confidence, estimate.confidence_deviation
    if num_checks < MIN_CHECKS or confidence is None or deviation is None:
        return estimate
    right_M, c_M = np.asarray(is_right, float), np.asarray(confidences, float)
    mean = c_M.mean()
    residuals = np.append(right_M - c_M, [1 - mean, -mean])
    variance = residuals.var(ddof=1) / num_checks
    shift, weight = float((right_M - c_M).mean()), 1.0
    if estimate.confidence_error is not None:
        squared = max((estimate.confidence_error / 100) ** 2, shift**2)
        weight = squared / (squared + variance)
    share = confidence / 100 + weight * shift
    # Student's t by its inverse: `scipy.stats` takes a second to import.
    quantile = float(scipy.special.stdtrit(num_checks - 1, _STUDENT))
    variance *= min(_LEARNED**2 * weight, 1.0)
    margin = quantile * math.sqrt(variance + (deviation / 100) ** 2 / (estimate.images or 1))
    return estimate._replace(
        accuracy=100 * min(max(share, 0.0), 1.0),
        accuracy_low=100 * max(share - margin, 0.0),
        accuracy_high=100 * min(share + margin, 1.0),
        checks=num_checks,
    )


def measure_accuracy(estimate: Estimate, is_right: Sequence[bool]) -> Estimate:
    """The accuracy by random images alone, with Wilson's interval. Unknown with fewer than 20.

    For a classifier whose confidences tell nothing: only the classes of the estimate stay.
    """
    found = Estimate(estimate.classes, estimate.classes_with_one_label)
    if len(is_right) < MIN_CHECKS:
        return found
    num_right = sum(is_right)
    low, high = wilson_interval(num_right, len(is_right))
    return found._replace(
        accuracy=100 * num_right / len(is_right),
        accuracy_low=100 * low,
        accuracy_high=100 * high,
        checks=len(is_right),
    )


def read_estimate(result: Mapping[str, Any]) -> Estimate | None:
    """The estimate in the contents of `result.json`. None if there is none."""
    values: dict[str, Any] = {name: result.get(f"labels_{name}") for name in Estimate._fields}
    if None in (values["classes"], values["classes_with_one_label"]):
        return None
    return Estimate(**values)


def describe_estimate(
    estimate: Estimate,
    who: str = "",
    others: str = "the other photos",
    right: str = "are named right",
    nouns: tuple[str, str] = ("class", "classes"),
) -> str:
    """A sentence about the estimate, the same wherever it is shown.

    `who` names the photos, such as "the instant classifier", and `others` says which ones. `right`
    says what the estimate is of, and `nouns` what an image has, one and several.
    """
    if estimate.accuracy is None:
        single, classes = int(estimate.classes_with_one_label), int(estimate.classes)
        have = f"{nouns[0]} has" if classes == 1 else f"{nouns[1]} have"
        return f"Too early to say: {single:,} of {classes:,} {have} only one answer."
    by, source = f" by {who}" if who else "", ""
    if estimate.checks:
        source = f", measured on {estimate.checks:,.0f} random photos"
    return (
        f"About {estimate.accuracy:.0f}% of {others} {right}{by} "
        f"({estimate.accuracy_low:.0f} to {estimate.accuracy_high:.0f}%){source}."
    )


def wilson_interval(num_correct: float, num_images: float) -> tuple[float, float]:
    """The 95% Wilson score interval of a share, between 0 and 1, which is (0, 1) without images.

    Numbers may be effective ones, and fractions.
    """
    if not num_images:
        return 0.0, 1.0
    share = num_correct / num_images
    scale = 2 * (num_images + _QUANTILE**2)
    center = (2 * num_correct + _QUANTILE**2) / scale
    variance = 4 * num_correct * (1 - share) + _QUANTILE**2
    margin = _QUANTILE * math.sqrt(variance) / scale
    return (center - margin if num_correct else 0.0), (center + margin if share < 1 else 1.0)


class NewSources(NamedTuple):
    """The expected accuracy on photos of new sources."""

    sources: float  # With a label.
    # Classes all of whose labels are from one source, and which no other source can predict.
    classes_with_one_source: float = 0.0
    # In percent, with the ends of the 95% interval. None with fewer than 5 sources.
    accuracy_new_sources: float | None = None
    accuracy_new_sources_low: float | None = None
    accuracy_new_sources_high: float | None = None


def estimate_new_sources(is_right_L: np.ndarray, sources_L: np.ndarray) -> NewSources:
    """Estimates the accuracy on photos of new sources from labels predicted without their sources.

    The sources are a sample, and images a cluster in each (Cochran, Sampling Techniques, 1977,
    section 9A.1, the ratio estimator): with n_s labels of source s, of which the share a_s is
    predicted correctly, the accuracy is A = Σ n_s a_s / Σ n_s. Its variance is
    V = S / (S - 1) Σ n_s² (a_s - A)² / (Σ n_s)², but at least that of as many independent labels,
    with one more that is right and one that is wrong.

    New sources are a sample, too: the accuracy on as many of them scatters by up to V around that
    on all. So V is added to the variance, and the interval holds for the accuracy on S new sources:
    without it, it held for these in 89% of simulated folders (experiments/results/sources.md). It
    is that of Student's t with S - 1 degrees of freedom.

    Args:
        is_right_L: Whether a label is predicted correctly from those of all other sources, bool.
        sources_L: The source of each image, int.
    """
    num_sources = len(np.unique(sources_L))
    if num_sources < MIN_SOURCES:
        return NewSources(num_sources)
    _, places = np.unique(sources_L, return_inverse=True)
    sizes_S = np.bincount(places)
    right_S = np.bincount(places, weights=is_right_L)
    total = sizes_S.sum()
    share = float(right_S.sum() / total)
    scatter = float(((right_S - share * sizes_S) ** 2).sum()) / total**2
    variance = num_sources / (num_sources - 1) * scatter
    smoothed = (right_S.sum() + 1) / (total + 2)
    variance += max(variance, float(smoothed * (1 - smoothed) / total))
    # Student's t by its inverse: `scipy.stats` takes a second to import.
    margin = float(scipy.special.stdtrit(num_sources - 1, _STUDENT)) * math.sqrt(variance)
    return NewSources(
        num_sources,
        accuracy_new_sources=100 * share,
        accuracy_new_sources_low=100 * max(share - margin, 0.0),
        accuracy_new_sources_high=100 * min(share + margin, 1.0),
    )


def count_single(labels_L: np.ndarray, sources_L: np.ndarray) -> int:
    """The classes all of whose labels are from one source. Labels and sources are int.

    A source below 0 is unknown, and counts as another one.
    """
    pairs = np.unique(np.stack([labels_L, sources_L]), axis=1)
    classes, counts = np.unique(pairs[0], return_counts=True)
    unknown = pairs[0, pairs[1] < 0]
    return int(((counts == 1) & ~np.isin(classes, unknown)).sum())


def read_new_sources(result: Mapping[str, Any]) -> NewSources | None:
    """The estimate in the contents of `result.json`. None where nothing is known of sources."""
    values: dict[str, Any] = {name: result.get(f"labels_{name}") for name in NewSources._fields}
    return None if values["sources"] is None else NewSources(**values)


def describe_new_sources(estimate: NewSources) -> str:
    """Sentences about the estimate, the same wherever it is shown."""
    single = ""
    if estimate.classes_with_one_source:
        classes = write_count(int(estimate.classes_with_one_source), "class", "classes")
        single = (
            f" All labels of {classes} are from one source each: the classifier may have learned "
            "the source instead, and nothing can tell. Label photos of other sources."
        )
    if estimate.accuracy_new_sources is None:
        have = write_count(int(estimate.sources), "source has", "sources have")
        return (
            f"On photos of new sources: too early to say. {have} labels, and it takes "
            f"{MIN_SOURCES} whose classes other sources have, too, to see how much sources "
            f"differ.{single}"
        )
    return (
        f"On photos of new sources, about {estimate.accuracy_new_sources:.0f}% are named right "
        f"({estimate.accuracy_new_sources_low:.0f} to {estimate.accuracy_new_sources_high:.0f}%), "
        f"judged by {estimate.sources:,.0f} sources that were held out in turn.{single}"
    )
