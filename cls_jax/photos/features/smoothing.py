"""What tags are inferred from: features at one scale, and the same smoothed over similar images.

An image and its neighbors in the graphs of the last layer and of all stages have much in common,
labeled or not. Means over them are less noisy (personalized PageRank, as in Gasteiger et al.,
"Predict then Propagate", ICLR 2019, on features as in Wu et al., "Simplifying Graph Convolutional
Networks", ICML 2019). A linear function of the features of an image that predicts its mean (as in
Cai et al., "Spectral Regression", ICCV 2007) is known for new images, too.

Shape suffixes: B images, C features of the last layer and of all stages, R smoothed features.
"""

import operator
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy import sparse

from cls_jax.data.sampling import take_rows
from cls_jax.photos.features.heads import standardize
from cls_jax.photos.features.network import FrozenFeatures

# From .7 to .95 with 3 to 20 steps, mean average precisions on the development folders are within
# .2 points.
_ALPHA, _NUM_STEPS = 0.8, 5
_MAX_COMPONENTS = 512  # Means lie in the space of the features of so many images.
_PENALTY = 0.1  # Of squared weights of the function that predicts means.
_BLOCK_ROWS = 1024  # Images that are scaled at once: 12 MB.
SMALLEST_NORM = 1e-12  # Of features that an image has.


class Smoothing(NamedTuple):
    """How features are scaled, and the function that smooths them."""

    mean: np.ndarray  # float32 [C].
    deviation: np.ndarray  # float32 [C].
    kernel: np.ndarray  # float32 [C, R], for scaled features.


def scale(features: FrozenFeatures, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Features minus means, over deviations, at unit length, float32 [B, C].

    Those of the last layer come first, then those of all stages.
    """
    scaled = np.concatenate([features.pooled, features.stages], axis=1, dtype=np.float32)
    scaled -= mean
    scaled /= deviation
    scaled /= np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True), SMALLEST_NORM)
    return scaled


def take_blocks(features: FrozenFeatures) -> Iterator[FrozenFeatures]:
    """All images in order, a few at once. One empty block of none."""
    for start in range(0, max(len(features.pooled), 1), _BLOCK_ROWS):
        yield features.convert(operator.itemgetter(slice(start, start + _BLOCK_ROWS)))


def fit_smoothing(features: FrozenFeatures, graph: sparse.csr_matrix) -> Smoothing:
    """Fits it to images, labeled or not, and their graph [B, B] as `build_graph` returns it.

    Stages are divided by their deviations. Features of the last layer keep theirs: those that vary
    more tell more. Both parts have the same size on average.
    """
    pooled = features.pooled.astype(np.float32)
    mean, deviation = pooled.mean(axis=0), np.full(pooled.shape[1], _measure(pooled), np.float32)
    if features.stages.shape[1]:
        scaled, of_stages, deviations = standardize(features.stages.astype(np.float32))
        mean = np.append(mean, of_stages)
        deviation = np.append(deviation, _measure(scaled) * deviations)
    x_BC = scale(features, mean, deviation)
    basis_CR = np.linalg.qr(x_BC[take_rows(np.arange(len(x_BC)), _MAX_COMPONENTS)].T)[0]
    own_BR = x_BC @ basis_CR
    graph, mean_BR = graph.astype(np.float32), own_BR
    for _ in range(_NUM_STEPS):
        mean_BR = _ALPHA * (graph @ mean_BR) + (1 - _ALPHA) * own_BR
    mean_BR /= np.maximum(np.linalg.norm(mean_BR, axis=1, keepdims=True), SMALLEST_NORM)
    products = own_BR.T @ own_BR + _PENALTY * np.eye(own_BR.shape[1], dtype=np.float32)
    weights = np.linalg.solve(products, own_BR.T @ mean_BR)
    norm = np.sqrt(np.square(own_BR @ weights).sum(axis=1).mean())
    return Smoothing(mean, deviation, basis_CR @ (weights / max(float(norm), SMALLEST_NORM)))


def _measure(features_BC: np.ndarray) -> np.float32:
    """The root of the mean squared distance from the mean of images, or 1 if these are equal."""
    return np.sqrt(features_BC.var(axis=0).sum()) or np.float32(1)
