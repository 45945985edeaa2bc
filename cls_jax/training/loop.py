"""The training loop.

Its order at every step: evaluate if due → save if due → dispatch the step → write the monitors of
an earlier one. The host runs ahead of the device and never waits for the newest step.
"""

import contextlib
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from cls_jax.batch import RawBatch
from cls_jax.config import to_json
from cls_jax.data.datasets import load_dataset
from cls_jax.data.label_split import choose_unlabeled_indices
from cls_jax.data.pipelines import create_pipeline
from cls_jax.data.sampling import StreamSpec, create_stream_spec
from cls_jax.data.types import Dataset
from cls_jax.errors import UserError
from cls_jax.parallel.distributed import barrier, check_same, is_main_process
from cls_jax.parallel.preemption import PreemptionHandler
from cls_jax.runs.checkpoint import Checkpointer, describe_step
from cls_jax.runs.folder import (
    check_dataset,
    check_run_folder,
    create_run_folder,
    load_labeled_indices,
    read_result,
    use_mean_and_std,
    wait_for_folder,
    write_result,
)
from cls_jax.runs.lock import lock_run_folder
from cls_jax.runs.metrics import MetricsWriter, SilentWriter
from cls_jax.runs.result import create_result
from cls_jax.runs.sessions import record_session
from cls_jax.training.evaluate import create_evaluate
from cls_jax.training.memory import check_step_memory, release_freed_memory
from cls_jax.training.not_finite import report_non_finite
from cls_jax.training.program import Program, create_program
from cls_jax.training.progress import MetricsQueue, PausableTimer, ProgressBar
from cls_jax.training.rounds import is_round_start, start_round
from cls_jax.training.run_description import (
    describe_run,
    describe_stop,
    select_images,
    warn_of_lost_steps,
)
from cls_jax.training.state import TrainState
from cls_jax.training.step import compute_distances, create_train_step, make_batch_fn


def train(config, workdir: pathlib.Path) -> dict[str, Any]:
    """Trains, or goes on with, the run in `workdir`; returns its result.

    Args:
        config: a validated configuration.
        workdir: the run's folder; created if it does not exist.

    Raises:
        UserError: if the folder, the data or the devices do not fit the configuration, another
            process trains there, a loss is not finite, or the end cannot be written.
        StoppedError: if the user or the system wants the run to stop; it is saved.
    """
    check_run_folder(workdir, config)
    check_same(to_json(config), workdir)
    if (result := read_result(workdir)) is not None:
        if is_main_process():
            print(f"{workdir} is finished: nothing to do.")
        return result
    dataset = load_dataset(config)
    check_dataset(workdir, dataset)
    labeled = load_labeled_indices(workdir, config, dataset)
    unlabeled = choose_unlabeled_indices(len(dataset.train_images), labeled, config.data.unlabeled)
    program, state = create_program(
        use_mean_and_std(config, dataset.mean, dataset.std), dataset.shape
    )
    with contextlib.ExitStack() as stack:
        if is_main_process():
            stack.enter_context(lock_run_folder(workdir))
            check_run_folder(workdir, config)  # Once more: another may have come first.
            create_run_folder(workdir, config, labeled, dataset)
        wait_for_folder(workdir)
        spec = create_stream_spec(
            config, program.method.labeled_view, program.method.unlabeled_views, labeled, unlabeled
        )
        seconds = _train_to_end(program, state, dataset, spec, workdir)
        if is_main_process():
            result = create_result(config, workdir, len(labeled), seconds)
            write_result(workdir, result)
    barrier("result")
    return read_result(workdir)


