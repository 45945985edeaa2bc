"""Progress reports of a run: its start, its speed and metrics, and why it stops.

A step's metrics are read while later steps are in flight. A loss or a gradient that is NaN or
infinite ends the run with one sentence, and its batch is saved.
"""

import collections
import contextlib
import json
import math
import pathlib
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from cls_jax.bars import show_progress
from cls_jax.batch import PyTree, RawBatch
from cls_jax.config import show_value
from cls_jax.data.datasets import compute_mean_and_std
from cls_jax.data.sampling import StreamSpec
from cls_jax.data.types import Dataset
from cls_jax.errors import UserError
from cls_jax.io import write_count
from cls_jax.methods import choose_decay, get_round_length, list_mean_decays
from cls_jax.models import count_parameters
from cls_jax.parallel.distributed import is_main_process
from cls_jax.runs.checkpoint import Checkpointer, describe_failure, describe_newest
from cls_jax.runs.metrics import MetricsWriter, read_metrics
from cls_jax.runs.sessions import record_session
from cls_jax.training.optimizer import get_learning_rate
from cls_jax.training.prepare import Prepared
from cls_jax.training.setup import describe_model
from cls_jax.training.step import to_scalars

NOT_FINITE = "not_finite"
_NUM_SHOWN_IMAGES = 8
# Steps that may be in flight: enough to keep the device busy, few enough to bound memory.
_MAX_IN_FLIGHT = 2
# Checked after every step: where these are finite, so are the new parameters.
_WATCHED = ("train/loss", "train/gradient_norm")
# A loss may be high for this long: the first steps of a run, or a few unlucky batches.
_DIVERGED_STEPS = 200
# The share of a running mean's start value that may remain at the end. `choose_decay` leaves less.
_MAX_REMAINDER = 0.05
# Training images whose mean and deviation are compared with the configuration's, and how far the
# means may be apart, in deviations. CIFAR-10's and CIFAR-100's are 0.1 apart, CIFAR-10's and those
# of digits 0.5 at 8 pixels and 0.6 at 16.
_NUM_COMPARED, _MAX_SHIFT = 200, 0.4


def announce(prepared: Prepared, first_step: int) -> None:
    """Records a session in the run's folder, and prints what it trains, and warnings."""
    setup, dataset, spec, workdir = prepared
    config = setup.config
    shapes = setup.state_shapes
    measured = max((row["step"] for row in read_metrics(workdir)), default=0)
    if measured >= first_step + 2 * config.checkpoint_every:
        print(
            f"Warning: this run had reached step {measured}, but "
            f"{describe_newest(first_step or None)}: it continues from step {first_step}.",
            file=sys.stderr,
        )
    record_session(workdir, first_step)
    num_labeled = len(spec.labeled_indices)
    misfits = describe_misfits(spec.config, dataset)
    slow = describe_slow_means(config, bool(shapes.batch_stats))
    uses_unlabeled = bool(setup.method.unlabeled_views)
    of_images = list_warnings(dataset, num_labeled, uses_unlabeled)
    for warning in (*of_images, *misfits, *slow):
        print(f"Warning: {warning}")
    num_networks = setup.method.num_networks
    parameters = count_parameters(shapes.params) // num_networks
    devices = " x ".join(str(size) for size in setup.mesh.shape.values())
    noun = "device" if setup.mesh.size == 1 else "devices"
    steps = write_count(config.num_steps, "step", "steps")
    if first_step:
        steps = f"from step {first_step:,} to step {config.num_steps:,}"
    print(
        f"{config.method.name} on {dataset.name}: {num_labeled:,} labels, "
        f"{len(dataset.train):,} training and {len(dataset.test):,} test images\n"
        f"{num_networks} x {describe_model(config)} "
        f"({parameters:,} parameters each) on {devices} {jax.default_backend()} {noun}\n"
        f"Training: {steps}. Run folder: {workdir}"
    )


def list_warnings(dataset: Dataset, num_labeled: int, uses_unlabeled: bool = True) -> list[str]:
    """Sentences about a dataset with so many labeled images, for the user.

    Whether the run also learns from images without labels decides if it misses them.
    """
    warnings = list(dataset.warnings)
    if uses_unlabeled and num_labeled == len(dataset.train):
        warnings.append(
            "Every training image is labeled: add unlabeled images, or set "
            "--config.num_labels=N to use only N of the labels."
        )
    return warnings


