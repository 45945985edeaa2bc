"""One training step of all networks: normalise, forward, loss, gradients, optimiser, EMA.

The step is written for the device it runs on: it sees its networks and its part of the batch, and
names the mesh axes where devices must agree. On one device those agreements cost nothing.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from cls_jax.batch import Batch, RawBatch, normalize
from cls_jax.methods import Context, LossOutput
from cls_jax.models.ensemble import ravel_per_network
from cls_jax.parallel.mesh import BATCH_SPECS, DATA_AXIS, NETWORK_AXIS, to_shardings
from cls_jax.training.program import Program
from cls_jax.training.state import TrainState

Metrics = dict[str, jax.Array]
PyTree = Any

# Counts that become a share once all devices' are added.
_NUM_CORRECT, _NUM_KNOWN = "num_correct", "num_known"


def _take_as_batch(state: TrainState, batch: RawBatch) -> RawBatch:
    return batch


def create_train_step(
    program: Program,
    create_batch: Callable[[TrainState, Any], RawBatch] = _take_as_batch,
    input_specs: Any = BATCH_SPECS,
) -> Callable[[TrainState, Any], tuple[TrainState, Metrics]]:
    """Compiles (state, input) → (state after the step, monitors); the state is donated.

    Args:
        program: what to run.
        create_batch: makes this device's part of the batch from the state and the step's input;
            by default the input is the batch.
        input_specs: partition specs of the input.
    """
    config, method, ensemble = program.config, program.method, program.ensemble
    shares_batch = program.mesh.shape[DATA_AXIS] > 1

    def step_on_device(state: TrainState, step_input: Any) -> tuple[TrainState, Metrics]:
        """The step of this device's networks on its part of the batch."""
        raw_batch = create_batch(state, step_input)
        batch = normalize_batch(raw_batch, config.data.mean, config.data.std)
        context = Context(
            ensemble=ensemble,
            hparams=config.method,
            ema_params=state.ema_params,
            method_state=state.method_state,
            key=jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step),
            progress=state.step.astype(jnp.float32) / config.num_steps,
        )

        def compute_total_loss(params):
            output = method.compute_loss(params, state.batch_stats, batch, context)
            # A sum: networks share no parameters, so each gets the gradient of its own loss; a
            # mean would divide the learning rate by their number.
            return jax.lax.pmean(jnp.sum(output.losses), DATA_AXIS), output

        grads, output = compute_gradients(compute_total_loss, state.params, shares_batch)
        updates, opt_state = program.optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        new_state = TrainState(
            step=state.step + 1,
            key=state.key,
            params=params,
            batch_stats=output.batch_stats,
            ema_params=optax.incremental_update(params, state.ema_params, 1 - config.ema_decay),
            opt_state=opt_state,
            method_state=output.method_state,
        )
        gradient_norms = jax.vmap(optax.tree.norm)(grads)
        return new_state, collect_monitors(output, gradient_norms, raw_batch.u_truth)

    sharded_step = jax.shard_map(
        step_on_device,
        mesh=program.mesh,
        in_specs=(program.state_specs, input_specs),
        out_specs=(program.state_specs, P(NETWORK_AXIS, DATA_AXIS)),
    )

    def train_step(state: TrainState, step_input: Any) -> tuple[TrainState, Metrics]:
        state, monitors = sharded_step(state, step_input)
        return state, average_monitors(monitors)

    # Metrics on every device, so that every process can read them.
    shardings = to_shardings(program.mesh, (program.state_specs, P()))
    return jax.jit(train_step, donate_argnums=0, out_shardings=shardings)


def compute_gradients(
    loss_fn: Callable[[PyTree], tuple[jax.Array, LossOutput]], params: PyTree, shares_batch: bool
) -> tuple[PyTree, LossOutput]:
    """Gradients of a loss that is a mean over devices, and what the loss gives beside.

    Args:
        loss_fn: parameters → (loss, the same on all devices that share the batch; the rest).
        params: what to differentiate by.
        shares_batch: whether there are several such devices; their gradients travel in one message.
    """
    if not shares_batch:
        return jax.grad(loss_fn, has_aux=True)(params)
    # As if every device had parameters of its own: else each layer's gradient would be added up
    # over the devices as soon as it is known, in many messages.
    own_params = jax.lax.pcast(params, DATA_AXIS, to="varying")
    grads, output = jax.grad(loss_fn, has_aux=True)(own_params)
    vector, to_tree = jax.flatten_util.ravel_pytree(grads)
    return to_tree(jax.lax.psum(vector, DATA_AXIS)), output


def normalize_batch(raw_batch: RawBatch, mean, std) -> Batch:
    """Turns bytes into what the networks see."""
    return Batch(
        x=normalize(raw_batch.x, mean, std),
        y=raw_batch.y,
        u=normalize(raw_batch.u, mean, std),
        u_index=raw_batch.u_index,
    )


def collect_monitors(output: LossOutput, gradient_norms: jax.Array, u_truth: jax.Array) -> Metrics:
    """This device's monitors, each float32 [n, 1] for its n networks and its part of the batch.

    Args:
        output: what the method's loss gave.
        gradient_norms: float32 [n], Euclidean norms of the gradients.
        u_truth: int32 [U], true classes of the unlabelled images, -1 where unknown.
    """
    monitors = {
        "train/loss": output.losses,
        "train/gradient_norm": gradient_norms,
        **output.monitors,
    }
    if output.pseudo_labels is not None:
        is_known = u_truth >= 0
        is_correct = (output.pseudo_labels == u_truth) & is_known
        monitors[_NUM_CORRECT] = jnp.sum(is_correct, axis=-1)
        monitors[_NUM_KNOWN] = jnp.sum(is_known)
    shape = output.losses.shape
    return {name: jnp.broadcast_to(value, shape)[:, None] for name, value in monitors.items()}


def average_monitors(monitors: Metrics) -> Metrics:
    """Means over networks and devices, float32 scalars, of monitors [N, devices].

    `monitors/pseudo_label_accuracy` is a share of the images whose class is known, NaN where none
    is.
    """
    monitors = dict(monitors)
    if _NUM_KNOWN in monitors:
        num_correct = jnp.sum(monitors.pop(_NUM_CORRECT))
        num_known = jnp.sum(monitors.pop(_NUM_KNOWN))
        monitors["monitors/pseudo_label_accuracy"] = num_correct / num_known
    return {name: jnp.mean(value) for name, value in monitors.items()}


def make_batch_fn(
    program: Program, create_batch: Callable[[TrainState, Any], RawBatch], input_specs: Any
) -> Callable[[TrainState, Any], RawBatch]:
    """Compiles (state, input) → the whole batch that the step would train on."""
    sharded = jax.shard_map(
        create_batch,
        mesh=program.mesh,
        in_specs=(program.state_specs, input_specs),
        out_specs=BATCH_SPECS,
    )
    return jax.jit(sharded, out_shardings=NamedSharding(program.mesh, P()))


@jax.jit
def compute_distances(state: TrainState) -> Metrics:
    """How far network 1 is from its average and from network 2, Euclidean (paper, Figure 4).

    Apart from the step, since with one network a device it moves a whole network: only when
    monitors are written, and as one row. Leaf by leaf it took as long as a step between processes.
    """
    rows = ravel_per_network(state.params)
    to_average = jnp.linalg.norm(rows - ravel_per_network(state.ema_params), axis=-1)
    distances = {"monitors/distance_ema": to_average[0]}
    if len(rows) > 1:
        distances["monitors/distance_networks"] = jnp.linalg.norm(rows[0] - rows[1])
    return distances
