"""The first heads of a run's networks: fitted to given labels, or to labels from frozen features.

A randomly initialized head would backpropagate its errors into the pretrained layers, and its
pseudo-labels are wrong. So fine-tuning starts from a fitted one (LP-FT: Kumar et al., ICLR 2022).

Shape suffixes: N networks, B images, C features.
"""

import dataclasses
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cls_jax.data.sampling import StreamSpec, take_rows
from cls_jax.data.types import Dataset
from cls_jax.methods.losses import PseudoLabels
from cls_jax.methods.options import INFERRED_LABELS
from cls_jax.parallel.distributed import arrays_from_main_process
from cls_jax.parallel.mesh import to_global_arrays
from cls_jax.photos.features.heads import INSTANT_C, PROBE_C, fit_heads
from cls_jax.photos.start.fit_labels import FittedLabels
from cls_jax.photos.start.frozen import compute_frozen
from cls_jax.photos.start.heads import compute_trained_features, replace_heads
from cls_jax.training.setup import TrainSetup, TrainState

# Unlabeled images to which heads are fitted before training. Their features, at the run's
# resolution, are used for nothing else, and more images do not improve the heads.
_MAX_UNLABELED = 1_000


class _Lesson(NamedTuple):
    """What heads are fitted to."""

    features: np.ndarray  # [N, B, C].
    labels: np.ndarray  # int [B].
    weights: np.ndarray | None  # Of the images, [B]. None for equal ones.
    inverse_penalty: float


def init_state_with_heads(
    setup: TrainSetup,
    dataset: Dataset,
    spec: StreamSpec,
    fitted: FittedLabels | None,
    round_index: int = 0,
) -> TrainState:
    """The state before the first step of a round, with the heads that `model.init_head` asks for.

    Heads are fitted to given labels ("probe") and features of the run's networks, or to inferred
    labels ("inferred"), see `_choose_inferred`. `fitted` are the run's labels from frozen features,
    None if neither heads nor loss need them.

    Raises a UserError if the pretrained weights cannot be read or do not fit.
    """
    config, state = setup.config, setup.init_state(round_index)
    if fitted is not None and config.method.get("inferred"):
        inferred = _create_targets(setup, fitted)
        state = state.replace(method_state=state.method_state | {INFERRED_LABELS: inferred})
    if config.model.init_head == "random":
        return state
    if config.model.init_head == "inferred":
        assert fitted is not None, "heads fitted to inferred labels need these"
        lesson = _choose_inferred(setup, dataset, fitted)
    else:
        labeled = spec.labeled_indices
        features_NBC = compute_trained_features(setup, state, dataset.train.images, labeled)
        lesson = _Lesson(features_NBC, dataset.train.labels[labeled], None, PROBE_C)
    heads = fit_heads(
        lesson.features,
        lesson.labels,
        setup.dataset_spec.num_classes,
        seed=(config.seed, round_index),
        inverse_penalty=lesson.inverse_penalty,
        weights_B=lesson.weights,
    )
    # Other numbers of threads round differently.
    heads = arrays_from_main_process(heads)
    as_parameters = [head._asdict() for head in heads]
    return state.replace(
        params=replace_heads(setup, state.params, as_parameters),
        ema_params=replace_heads(setup, state.ema_params, as_parameters),
    )


def _choose_inferred(setup: TrainSetup, dataset: Dataset, fitted: FittedLabels) -> _Lesson:
    """Features for the first heads, with inferred labels and their weights.

    Labels come from features at the network's native resolution, which it was pretrained for. These
    features are at the run's resolution, which the heads see in training. If the two differ, only
    the labeled and at most 1,000 other images are used. On photos, a head on half of the
    features is as good as one on all.
    """
    network = fitted.classifier.network
    assert network is not None, "inferred heads need pretrained weights"
    image_size, chosen = setup.config.data.image_size, np.arange(len(fitted.rows))
    if network.image_size != image_size:
        others = take_rows(chosen[~fitted.is_labeled], _MAX_UNLABELED)
        chosen = np.sort(np.concatenate([chosen[fitted.is_labeled], others]))
    at_run_size = dataclasses.replace(network, image_size=image_size)
    split, data_dir = dataset.train.take(fitted.rows[chosen]), setup.config.data.data_dir
    features_BC = compute_frozen(dataset, split, data_dir, [at_run_size]).pooled
    return _Lesson(
        np.broadcast_to(features_BC, (setup.method.num_networks, *features_BC.shape)),
        fitted.inferred.labels[chosen],
        fitted.inferred.sample_weights[chosen],
        INSTANT_C,
    )


def _create_targets(setup: TrainSetup, fitted: FittedLabels) -> PseudoLabels:
    """The targets of `method.inferred` for every training image, on the mesh. Mean weight 1."""
    inferred, p = fitted.inferred, fitted.inferred.probabilities
    weights = inferred.weights / max(inferred.weights.mean(), 1e-12)
    complementary = _draw_least_probable(p, (setup.config.seed, zlib.crc32(b"complementary")))
    columns = PseudoLabels(
        jnp.asarray(inferred.labels),
        jnp.asarray(complementary),
        jnp.asarray(weights),
        jnp.asarray(p.max(axis=1)),
    )

    def fill(column: Any, shape: jax.ShapeDtypeStruct) -> np.ndarray:
        """A table [N, images], with zeros for unused images."""
        table = np.zeros(shape.shape, shape.dtype)
        table[:, fitted.rows] = column
        return table

    stacked = jax.tree.map(fill, columns, setup.state_shapes.method_state[INFERRED_LABELS])
    stacked = arrays_from_main_process(stacked)
    return to_global_arrays(stacked, setup.mesh, setup.state_specs.method_state[INFERRED_LABELS])


def _draw_least_probable(p_BK: np.ndarray, seed: Sequence[int]) -> np.ndarray:
    """The least probable class of each row, int [B]. Ties are drawn.

    A given label leaves exactly 0 to all other classes. Always taking the first of them would teach
    the networks that it is the rarest class.
    """
    ties = p_BK == p_BK.min(axis=1, keepdims=True)
    draws = np.random.default_rng(seed).uniform(0.5, 1, p_BK.shape)
    least: np.ndarray = np.argmax(ties * draws, axis=1)
    return least
