"""The instant classifier: labels for all images, and a linear head fitted to them.

`label_images` is the only place that derives labels for all images from frozen features. An
`InstantClassifier` is the frozen network with the fitted head, in one file.

Shape suffixes: B images, C features, K classes.
"""

import io
import json
import pathlib
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.special
from scipy import sparse
from threadpoolctl import threadpool_limits

from cls_jax.data.images.decode import DecodeOptions
from cls_jax.data.sources.folder import take_rows
from cls_jax.errors import UserError
from cls_jax.features.extract import FrozenFeatures, FrozenNetwork, create_network
from cls_jax.features.graph import build_graph, compute_weight, join_features, propagate_labels
from cls_jax.features.neighbors import normalize_rows
from cls_jax.features.propagation import Propagation
from cls_jax.features.stacking import take_log, weigh_labelers
from cls_jax.io import PARSE_ERRORS, describe_error, parse_json, read_bytes, write_atomically
from cls_jax.models.layers import STAGE_HEAD, Architecture
from cls_jax.models.weights.layout import Weights

# Inverse penalties, scikit-learn's C. The penalty is strong, since there are many features (1,280
# in EfficientNet-Lite0). With few labels, accuracy is the same from 0.001 to 0.1.
PROBE_C = 0.01
INSTANT_C = 0.003
# Weight of a labeled image, where others have at most 1. With it and the probe, photographs of
# clothing gain 1 to 3 points with 5 to 50 labels per class, and nothing with one
# (experiments/results/photographs.md).
_LABELED_WEIGHT = 20
_MAX_ITERATIONS = 1000
# Images that a head is fitted to. More cost time and do not improve it.
_MAX_FITTED = 30_000
# The smallest deviation, as a share of the mean one. In a few labeled images, some features hardly
# vary. Divided by almost 0, they would dominate in other images.
_MIN_DEVIATION = 0.3
_NUM_FOLDS = 5
_MAX_BYTES = 2**32  # Limit of a file.
# Prior weights of graph and linear probe of the last layer, then of all stages. Chosen on clothing,
# rubbish, scans and textures (experiments/results/any_folder.md), where half and twice these are
# within 0.5 points, except for scans with two labels per class.
_PRIOR = (0.5, 0.7, 0.2, 0.3)
# Without a class with two labels, nothing can be held out, and earlier layers get no weight.
_PRIOR_WITHOUT_PAIRS = (1.0, 1.0, 0.0, 0.0)
_DEPTH_PROBE_C = 0.1  # For the probe of all stages, which needs a weaker penalty.
# Up to this many labels, each is held out: of graphs alone, of probes with a fifth of all labels.
# Of more, fifths are held out together.
_MAX_HELD_OUT = 1_000
_MAX_PROBED = 3_000  # Labels to which a probe is fitted that judges other labels.
# Images times classes. Above this, only the last layer is used, to bound memory.
_MAX_NUMBERS = 2**25


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

    network: FrozenNetwork | None  # None if the features are pixels.
    head: Head  # Of the last layer.
    # The kernel of the head of all stages, float32 [S, K], which is added. None without one.
    stage_kernel: np.ndarray | None = None

    def compute_both(self, features: FrozenFeatures) -> tuple[np.ndarray, np.ndarray]:
        """The results of `Classifier.compute_both` for B images, given their features.

        Probabilities float32 [1, B, K], and features float32 [B, C] of unit length.
        """
        pooled_BC = features.pooled.astype(np.float32)
        logits_BK = pooled_BC @ self.head.kernel + self.head.bias
        if self.stage_kernel is not None:
            logits_BK += features.stages.astype(np.float32) @ self.stage_kernel
        return scipy.special.softmax(logits_BK, axis=1)[None], join_features(pooled_BC[None])

    def create_model(self) -> tuple[Architecture, Any]:
        """The network with its heads, and its variables. Raises a ValueError if they do not fit."""
        assert self.network is not None, "pixels are no network's features"
        own = {"head": self.head._asdict()}
        if self.stage_kernel is not None:
            own[STAGE_HEAD] = {"kernel": self.stage_kernel}
        model, variables = create_network(self.network, len(self.head.bias), STAGE_HEAD in own)
        expected = {name: variables["params"][name] for name in model.head_names}
        if jax.tree.map(np.shape, own) != jax.tree.map(np.shape, expected):
            raise ValueError("its head does not fit its network")
        variables["params"] |= own
        return model, variables

    def write(self, path: pathlib.Path) -> None:
        """Writes both into one file. Raises an OSError if the system refuses."""
        assert self.network is not None, "pixels are no network's features"
        weights, buffer = self.network.weights, io.BytesIO()
        settings = self.network._asdict() | {"weights": weights.normalization}
        arrays: dict[str, Any] = {f"weights/{name}": a for name, a in weights.arrays.items()}
        arrays |= self.head._asdict()
        if self.stage_kernel is not None:
            arrays["stage_kernel"] = self.stage_kernel
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
        stage_kernel = stored.pop("stage_kernel", None)
        arrays = {name.removeprefix("weights/"): array for name, array in stored.items()}
        settings["weights"] = Weights(arrays, settings["weights"])
        settings["decoding"] = DecodeOptions(*settings["decoding"])
        instant = InstantClassifier(FrozenNetwork(**settings), head, stage_kernel)
        instant.create_model()
        return instant
    except (UserError, *PARSE_ERRORS) as error:  # type: ignore[misc] # A tuple of classes.
        raise UserError(
            f"{path} is not an instant classifier ({describe_error(error).rstrip('.')}): delete "
            "its run and train it again."
        ) from error


