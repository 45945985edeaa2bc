"""The training loop.

The order within a step, and the reasons:

1. Evaluate if due: a checkpoint of this step is saved only after its accuracy has been written, so
   a resumed run never misses an evaluation.
2. Save if due, or if the process is asked to stop, while the state still exists: the next step
   donates its buffers.
3. Dispatch the step, without waiting for it.
4. Write the metrics of an earlier step: the host runs ahead of the device and never waits for the
   step that it has just dispatched.
"""

import contextlib
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import jax
from ml_collections import ConfigDict

from cls_jax.data.datasets import load_dataset
from cls_jax.data.pipelines import create_pipeline
from cls_jax.errors import StoppedError, UserError
from cls_jax.parallel.distributed import barrier, is_main_process
from cls_jax.parallel.preemption import PreemptionHandler
from cls_jax.runs.checkpoint import Checkpointer, describe_newest
from cls_jax.runs.folder import describe_finished, read_result, write_pseudo_labels, write_result
from cls_jax.runs.metrics import MetricsWriter, SilentWriter
from cls_jax.runs.result import create_result
from cls_jax.training.evaluate import create_evaluate
from cls_jax.training.progress import (
    MetricsQueue,
    PausableTimer,
    ProfileWindow,
    ProgressBar,
    announce,
    report_non_finite,
    select_images,
)
from cls_jax.training.rounds import create_start_round, is_round_start
from cls_jax.training.setup import set_step
from cls_jax.training.start import (
    Run,
    check_folder,
    hold_folder,
    prepare_run,
    resolve_model,
    restore_or_init,
)
from cls_jax.training.step import compile_step, compute_distances, create_train_step, make_batch_fn


def train(
    config: ConfigDict,
    workdir: pathlib.Path,
    load: Callable[[ConfigDict], Any] = load_dataset,
) -> dict[str, Any]:
    """Trains or resumes the run in `workdir`. Returns its result.

    Args:
        config: a validated configuration.
        workdir: the run's folder, created if it does not exist.
        load: loads the dataset. Not called for a finished run.

    Raises:
        UserError: if the folder, the data or the devices do not fit the configuration, another
            process trains there, a loss is not finite, or the last state cannot be written.
        StoppedError: if the user or the system asks the run to stop; it has been saved.
    """
    config = resolve_model(config)
    check_folder(config, workdir)
    if (result := read_result(workdir)) is not None:
        is_finished = result["step"] >= config.num_steps
        if is_main_process():
            print(describe_finished(workdir, result["step"], config.num_steps))
        if is_finished:
            return result
    run = prepare_run(config, workdir, load)
    with hold_folder(config, run):
        seconds = _train_to_end(run)
        if is_main_process():
            num_labeled = len(run.spec.labeled_indices)
            write_result(workdir, create_result(config, workdir, num_labeled, seconds))
    barrier("result")
    result = read_result(workdir)
    assert result is not None, workdir
    return result