def describe_misfits(config: ConfigDict, dataset: Dataset) -> list[str]:
    """Sentences about settings that were made for other images than the dataset's.

    Mean and deviation of pretrained weights are left alone.
    """
    data, size = config.data, dataset.image_shape[0]
    warnings = []
    if data.cutout >= size and data.randaugment == "authors":
        warnings.append(
            f"data.cutout={data.cutout} can cover a whole image of {size} pixels: set "
            f"--config.data.cutout={size // 2}."
        )
    if not data.mean or config.model.init:
        return warnings
    compute = "leave --config.data.mean= and --config.data.std= empty to compute them"
    shown = f"data.mean={show_value(data.mean)} and data.std={show_value(data.std)}"
    found = compute_mean_and_std(dataset.train.images, _NUM_COMPARED)
    mean, std = (np.asarray(values) for values in found)
    is_other = np.abs(mean - data.mean).max() > _MAX_SHIFT * std.min()
    is_other = is_other or np.abs(np.log2(std / data.std)).max() > 1
    if max(*data.mean, *data.std) > 1:
        warnings.append(
            f"{shown} are not on the scale from 0 to 1: divide them by 255, or {compute}."
        )
    elif is_other:
        actual = (",".join(f"{value:.3f}" for value in values) for values in (mean, std))
        warnings.append(
            f"{shown} are not those of the training images, {' and '.join(actual)}: {compute}."
        )
    if is_other and data.flip and not dataset.train.files:
        warnings.append(
            "data.flip=True mirrors half of these images: set --config.data.flip=False where a "
            "mirrored image means something else, as a digit or a letter does."
        )
    return warnings


def describe_slow_means(config: ConfigDict, has_batch_norm: bool) -> list[str]:
    """A sentence for each running mean whose decay is too slow for the run.

    For example if --config.num_steps shortens a configuration made for a longer run.
    """
    length = get_round_length(config)
    decays = {"ema_decay": config.ema_decay}
    if has_batch_norm and not config.model.bn_frozen:
        decays["model.bn_momentum"] = config.model.bn_momentum
    decays |= {f"method.{key}": decay for key, decay in list_mean_decays(config.method).items()}
    return [
        f"After {length:,} steps, {decay**length:.0%} of the start values remain with "
        f"{key}={decay:g}: set --config.{key}={choose_decay(length):.4g}."
        for key, decay in decays.items()
        if length and decay**length > _MAX_REMAINDER
    ]


def select_images(batch: RawBatch, spec: StreamSpec) -> dict[str, np.ndarray]:
    """A few images of every view, uint8 [n, H, W, 1 or 3], for TensorBoard."""
    batch = jax.device_get(batch)
    views = {f"views/labeled_{spec.labeled_view}": batch.x}
    for i, view in enumerate(spec.unlabeled_views):
        views[f"views/unlabeled_{i + 1}_{view}"] = batch.u[i]
    return {name: images[:_NUM_SHOWN_IMAGES] for name, images in views.items()}


class PausableTimer:
    """Seconds spent on steps over all sessions of a run, excluding compilation and evaluation."""

    def __init__(self, seconds: float = 0.0):
        self._seconds = seconds
        self._started: float | None = None  # None while paused, as at the beginning.

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        running = 0.0 if self._started is None else time.perf_counter() - self._started
        return self._seconds + running

    def start(self) -> None:
        """Starts or resumes."""
        self._started = time.perf_counter()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Excludes the block from the count."""
        was_running = self._started is not None
        self._seconds = self.seconds
        self._started = None
        yield
        if was_running:
            self.start()


class _StepInFlight(NamedTuple):
    """A step that was dispatched, with its input and its metrics."""

    step: int
    step_input: PyTree
    monitors: dict[str, jax.Array]


class MetricsQueue:
    """Metrics of steps in flight. Once a step is done, writes them if due, and advances the bar."""

    def __init__(
        self,
        config: ConfigDict,
        num_classes: int,
        images_per_step: int,
        writer: MetricsWriter,
        timer: PausableTimer,
        bar: "ProgressBar",
    ) -> None:
        self._config = config
        self._images_per_step = images_per_step
        self._writer = writer
        self._timer = timer
        self._bar = bar
        self._pending: collections.deque[_StepInFlight] = collections.deque()
        self._last_written: tuple[int, float, float] | None = None
        self._waited = 0.0  # Seconds that steps waited for their input.
        self._loss_bound = 2 * math.log(num_classes)  # Twice the loss of random guessing.
        self._high_since: int | None = None  # The first step since which the loss is above it.
        self._has_warned = False

    def append(self, step: int, step_input: PyTree, monitors: dict[str, jax.Array]) -> None:
        """Adds step t, just dispatched, and finishes step t - 2: two steps stay in flight.

        As `drain`, it raises a NonFiniteError if a loss or gradient is not finite.
        """
        self._pending.append(_StepInFlight(step, step_input, monitors))
        self.drain(_MAX_IN_FLIGHT)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time of the block as a wait for the input of a step."""
        started = time.perf_counter()
        yield
        self._waited += time.perf_counter() - started

    def drain(self, num_left: int = 0) -> None:
        """Waits until so many steps are left in flight, and writes what is due."""
        while len(self._pending) > num_left:
            self._finish(self._pending.popleft())

    def _finish(self, done: _StepInFlight) -> None:
        step, step_input, monitors = done
        is_written = step % self._config.log_every == 0
        wanted = monitors if is_written else {name: monitors[name] for name in _WATCHED}
        values = to_scalars(wanted)
        for name in _WATCHED:
            if not math.isfinite(values[name]):
                raise NonFiniteError(step, name, step_input, to_scalars(monitors))
        if is_written:
            rate = {"train/learning_rate": get_learning_rate(self._config, step)}
            self._writer.write(step, values | rate | self._measure_speed(step))
            self._warn_of_divergence(step, values.get("train/loss_supervised"))
        self._bar.advance(values["train/loss"])

    def _measure_speed(self, step: int) -> dict[str, float]:
        now = (step, self._timer.seconds, self._waited)
        before = self._last_written
        self._last_written = now
        if before is None or now[1] <= before[1]:
            return {}
        num_steps, seconds, waited = (a - b for a, b in zip(now, before, strict=True))
        speed = num_steps / seconds
        return {
            "perf/input_wait": min(waited / seconds, 1.0),
            "perf/steps_per_second": speed,
            "perf/images_per_second": speed * self._images_per_step,
        }

    def _warn_of_divergence(self, step: int, loss: float | None) -> None:
        """Warns once if the supervised loss stays far above that of random guessing."""
        if loss is None or loss <= self._loss_bound:
            self._high_since = None
            return
        self._high_since = step if self._high_since is None else self._high_since
        if step - self._high_since >= _DIVERGED_STEPS and not self._has_warned:
            self._has_warned = True
            self._bar.say(
                f"Warning: the supervised loss has been above {self._loss_bound:.2f}, twice the "
                f"loss of random guessing, since step {self._high_since}: the run is diverging. A "
                "lower --config.optimizer.learning_rate in a new --workdir may help."
            )


