"""Features of a run's networks, and linear heads on them before the first step.

A randomly initialized head backpropagates its errors into the pretrained layers, and its pseudo
labels are wrong. So fine-tuning starts from a fitted head (LP-FT: Kumar et al., ICLR 2022), see
`cls_jax.training.instant`.

Shape suffixes: N networks, B images, C features, K classes.
"""

import zlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from cls_jax.data.types import ImageSource, Selection
from cls_jax.features.instant import PROBE_C, Head, fit_head
from cls_jax.methods.balanced_head import METHOD_HEAD
from cls_jax.models.layers import FEATURES
from cls_jax.parallel.mesh import DATA_AXIS, NETWORK_AXIS, to_global_arrays
from cls_jax.training.evaluate import iterate_on_mesh
from cls_jax.training.setup import TrainSetup, TrainState

# Takes indices of training images int [m], their pseudo-labels int [m] and weights float [m].
RecordLabels = Callable[[np.ndarray, np.ndarray, np.ndarray], Any]


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
        fit_head(features_BC, labels_B, num_classes, inverse_penalty, weights_B, np.sort(part))
        for features_BC, part in zip(features_NBC, parts, strict=True)
    ]


def compute_trained_features(
    setup: TrainSetup,
    state: TrainState,
    images: ImageSource,
    indices: np.ndarray,
    kind: str = FEATURES,
) -> np.ndarray:
    """Features of clean images by the EMA networks, normalized by their running statistics.

    They are float32 [N, len(indices), C]. The `kind` DESCRIPTORS has features and descriptors,
    concatenated to 2C.
    """
    sharded = jax.shard_map(
        lambda state, batch: setup.infer(state.ema_params, state.batch_stats, batch, kind),
        mesh=setup.mesh,
        in_specs=(setup.state_specs, P(DATA_AXIS)),
        out_specs=P(NETWORK_AXIS, DATA_AXIS),
    )
    compute = jax.jit(sharded, out_shardings=NamedSharding(setup.mesh, P()))
    batches = iterate_on_mesh(setup, Selection(images, indices), indices)
    parts = [np.asarray(compute(state, on_mesh)) for on_mesh, *_ in batches]
    return np.concatenate(parts, axis=1)[:, : len(indices)]


def replace_heads(setup: TrainSetup, params: dict, heads: list[Head]) -> dict:
    """A copy of stacked parameters with these heads, on the mesh."""
    stacked = {name: np.stack([getattr(head, name) for head in heads]) for name in Head._fields}
    specs = setup.state_specs.params["head"]
    # With a balanced head, the method's own head starts there, too.
    names = {"head", METHOD_HEAD} & params.keys()
    return params | {name: to_global_arrays(stacked, setup.mesh, specs) for name in names}