class PropagatedLabels(NamedTuple):
    """Labels of all images, from graphs and linear probes."""

    probabilities: np.ndarray  # float32 [B, K].
    labels: np.ndarray  # int [B], the given class of a labeled image, else the most probable one.
    weights: np.ndarray  # float32 [B] in [0, 1], w = 1 - H(p) / log K, and 1 for labeled images.
    sample_weights: np.ndarray  # float32 [B], for a head: the same, but larger for labeled images.
    probe: Head  # On the last layer.
    # In percent: the share of the weights for the graphs and for the stages before the last layer
    # ("weight_graph", "weight_stages"), and held-out accuracies of the last layer's graph and probe
    # and of all combined ("accuracy_graph", "accuracy_probe", "accuracy_instant").
    figures: dict[str, float]


def label_images(
    features: FrozenFeatures, labels_B: np.ndarray, num_classes: int
) -> PropagatedLabels:
    """Labels all images with graphs and linear probes, weighted by held-out labels.

    A graph uses which images are similar, a probe which features separate the classes. Both use
    the last layer and, if available, all stages. The result is the normalized product of their
    probabilities, with exponents from `weigh_labelers`.

    Args:
        features: Of B training images.
        labels_B: int [B], -1 for images without a label.
        num_classes: K.
    """
    labeled, views = np.flatnonzero(labels_B >= 0), _list_views(features, num_classes)
    firsts = np.unique(_find_first_copies(features, labeled))
    given = labels_B[firsts]
    hidden = _list_folds(given)[0]
    held_out = _hold_out(views, firsts, given, num_classes, hidden)
    weights_M = _weigh(held_out, given, hidden)
    log_p_MBK, probes = [], []
    for inputs_BC, graph, c in views:
        log_p_MBK.append(take_log(propagate_labels(graph, labels_B, num_classes)))
        probes.append(fit_head(inputs_BC[labeled], labels_B[labeled], num_classes, c))
        log_p_MBK.append(take_log(probes[-1].compute_probabilities(inputs_BC)))
    logits_BK = sum(w * log_p for w, log_p in zip(weights_M, log_p_MBK, strict=True))
    probabilities = scipy.special.softmax(logits_BK, axis=1).astype(np.float32)
    probabilities[labeled] = np.eye(num_classes, dtype=np.float32)[labels_B[labeled]]
    figures = {
        "weight_graph": 100 * float(weights_M[::2].sum() / max(weights_M.sum(), 1e-12)),
        "weight_stages": 100 * float(weights_M[2:].sum() / max(weights_M.sum(), 1e-12)),
    }
    if np.bincount(given, minlength=num_classes).min() > 1:
        together = np.tensordot(weights_M, held_out, 1)
        guesses = {"graph": held_out[0], "probe": held_out[1], "instant": together}
        for name, guess in guesses.items():
            figures[f"accuracy_{name}"] = 100 * float(np.mean(guess.argmax(1) == given[hidden]))
    weights = compute_weight(probabilities)
    sample_weights = weights.copy()
    sample_weights[labeled] = _LABELED_WEIGHT
    labels = probabilities.argmax(axis=1)
    return PropagatedLabels(probabilities, labels, weights, sample_weights, probes[0], figures)


def fit_classifier(
    network: FrozenNetwork | None, features: FrozenFeatures, spread: PropagatedLabels
) -> InstantClassifier:
    """The head of the last layer and of all stages, fitted to propagated labels.

    The features are those of the network for the images that `spread` labels.
    """
    rows = _choose_fitted(spread.labels, spread.sample_weights)
    inputs = np.concatenate([features.pooled[rows], features.stages[rows]], axis=1)
    taught = spread.labels[rows], spread.probabilities.shape[1], INSTANT_C
    kernel, bias = fit_head(inputs, *taught, spread.sample_weights[rows])
    num_pooled = features.pooled.shape[1]
    stage_kernel = kernel[num_pooled:] if features.stages.shape[1] else None
    return InstantClassifier(network, Head(kernel[:num_pooled], bias), stage_kernel)


