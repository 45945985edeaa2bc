"""A score for images that belong to no class: their distance from everything with a label.

Networks are as confident about such images as about others: among photos, with four of ten
classes unknown, the instant classifier's confidence detects them hardly better than chance
(experiments/results/unknown_images.md). How far labels reach along the graph of similar images is
more informative. To score new images without the graph, a linear function of the networks'
features is fitted to separate the half of the unlabeled training images that labels reach least
from the other half. The score is the share of these images with a smaller value.

Shape suffixes: B images, C features of all networks, K classes.
"""

import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from cls_jax.io import is_number
from cls_jax.photos.features.graph import build_graph, solve
from cls_jax.photos.features.heads import fit_head
from cls_jax.photos.features.marks import find_judged, join_groups
from cls_jax.photos.features.neighbors import normalize_rows
from cls_jax.photos.inference.calibration import read_fitted

UNKNOWN = "unknown.json"
_ALPHA = 0.9  # Shorter walks than those of label propagation.
_C = 0.0003
# An image is far if 95% of the labeled images are closer to the other labels.
_FAR = 0.05
# Images of a larger cosine are the same but for rounding errors.
_SAME = 1 - 1e-5
# With 4 and 25 labels per class, 8% and 8% of photos were far if all had a class, and 28% and
# 33% if 46% had none (experiments/results/unknown_images.md).
_MANY = 0.2


class UnknownScore(NamedTuple):
    """The score of a step's checkpoint."""

    step: int
    kernel: tuple[float, ...]  # C weights of a linear function, larger for images of no class.
    # Quantiles of its values for the unlabeled training images, equally spaced.
    quantiles: tuple[float, ...]
    # The share of the unlabeled images that are farther from all labels than 95% of the labeled
    # images are from the others. None if no class has two labels, or if the features have learned
    # the labels.
    far_share: float | None = None

    def apply(self, features_BC: np.ndarray) -> np.ndarray:
        """The share of the unlabeled training images that are closer to the labels, float32 [B]."""
        shares = np.linspace(0, 1, len(self.quantiles))
        values = features_BC @ np.asarray(self.kernel, np.float32)
        return np.interp(values, self.quantiles, shares).astype(np.float32)


def fit_unknown(
    features_BC: np.ndarray,
    labels_B: np.ndarray,
    num_classes: int,
    step: int = 0,
    sources_B: np.ndarray | None = None,
) -> UnknownScore | None:
    """Fits the score of a step to the features float32 [B, C] of training images.

    Labels are int [B], -1 for unlabeled images. `sources_B` are what the images come from, int, -1
    where unknown: how far labels reach is judged without those of the same source. None without a
    labeled and two different unlabeled images.
    """
    rest, labeled = np.flatnonzero(labels_B < 0), np.flatnonzero(labels_B >= 0)
    if len(rest) < 2 or not len(labeled):
        return None
    unit_BC = normalize_rows(features_BC)
    if (unit_BC[rest] @ unit_BC[rest[0]]).min() > _SAME:
        return None
    graph = build_graph(features_BC)
    reach = measure_reach(graph, labels_B, num_classes)
    is_far = np.zeros(len(rest), int)
    is_far[np.argsort(reach[rest], kind="stable")[: len(rest) // 2]] = 1
    kernel = fit_head(features_BC[rest], is_far, 2, _C).kernel
    kernel = (kernel[:, 1] - kernel[:, 0]).astype(np.float32)
    quantiles = np.quantile(features_BC[rest] @ kernel, np.linspace(0, 1, 101))
    groups = np.arange(len(labels_B))
    if sources_B is not None:
        groups = join_groups(sources_B)
        reach = measure_reach(graph, labels_B, num_classes, groups)
    has_peers = find_judged(labels_B[labeled], groups[labeled])
    far_share = None
    if has_peers.any():
        bound = np.quantile(reach[labeled[has_peers]], _FAR)
        # Many copies of a labeled image have no more edges than one, and their reach is small.
        is_copy = (unit_BC[rest] @ unit_BC[labeled].T).max(axis=1) > _SAME
        far_share = float(np.mean((reach[rest] < bound) & ~is_copy))
    return UnknownScore(step, tuple(kernel.tolist()), tuple(quantiles.tolist()), far_share)


def measure_reach(
    graph: sparse.csr_matrix,
    labels_B: np.ndarray,
    num_classes: int,
    groups_B: np.ndarray | None = None,
) -> np.ndarray:
    """How well the labels of the nearest class reach each image without its own, float64 [B].

    Labels, int [B] and -1 for unlabeled images, spread along a graph [B, B] as in
    `propagate_labels`. An image's reach by a class is the mean share that it gets of that class's
    labels, without those of its group, int [B]. Memory grows with the number of labels times B.
    """
    labeled = np.flatnonzero(labels_B >= 0)
    groups_B = np.arange(len(labels_B)) if groups_B is None else groups_B
    is_own_BL = groups_B[:, None] == groups_B[labeled]
    one_hot = (labels_B[labeled, None] == np.arange(num_classes)).astype(float)
    sources = np.zeros((len(labels_B), len(labeled)))
    sources[labeled, np.arange(len(labeled))] = 1
    spread = solve(graph, sources, _ALPHA)
    spread /= spread.sum(axis=0)
    spread[is_own_BL] = 0
    counts = ~is_own_BL @ one_hot
    return np.max(spread @ one_hot / np.maximum(counts, 1), axis=1)


def describe_far(score: UnknownScore | None, result: Mapping[str, Any]) -> str | None:
    """A warning if many unlabeled images are far from every label. Otherwise None.

    Also None if most labeled images of a run with this result are near-copies: they are so close to
    each other that all others would count as far.
    """
    if score is None or score.far_share is None or score.far_share < _MANY:
        return None
    copies, groups = (result.get(f"labels_{name}") for name in ("near_copies", "near_copy_groups"))
    if copies and groups and 2 * (copies + groups) > result["num_labels"]:
        return None
    return (
        f"{score.far_share:.0%} of your unlabeled images look unlike everything you labeled. Label "
        "a few of them. If they belong to none of your classes, sort the predictions by `unknown`."
    )


def read_unknown(
    workdir: pathlib.Path, step: int, num_features: int | None = None
) -> UnknownScore | None:
    """The score of the checkpoint of a step. None if there is none.

    `num_features` is C, the features of all networks, or None if the score will not be applied.
    Raises a UserError if the file is damaged or fits another number of features.
    """

    def parse(stored: dict) -> UnknownScore:
        score = UnknownScore(**stored)
        score = score._replace(kernel=tuple(score.kernel), quantiles=tuple(score.quantiles))
        numbers = (score.step, *score.kernel, *score.quantiles, score.far_share or 0)
        if not score.kernel or not score.quantiles or not all(map(is_number, numbers)):
            raise ValueError("a value is not a number")
        if score.step == step and num_features not in (None, len(score.kernel)):
            raise ValueError(
                f"it weighs {len(score.kernel):,} features, and the networks have {num_features:,}"
            )
        return score

    return read_fitted(workdir / UNKNOWN, step, parse, "a score of unknown images")
