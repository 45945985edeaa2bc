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
from cls_jax.checkpoint import Checkpointer
from cls_jax.config import to_json
from cls_jax.data.datasets import Dataset, load_dataset
from cls_jax.data.label_budget import choose_unlabeled_indices
from cls_jax.data.pipelines import create_pipeline
from cls_jax.data.stream import create_stream_spec
from cls_jax.evaluate import create_evaluate
from cls_jax.memory import check_step_memory, release_freed_memory
from cls_jax.metrics import MetricsWriter, SilentWriter
from cls_jax.models import count_parameters
from cls_jax.processes import check_same, is_first, wait_for_all
from cls_jax.program import Program, create_program, describe_model
from cls_jax.progress import Clock, PendingMonitors, ProgressBar
from cls_jax.result import create_result
from cls_jax.rounds import begin_round, begins_round
from cls_jax.run_folder import (
    check_dataset,
    check_run_folder,
    create_run_folder,
    load_labeled_indices,
    read_result,
    use_mean_and_std,
    wait_for_folder,
    write_result,
)
from cls_jax.sessions import record_session
from cls_jax.train_state import TrainState
from cls_jax.train_step import compute_distances, create_preview, create_train_step

_NUM_SHOWN_IMAGES = 8


def train(config, workdir: pathlib.Path) -> dict[str, Any]:
    """Trains, or goes on with, the run in `workdir`; returns its result.

    Args:
        config: a validated configuration.
        workdir: the run's folder; created if it does not exist.

    Raises:
        UserError: if the folder, the data or the devices do not fit the configuration, or a loss
            is not finite.
    """
    check_run_folder(workdir, config)
    check_same(to_json(config), workdir)
    if (result := read_result(workdir)) is not None:
        if is_first():
            print(f"{workdir} is finished: nothing to do.")
        return result
    dataset = load_dataset(config)
    check_dataset(workdir, dataset)
    labeled = load_labeled_indices(workdir, config, dataset)
    unlabeled = choose_unlabeled_indices(len(dataset.train_images), labeled, config.data.unlabeled)
    program, state = create_program(
        use_mean_and_std(config, dataset.mean, dataset.std), dataset.shape
    )
    if is_first():
        create_run_folder(workdir, config, labeled, dataset)
    wait_for_folder(workdir)
    checkpointer = Checkpointer(workdir, config.keep_checkpoints)
    state, first_step, clock = _restore_newest(checkpointer, state)
    spec = create_stream_spec(config, program.method, labeled, unlabeled)
    if is_first():
        record_session(workdir, first_step)
        print(_describe_run(program, state, dataset, len(labeled), first_step, workdir))

    inputs, input_specs, create_batch = create_pipeline(
        spec, dataset, program.mesh, first_step, config.num_steps
    )
    train_step = create_train_step(program, create_batch, input_specs)
    evaluate = create_evaluate(program)
    writer = MetricsWriter(workdir, first_step) if is_first() else SilentWriter()
    bar = ProgressBar(first_step, config.num_steps)
    monitors = PendingMonitors(config, writer, checkpointer, clock, bar)

    with contextlib.ExitStack() as stack:
        for part in (inputs, writer, bar):
            stack.enter_context(contextlib.closing(part))
        stack.enter_context(jax.transfer_guard("disallow"))

        for step in range(first_step, config.num_steps + 1):
            is_last = step == config.num_steps
            if is_last or _is_due(step, config.eval_every):
                monitors.drain()
                with clock.paused():
                    accuracies = evaluate(state, dataset.test_images, dataset.test_labels)
                if accuracies:
                    writer.write(step, accuracies)
                    bar.show_accuracies(step, accuracies)
            if step > first_step and (is_last or _is_due(step, config.checkpoint_every)):
                monitors.drain()
                writer.flush()
                checkpointer.save(step, state, {"train_seconds": clock.seconds})
            if is_last:
                break
            if begins_round(config, step):
                with clock.paused():
                    state = begin_round(program, state, dataset, step)
            step_input = next(inputs)
            if step == first_step:
                train_step = _compile_step(train_step, state, step_input, bar.say)
            if step == 0:
                preview = create_preview(program, create_batch, input_specs)
                writer.write_images(step, _select_images(preview(state, step_input), spec))
            state, step_monitors = train_step(state, step_input)
            if step % config.log_every == 0:
                step_monitors |= compute_distances(state)
            monitors.append(step, step_monitors)
            if step == first_step:
                jax.block_until_ready(state)  # Compiled and run once: from here on time counts.
                clock.start()
        checkpointer.close()

    if is_first():
        write_result(workdir, create_result(config, workdir, len(labeled), clock.seconds))
    wait_for_all("result")
    return read_result(workdir)


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
    """The state to begin with, its step, and the clock of the run so far."""
    step = checkpointer.latest_step()
    if step is None:
        return state, 0, Clock()
    state, notes = checkpointer.restore(step, state)
    return state, step, Clock(notes["train_seconds"])


def _select_images(batch: RawBatch, spec) -> dict[str, np.ndarray]:
    """A few images of every view, for TensorBoard."""
    batch = jax.device_get(batch)
    views = {f"views/labeled_{spec.labeled_view}": batch.x}
    for i, view in enumerate(spec.unlabeled_views):
        views[f"views/unlabeled_{i + 1}_{view}"] = batch.u[i]
    return {name: images[:_NUM_SHOWN_IMAGES] for name, images in views.items()}


def _describe_run(
    program: Program,
    state: TrainState,
    dataset: Dataset,
    num_labeled: int,
    first_step: int,
    workdir: pathlib.Path,
) -> str:
    config, num_networks = program.config, program.method.num_networks
    parameters = count_parameters(state.params) // num_networks
    devices = " x ".join(str(size) for size in program.mesh.shape.values())
    start = f"from step {first_step}" if first_step else "from the start"
    warnings = list(dataset.warnings)
    if num_labeled == len(dataset.train_images):
        warnings.append(
            "Every training image is labelled: add others in unlabeled/, or set "
            "--config.num_labels=N to use the labels of N images only."
        )
    return "".join(f"Warning: {warning}\n" for warning in warnings) + (
        f"{config.method.name} on {dataset.name}: {num_labeled:,} labels, "
        f"{len(dataset.train_images):,} training and {len(dataset.test_images):,} test images\n"
        f"{num_networks} x {describe_model(config)} "
        f"({parameters:,} parameters each) on {devices} {jax.default_backend()} device(s)\n"
        f"{start} to step {config.num_steps:,} in {workdir}"
    )
