"""Linear heads: logistic regression on features, in NumPy and scikit-learn.

All heads are fitted here. Callers choose the images, their labels and weights, and the penalty.

Shape suffixes: N networks, B images, C features, K classes.
"""

import warnings
import zlib
from typing import NamedTuple

import numpy as np
import scipy.special
from threadpoolctl import threadpool_limits

from cls_jax.photos.features.decide import decide

# Inverse penalties, scikit-learn's C, for given labels and for inferred ones. The penalty is
# strong, since there are many features (1,280 in EfficientNet-Lite0). With few labels, accuracy is
# the same from 0.001 to 0.1.
PROBE_C = 0.01
INSTANT_C = 0.003
_MAX_ITERATIONS = 1000
# Images that a head is fitted to. More cost time and do not improve it.
_MAX_FITTED = 30_000
# The smallest deviation, as a share of the mean one. In a few labeled images, some features hardly
# vary. Divided by almost 0, they would dominate in other images.
_MIN_DEVIATION = 0.3


class Head(NamedTuple):
    """Parameters of a dense layer, float32: kernel [C, K] and bias [K]."""

    kernel: np.ndarray
    bias: np.ndarray

    def predict(self, features_BC: np.ndarray) -> np.ndarray:
        """The most probable class of each image, int [B]."""
        return decide(self.compute_probabilities(features_BC)).best

    def compute_probabilities(self, features_BC: np.ndarray) -> np.ndarray:
        """Probabilities float32 [B, K] of images with features [B, C]."""
        return normalize_logits(features_BC.astype(np.float32) @ self.kernel + self.bias)


def normalize_logits(logits: np.ndarray) -> np.ndarray:
    """Probabilities of classes, floating [..., K], of the dtype of the logits."""
    return np.asarray(scipy.special.softmax(logits, axis=-1))


def fit_heads(
    features_NBC: np.ndarray,
    labels_B: np.ndarray,
    num_classes: int,
    seed: tuple[int, ...],
    inverse_penalty: float = PROBE_C,
    weights_B: np.ndarray | None = None,
) -> list[Head]:
    """A head for every network, each on its own part of the features.

    Networks with equal heads and pretrained weights would stay equal, since they see the same
    batches. So N networks divide the features among them at random, like the two views of
    co-training (Blum and Mitchell, 1998). Kernels of all other features start from 0.
    """
    num_networks, _, num_features = features_NBC.shape
    # With a constant, since the seed alone, or with zeros, draws the labeled images.
    generator = np.random.default_rng((*seed, zlib.crc32(b"probe")))
    parts = np.array_split(generator.permutation(num_features), num_networks)
    return [
        fit_head(
            features_BC,
            labels_B,
            num_classes,
            inverse_penalty=inverse_penalty,
            weights_B=weights_B,
            chosen=np.sort(part),
        )
        for features_BC, part in zip(features_NBC, parts, strict=True)
    ]


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
    used = choose_fitted(labels_B, weights_B)
    part = features_BC[np.ix_(used, chosen)].astype(np.float32)
    labels, weights = labels_B[used], weights_B[used]
    scaled, mean, deviation = standardize(part)
    head = Head(
        np.zeros((num_features, num_classes), np.float32), np.zeros(num_classes, np.float32)
    )
    classes = np.unique(labels)
    if len(classes) < 2:  # There is nothing to fit.
        head.bias[classes] = 1
        return head
    from sklearn.linear_model import LogisticRegression  # Takes as long to import as JAX.

    classifier = LogisticRegression(C=inverse_penalty, max_iter=_MAX_ITERATIONS)
    # Penalized kernels are sums of images. With fewer images than features, fit in their basis.
    basis = np.linalg.qr(scaled.T)[0] if 4 * len(scaled) < scaled.shape[1] else None
    inputs = scaled if basis is None else scaled @ basis
    # L-BFGS consists of many small products. Two threads of BLAS mostly wait for each other: 3,068
    # images of 2,848 features take 1.6 s with one thread, 5.2 s with two.
    with threadpool_limits(1, "blas"), warnings.catch_warnings():
        # One label per class is no mistake here.
        warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
        classifier.fit(inputs, labels, sample_weight=weights)
    kernel, bias = classifier.coef_, classifier.intercept_
    kernel = kernel if basis is None else kernel @ basis.T
    if len(kernel) == 1:  # For two classes, scikit-learn returns only the difference of the logits.
        kernel, bias = np.stack([-kernel[0], kernel[0]]) / 2, np.append(-bias, bias) / 2
    kernel = (kernel / deviation).T
    head.kernel[np.ix_(chosen, classifier.classes_)] = kernel
    head.bias[classifier.classes_] = bias - mean @ kernel
    return head


def standardize(features_BC: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features minus their means, over their clipped deviations, with both: [B, C], [C] and [C]."""
    mean, deviation = features_BC.mean(axis=0), features_BC.std(axis=0)
    deviation = np.maximum(deviation, _MIN_DEVIATION * max(deviation.mean(), 1e-12))
    return (features_BC - mean) / deviation, mean, deviation


def choose_fitted(labels_B: np.ndarray, weights_B: np.ndarray) -> np.ndarray:
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
