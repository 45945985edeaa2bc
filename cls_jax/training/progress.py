"""Progress of a run: its timer, its progress bar, and the metrics of steps in flight."""

import collections
import contextlib
import math
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import jax
from tqdm import tqdm

from cls_jax.parallel.distributed import is_main_process
from cls_jax.training.not_finite import NonFiniteError
from cls_jax.training.step import to_scalars

PROFILE = "profile"
# Steps that may be in flight: enough to keep the device busy, few enough to bound memory.
_MAX_IN_FLIGHT = 2
# Checked after every step: where these are finite, so are the new parameters.
_WATCHED = ("train/loss", "train/gradient_norm")
# A loss may be high for this long: the first steps of a run, or a few unlucky batches.
_DIVERGED_STEPS = 200


class PausableTimer:
    """Seconds spent on steps over all sessions of a run, excluding compilation and evaluation."""

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
        """Starts or resumes."""
        self._started = time.perf_counter()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Excludes the block from the count."""
        was_running, self._seconds = self._started is not None, self.seconds
        self._started = None
        yield
        if was_running:
            self.start()


class MetricsQueue:
    """Metrics of steps still in flight, written once their step is done."""

    def __init__(
        self,
        log_every: int,
        num_classes: int,
        images_per_step: int,
        writer: Any,
        timer: PausableTimer,
        bar: Any,
    ) -> None:
        """Starts empty; writes to `writer` every `log_every` steps, and advances `bar`."""
        self._log_every, self._images_per_step = log_every, images_per_step
        self._writer, self._timer, self._bar = writer, timer, bar
        self._pending: collections.deque[Any] = collections.deque()
        self._last_written: tuple[int, float] | None = None
        self._divergence = DivergenceWatch(num_classes)

    def append(self, step: int, step_input: Any, monitors: dict[str, jax.Array]) -> None:
        """Adds step t, just dispatched, and finishes step t - 2: two steps stay in flight.

        Raises:
            NonFiniteError: if the loss or gradient of that step is not finite.
        """
        self._pending.append((step, step_input, monitors))
        if len(self._pending) > _MAX_IN_FLIGHT:
            self._finish(*self._pending.popleft())

    def drain(self) -> None:
        """Waits for all steps and writes what is due.

        Raises:
            NonFiniteError: if a loss or a gradient is not finite.
        """
        while self._pending:
            self._finish(*self._pending.popleft())

    def _finish(self, step: int, step_input: Any, monitors: dict[str, jax.Array]) -> None:
        is_written = step % self._log_every == 0
        wanted = monitors if is_written else {name: monitors[name] for name in _WATCHED}
        values = to_scalars(wanted)
        for name in _WATCHED:
            if not math.isfinite(values[name]):
                raise NonFiniteError(step, name, step_input, to_scalars(monitors))
        if is_written:
            self._writer.write(step, values | self._measure_speed(step))
            if warning := self._divergence.check(step, values.get("train/loss_supervised")):
                self._bar.say(warning)
        self._bar.advance(values["train/loss"])

    def _measure_speed(self, step: int) -> dict[str, float]:
        now, before = (step, self._timer.seconds), self._last_written
        self._last_written = now
        if before is None or now[1] <= before[1]:
            return {}
        speed = (now[0] - before[0]) / (now[1] - before[1])
        return {
            "perf/steps_per_second": speed,
            "perf/images_per_second": speed * self._images_per_step,
        }


class ProfileWindow:
    """Writes a trace of some steps into the folder `profile/` of a run."""

    def __init__(self, steps: range | None, workdir: pathlib.Path):
        """Traces these steps in the main process; None for none."""
        self._steps = steps if is_main_process() and steps else range(0)
        self._folder, self._is_open = workdir / PROFILE, False

    def start(self, step: int) -> None:
        """To be called before a step is dispatched."""
        if step in self._steps and not self._is_open:
            jax.profiler.start_trace(self._folder)
            self._is_open = True

    def stop(self, step: int, result: Any) -> None:
        """To be called after a step was dispatched, with its result, which the last waits for."""
        if self._is_open and step == self._steps[-1]:
            jax.block_until_ready(result)
            self.close()

    def close(self) -> None:
        """Ends the trace if it is open."""
        if self._is_open:
            jax.profiler.stop_trace()
            self._is_open = False


class DivergenceWatch:
    """Warns once if the loss stays finite but far above that of uniform guessing."""

    def __init__(self, num_classes: int):
        """Sets the bound to twice the cross-entropy of a uniform guess, ln(classes)."""
        self._bound = 2 * math.log(num_classes)
        self._since: int | None = None  # The first step of those above the bound.
        self._has_warned = False

    def check(self, step: int, loss: float | None) -> str | None:
        """Returns a warning if the supervised loss has been above the bound for long, else None."""
        if loss is None or loss <= self._bound:
            self._since = None
            return None
        self._since = step if self._since is None else self._since
        if self._has_warned or step - self._since < _DIVERGED_STEPS:
            return None
        self._has_warned = True
        return (
            f"Warning: the supervised loss has been above {self._bound:.2f}, twice that of "
            f"guessing, since step {self._since}: the run is diverging; a lower "
            "--config.optimizer.learning_rate in a new --workdir may help."
        )


class ProgressBar:
    """Steps, steps/s, time left, loss and accuracy on one line; one line above per evaluation."""

    def __init__(self, first_step: int, num_steps: int):
        """Draws the bar in the main process only."""
        self._num_steps = num_steps
        self._bar = tqdm(
            total=num_steps,
            initial=first_step,
            unit="step",
            dynamic_ncols=True,
            disable=not is_main_process(),
        )
        self._accuracy = "–"

    def advance(self, loss: float) -> None:
        """Counts a finished step."""
        self._bar.set_postfix_str(f"loss {loss:.3f}, accuracy {self._accuracy}", refresh=False)
        self._bar.update()

    def show_accuracies(self, step: int, accuracies: dict[str, float]) -> None:
        """Prints the accuracies and keeps the first in the bar."""
        self._accuracy = f"{accuracies['test/accuracy']:.2f} %"
        self.say(
            f"step {step}/{self._num_steps}: test accuracy {self._accuracy}, "
            f"ensemble {accuracies['test/accuracy_ensemble']:.2f} %"
        )

    def say(self, line: str) -> None:
        """Writes a line above the bar."""
        if not self._bar.disable:
            self._bar.write(line)

    def close(self) -> None:
        """Closes the bar and leaves it on screen."""
        self._bar.close()
