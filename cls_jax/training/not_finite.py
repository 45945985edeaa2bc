"""Handling of a step whose loss or gradient is NaN or infinite."""

import contextlib
import json
import pathlib
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from cls_jax.batch import RawBatch
from cls_jax.errors import UserError
from cls_jax.parallel.distributed import is_main_process
from cls_jax.runs.checkpoint import Checkpointer, describe_failure, describe_newest

NOT_FINITE = "not_finite"


class NonFiniteError(Exception):
    """A watched metric is infinite or NaN.

    Attributes:
        step: the first such step.
        name: name of the metric.
        step_input: the input of that step.
        monitors: all metrics of that step.
    """

    def __init__(self, step: int, name: str, step_input: Any, monitors: Mapping[str, float]):
        """Keeps the step's input, from which its batch can be recreated."""
        super().__init__(f"{name} is {monitors[name]} at step {step}")
        self.step, self.name, self.step_input, self.monitors = step, name, step_input, monitors


def write_dump(workdir: pathlib.Path, error: NonFiniteError, batch: RawBatch) -> pathlib.Path:
    """Writes the batch and the metrics of the step for inspection.

    Returns:
        The file, `not_finite/step_<step>.npz`: the arrays of `RawBatch` by their names and
        `monitors`, JSON as text.

    Raises:
        OSError: if it cannot be written.
    """
    path = workdir / NOT_FINITE / f"step_{error.step}.npz"
    path.parent.mkdir(exist_ok=True)
    monitors = json.dumps({name: repr(value) for name, value in error.monitors.items()})
    np.savez_compressed(path, **batch._asdict(), monitors=np.array(monitors))
    return path


@contextlib.contextmanager
def report_non_finite(
    workdir: pathlib.Path,
    checkpointer: Checkpointer,
    recreate_batch: Callable[[int, Any], RawBatch],
) -> Iterator[None]:
    """Ends a run with NaN or infinite metrics with one sentence, and saves the step's batch.

    Args:
        workdir: the run's folder.
        checkpointer: the checkpoints of the run.
        recreate_batch: (step, the step's input) → its batch, on the host.

    Raises:
        UserError: instead of `NonFiniteError`, and of the error by which `--config.debug_nans`
            names an operation.
    """
    try:
        yield
    except NonFiniteError as error:
        batch = recreate_batch(error.step, error.step_input)
        checkpointer.finish()
        dump = "is with process 0"
        if is_main_process():
            try:
                dump = f"is in {write_dump(workdir, error, batch)}"
            except OSError as os_error:
                dump = f"could not be written ({os_error.strerror})"
        good_step = describe_newest(checkpointer.latest_step(), "last good")
        raise UserError(
            f"Training stopped at step {error.step}: {error.name} is {error.monitors[error.name]}; "
            f"{good_step}, the batch {dump}. Rerun the command with --config.debug_nans=True to "
            "continue from there and name the operation; a lower --config.optimizer.learning_rate "
            "in a new --workdir may help."
        ) from error
    except FloatingPointError as error:
        raise UserError(
            f"NaN or Inf produced{_find_line(error)}: {describe_failure(error)}."
        ) from error


def _find_line(error: Exception) -> str:
    """The line of this project that called the operation."""
    package = pathlib.Path(__file__).parents[1]
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if package in pathlib.Path(frame.filename).parents]
    # The last frame called JAX; those in loop.py are in every traceback.
    inner = [frame for frame in ours if pathlib.Path(frame.filename).name != "loop.py"]
    if not inner:
        return ""
    path = pathlib.Path(inner[-1].filename).relative_to(package.parent)
    return f" in {path}, line {inner[-1].lineno}"
