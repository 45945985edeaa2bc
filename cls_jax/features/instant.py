"""A classifier at once: labels propagated to all images, and a linear head fitted to them.

`label_images` is the only place that decides what the labels of a few images say about all others.
An `InstantClassifier` is what remains of it: a frozen network with that head, in one file.

Shape suffixes: B images, C features, K classes.
"""

import io
import json
import pathlib
from typing import Any, NamedTuple

import numpy as np
import scipy.special
from scipy import sparse

from cls_jax.data.images.decode import DecodeOptions
from cls_jax.errors import UserError
from cls_jax.features.extract import FrozenFeatures, FrozenNetwork, create_network
from cls_jax.features.graph import build_graph, compute_weight, join_features, propagate_labels
from cls_jax.io import PARSE_ERRORS, describe_error, parse_json, read_bytes, write_atomically
from cls_jax.models.weights.layout import Weights

# Inverse penalties, scikit-learn's C. They are strong, for there are many features (1,280 in
# EfficientNet-Lite0). With few labels, accuracies from 0.001 to 0.1 are the same.
PROBE_C = 0.01
INSTANT_C = 0.003
# Weight of a labeled image. Others have at most 1. With it and the probe's vote, photographs of
# clothing gain 1 to 3 points with 5 to 50 labels per class, and nothing with one
# (experiments/results/photographs.md).
_LABELED_WEIGHT = 20
_MAX_ITERATIONS = 1000
# Images that a head is fitted to: more cost time, and change nothing.
_MAX_FITTED = 30_000
# A deviation counts at least as this share of the mean one. With a few labeled images some features
# hardly vary. Divided by almost 0, they would drown all others in the next image that has them.
_MIN_DEVIATION = 0.3
_NUM_FOLDS = 5
_MAX_BYTES = 2**32  # Of a file.


class Head(NamedTuple):
    """Parameters of a dense layer, float32: kernel [C, K] and bias [K]."""

    kernel: np.ndarray
    bias: np.ndarray

    def predict(self, features_BC: np.ndarray) -> np.ndarray:
        """The most probable class of each image, int [B]."""
        return self.compute_probabilities(features_BC).argmax(axis=1)

    def compute_probabilities(self, features_BC: np.ndarray) -> np.ndarray:
        """Probabilities float32 [B, K] of images with features [B, C]."""
        logits = features_BC.astype(np.float32) @ self.kernel + self.bias
        return scipy.special.softmax(logits, axis=1)


class InstantClassifier(NamedTuple):
    """A frozen network, and a head for its classes."""

    network: FrozenNetwork
    head: Head

    def compute_both(self, features: FrozenFeatures) -> tuple[np.ndarray, np.ndarray]:
        """What `Classifier.compute_both` returns for B images, given their features.

        Probabilities float32 [1, B, K], and features float32 [B, C] of unit length.
        """
        pooled = features.pooled.astype(np.float32)[None]
        return self.head.compute_probabilities(pooled[0])[None], join_features(pooled)

    def write(self, path: pathlib.Path) -> None:
        """Writes both into one file. Raises an OSError if the system refuses."""
        weights, buffer = self.network.weights, io.BytesIO()
        settings = self.network._asdict() | {"weights": weights.normalization}
        arrays: dict[str, Any] = {f"weights/{name}": a for name, a in weights.arrays.items()}
        arrays |= self.head._asdict()
        np.savez(buffer, settings=np.array(json.dumps(settings)), **arrays)
        write_atomically(path, buffer.getvalue())


