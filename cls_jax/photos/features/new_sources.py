"""The accuracy to expect on photos of sources that are not in the folder.

A source is a patient, a camera, a site, a video or the like. Photos of one source are alike, so a
figure for other photos of the folder's sources says little about those of a new one.

Shape suffixes: L labeled images, S sources.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.special

from cls_jax.io import write_count

# With fewer sources, their scatter says next to nothing.
MIN_SOURCES = 5
_QUANTILE = 0.975  # For an interval of 95%.


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
    margin = float(scipy.special.stdtrit(num_sources - 1, _QUANTILE)) * math.sqrt(variance)
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
