"""One training step of all networks: normalize, forward, loss, gradients, optimizer, EMA.

The step is written for a single device: it sees that device's networks and shard of the batch, and
names the mesh axes of collectives, which cost nothing on one device.
"""

import functools
import math
import time
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from cls_jax.batch import Batch, PyTree, RawBatch
from cls_jax.data.sampling import stream_key
from cls_jax.errors import UserError
from cls_jax.methods import Context, LossOutput, move_means
from cls_jax.models import convolutions
from cls_jax.models.ensemble import flatten_before_update, ravel_per_network
from cls_jax.parallel import compilation
from cls_jax.parallel.machine import get_device_memory, release_freed_memory
from cls_jax.parallel.mesh import BATCH_SPECS, DATA_AXIS, NETWORK_AXIS, to_shardings
from cls_jax.training.optimizer import split_frozen
from cls_jax.training.schedule import SCHEDULE_SPECS, Schedule
from cls_jax.training.setup import TrainSetup, TrainState

Metrics = dict[str, jax.Array]
# Of state, input and schedule.
TakeStep = Callable[[TrainState, PyTree, Schedule], tuple[TrainState, Metrics]]
# Makes this device's shard of the batch from state and input. Part of the step.
CreateBatch = Callable[[TrainState, PyTree], RawBatch]

_GIB = 2**30
_SMALLER_STEP = (
    "choose a smaller --config.batch_size, --config.mu or --config.model.width, set "
    "--config.model.remat=True, or use more devices"
)
# Counts of unlabeled images, added over devices. `to_scalars` divides them.
_NUM_CORRECT = "num_correct"
_NUM_KNOWN = "num_known"


def create_train_step(
    setup: TrainSetup,
    create_batch: CreateBatch = lambda state, batch: batch,
    input_specs: PyTree = BATCH_SPECS,
) -> jax.stages.Wrapped:
    """Compiles (state, input, schedule) → (state after the step, metrics), a `TakeStep`.

    The state is donated. The partition specs are those of the input, from which `create_batch`
    makes this device's shard of the batch. The number of steps in the configuration decides no more
    than whether the program is tuned.
    """
    in_specs = (setup.state_specs, input_specs, SCHEDULE_SPECS)
    sharded_step: TakeStep = jax.shard_map(
        lambda state, step_input, schedule: take_step(
            setup, state, create_batch(state, step_input), schedule
        ),
        mesh=setup.mesh,
        in_specs=in_specs,
        out_specs=(setup.state_specs, P(NETWORK_AXIS, DATA_AXIS)),
    )

    num_steps = setup.config.num_steps

    def train_step(
        state: TrainState, step_input: PyTree, schedule: Schedule
    ) -> tuple[TrainState, Metrics]:
        with convolutions.traced_for("tuned" if compilation.is_tuned(num_steps) else "untuned"):
            state, metrics = sharded_step(state, step_input, schedule)
        return state, {
            name: jnp.sum(value) if name in (_NUM_CORRECT, _NUM_KNOWN) else jnp.mean(value)
            for name, value in metrics.items()
        }

    # The state's shardings are fixed for input and output, so that initial, restored and previous
    # states run the same program, and donated buffers fit the new state. The metrics are
    # replicated, so that every process can read them.
    in_shardings = to_shardings(setup.mesh, in_specs)
    step: jax.stages.Wrapped = compilation.jit(
        train_step,
        runs=num_steps,
        donate_argnums=0,
        in_shardings=in_shardings,
        out_shardings=(in_shardings[0], to_shardings(setup.mesh, P())),
    )
    return step


def take_step(
    setup: TrainSetup, state: TrainState, raw_batch: RawBatch, schedule: Schedule
) -> tuple[TrainState, Metrics]:
    """A step of this device's n networks on its shard, in `shard_map`. Metrics are [n, parts]."""
    config = setup.config
    shares_batch = setup.mesh.shape[DATA_AXIS] > 1
    trained, frozen = split_frozen(
        state.params, config.optimizer.frozen_stages, setup.ensemble.model
    )

    def compute_total_loss(
        params: PyTree, state: TrainState, part: tuple[jax.Array, RawBatch]
    ) -> tuple[jax.Array, tuple[TrainState, Metrics]]:
        """The loss of a part of the batch, and the state and the metrics after it."""
        index, raw_part = part
        context = create_context(setup, state, schedule)
        if config.accumulate_steps > 1:
            key = jax.random.fold_in(context.key, index)
            context = context._replace(key=key, part=index)
        batch = Batch(
            x=setup.normalize(raw_part.x),
            y=raw_part.y,
            u=setup.normalize(raw_part.u),
            u_index=raw_part.u_index,
        )
        output, batch_stats = setup.method.forward_and_loss(
            {**params, **frozen}, state.batch_stats, batch, context
        )
        after = state.replace(
            batch_stats=move_means(state.batch_stats, batch_stats, schedule.norm_share),
            method_state=output.method_state,
        )
        # A sum: networks share no parameters, so each gets the gradient of its own loss. A mean
        # would divide the learning rate by their number. The pmean makes the loss the mean over
        # the whole batch, whatever the number of devices that share it.
        loss = jax.lax.pmean(jnp.sum(output.losses), DATA_AXIS)
        return loss, (after, collect_metrics(output, raw_part.u_truth))

    parts = split_batch(raw_batch, config.accumulate_steps)
    grads, gradient_norms, (state, metrics) = compute_gradients(
        compute_total_loss, trained, state, parts, shares_batch
    )
    metrics["train/gradient_norm"] = gradient_norms[:, None]
    updates, opt_state = setup.optimizer.update(grads, state.opt_state, trained, schedule=schedule)
    trained = optax.apply_updates(trained, updates)
    average = {name: state.ema_params[name] for name in trained}
    average = move_means(average, trained, schedule.ema_share)
    new_state = state.replace(
        step=state.step + 1,
        params={**trained, **frozen},
        ema_params={**state.ema_params, **average},
        opt_state=opt_state,
    )
    return new_state, metrics