def hold_out_labels(features: FrozenFeatures, labels_B: np.ndarray, num_classes: int) -> np.ndarray:
    """Predicts each labeled image without its own label and its copies, as `label_images` does.

    Of over 1,000 labels, fifths are held out in turn, and probes are fitted to 3,000 of the others.
    The arguments are those of `label_images`. Returns probabilities, float32 [B, K], which are
    uniform for images without a label.
    """
    labeled, views = np.flatnonzero(labels_B >= 0), _list_views(features, num_classes)
    first_copies = _find_first_copies(features, labeled)
    firsts = np.unique(first_copies)
    folds = _list_folds(labels_B[firsts])
    known = views, firsts, labels_B[firsts], num_classes
    parts = [_hold_out(*known, hidden, _MAX_PROBED) for hidden in folds]
    held_out = np.concatenate(parts, axis=1)
    hidden = np.concatenate(folds)
    logits = np.tensordot(_weigh(held_out, labels_B[firsts], hidden), held_out, 1)
    q_BK = np.full((len(labels_B), num_classes), 1 / num_classes, np.float32)
    q_BK[firsts[hidden]] = scipy.special.softmax(logits, axis=1)
    q_BK[labeled] = q_BK[first_copies]
    return q_BK


def _find_first_copies(features: FrozenFeatures, labeled: np.ndarray) -> np.ndarray:
    """For each labeled image the first one with the same content, int [L].

    When an image is held out, so are its copies, because they would give its label away.
    """
    contents = [features.descriptors[i].tobytes() for i in labeled]
    firsts = dict(zip(reversed(contents), reversed(labeled.tolist()), strict=True))
    return np.array([firsts[content] for content in contents], int)


def _list_folds(labels_L: np.ndarray) -> list[np.ndarray]:
    """Positions of the labels to hold out together, int: all of up to 1,000 labels, or fifths."""
    order = np.argsort(labels_L, kind="stable")  # By class, so that every fold has labels of each.
    if len(order) <= _MAX_HELD_OUT:
        return [order]
    return [order[fold::_NUM_FOLDS] for fold in range(_NUM_FOLDS)]


def _hold_out(
    views: list[tuple[np.ndarray, sparse.csr_matrix, float]],
    labeled: np.ndarray,
    labels_L: np.ndarray,
    num_classes: int,
    hidden: np.ndarray,
    most: int | None = None,
) -> np.ndarray:
    """Logarithms [M, len(hidden), K] of what each labeler predicts without the label.

    A probe is fitted to at most `most` other labels.
    """
    p_MLK = []
    for inputs_BC, graph, c in views:
        labels_B = np.full(len(inputs_BC), -1)
        labels_B[labeled] = labels_L
        p_MLK.append(_hold_out_of_graph(graph, labels_B, num_classes, hidden))
        known = inputs_BC[labeled], labels_L
        p_MLK.append(_hold_out_of_probe(*known, num_classes, c, hidden, most or len(labels_L)))
    return take_log(np.stack(p_MLK))


