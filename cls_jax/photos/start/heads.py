"""The heads of networks while they train: what they see, and others in their place.

Shape suffixes: N networks, C features, K classes.
"""

from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from cls_jax.batch import PyTree
from cls_jax.data.types import ImageSource, Selection
from cls_jax.methods.balanced_head import METHOD_HEAD
from cls_jax.models.layers import FEATURES
from cls_jax.parallel import compilation
from cls_jax.parallel.mesh import DATA_AXIS, NETWORK_AXIS, to_global_arrays
from cls_jax.training.evaluate import iterate_on_mesh
from cls_jax.training.setup import TrainSetup, TrainState


def compute_trained_features(
    setup: TrainSetup,
    state: TrainState,
    images: ImageSource,
    indices: np.ndarray,
    kind: str = FEATURES,
) -> np.ndarray:
    """Features of clean images by the EMA networks, normalized by their running statistics.

    They are float32 [N, len(indices), C]. The `kind` ALL_FEATURES has features, descriptors and
    stages, concatenated to 2C + S.
    """
    sharded = jax.shard_map(
        lambda state, batch: setup.infer(state.ema_params, state.batch_stats, batch, kind),
        mesh=setup.mesh,
        in_specs=(setup.state_specs, P(DATA_AXIS)),
        out_specs=P(NETWORK_AXIS, DATA_AXIS),
    )
    compute = compilation.jit(
        sharded,
        runs=-(-len(indices) // setup.config.eval_batch_size),
        out_shardings=NamedSharding(setup.mesh, P()),
    )
    batches = iterate_on_mesh(setup, Selection(images, indices), indices)
    parts = [np.asarray(compute(state, on_mesh)) for on_mesh, *_ in batches]
    return np.concatenate(parts, axis=1)[:, : len(indices)]


def replace_heads(
    setup: TrainSetup, params: PyTree, heads: Sequence[Mapping[str, np.ndarray]]
) -> PyTree:
    """A copy of stacked parameters with these heads, one per network, on the mesh.

    A head has a "kernel" [C, K] and a "bias" [K], both float32.
    """
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *map(dict, heads))
    specs = setup.state_specs.params["head"]
    # With a balanced head, the method's own head starts there, too.
    names = {"head", METHOD_HEAD} & params.keys()
    return params | {name: to_global_arrays(stacked, setup.mesh, specs) for name in names}
