"""Refits the heads after the last step (`model.final_head=inferred`).

Frozen features and fine-tuned networks err differently, so the product of their probabilities is
more accurate than either. Where classes form clusters, training pulls the clusters further apart,
and labels propagated along a graph of the trained features are more accurate still. Elsewhere that
graph is wrong. So there is a graph of the last layer and one of all stages, with exponents that
depend on the weights that held-out labels gave to these graphs before training. Heads fitted to the
combined labels bring this into the networks.

Shape suffixes: N networks, B images, C features, S features of stages, K classes.
"""

import jax
import numpy as np

from cls_jax.data.sampling import take_rows
from cls_jax.data.types import Dataset
from cls_jax.models.layers import ALL_FEATURES
from cls_jax.parallel.distributed import arrays_from_main_process
from cls_jax.photos.features.decide import decide
from cls_jax.photos.features.graph import compute_weight, join_features, propagate_labels
from cls_jax.photos.features.heads import INSTANT_C, Head, fit_head
from cls_jax.photos.features.infer import pool, take_log
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.features.relations import LAST, STAGES, Relations
from cls_jax.photos.start.fit_labels import FittedLabels
from cls_jax.photos.start.heads import compute_trained_features, replace_heads
from cls_jax.training.rounds import RecordLabels
from cls_jax.training.setup import TrainSetup, TrainState

# At most so many labeled and so many other images. More would take minutes on a CPU.
MAX_IMAGES = 10_000
# The exponent of a graph of trained features is this many times the weight that held-out labels
# gave to the frozen graph of the same layers, relative to its probes. From 3 to 6, clothing and
# CIFAR-10 differ by about 1 point (experiments/results/any_folder.md).
_GRAPH_EXPONENT = 4.0
_MAX_RATIO = 3.0  # Because the weight of the probes may be 0.


def fit_final_heads(
    setup: TrainSetup,
    state: TrainState,
    dataset: Dataset,
    fitted: FittedLabels,
    record: RecordLabels = lambda *columns: None,
) -> TrainState:
    """Fits the heads of the EMA networks to labels from features, the networks, and two graphs.

    All networks share the graphs: their features are those of all networks, concatenated. Each
    network's head sees all of its pooled features. At most 10,000 labeled images are used, and as
    many others, evenly spaced. `record` gets the labels of all others.

    Returns:
        The state with the new heads in `ema_params`.
    """
    is_labeled, inferred = fitted.is_labeled, fitted.inferred
    parts = [take_rows(np.flatnonzero(part), MAX_IMAGES) for part in (is_labeled, ~is_labeled)]
    used = np.sort(np.concatenate(parts))
    stacked = jax.device_get(state.ema_params["head"])
    heads = [
        Head(kernel, bias) for kernel, bias in zip(stacked["kernel"], stacked["bias"], strict=True)
    ]
    all_features = compute_trained_features(
        setup, state, dataset.train.images, fitted.rows[used], ALL_FEATURES
    )
    width = len(heads[0].kernel)
    features_NBC, descriptors_NBC, stages_NBS = np.split(all_features, [width, 2 * width], axis=-1)
    num_classes = setup.dataset_spec.num_classes
    given = np.where(is_labeled[used], inferred.labels[used], -1)
    descriptors, stages = join_features(descriptors_NBC), np.concatenate(stages_NBS, axis=-1)
    relations = Relations(FrozenFeatures(descriptors, descriptors, stages))
    found = [_predict(heads, features_NBC), inferred.probabilities[used]]
    for depth in (LAST, STAGES):
        found.append(propagate_labels(relations.connect(0, depth), given, num_classes))
    exponents = _GRAPH_EXPONENT * np.minimum(inferred.labeler_weights.graph_ratios, _MAX_RATIO)
    p_BK = pool(np.array([1, 1, *exponents]), map(take_log, found))
    labels = np.where(is_labeled[used], inferred.labels[used], decide(p_BK).best)
    weights = np.where(is_labeled[used], inferred.sample_weights[used], compute_weight(p_BK))
    heads = [fit_head(f_BC, labels, num_classes, INSTANT_C, weights) for f_BC in features_NBC]
    # Processes round sums differently, so all use process 0's heads.
    heads = arrays_from_main_process(heads)
    is_new = ~is_labeled[used]
    columns = [(fitted.rows[used][is_new], labels[is_new], weights[is_new])]
    others = fitted.rows[np.setdiff1d(np.flatnonzero(~is_labeled), used)]
    for first in range(0, len(others), MAX_IMAGES):  # All at once would fill the memory.
        part = others[first : first + MAX_IMAGES]
        p_BK = _predict(heads, compute_trained_features(setup, state, dataset.train.images, part))
        columns.append((part, decide(p_BK).best, compute_weight(p_BK)))
    rows, inferred_labels, inferred_weights = map(np.concatenate, zip(*columns, strict=True))
    record(rows, inferred_labels, inferred_weights)
    as_parameters = [head._asdict() for head in heads]
    return state.replace(ema_params=replace_heads(setup, state.ema_params, as_parameters))


def _predict(heads: list[Head], features_NBC: np.ndarray) -> np.ndarray:
    """The networks' mean probabilities [B, K]."""
    pairs = zip(heads, features_NBC, strict=True)
    return np.mean([head.compute_probabilities(f_BC) for head, f_BC in pairs], axis=0)