def read_instant(path: pathlib.Path) -> InstantClassifier:
    """Reads what `InstantClassifier.write` wrote.

    Raises:
        UserError: If it is missing or damaged.
    """

    def to_tuple(value: Any) -> Any:
        return tuple(map(to_tuple, value)) if isinstance(value, list) else value

    try:
        with np.load(io.BytesIO(read_bytes(path, _MAX_BYTES)), allow_pickle=False) as file:
            stored = {name: file[name] for name in file.files}
        settings = {k: to_tuple(v) for k, v in parse_json(str(stored.pop("settings"))).items()}
        head = Head(stored.pop("kernel"), stored.pop("bias"))
        arrays = {name.removeprefix("weights/"): array for name, array in stored.items()}
        settings["weights"] = Weights(arrays, settings["weights"])
        settings["decoding"] = DecodeOptions(*settings["decoding"])
        network = FrozenNetwork(**settings)
        _, variables = create_network(network, len(head.bias))
        if variables["params"]["head"]["kernel"].shape != head.kernel.shape:
            raise ValueError("its head does not fit its network")
        return InstantClassifier(network, head)
    except (UserError, *PARSE_ERRORS) as error:  # type: ignore[misc] # A tuple of classes.
        raise UserError(
            f"{path} is not an instant classifier ({describe_error(error).rstrip('.')}): delete "
            "its run and train it again."
        ) from error


class InstantLabels(NamedTuple):
    """What `label_images` says about all images."""

    spread: "PropagatedLabels"  # Of the training images.
    head: Head  # Fitted to these.
    instant: np.ndarray  # float32 [V, K], probabilities of the other images by that head,
    probe: np.ndarray  # and by the linear probe.
    accuracies: dict[str, float]  # Of `cross_validate`, or empty.


def label_images(
    train: FrozenFeatures,
    labels_B: np.ndarray,
    num_classes: int,
    others: FrozenFeatures,
    is_validated: bool = False,
) -> InstantLabels:
    """Labels all training images and fits a head, which then labels other images.

    Args:
        train: Features of B training images.
        labels_B: int [B], -1 for images without a label.
        num_classes: K.
        others: Features of V images of which nothing is learned, maybe none.
        is_validated: Whether to predict labels that were left out.
    """
    graph = build_graph(train.descriptors)
    spread = spread_labels(train.pooled, graph, labels_B, num_classes)
    head = fit_head(train.pooled, spread.labels, num_classes, INSTANT_C, spread.sample_weights)
    accuracies = None
    if is_validated:
        accuracies = cross_validate(train.pooled, graph, labels_B, num_classes)
    instant, probe = (h.compute_probabilities(others.pooled) for h in (head, spread.probe))
    return InstantLabels(spread, head, instant, probe, accuracies or {})


class PropagatedLabels(NamedTuple):
    """What the graph and the linear probe say about every image."""

    probabilities: np.ndarray  # float32 [B, K].
    labels: np.ndarray  # int [B], the given class of a labeled image, else the most probable one.
    weights: np.ndarray  # float32 [B] in [0, 1], w = 1 - H(p) / log K, and 1 for labeled images.
    sample_weights: np.ndarray  # float32 [B], for a head: the same, but larger for labeled images.
    probe: Head


def spread_labels(
    features_BC: np.ndarray, graph: sparse.csr_matrix, labels_B: np.ndarray, num_classes: int
) -> PropagatedLabels:
    """Two labelers vote: the graph of the features' nearest neighbors, and the linear probe.

    The graph knows where images lie close together, the probe which features tell the labels apart.
    The product of their probabilities is right more often than either.

    Args:
        features_BC: Floating [B, C], for the probe.
        graph: S from `build_graph`, [B, B].
        labels_B: int [B], -1 for images without a label.
        num_classes: K.
    """
    probabilities = propagate_labels(graph, labels_B, num_classes)
    labeled = np.flatnonzero(labels_B >= 0)
    probe = fit_head(features_BC[labeled], labels_B[labeled], num_classes, PROBE_C)
    probabilities = _vote(probabilities, probe.compute_probabilities(features_BC))
    weights = compute_weight(probabilities)
    sample_weights = weights.copy()
    sample_weights[labeled] = _LABELED_WEIGHT
    labels = probabilities.argmax(axis=1)
    return PropagatedLabels(probabilities, labels, weights, sample_weights, probe)


def _vote(p_BK: np.ndarray, q_BK: np.ndarray) -> np.ndarray:
    """The normalized product of two probabilities, or the first if they exclude each other."""
    product = p_BK * q_BK
    sums = product.sum(axis=1, keepdims=True)
    return np.divide(product, sums, out=p_BK.copy(), where=sums > 0)


