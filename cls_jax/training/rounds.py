"""The transition between rounds of a method that has several, such as UPS.

The networks predict all training images several times with dropout, the method selects pseudo
labels from the predictions, and training restarts from new networks with these labels. A pure
function of the state and the step: a run resumed at the boundary repeats it exactly.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from cls_jax.data.types import Dataset, ImageSource
from cls_jax.methods.schedules import get_round_length
from cls_jax.parallel.mesh import to_global_arrays
from cls_jax.training.program import Program
from cls_jax.training.state import TrainState


def is_round_start(config: ConfigDict, step: int) -> bool:
    """Whether a round other than the first starts before this step."""
    return step > 0 and step % get_round_length(config) == 0


def start_round(program: Program, state: TrainState, dataset: Dataset, step: int) -> TrainState:
    """Returns the state in which a round starts: new networks, selected labels, the same step."""
    config = program.config
    round_index = step // get_round_length(config)
    with jax.transfer_guard("allow"):  # Nothing is in flight between rounds.
        return _start_round(program, state, dataset, step, round_index)


def _start_round(
    program: Program, state: TrainState, dataset: Dataset, step: int, round_index: int
) -> TrainState:
    config = program.config
    logits = mc_dropout_logits(program, state, dataset.train_images, round_index)
    select_labels = program.method.select_labels
    assert select_labels is not None, "a method of one round has no second"
    rows = [select_labels(network, config.method, round_index) for network in logits]
    fresh, specs = program.init_state(round_index), program.state_specs
    method_state = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
    return fresh.replace(
        step=to_global_arrays(np.int32(step), program.mesh, specs.step),
        method_state=to_global_arrays(method_state, program.mesh, specs.method_state),
    )


def mc_dropout_logits(
    program: Program, state: TrainState, images: ImageSource, round_index: int
) -> np.ndarray:
    """Logits of several passes of the EMA networks with dropout (MC dropout, UPS section 3).

    A plain `jit` over a replicated batch, outside the step's `shard_map`: no axis name is bound, so
    BatchNorm must run on its running statistics (`train=False`). All networks share the dropout
    key of a pass.

    Returns:
        float32 [N, passes, images, K].
    """
    config, ensemble = program.config, program.ensemble
    passes, batch_size = config.method.passes, config.eval_batch_size

    @functools.partial(jax.jit, out_shardings=NamedSharding(program.mesh, P()))
    def predict(state: TrainState, batch: jax.Array, batch_index: jax.Array) -> jax.Array:
        batch = program.normalize(batch)
        round_key = jax.random.fold_in(jax.random.wrap_key_data(state.key), round_index)
        key = jax.random.fold_in(round_key, batch_index)

        def predict_once(key: jax.Array) -> jax.Array:
            logits, _ = ensemble.forward(
                state.ema_params, state.batch_stats, batch, train=False, dropout_key=key
            )
            return logits

        return jnp.stack([predict_once(k) for k in jax.random.split(key, passes)], axis=1)

    logits = []
    for i, start in enumerate(range(0, len(images), batch_size)):
        part = images[start : start + batch_size]
        padded = np.pad(part, [(0, batch_size - len(part)), (0, 0), (0, 0), (0, 0)])
        step_input = to_global_arrays((padded, np.int32(i)), program.mesh, (P(), P()))
        output: Any = jax.device_get(predict(state, *step_input))
        logits.append(output[:, :, : len(part)])
    return np.concatenate(logits, axis=2)
