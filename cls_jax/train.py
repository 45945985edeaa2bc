"""The training loop.

Its order at every step: evaluate if due → save if due → dispatch the step → write the monitors of
an earlier one. The host runs ahead of the device and never waits for the newest step.
"""

import collections
import contextlib
import math
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from cls_jax.batch import RawBatch
from cls_jax.checkpoint import Checkpointer
from cls_jax.data.datasets import Dataset, load_dataset
from cls_jax.data.label_budget import choose_unlabeled_indices
from cls_jax.data.pipelines import create_pipeline
from cls_jax.data.stream import create_stream_spec
from cls_jax.errors import UserError
from cls_jax.evaluate import create_evaluate
from cls_jax.metrics import MetricsWriter
from cls_jax.models import count_parameters
from cls_jax.program import Program, create_program
from cls_jax.result import create_result
from cls_jax.rounds import begin_round, begins_round
from cls_jax.run_folder import (
    check_run_folder,
    create_run_folder,
    load_labeled_indices,
    read_result,
    write_result,
)
from cls_jax.train_state import TrainState
from cls_jax.train_step import compute_distances, create_preview, create_train_step

# Steps that may be in flight: enough to keep the device busy, few enough to bound memory.
_MAX_IN_FLIGHT = 2
_NUM_SHOWN_IMAGES = 8
# Checked after every step: where these are finite, so are the new parameters.
_WATCHED = ("train/loss", "train/gradient_norm")


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
    if (result := read_result(workdir)) is not None:
        print(f"{workdir} is finished: nothing to do.")
        return result
    dataset = load_dataset(config)
    labeled = load_labeled_indices(workdir, config, dataset)
    unlabeled = choose_unlabeled_indices(len(dataset.train_images), labeled, config.data.unlabeled)
    program, state = create_program(config, dataset.shape)
    create_run_folder(workdir, config, labeled, dataset)
    checkpointer = Checkpointer(workdir, config.keep_checkpoints)
    state, first_step, clock = _restore_newest(checkpointer, state)
    spec = create_stream_spec(config, program.method, labeled, unlabeled)
    print(_describe_run(program, state, dataset, first_step, workdir))

    inputs, input_specs, create_batch = create_pipeline(
        spec, dataset, program.mesh, first_step, config.num_steps
    )
    train_step = create_train_step(program, create_batch, input_specs)
    evaluate = create_evaluate(program)
    writer = MetricsWriter(workdir, first_step)
    bar = _ProgressBar(first_step, config.num_steps)
    monitors = _PendingMonitors(config, writer, checkpointer, clock, bar)

    with (
        jax.transfer_guard("disallow"),
        contextlib.closing(inputs),
        contextlib.closing(writer),
        contextlib.closing(bar),
    ):
        for step in range(first_step, config.num_steps + 1):
            is_last = step == config.num_steps
            if is_last or _is_due(step, config.eval_every):
                monitors.drain()
                with clock.paused():
                    accuracies = evaluate(state, dataset.test_images, dataset.test_labels)
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

    result = create_result(config, workdir, clock.seconds)
    write_result(workdir, result)
    return result


class Clock:
    """Seconds spent on steps, over all sessions of a run, without compilation and evaluation."""

    def __init__(self, seconds: float = 0.0):
        """Starts paused at `seconds`."""
        self._seconds = seconds
        self._started: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        running = 0.0 if self._started is None else time.perf_counter() - self._started
        return self._seconds + running

    def start(self) -> None:
        """Goes on counting."""
        self._started = time.perf_counter()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Does not count what happens inside."""
        was_running, self._seconds = self._started is not None, self.seconds
        self._started = None
        yield
        if was_running:
            self.start()


class _PendingMonitors:
    """Monitors of steps still in flight; written when their step is done."""

    def __init__(self, config, writer, checkpointer, clock, bar):
        self._config, self._writer, self._checkpointer = config, writer, checkpointer
        self._clock, self._bar = clock, bar
        self._pending = collections.deque()
        self._last_written: tuple[int, float] | None = None

    def append(self, step: int, monitors: dict[str, jax.Array]) -> None:
        """Adds a step just dispatched and finishes the one before the last."""
        self._pending.append((step, monitors))
        if len(self._pending) > _MAX_IN_FLIGHT:
            self._finish(*self._pending.popleft())

    def drain(self) -> None:
        """Waits for all steps and writes what is due."""
        while self._pending:
            self._finish(*self._pending.popleft())

    def _finish(self, step: int, monitors: dict[str, jax.Array]) -> None:
        is_written = step % self._config.log_every == 0
        wanted = monitors if is_written else {name: monitors[name] for name in _WATCHED}
        values = {name: float(value) for name, value in jax.device_get(wanted).items()}
        self._check_finite(step, values)
        if is_written:
            self._writer.write(step, values | self._measure_speed(step))
        self._bar.advance(values["train/loss"])

    def _measure_speed(self, step: int) -> dict[str, float]:
        now, before = (step, self._clock.seconds), self._last_written
        self._last_written = now
        if before is None or now[1] <= before[1]:
            return {}
        return {"perf/steps_per_second": (now[0] - before[0]) / (now[1] - before[1])}

    def _check_finite(self, step: int, values: dict[str, float]) -> None:
        for name in _WATCHED:
            if not math.isfinite(values[name]):
                good = self._checkpointer.latest_step()
                kept = f"step {good}" if good is not None else "none, the run was too young"
                raise UserError(
                    f"Training stopped at step {step}: {name} is {values[name]}; the last good "
                    f"checkpoint is {kept}. A lower --config.optimizer.learning_rate in a new "
                    "--workdir may help."
                )


class _ProgressBar:
    """Steps, steps/s, time left, loss and accuracy on one line; a line an evaluation."""

    def __init__(self, first_step: int, num_steps: int):
        self._num_steps = num_steps
        self._bar = tqdm(total=num_steps, initial=first_step, unit="step", dynamic_ncols=True)
        self._accuracy = "–"

    def advance(self, loss: float) -> None:
        self._bar.set_postfix_str(f"loss {loss:.3f}, accuracy {self._accuracy}", refresh=False)
        self._bar.update()

    def show_accuracies(self, step: int, accuracies: dict[str, float]) -> None:
        self._accuracy = f"{accuracies['test/accuracy']:.2f} %"
        self._bar.write(
            f"step {step}/{self._num_steps}: test accuracy {self._accuracy}, "
            f"ensemble {accuracies['test/accuracy_ensemble']:.2f} %"
        )

    def close(self) -> None:
        self._bar.close()


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
    program: Program, state: TrainState, dataset: Dataset, first_step: int, workdir: pathlib.Path
) -> str:
    config, num_networks = program.config, program.method.num_networks
    parameters = count_parameters(state.params) // num_networks
    devices = " x ".join(str(size) for size in program.mesh.shape.values())
    start = f"from step {first_step}" if first_step else "from the start"
    return (
        f"{config.method.name} on {dataset.name}: {config.num_labels} labels, "
        f"{len(dataset.train_images):,} training and {len(dataset.test_images):,} test images\n"
        f"{num_networks} x WRN-{config.model.depth}-{config.model.width} "
        f"({parameters:,} parameters each) on {devices} {jax.default_backend()} device(s)\n"
        f"{start} to step {config.num_steps:,} in {workdir}"
    )