def split_batch(raw_batch: RawBatch, num_parts: int) -> tuple[jax.Array, RawBatch]:
    """Indices of the parts, and the batch with a leading axis of parts, each of equal size."""

    def split(leaf: jax.Array, axis: int = 0) -> jax.Array:
        size = leaf.shape[axis] // num_parts
        shape = (*leaf.shape[:axis], num_parts, size, *leaf.shape[axis + 1 :])
        return jnp.moveaxis(leaf.reshape(shape), axis, 0)

    x, y, u, u_index, u_truth = raw_batch
    parts = RawBatch(
        x=split(x), y=split(y), u=split(u, axis=1), u_index=split(u_index), u_truth=split(u_truth)
    )
    return jnp.arange(num_parts), parts


def create_context(setup: TrainSetup, state: TrainState, schedule: Schedule) -> Context:
    """The method's context: what its loss may need besides parameters and batch."""
    return Context(
        ensemble=setup.ensemble,
        hparams=setup.config.method,
        ema_params=state.ema_params,
        method_state=state.method_state,
        # The same key on all devices: it folds in the step and no axis index. Devices of different
        # networks must draw alike (all networks see the same mixes and masks). Devices that share a
        # batch draw the same permutation for their own shards, whose images differ. No method
        # compares draws across shards, so this biases nothing.
        key=stream_key(jax.random.wrap_key_data(state.key), "method", state.step),
        progress=state.step.astype(jnp.float32) / schedule.num_steps,
        mean_share=schedule.mean_share,
    )


def compute_gradients(
    loss_fn: Callable[..., tuple[jax.Array, tuple[TrainState, Metrics]]],
    params: PyTree,
    state: TrainState,
    parts: tuple[jax.Array, RawBatch],
    shares_batch: bool,
) -> tuple[PyTree, jax.Array, tuple[TrainState, Metrics]]:
    """Gradients of a loss that is a mean over devices and over the parts of a batch.

    `loss_fn` is (parameters, state, part of `split_batch`) → (loss, (state after the part, its
    metrics [n, 1])), with the same loss on all devices that share the batch. If several do
    (`shares_batch`), they sum their gradients in one all-reduce. Returns the gradients, their
    Euclidean norms float32 [n] for n networks, and the state after the last part with the metrics
    [n, parts].
    """
    sum_over_data = None
    if shares_batch:
        # Parameters are the same on all devices of the axis "data", and JAX's types know that: the
        # transpose of their use in a varying computation is a psum, one all-reduce for each leaf
        # as soon as its gradient is known. Casting them to "varying" first leaves each device its
        # own share of the gradient, and summing them in one array makes it one all-reduce. The loss
        # already holds the pmean (each share carries a factor 1 / devices), so the sum of the
        # shares is the gradient of the mean.
        params = jax.lax.pcast(params, DATA_AXIS, to="varying")
        sum_over_data = functools.partial(jax.lax.psum, axis_name=DATA_AXIS)
    differentiate = jax.grad(loss_fn, has_aux=True)
    num_parts = len(parts[0])
    if num_parts == 1:
        grads, output = differentiate(params, state, jax.tree.map(lambda leaf: leaf[0], parts))
    else:

        def add_part(
            carry: tuple[PyTree, TrainState], part: tuple[jax.Array, RawBatch]
        ) -> tuple[tuple[PyTree, TrainState], Metrics]:
            total, state = carry
            grads, (state, metrics) = differentiate(params, state, part)
            return (jax.tree.map(jnp.add, total, grads), state), metrics

        zeros = jax.tree.map(lambda leaf: 0 * leaf, params)
        (total, state), metrics = jax.lax.scan(add_part, (zeros, state), parts)
        grads = jax.tree.map(lambda leaf: leaf / num_parts, total)
        output = state, {name: value[..., 0].T for name, value in metrics.items()}
    grads, rows = flatten_before_update(grads, sum_over_data)
    return grads, jnp.linalg.norm(rows, axis=-1), output


