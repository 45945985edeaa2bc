"""The state of a run that was best on its validation images, which no later one replaces."""

import pathlib
import shutil
from collections.abc import Callable, Mapping

from cls_jax.batch import PyTree
from cls_jax.parallel.distributed import decide
from cls_jax.runs.checkpoint import Checkpointer
from cls_jax.runs.metrics import read_metrics

BEST_CHECKPOINT = "best_checkpoint"
_ACCURACY = "validation/accuracy"


class BestCheckpoint:
    """Keeps the state with the highest validation accuracy, the first of equal ones.

    It is that of `validation_best_step` in the result.
    """

    def __init__(self, workdir: pathlib.Path, first_step: int, warn: Callable[[str], None]):
        """Begins a session. States of steps after its `first_step` are removed: it repeats them.

        All processes must call this, and `offer`. `warn` shows a sentence to the user.
        """
        self._highest: float | None = decide(lambda: _find_highest(workdir, first_step))
        self._workdir = workdir
        self._warn = warn
        self._checkpointer: Checkpointer | None = None

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


def _find_highest(workdir: pathlib.Path, first_step: int) -> float | None:
    """The accuracy of the state that is stored, after those of steps after `first_step` are gone.

    None if there is none, also where it was to be stored when the process died.
    """
    stored = set()
    for path in (workdir / BEST_CHECKPOINT).glob("[0-9]*"):
        if path.name.isdecimal() and int(path.name) > first_step:
            shutil.rmtree(path, ignore_errors=True)
        elif path.name.isdecimal():
            stored.add(int(path.name))
    rows = [row for row in read_metrics(workdir) if row["step"] in stored]
    known = [row[_ACCURACY] for row in rows if row.get(_ACCURACY) is not None]
    return max(known, default=None)