def _train_to_end(
    program: Program, state: TrainState, dataset: Dataset, spec: StreamSpec, workdir: pathlib.Path
) -> float:
    """Goes on from the newest checkpoint to the last step; returns the seconds of all sessions.

    Raises:
        UserError: if the step does not fit into memory, a loss is not finite, or the last state
            cannot be written.
        StoppedError: if the user or the system wants the run to stop; it is saved.
    """
    config = program.config
    checkpointer = Checkpointer(workdir, config.keep_checkpoints)
    state, first_step, timer = _restore_newest(checkpointer, state)
    if is_main_process():
        warn_of_lost_steps(workdir, first_step, config.checkpoint_every)
        record_session(workdir, first_step)
        print(describe_run(program, state, dataset, len(spec.labeled_indices), first_step, workdir))

    inputs, input_specs, create_batch = create_pipeline(
        spec, dataset, program.mesh, first_step, config.num_steps
    )
    train_step = create_train_step(program, create_batch, input_specs)
    preview = make_batch_fn(program, create_batch, input_specs)
    evaluate = create_evaluate(program)
    bar = ProgressBar(first_step, config.num_steps)
    checkpointer.warn = bar.say
    writer = MetricsWriter(workdir, first_step, bar.say) if is_main_process() else SilentWriter()
    monitors = MetricsQueue(config, dataset.num_classes, writer, timer, bar)

    def save(step: int) -> None:
        monitors.drain()
        # A state whose rows are not written would lose them, since a run goes on after it.
        if writer.flush():
            checkpointer.save(step, state, {"train_seconds": timer.seconds})

    def recreate_batch(step: int, step_input: Any) -> RawBatch:
        # Batches follow from seed and step, so the newest state makes that of an older step too.
        earlier = state.replace(step=jax.device_put(np.int32(step), state.step.sharding))
        return jax.device_get(preview(earlier, step_input))

    with contextlib.ExitStack() as stack:
        for part in (inputs, writer, bar, checkpointer):
            stack.enter_context(contextlib.closing(part))
        stop = stack.enter_context(PreemptionHandler())
        # Where JAX looks for the operation, it runs the step one by one and moves constants.
        stack.enter_context(jax.transfer_guard("allow" if config.debug_nans else "disallow"))
        stack.enter_context(jax.debug_nans(config.debug_nans))
        stack.enter_context(report_non_finite(workdir, checkpointer, recreate_batch))

        for step in range(first_step, config.num_steps + 1):
            is_last = step == config.num_steps
            if is_last or _is_due(step, config.eval_every):
                monitors.drain()
                with timer.paused():
                    accuracies = evaluate(
                        state, dataset.test_images, dataset.test_labels, stop.interrupts_eval
                    )
                if accuracies:
                    writer.write(step, accuracies)
                    bar.show_accuracies(step, accuracies)
            is_stopping = stop.should_stop(step)
            is_save_due = is_last or is_stopping or _is_due(step, config.checkpoint_every)
            if step > first_step and is_save_due:
                save(step)
            if is_stopping:
                checkpointer.finish()
                raise describe_stop(stop, step, checkpointer.latest_step())
            if is_last:
                break
            if is_round_start(config, step):
                with timer.paused():
                    state = start_round(program, state, dataset, step)
            step_input = next(inputs)
            if step == first_step and not config.debug_nans:
                train_step = _compile_step(train_step, state, step_input, bar.say)
            if step == 0:
                writer.write_images(step, select_images(preview(state, step_input), spec))
            state, step_monitors = train_step(state, step_input)
            if step % config.log_every == 0:
                step_monitors |= compute_distances(state)
            monitors.append(step, step_input, step_monitors)
            if step == first_step:
                jax.block_until_ready(state)  # Compiled and run once: from here on time counts.
                timer.start()
        checkpointer.finish()
        if checkpointer.latest_step() != config.num_steps:
            raise UserError(
                f"The last state could not be written, the newest checkpoint is "
                f"{describe_step(checkpointer.latest_step())}: make room and give the same command "
                "again, and the run goes on from there."
            )
    return timer.seconds


def _compile_step(train_step, state: TrainState, step_input: Any, say: Callable[[str], None]):
    """Compiles before anything runs, to know what the step needs."""
    started = time.perf_counter()
    compiled = train_step.lower(state, step_input).compile()
    release_freed_memory()
    memory = check_step_memory(compiled, jax.local_devices()[0])
    say(f"{memory}; compiled in {time.perf_counter() - started:.1f} s")
    return compiled


def _is_due(step: int, every: int) -> bool:
    return step > 0 and step % every == 0


def _restore_newest(checkpointer: Checkpointer, state: TrainState):
    """The state to begin with, its step, and the timer of the run so far."""
    restored = checkpointer.restore_newest(state)
    if restored is None:
        return state, 0, PausableTimer()
    return restored.state, restored.step, PausableTimer(restored.notes["train_seconds"])