def collect_metrics(output: LossOutput, u_truth: jax.Array) -> Metrics:
    """This device's metrics, each [n, 1] for its n networks and its shard of the batch.

    They leave `shard_map` as [N, shards] and are averaged outside: no collective is needed inside
    the step, and counts are summed over shards before they are divided. `u_truth`, the true
    classes of the unlabeled images, is int32 [U], -1 where unknown.
    """
    metrics = {"train/loss": output.losses, **output.monitors}
    if output.pseudo_labels is not None:
        is_known = u_truth >= 0
        is_correct = (output.pseudo_labels == u_truth) & is_known
        metrics[_NUM_CORRECT] = jnp.sum(is_correct, axis=-1)
        metrics[_NUM_KNOWN] = jnp.sum(is_known)
    shape = output.losses.shape
    return {name: jnp.broadcast_to(value, shape)[:, None] for name, value in metrics.items()}


def to_scalars(metrics: Mapping[str, jax.Array]) -> dict[str, float]:
    """Metrics of a step on the host, with `monitors/pseudo_label_accuracy` instead of its counts.

    It is the share of the images of known class whose pseudo-label is right, or NaN if there are
    none. The step itself must not divide: `debug_nans` would stop a healthy run.
    """
    scalars = {name: float(value) for name, value in jax.device_get(dict(metrics)).items()}
    if _NUM_KNOWN in scalars:
        num_correct = scalars.pop(_NUM_CORRECT)
        num_known = scalars.pop(_NUM_KNOWN)
        share = num_correct / num_known if num_known else math.nan
        scalars["monitors/pseudo_label_accuracy"] = share
    return scalars


def make_batch_fn(
    setup: TrainSetup, create_batch: CreateBatch, input_specs: PyTree
) -> Callable[[TrainState, PyTree], RawBatch]:
    """Compiles (state, input) → the whole batch that the step would train on."""
    sharded = jax.shard_map(
        create_batch,
        mesh=setup.mesh,
        in_specs=(setup.state_specs, input_specs),
        out_specs=BATCH_SPECS,
    )
    replicated = NamedSharding(setup.mesh, P())
    make_batch: Callable[[TrainState, PyTree], RawBatch] = compilation.jit(
        sharded, runs=1, out_shardings=replicated
    )
    return make_batch


@jax.jit
def compute_distances(state: TrainState) -> Metrics:
    """Euclidean distances of network 1 from its EMA and from network 2 (paper, Figure 4).

    Separate from the step because, with one network per device, it moves a whole network: it runs
    only when metrics are written, on raveled rows. Leaf by leaf, between processes, it took as long
    as a step.
    """
    rows = ravel_per_network(state.params)
    to_ema = jnp.linalg.norm(rows - ravel_per_network(state.ema_params), axis=-1)
    distances = {"monitors/distance_ema": to_ema[0]}
    if len(rows) > 1:
        distances["monitors/distance_networks"] = jnp.linalg.norm(rows[0] - rows[1])
    return distances


def compile_step(
    train_step: jax.stages.Wrapped,
    state: TrainState,
    step_input: PyTree,
    schedule: Schedule,
    device: jax.Device,
) -> tuple[jax.stages.Compiled, float, str]:
    """Compiles the step. Returns it, the seconds, and what `check_memory` says or raises."""
    started = time.perf_counter()
    compiled = train_step.lower(state, step_input, schedule).compile()
    seconds = time.perf_counter() - started
    release_freed_memory()
    return compiled, seconds, check_memory(compiled, device, "a step", _SMALLER_STEP)


def measure_memory(compiled: jax.stages.Compiled) -> int | None:
    """Bytes that a program needs on a device, as reported by its compiler, or None if unknown."""
    if (memory := compiled.memory_analysis()) is None:
        return None
    size = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    needed: int = size - memory.alias_size_in_bytes  # Donated arguments are outputs.
    return needed


def check_memory(compiled: jax.stages.Compiled, device: jax.Device, what: str, remedy: str) -> str:
    """Says how much of the device's memory a program needs.

    `what` names the program, and the remedy what to do if it needs too much, which is a UserError.
    """
    needed = measure_memory(compiled)
    if needed is None:
        return f"the compiler does not report how much memory {what} needs"
    available = get_device_memory(device)
    if needed > available:
        raise UserError(
            f"{what[:1].upper()}{what[1:]} needs {needed / _GIB:.1f} GiB of memory on each device, "
            f"which has {available / _GIB:.1f} GiB: {remedy}."
        )
    return f"{what} needs {needed / _GIB:.2f} of {available / _GIB:.1f} GiB on each device"
