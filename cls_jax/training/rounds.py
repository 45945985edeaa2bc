"""The transition between rounds of a method that has several, such as UPS.

The networks predict the unlabeled images several times with dropout, the method selects
pseudo-labels, and training restarts from new networks with these labels. This is a pure function
of the state and the step, so a run resumed at the boundary repeats it exactly.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from cls_jax.data.sampling import StreamSpec, stream_key
from cls_jax.data.types import Dataset, ImageSource, Selection
from cls_jax.methods import get_round_length
from cls_jax.methods.losses import NO_LABEL
from cls_jax.parallel.mesh import DATA_AXIS, to_global_arrays
from cls_jax.training.evaluate import iterate_on_mesh
from cls_jax.training.setup import TrainSetup, TrainState, set_step

# Takes indices of training images int [m], their pseudo-labels int [m] and weights float [m].
RecordLabels = Callable[[np.ndarray, np.ndarray, np.ndarray], object]


def is_round_boundary(config: ConfigDict, step: int) -> bool:
    """Whether a round other than the first starts before this step."""
    return step > 0 and step % get_round_length(config) == 0


def create_enter_round(
    setup: TrainSetup,
    dataset: Dataset,
    spec: StreamSpec,
    begin: Callable[[int], TrainState],
    record: RecordLabels = lambda *columns: None,
) -> Callable[[TrainState, int], TrainState]:
    """Returns (state, step) → the state at the beginning of the round that starts at this step.

    `begin` makes the state before the first step of a round, by its index.

    The new state has new networks, selected labels, and the same step. Labels are selected for
    images of the unlabeled set that are not also labeled. Network 1's go to `record`.
    """
    candidates = np.setdiff1d(spec.unlabeled_indices, spec.labeled_indices)
    predict = create_mc_dropout(setup)
    hparams = setup.config.method
    select_labels = setup.method.select_labels
    assert select_labels is not None, "only a method with rounds starts one"

    def fill(table: jax.Array, *rows: np.ndarray) -> np.ndarray:
        """Tables [N, images, ...] with these rows of the candidates, one per network."""
        filled = np.asarray(table)[None].repeat(len(rows), axis=0)
        filled[:, candidates] = rows
        return filled

    def enter_round(state: TrainState, step: int) -> TrainState:
        """Selects labels with the trained networks and starts new ones."""
        round_index = step // get_round_length(setup.config)
        logits = predict(state, dataset.train.images, candidates, round_index)
        rows = [select_labels(network, hparams, round_index) for network in logits]
        labels = rows[0]["label"]
        is_chosen = labels != NO_LABEL
        record(candidates[is_chosen], labels[is_chosen], np.ones(is_chosen.sum()))
        fresh = begin(round_index)
        no_labels = setup.method.create_state(hparams, setup.dataset_spec)
        method_state = jax.tree.map(fill, no_labels, *rows)
        method_state = to_global_arrays(method_state, setup.mesh, setup.state_specs.method_state)
        return set_step(setup.mesh, fresh, step).replace(method_state=method_state)

    return enter_round


def create_mc_dropout(setup: TrainSetup) -> Callable[..., np.ndarray]:
    """(state, images, indices, round) → logits with dropout, float32 [N, passes, len(indices), K].

    MC dropout (UPS section 3) of the EMA networks, compiled once for all rounds. The batch is
    spread over the data axis, but outside the step's `shard_map`: no axis name is bound, so
    BatchNorm must run on its running statistics. All networks share the dropout key of a pass.
    """
    ensemble = setup.ensemble
    passes = setup.config.method.passes
    num_shards = setup.mesh.shape[DATA_AXIS]
    batch_size = -(-setup.config.eval_batch_size // num_shards) * num_shards

    @functools.partial(jax.jit, out_shardings=NamedSharding(setup.mesh, P()))
    def predict(
        state: TrainState, batch: jax.Array, round_index: jax.Array, batch_index: jax.Array
    ) -> jax.Array:
        """Logits [N, passes, B, K] of one batch, the same on all devices."""
        batch = setup.normalize(batch)
        root = jax.random.wrap_key_data(state.key)
        key = stream_key(root, "rounds", round_index, batch_index)

        def predict_once(key: jax.Array) -> jax.Array:
            logits, _ = ensemble.forward(
                state.ema_params, state.batch_stats, batch, train=False, dropout_key=key
            )
            return logits

        # A loop: unrolled, the program would take longer to compile with every pass.
        return jnp.moveaxis(jax.lax.map(predict_once, jax.random.split(key, passes)), 0, 1)

    def predict_all(
        state: TrainState, images: ImageSource, indices: np.ndarray, round_index: int
    ) -> np.ndarray:
        """Logits [N, passes, n, K] of the images at n indices."""
        empty = (setup.method.num_networks, passes, 0, setup.dataset_spec.num_classes)
        parts: list[np.ndarray] = [np.empty(empty, np.float32)]
        batches = iterate_on_mesh(setup, Selection(images, indices), indices, batch_size)
        for i, (batch, *_) in enumerate(batches):
            counters = np.int32(round_index), np.int32(i)
            round_count, batch_count = to_global_arrays(counters, setup.mesh, (P(), P()))
            parts.append(jax.device_get(predict(state, batch, round_count, batch_count)))
        return np.concatenate(parts, axis=2)[:, :, : len(indices)]

    return predict_all