def cross_validate(
    features_BC: np.ndarray, graph: sparse.csr_matrix, labels_B: np.ndarray, num_classes: int
) -> dict[str, float] | None:
    """Accuracies in percent on labels that were left out, a fifth at a time.

    "probe" is the linear probe on the other labels, "instant" its vote with the labels that spread
    from them along the graph. None if a class has fewer than two labels. Takes the same arguments
    as `spread_labels`.
    """
    labeled = np.flatnonzero(labels_B >= 0)
    if np.bincount(labels_B[labeled], minlength=num_classes).min() < 2:
        return None
    # Sorted by class, so that every fold has some of each.
    order = labeled[np.argsort(labels_B[labeled], kind="stable")]
    is_correct = np.zeros((2, len(order)), bool)
    for fold in range(_NUM_FOLDS):
        hidden = order[fold::_NUM_FOLDS]
        rest = np.setdiff1d(order, hidden)
        head = fit_head(features_BC[rest], labels_B[rest], num_classes, PROBE_C)
        labels = np.full(len(labels_B), -1)
        labels[rest] = labels_B[rest]
        probe = head.compute_probabilities(features_BC[hidden])
        votes = _vote(propagate_labels(graph, labels, num_classes)[hidden], probe)
        is_correct[:, fold::_NUM_FOLDS] = [
            guess.argmax(axis=1) == labels_B[hidden] for guess in (probe, votes)
        ]
    return dict(zip(("probe", "instant"), (100 * is_correct.mean(axis=1)).tolist(), strict=True))


def fit_head(
    features_BC: np.ndarray,
    labels_B: np.ndarray,
    num_classes: int,
    inverse_penalty: float,
    weights_B: np.ndarray | None = None,
    chosen: np.ndarray | None = None,
) -> Head:
    """Logistic regression on standardized features, as a head for features as they are.

    Args:
        features_BC: Floating [B, C].
        labels_B: int [B].
        num_classes: K. Classes without an image have the kernel and bias 0.
        inverse_penalty: C of scikit-learn.
        weights_B: Weights of the images, float [B]. None for equal ones.
        chosen: int [m], features to use. The others get the kernel 0. None for all.
    """
    num_features = features_BC.shape[1]
    chosen = np.arange(num_features) if chosen is None else chosen
    weights_B = np.ones(len(labels_B)) if weights_B is None else weights_B
    used = np.flatnonzero(weights_B > 0)
    if len(used) > _MAX_FITTED:
        used = used[_take_certain(weights_B[used], labels_B[used], _MAX_FITTED)]
    part = features_BC[np.ix_(used, chosen)].astype(np.float32)
    labels, weights = labels_B[used], weights_B[used]
    mean, deviation = part.mean(axis=0), part.std(axis=0)
    deviation = np.maximum(deviation, _MIN_DEVIATION * max(deviation.mean(), 1e-12))
    head = Head(
        np.zeros((num_features, num_classes), np.float32), np.zeros(num_classes, np.float32)
    )
    classes = np.unique(labels)
    if len(classes) < 2:  # Nothing to tell apart.
        head.bias[classes] = 1
        return head
    from sklearn.linear_model import LogisticRegression  # Takes as long to import as JAX.

    classifier = LogisticRegression(C=inverse_penalty, max_iter=_MAX_ITERATIONS)
    classifier.fit((part - mean) / deviation, labels, sample_weight=weights)
    kernel, bias = classifier.coef_, classifier.intercept_
    if len(kernel) == 1:  # For two classes, scikit-learn returns only the logits' difference.
        kernel, bias = np.stack([-kernel[0], kernel[0]]) / 2, np.append(-bias, bias) / 2
    kernel = (kernel / deviation).T
    head.kernel[np.ix_(chosen, classifier.classes_)] = kernel
    head.bias[classifier.classes_] = bias - mean @ kernel
    return head


def _take_certain(weights_B: np.ndarray, labels_B: np.ndarray, number: int) -> np.ndarray:
    """Positions of the images with the largest weights, the same share of every class."""
    order = np.lexsort((-weights_B, labels_B))
    sizes = np.bincount(labels_B)
    starts = np.cumsum(sizes) - sizes
    shares = (np.arange(len(order)) - starts[labels_B[order]]) / sizes[labels_B[order]]
    return order[np.argsort(shares, kind="stable")[:number]]
