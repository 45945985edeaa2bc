"""What lies between images, whatever their labels: neighbors, similar images, copies, means.

It takes most of the time that inferring labels takes, and a label changes nothing about it. So it
is made once for the images of a session or a run, and whoever infers something receives it. For
other labels there are other orders and parts of the same images, which derive theirs from it.

Tags are inferred from means, too: an image and its neighbors in the graphs of the last layer and of
all stages have much in common, labeled or not. Means over them are less noisy (personalized
PageRank, as in Gasteiger et al., "Predict then Propagate", ICLR 2019, on features as in Wu et al.,
"Simplifying Graph Convolutional Networks", ICML 2019). A linear function of the features of an
image that predicts its mean (as in Cai et al., "Spectral Regression", ICCV 2007) is known for new
images, too.

Shape suffixes: B images, C features, R smoothed features. Of tags, C counts the features of the
last layer and of all stages.
"""

import functools
import operator
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy import sparse

from cls_jax.data.sampling import take_rows
from cls_jax.photos.features.extract import concatenate_features
from cls_jax.photos.features.graph import NUM_NEIGHBORS, Response, connect_neighbors
from cls_jax.photos.features.heads import standardize
from cls_jax.photos.features.near_copies import (
    MIN_FEATURES,
    NO_PAIRS,
    Pairs,
    find_pairs,
    find_same,
    join_pairs,
    measure_closeness,
)
from cls_jax.photos.features.neighbors import (
    Neighbors,
    Whitening,
    extend_neighbors,
    find_neighbors,
    fit_whitening,
    normalize_rows,
    search_rows,
    take_neighbors,
)
from cls_jax.photos.features.network import FrozenFeatures

# Depths at which images are compared: the last layer, all stages, and early stages.
LAST, STAGES, EARLY = range(3)
# The share of the columns of all stages that belongs to early ones: four of the seven stages of
# EfficientNet-Lite0 (but for seven deviations), two of the four of a ResNet.
_EARLY_SHARE = 0.2
# Images times classes. Above this, only the last layer is used, to bound memory.
_MAX_NUMBERS = 2**25
# Images that a new one is compared with, and that the smoothing is fitted to. They take 5 MB, and
# while it is fitted 500 MB.
_MAX_PLACED = 10_000
# With a larger share of new images, everything is computed again: what is fitted to all images,
# such as the whitening, would be that of too few of them.
_MOST_ADDED = 0.1
# Of the smoothing. From .7 to .95 with 3 to 20 steps, mean average precisions on the development
# folders are within .2 points.
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


# What was found at a depth, and how images are compared there: None for the last layer, whose
# features are compared as they are.
_Compared = tuple[Neighbors, Whitening | None]


