"""The state of a run that was best on its validation images, which no later one replaces."""

import pathlib
import shutil
from collections.abc import Callable, Mapping

from cls_jax.batch import PyTree
from cls_jax.parallel.distributed import barrier, from_main_process, is_main_process
from cls_jax.runs.checkpoint import Checkpointer
from cls_jax.runs.metrics import read_metrics

BEST_CHECKPOINT = "best_checkpoint"
_ACCURACY = "validation/accuracy"


class BestCheckpoint:
    """Keeps the state with the highest validation accuracy, the first of equal ones.

    It is that of `validation_best_step` in the result.
    """

    def __init__(self, workdir: pathlib.Path, first_row: int, warn: Callable[[str], None]):
        """Continues a session whose metrics are dropped from step `first_row` on.

        A state of such a step is removed: the step will be evaluated again. All processes must call
        this, and `offer`. `warn` shows a sentence to the user.
        """
        rows = read_metrics(workdir) if is_main_process() else []
        known = [row[_ACCURACY] for row in rows if row.get(_ACCURACY) is not None]
        self._highest: float | None = from_main_process(max(known, default=None))
        self._workdir = workdir
        self._warn = warn
        self._checkpointer: Checkpointer | None = None
        if is_main_process():
            for path in (workdir / BEST_CHECKPOINT).glob("[0-9]*"):
                if path.name.isdecimal() and int(path.name) >= first_row:
                    shutil.rmtree(path, ignore_errors=True)
        barrier("best checkpoint")

    def offer(self, step: int, state: PyTree, accuracies: Mapping[str, float]) -> None:
        """Starts writing the state after so many steps if its accuracy is the highest so far."""
        accuracy = accuracies.get(_ACCURACY)
        if accuracy is None or (self._highest is not None and accuracy <= self._highest):
            return
        self._highest = accuracy
        if self._checkpointer is None:
            self._checkpointer = Checkpointer(self._workdir, keep=1, folder=BEST_CHECKPOINT)
            self._checkpointer.warn = self._warn
        self._checkpointer.save(step, state, {})

    def close(self) -> None:
        """Waits until the state is complete."""
        if self._checkpointer is not None:
            self._checkpointer.close()
