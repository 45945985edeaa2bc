"""The transition between rounds of a method that has several, such as UPS.

The networks predict the unlabeled images several times with dropout, the method selects pseudo
labels from the predictions, and training restarts from new networks with these labels. All of this
is a pure function of the state and the step: a run resumed at the boundary repeats it exactly.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from cls_jax.data.sampling import StreamSpec
from cls_jax.data.types import Dataset, ImageSource
from cls_jax.methods.schedules import get_round_length
from cls_jax.parallel.mesh import to_global_arrays
from cls_jax.training.probe import init_state
from cls_jax.training.setup import TrainSetup
from cls_jax.training.state import TrainState


def is_round_start(config: ConfigDict, step: int) -> bool:
    """Whether a round other than the first starts before this step."""
    return step > 0 and step % get_round_length(config) == 0


def start_round(
    setup: TrainSetup, state: TrainState, dataset: Dataset, spec: StreamSpec, step: int
) -> TrainState:
    """Returns the state in which a round starts: new networks, selected labels, the same step.

    Labels are selected for images of the unlabeled set only, without those that are also labeled
    (`data.unlabeled=all`).
    """
    config = setup.config
    round_index = step // get_round_length(config)
    candidates = np.setdiff1d(spec.unlabeled_indices, spec.labeled_indices)
    logits = mc_dropout_logits(setup, state, dataset.train_images, candidates, round_index)
    select_labels = setup.method.select_labels
    assert select_labels is not None, "only a method that selects labels has rounds"
    rows = [select_labels(network, config.method, round_index) for network in logits]
    fresh = init_state(setup, dataset, spec.labeled_indices, round_index)
    specs = setup.state_specs
    no_labels = setup.method.init_state(setup.init_context)
    method_state = jax.tree.map(
        lambda table, *chosen: _replace_images(table, candidates, chosen), no_labels, *rows
    )
    return fresh.replace(
        step=to_global_arrays(np.int32(step), setup.mesh, specs.step),
        method_state=to_global_arrays(method_state, setup.mesh, specs.method_state),
    )


def _replace_images(table: jax.Array, indices: np.ndarray, rows: Sequence[Any]) -> np.ndarray:
    """A copy of the table [N, images, ...] whose rows at `indices` are [N][len(indices), ...]."""
    replaced = np.array(table)
    replaced[:, indices] = np.stack(rows)
    return replaced


def mc_dropout_logits(
    setup: TrainSetup,
    state: TrainState,
    images: ImageSource,
    indices: np.ndarray,
    round_index: int,
) -> np.ndarray:
    """Logits of several passes of the EMA networks with dropout (MC dropout, UPS section 3).

    A plain `jit` over a replicated batch, outside the step's `shard_map`: no axis name is bound, so
    BatchNorm must run on its running statistics (`train=False`). All networks share the dropout
    key of a pass.

    Returns:
        float32 [N, passes, len(indices), K].
    """
    config, ensemble = setup.config, setup.ensemble
    passes, batch_size = config.method.passes, config.eval_batch_size

    @functools.partial(jax.jit, out_shardings=NamedSharding(setup.mesh, P()))
    def predict(state: TrainState, batch: jax.Array, batch_index: jax.Array) -> jax.Array:
        batch = setup.normalize(batch)
        round_key = jax.random.fold_in(jax.random.wrap_key_data(state.key), round_index)
        key = jax.random.fold_in(round_key, batch_index)

        def predict_once(key: jax.Array) -> jax.Array:
            logits, _ = ensemble.forward(
                state.ema_params, state.batch_stats, batch, train=False, dropout_key=key
            )
            return logits

        return jnp.stack([predict_once(k) for k in jax.random.split(key, passes)], axis=1)

    num_networks, num_classes = setup.method.num_networks, setup.dataset_spec.num_classes
    logits = np.empty((num_networks, passes, len(indices), num_classes), np.float32)
    for i, start in enumerate(range(0, len(indices), batch_size)):
        part = images[indices[start : start + batch_size]]
        padded = np.pad(part, [(0, batch_size - len(part)), (0, 0), (0, 0), (0, 0)])
        step_input = to_global_arrays((padded, np.int32(i)), setup.mesh, (P(), P()))
        output: Any = jax.device_get(predict(state, *step_input))
        logits[:, :, start : start + len(part)] = output[:, :, : len(part)]
    return logits