def _train_to_end(run: Run) -> float:
    """Trains from the newest checkpoint to the last step. Returns the seconds of all sessions.

    Raises:
        UserError: if the step does not fit into memory, a loss is not finite, or the last state
            cannot be written.
        StoppedError: if the user or the system asks the run to stop; it has been saved.
    """
    setup, dataset, spec, workdir = run
    config = setup.config
    checkpointer = Checkpointer(workdir, config.keep_checkpoints)
    baselines: dict[str, float] = {}
    state, first_step, seconds = restore_or_init(checkpointer, run, baselines.update)
    timer = PausableTimer(seconds)
    # Without any step, the start is the result.
    is_unsaved = config.num_steps == 0 and checkpointer.latest_step() is None
    if is_main_process():
        announce(run, state, first_step)

    inputs, input_specs, create_batch = create_pipeline(
        spec, dataset, setup.mesh, first_step, config.num_steps
    )
    train_step = create_train_step(setup, create_batch, input_specs)
    make_batch = make_batch_fn(setup, create_batch, input_specs)
    evaluate = create_evaluate(setup)
    bar = ProgressBar(first_step, config.num_steps)
    checkpointer.warn = bar.say
    writer = MetricsWriter(workdir, first_step, bar.say) if is_main_process() else SilentWriter()
    start_round = None  # Most methods have a single round.
    if baselines:
        writer.write(0, baselines)
    profile = ProfileWindow(config.profile, workdir)
    metrics = MetricsQueue(
        config.log_every, dataset.num_classes, spec.images_per_step, writer, timer, bar
    )

    # Both functions read `state` when they are called: the loop rebinds it at every step. The next
    # step may donate its buffers, because both functions have copied what they need on return.

    def save(step: int) -> None:
        metrics.drain()
        # Rows that are not on disk by now would be lost: a resumed run only repeats later ones.
        if writer.flush():
            checkpointer.save(step, state, {"train_seconds": timer.seconds})

    def recreate_batch(step: int, step_input: Any) -> Any:
        # A batch is a function of seed and step, so the newest state also makes an older one.
        return jax.device_get(make_batch(set_step(setup.mesh, state, step), step_input))

    with contextlib.ExitStack() as stack:
        for part in (inputs, writer, bar, checkpointer, profile):
            stack.enter_context(contextlib.closing(part))
        stop = stack.enter_context(PreemptionHandler())
        # An implicit transfer would be a hidden synchronization with the device in the middle of
        # the loop. Explicit ones (`jax.device_get`, `jax.device_put`) pass. With debug_nans JAX
        # runs the step operation by operation and moves constants, so there it is allowed.
        stack.enter_context(jax.transfer_guard("allow" if config.debug_nans else "disallow"))
        stack.enter_context(jax.debug_nans(config.debug_nans))
        stack.enter_context(report_non_finite(workdir, checkpointer, recreate_batch))

        for step in range(first_step, config.num_steps + 1):
            is_last = step == config.num_steps
            if is_last or _is_due(step, config.eval_every):
                metrics.drain()
                accuracies: dict[str, float] = {}
                with timer.paused():
                    for split, images, labels in dataset.held_out:
                        accuracies |= evaluate(state, images, labels, stop.interrupts_eval, split)
                if accuracies:
                    writer.write(step, accuracies)
                    bar.show_accuracies(step, accuracies)
            is_stopping = stop.should_stop(step)
            is_save_due = is_last or is_stopping or _is_due(step, config.checkpoint_every)
            if is_save_due and (step > first_step or is_unsaved):
                save(step)
            if is_stopping:
                checkpointer.finish()
                saved = describe_newest(checkpointer.latest_step())
                raise StoppedError(
                    f"Stopped before step {step}, and {saved}: rerun the command to continue.",
                    stop.signal,
                )
            if is_last:
                break
            if is_round_start(config, step):
                # Nothing is in flight between rounds, so copies to the host delay nothing.
                with timer.paused(), jax.transfer_guard("allow"):
                    record = functools.partial(write_pseudo_labels, workdir, dataset)
                    start_round = start_round or create_start_round(setup, dataset, spec, record)
                    state = start_round(state, step)
            step_input = next(inputs)
            if step == first_step and not config.debug_nans:
                device = setup.mesh.local_devices[0]
                train_step, seconds, memory = compile_step(train_step, state, step_input, device)
                bar.say(f"{memory}; compiled in {seconds:.1f} s")
            if step == 0:
                writer.write_images(step, select_images(make_batch(state, step_input), spec))
            profile.start(step)
            state, step_metrics = train_step(state, step_input)
            profile.stop(step, state)
            if step % config.log_every == 0:
                step_metrics |= compute_distances(state)
            metrics.append(step, step_input, step_metrics)
            if step == first_step:
                jax.block_until_ready(state)  # Compiled and run once: from here on time counts.
                timer.start()
        checkpointer.finish()
        if checkpointer.latest_step() != config.num_steps:
            raise UserError(
                "The last state could not be written, and "
                f"{describe_newest(checkpointer.latest_step())}: free disk space and rerun the "
                "command to continue."
            )
    return timer.seconds


def _is_due(step: int, every: int) -> bool:
    return step > 0 and step % every == 0
