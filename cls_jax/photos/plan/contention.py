"""How much slower this process is because others compute on the same machine."""

import contextlib
import pathlib
import threading
from collections.abc import Iterator
from types import TracebackType

_TASKS = pathlib.Path("/proc/self/task")
_SECONDS = 1.0  # Between two looks at the threads, which may end.
_ENOUGH_NS = 10**8  # Of computing. Below that, waiting is left to chance.


class ContentionMeter:
    """Compares, in a `with` statement, how long threads computed and how long they had to wait.

    Linux counts the nanoseconds that each thread ran, and those that it could have run but no core
    was free (`schedstat` in the kernel's documentation). Elsewhere nothing is known.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}  # By thread.
        self._computed = self._waited = 0
        self._is_over = threading.Event()
        self._watch = threading.Thread(target=self._look_on, daemon=True)

    def __enter__(self) -> "ContentionMeter":
        self._seen = dict(_read_threads())
        self._watch.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._watch.join()
        self._look()

    @property
    def slowdown(self) -> float:
        """The time that computing took, as a multiple of what it would have taken alone."""
        if self._computed < _ENOUGH_NS:
            return 1.0
        return 1 + self._waited / self._computed

    def _look_on(self) -> None:
        while not self._is_over.wait(_SECONDS):
            self._look()

    def _look(self) -> None:
        for thread, (computed, waited) in _read_threads():
            before = self._seen.get(thread, (0, 0))
            self._computed += computed - before[0]
            self._waited += waited - before[1]
            self._seen[thread] = computed, waited


def _read_threads() -> Iterator[tuple[str, tuple[int, int]]]:
    """Nanoseconds that each thread of this process has run and has waited for a core."""
    for task in _TASKS.iterdir() if _TASKS.exists() else ():
        # It has ended, or the kernel counts nothing.
        with contextlib.suppress(OSError, ValueError):
            computed, waited, _ = (task / "schedstat").read_text().split()
            yield task.name, (int(computed), int(waited))
