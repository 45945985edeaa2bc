"""A linear probe as the start of fine-tuning (LP-FT: Kumar et al., ICLR 2022).

A randomly initialized head backpropagates its errors into the pretrained layers, and its pseudo
labels are wrong. `model.init_head=probe` first fits the heads to the features of the labeled
images; then training is that of any other run.

Shape suffixes: N networks, B images, C features, K classes.
"""

import zlib
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.linear_model import LogisticRegression

from cls_jax.data.types import Dataset, ImageSource
from cls_jax.models.layers import FEATURES
from cls_jax.parallel.distributed import check_same_weights
from cls_jax.parallel.mesh import to_global_arrays
from cls_jax.training.evaluate import iterate_padded
from cls_jax.training.setup import TrainSetup
from cls_jax.training.state import TrainState

# The inverse of the penalty, as of scikit-learn. Strong, for there are more features (1,280 in
# EfficientNet-Lite0) than images; from .001 to .1 the accuracy with 40 and 250 labels is the same.
_C = 0.01
_MAX_ITERATIONS = 1000
# A deviation counts at least as this share of the mean one. With a few labeled images some features
# hardly vary; divided by nothing, they would drown all others in the next image that has them.
_MIN_DEVIATION = 0.3


class Head(NamedTuple):
    """Parameters of a dense layer, float32: kernel [C, K] and bias [K]."""

    kernel: np.ndarray
    bias: np.ndarray


def init_state(
    setup: TrainSetup, dataset: Dataset, labeled: np.ndarray, round_index: int = 0
) -> TrainState:
    """The state before the first step of a round, with the heads that `model.init_head` asks for.

    Args:
        setup: of the run.
        dataset: its training images and their labels.
        labeled: indices of the labeled images.
        round_index: of a method with several rounds.

    Raises:
        UserError: if the pretrained weights cannot be read or do not fit.
    """
    state = setup.init_state(round_index)
    if setup.config.model.init_head == "random":
        return state
    labels = dataset.train_labels[labeled]
    features_NBC = compute_features(setup, state, dataset.train_images, labeled)
    num_classes = setup.dataset_spec.num_classes
    heads = fit_heads(features_NBC, labels, num_classes, (setup.config.seed, round_index))
    check_same_weights(heads)
    return state.replace(
        params=_replace_heads(setup, state.params, heads),
        ema_params=_replace_heads(setup, state.ema_params, heads),
    )


def fit_heads(
    features_NBC: np.ndarray, labels_B: np.ndarray, num_classes: int, seed: tuple[int, ...]
) -> list[Head]:
    """A probe for every network, each on its own part of the features.

    Networks with the same head and the same pretrained weights would stay the same: they see the
    same batches. So N networks divide the features among them at random, like the two views of
    co-training (Blum and Mitchell, 1998); kernels of all other features start from 0.
    """
    num_networks, _, num_features = features_NBC.shape
    # With a number of its own: the seed alone, or followed by zeros, draws the labeled images.
    generator = np.random.default_rng((*seed, zlib.crc32(b"probe")))
    order = generator.permutation(num_features)
    parts = np.array_split(order, num_networks)
    return [
        _fit_head(features_BC, np.sort(part), labels_B, num_classes)
        for features_BC, part in zip(features_NBC, parts, strict=True)
    ]


def _fit_head(
    features_BC: np.ndarray, part: np.ndarray, labels_B: np.ndarray, num_classes: int
) -> Head:
    chosen = features_BC[:, part]
    mean, deviation = chosen.mean(axis=0), chosen.std(axis=0)
    deviation = np.maximum(deviation, _MIN_DEVIATION * max(deviation.mean(), 1e-12))
    classifier = LogisticRegression(C=_C, max_iter=_MAX_ITERATIONS)
    classifier.fit((chosen - mean) / deviation, labels_B)
    weights, biases = classifier.coef_, classifier.intercept_
    if len(weights) == 1:  # Of two classes, scikit-learn has the difference of the logits alone.
        weights, biases = np.stack([-weights[0], weights[0]]) / 2, np.append(-biases, biases) / 2
    head = Head(
        np.zeros((features_BC.shape[1], num_classes), np.float32),
        np.zeros(num_classes, np.float32),
    )
    # The same function of features that are not standardized.
    kernel = (weights / deviation).T
    head.kernel[np.ix_(part, classifier.classes_)] = kernel
    head.bias[classifier.classes_] = biases - mean @ kernel
    return head


def compute_features(
    setup: TrainSetup, state: TrainState, images: ImageSource, indices: np.ndarray
) -> np.ndarray:
    """Features of clean images by the EMA networks, normalized by their running statistics.

    Returns:
        float32 [N, len(indices), C].
    """

    def apply(state: TrainState, images: jax.Array) -> jax.Array:
        features, _ = setup.ensemble.forward(
            state.ema_params,
            state.batch_stats,
            setup.normalize(images),
            train=False,
            head=FEATURES,
        )
        return features

    compute = jax.jit(apply, out_shardings=NamedSharding(setup.mesh, P()))
    size, parts = min(setup.config.eval_batch_size, len(indices)), []
    for start in range(0, len(indices), size):
        chosen = images[indices[start : start + size]]
        [(batch, _, is_image)] = iterate_padded(chosen, np.zeros(len(chosen)), size)
        on_mesh = to_global_arrays(batch, setup.mesh, P())
        parts.append(np.asarray(compute(state, on_mesh))[:, is_image])
    return np.concatenate(parts, axis=1)


def _replace_heads(setup: TrainSetup, params: dict, heads: list[Head]) -> dict:
    """A copy of stacked parameters with these heads, on the mesh."""
    stacked = {name: np.stack([getattr(head, name) for head in heads]) for name in Head._fields}
    specs = setup.state_specs.params["head"]
    return {**params, "head": to_global_arrays(stacked, setup.mesh, specs)}