class ProgressBar:
    """The main process's line of steps, time left, loss and accuracy, and evaluations above it."""

    def __init__(self, first_step: int, num_steps: int):
        self._num_steps = num_steps
        self._accuracy = "–"
        shown = {"unit": "step", "disable": not is_main_process()}
        self._bar = show_progress(total=num_steps, initial=first_step, **shown)

    def advance(self, loss: float) -> None:
        """Counts a finished step."""
        self._bar.set_postfix_str(f"loss {loss:.3f}, accuracy {self._accuracy}", refresh=False)
        self._bar.update()

    def show_accuracies(self, step: int, accuracies: dict[str, float]) -> None:
        """Prints the accuracies and keeps the first in the bar."""
        # Decisions should rest on validation images, so that test images stay unseen.
        split = "validation" if "validation/accuracy" in accuracies else "test"
        self._accuracy = f"{accuracies[f'{split}/accuracy']:.2f}%"
        self.say(
            f"step {step}/{self._num_steps}: {split} accuracy {self._accuracy}, "
            f"ensemble {accuracies[f'{split}/accuracy_ensemble']:.2f}%"
        )

    def say(self, line: str) -> None:
        """Writes a line above the bar."""
        if not self._bar.disable:
            self._bar.write(line)

    def close(self) -> None:
        """Closes the bar and leaves it on screen."""
        self._bar.close()


class NonFiniteError(Exception):
    """The metric `name` of a step is infinite or NaN. Has the step's input and all its metrics."""

    def __init__(self, step: int, name: str, step_input: PyTree, monitors: Mapping[str, float]):
        super().__init__(f"{name} is {monitors[name]} at step {step}")
        self.step = step
        self.name = name
        self.step_input = step_input
        self.monitors = monitors


@contextlib.contextmanager
def report_non_finite(
    workdir: pathlib.Path,
    checkpointer: Checkpointer,
    recreate_batch: Callable[[int, PyTree], RawBatch],
) -> Iterator[None]:
    """Raises a UserError for a `NonFiniteError`, and for what `--config.debug_nans` raises.

    The step's batch goes to `not_finite/step_<step>.npz`: the arrays of `RawBatch` by name, and all
    metrics as `monitors`, JSON as text. `recreate_batch` makes it of a step and the step's input.
    """
    try:
        yield
    except NonFiniteError as error:
        batch = recreate_batch(error.step, error.step_input)
        checkpointer.finish()
        dump = "is saved by process 0"
        if is_main_process():
            path = workdir / NOT_FINITE / f"step_{error.step}.npz"
            monitors = json.dumps({name: repr(value) for name, value in error.monitors.items()})
            try:
                path.parent.mkdir(exist_ok=True)
                np.savez_compressed(path, **batch._asdict(), monitors=np.array(monitors))
                dump = f"is saved in {path}"
            except OSError as os_error:
                dump = f"could not be written ({os_error.strerror})"
        good_step = describe_newest(checkpointer.latest_step(), "last good")
        raise UserError(
            f"Training stopped at step {error.step}: {error.name} is {error.monitors[error.name]}, "
            f"{good_step}, and the batch {dump}. Rerun the command with --config.debug_nans=True "
            "to continue from there and name the operation. A lower "
            "--config.optimizer.learning_rate in a new --workdir may help."
        ) from error
    except FloatingPointError as error:
        package = pathlib.Path(__file__).parents[1]
        place = ""
        for frame in traceback.extract_tb(error.__traceback__):
            path = pathlib.Path(frame.filename)
            # The last frame of this package called JAX. Those of loop.py are in every traceback.
            if package in path.parents and path.name != "loop.py":
                place = f" in {path.relative_to(package.parent)}, line {frame.lineno}"
        raise UserError(f"NaN or Inf produced{place}: {describe_failure(error)}.") from error