def _weigh(held_out_MLK: np.ndarray, labels: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    """The weights of the labelers, float [M], from what `_hold_out` returned."""
    has_pairs = len(labels) > len(np.unique(labels))
    prior = np.array(_PRIOR if has_pairs else _PRIOR_WITHOUT_PAIRS)
    return weigh_labelers(held_out_MLK, labels[hidden], prior[: len(held_out_MLK)])


def _list_views(
    features: FrozenFeatures, num_classes: int
) -> list[tuple[np.ndarray, sparse.csr_matrix, float]]:
    """Inputs of a probe, float [B, C], a graph, and the probe's inverse penalty.

    The first are those of the last layer, the second, if any, those of all stages.
    """
    views = [(features.pooled, build_graph(features.descriptors), PROBE_C)]
    if features.stages.shape[1] and len(features.stages) * num_classes <= _MAX_NUMBERS:
        stages = features.stages.astype(np.float32)
        deviation = stages.std(axis=0)
        deviation = np.maximum(deviation, _MIN_DEVIATION * max(deviation.mean(), 1e-12))
        scaled = normalize_rows((stages - stages.mean(axis=0)) / deviation)
        all_inputs = np.concatenate([features.pooled.astype(np.float32), stages], axis=1)
        similar = np.concatenate([normalize_rows(features.descriptors), scaled], axis=1)
        views.append((all_inputs, build_graph(similar), _DEPTH_PROBE_C))
    return views


def _hold_out_of_graph(
    graph: sparse.csr_matrix, labels_B: np.ndarray, num_classes: int, hidden: np.ndarray
) -> np.ndarray:
    """Probabilities [L, K] of the `hidden` labeled images, each without its own label."""
    labeled = np.flatnonzero(labels_B >= 0)
    if len(hidden) < len(labeled):
        others = labels_B.copy()
        others[labeled[hidden]] = -1
        return propagate_labels(graph, others, num_classes)[labeled[hidden]]
    propagation = Propagation(graph)
    propagation.add_classes(num_classes)
    propagation.update(dict(zip(labeled.tolist(), labels_B[labeled].tolist(), strict=True)))
    return propagation.leave_one_out()[1][hidden]


def _hold_out_of_probe(
    features_LC: np.ndarray,
    labels_L: np.ndarray,
    num_classes: int,
    c: float,
    hidden: np.ndarray,
    most: int,
) -> np.ndarray:
    """Probabilities [L, K] of the `hidden` labeled images by probes fitted without them."""
    num_folds = _NUM_FOLDS if len(hidden) == len(labels_L) else 1
    p_LK = np.empty((len(hidden), num_classes), np.float32)
    for fold in range(num_folds):
        part = hidden[fold::num_folds]
        rest = np.setdiff1d(np.arange(len(labels_L)), part)
        if len(rest) > most:  # Evenly from all classes.
            rest = take_rows(rest[np.argsort(labels_L[rest], kind="stable")], most)
        if len(rest):
            head = fit_head(features_LC[rest], labels_L[rest], num_classes, c)
            p_LK[fold::num_folds] = head.compute_probabilities(features_LC[part])
        else:
            p_LK[fold::num_folds] = 1 / num_classes
    return p_LK


def fit_head(
    features_BC: np.ndarray,
    labels_B: np.ndarray,
    num_classes: int,
    inverse_penalty: float,
    weights_B: np.ndarray | None = None,
    chosen: np.ndarray | None = None,
) -> Head:
    """Logistic regression on standardized features, as a head for raw features.

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
    used = _choose_fitted(labels_B, weights_B)
    part = features_BC[np.ix_(used, chosen)].astype(np.float32)
    labels, weights = labels_B[used], weights_B[used]
    mean, deviation = part.mean(axis=0), part.std(axis=0)
    deviation = np.maximum(deviation, _MIN_DEVIATION * max(deviation.mean(), 1e-12))
    head = Head(
        np.zeros((num_features, num_classes), np.float32), np.zeros(num_classes, np.float32)
    )
    classes = np.unique(labels)
    if len(classes) < 2:  # There is nothing to fit.
        head.bias[classes] = 1
        return head
    from sklearn.linear_model import LogisticRegression  # Takes as long to import as JAX.

    classifier = LogisticRegression(C=inverse_penalty, max_iter=_MAX_ITERATIONS)
    scaled = (part - mean) / deviation
    # Penalized kernels are sums of images. With fewer images than features, fit in their basis.
    basis = np.linalg.qr(scaled.T)[0] if 4 * len(scaled) < scaled.shape[1] else None
    inputs = scaled if basis is None else scaled @ basis
    # L-BFGS consists of many small products. Two threads of BLAS mostly wait for each other: 3,068
    # images of 2,848 features take 1.6 s with one thread, 5.2 s with two.
    with threadpool_limits(1, "blas"):
        classifier.fit(inputs, labels, sample_weight=weights)
    kernel, bias = classifier.coef_, classifier.intercept_
    kernel = kernel if basis is None else kernel @ basis.T
    if len(kernel) == 1:  # For two classes, scikit-learn returns only the difference of the logits.
        kernel, bias = np.stack([-kernel[0], kernel[0]]) / 2, np.append(-bias, bias) / 2
    kernel = (kernel / deviation).T
    head.kernel[np.ix_(chosen, classifier.classes_)] = kernel
    head.bias[classifier.classes_] = bias - mean @ kernel
    return head


def _choose_fitted(labels_B: np.ndarray, weights_B: np.ndarray) -> np.ndarray:
    """Images of nonzero weight. Of over 30,000 the largest, the same share of each class."""
    used = np.flatnonzero(weights_B > 0)
    if len(used) <= _MAX_FITTED:
        return used
    weights_B, labels_B = weights_B[used], labels_B[used]
    order = np.lexsort((-weights_B, labels_B))
    sizes = np.bincount(labels_B)
    starts = np.cumsum(sizes) - sizes
    shares = (np.arange(len(order)) - starts[labels_B[order]]) / sizes[labels_B[order]]
    return used[order[np.argsort(shares, kind="stable")[:_MAX_FITTED]]]