class Relations:
    """What lies between B images by one or several networks, each part made when first needed."""

    def __init__(self, features: FrozenFeatures):
        """For all images of these features."""
        self.features = features
        self._whole: tuple[Relations, np.ndarray] | None = None  # With the rows that these are.
        self._num_fitted = len(features.pooled)  # The images of what is fitted to all.
        self._found: dict[tuple[int, int], _Compared] = {}  # By network and depth.
        self._memory: tuple[bytes, dict[tuple[int, int], dict[int, Response]]] = b"", {}

    def __len__(self) -> int:
        return len(self.features.pooled)

    @property
    def networks(self) -> tuple[FrozenFeatures, ...]:
        """The features of each network."""
        return self.features, *self.features.others

    def is_deep(self, num_classes: int) -> bool:
        """Whether labels of K classes are inferred by stages, too."""
        has_stages = all(each.stages.shape[1] for each in self.networks)
        return has_stages and len(self) * num_classes <= _MAX_NUMBERS

    def take(self, rows: np.ndarray) -> "Relations":
        """Those of the images at `rows`, int [n] without duplicates, in this order.

        Images that lose a neighbor are compared with the others again. What is fitted to all images
        stays: the whitening, and the scale by which near-copies are found.
        """
        taken = Relations(self.features.convert(lambda columns: columns[rows]))
        taken._whole, taken._num_fitted = (self, rows), self._num_fitted
        return taken

    def extend(self, features: FrozenFeatures) -> "Relations":
        """Those of these images and of new ones, which come last.

        New images are compared with all others, and the whitening stays, unless more than a tenth
        of the images came since it was fitted: everything is computed again then.
        """
        extended = Relations(concatenate_features([self.features, features]))
        is_small = len(extended) <= (1 + _MOST_ADDED) * self._num_fitted
        if is_small and len(self) > NUM_NEIGHBORS:
            extended._num_fitted = self._num_fitted
            for (network, depth), (neighbors, whitening) in dict(self._found).items():
                compared = extended._take_features(network, depth, whitening)
                extended._found[network, depth] = extend_neighbors(neighbors, compared), whitening
        return extended

    def connect(self, network: int, depth: int) -> sparse.csr_matrix:
        """The graph of similar images, [B, B] as `build_graph` returns it.

        The last layer compares descriptors. Stages are whitened.
        """
        return connect_neighbors(self._compare(network, depth)[0])

    @property
    def names(self) -> np.ndarray:
        """The rows of these images in the whole that they were taken from, int [B]."""
        return self._whole[1] if self._whole else np.arange(len(self))

    def recall(self, network: int, depth: int) -> dict[int, Response]:
        """What is known of labels of single images in a graph, by `names`, to be read and written.

        It is that of the same images in any order. Only that of the latest ones is kept.
        """
        whole, images = self._whole[0] if self._whole else self, np.sort(self.names).tobytes()
        if whole._memory[0] != images:
            whole._memory = images, {}
        return whole._memory[1].setdefault((network, depth), {})

    def _compare(self, network: int, depth: int) -> _Compared:
        if (network, depth) in self._found:
            return self._found[network, depth]
        if self._whole:
            whole, rows = self._whole
            of_whole, whitening = whole._compare(network, depth)
            take_features = functools.partial(self._take_features, network, depth, whitening)
            neighbors = take_neighbors(of_whole, rows, take_features)
        else:
            features = self._take_features(network, depth)
            whitening = None if depth == LAST else fit_whitening(features)
            compared = features if whitening is None else whitening(features)
            neighbors = find_neighbors(compared, min(NUM_NEIGHBORS, len(self) - 1))
        self._found[network, depth] = neighbors, whitening
        return neighbors, whitening

    def _take_features(
        self, network: int, depth: int, whitening: Whitening | None = None
    ) -> np.ndarray:
        """What images are compared by, floating [B, C]."""
        if depth == LAST:
            return self.networks[network].descriptors
        stages = self.networks[network].stages
        if depth == EARLY:
            stages = stages[:, : max(round(_EARLY_SHARE * stages.shape[1]), 1)]
        features = stages.astype(np.float32)
        return features if whitening is None else whitening(features)

    @functools.cached_property
    def same(self) -> np.ndarray:
        """The first image with the same features as each, int [B], see `find_same`."""
        return find_same(self.features.descriptors)

    @functools.cached_property
    def _scale(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean and the deviation of the features of all stages, float32 [C]."""
        if self._whole:
            return self._whole[0]._scale
        return standardize(self.features.stages.astype(np.float32))[1:]

    def _standardize(self, stages_BC: np.ndarray) -> np.ndarray:
        """Standardized features of unit length, float32 [B, C], of these images or others."""
        mean, deviation = self._scale
        return normalize_rows((stages_BC.astype(np.float32) - mean) / deviation)

    @functools.cached_property
    def _pairs(self) -> Pairs:
        if self._whole is not None:
            whole, rows = self._whole
            return whole._pairs.take(rows, len(whole))
        similar, _ = self._compare(0, STAGES)
        is_read = np.asarray(self.features.descriptors.any(axis=1))  # The features of others are 0.
        return find_pairs(self._standardize(self.features.stages), similar, is_read)

    @functools.cached_property
    def places(self) -> tuple[np.ndarray, Whitening, np.ndarray]:
        """Where at most 10,000 images lie, evenly spaced, for new ones to be placed among them.

        By the first network's features of the last layer and of all stages, side by side: these M
        images, int, the whitening, and their components of unit length, float16 [M, R].
        """
        rows = take_rows(np.arange(len(self)), _MAX_PLACED)
        if self._whole is not None and len(self._whole[0]) <= _MAX_PLACED:
            _, whitening, components = self._whole[0].places
            return rows, whitening, components[self._whole[1]]
        parts = self.features.pooled[rows], self.features.stages[rows]
        inputs = np.concatenate(parts, axis=1, dtype=np.float32)
        whitening = self._whole[0].places[1] if self._whole else fit_whitening(inputs)
        return rows, whitening, normalize_rows(whitening(inputs)).astype(np.float16)

    @functools.cached_property
    def smoothing(self) -> Smoothing:
        """See `fit_smoothing`, by the first network, fitted to at most 10,000 images."""
        if self._whole is not None:
            return self._whole[0].smoothing
        if len(self) > _MAX_PLACED:
            rows = take_rows(np.arange(len(self)), _MAX_PLACED)
            return Relations(self.features.convert(lambda columns: columns[rows])).smoothing
        depths = (LAST, STAGES) if self.features.stages.shape[1] else (LAST,)
        graphs = [self.connect(0, depth) for depth in depths]
        return fit_smoothing(self.features, sum(graphs) / len(graphs))

    def find_similar(self, features: FrozenFeatures) -> tuple[Neighbors, np.ndarray]:
        """The nearest of these images to n new ones by all stages, and their `measure_closeness`.

        Both are [n, k], the nearest first.
        """
        _, whitening = self._compare(0, STAGES)
        assert whitening is not None, "stages are whitened"
        own, new = (
            normalize_rows(whitening(each.stages.astype(np.float32)))
            for each in (self.features, features)
        )
        similar = search_rows(new, own, min(NUM_NEIGHBORS, len(self)))
        unit, unit_BC = (self._standardize(each.stages) for each in (features, self.features))
        return similar, measure_closeness(unit, unit_BC, similar)

    @functools.cached_property
    def copies(self) -> np.ndarray:
        """The group of near-copies of each image, int [B], whatever the labels. See `group`."""
        return self.group(np.full(len(self), -1))

    def group(self, labels_B: np.ndarray) -> np.ndarray:
        """The group of near-copies of each image, int [B] from 0. Most are alone in theirs.

        By the first network. Without at least 100 features of stages, only images with the same
        features are grouped. An image that could not be read, with features of 0, is alone. Images
        with different `labels_B`, int [B], -1 where unknown, are in different groups, see
        `join_pairs`.
        """
        stages = self.features.stages
        if stages.shape[1] < MIN_FEATURES or len(self) < 2:
            return join_pairs(NO_PAIRS, self.same, labels_B)
        return join_pairs(
            self._pairs, self.same, labels_B, lambda rows: self._standardize(stages[rows])
        )


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
