"""How much slower this process is because others compute on the same machine."""

import contextlib
import pathlib

_TASKS = pathlib.Path("/proc/self/task")
_ENOUGH_NS = 10**8  # Of computing. Below that, waiting is left to chance.


class ContentionMeter:
    """Compares, in a `with` statement, how long threads computed and how long they had to wait.

    Linux counts the nanoseconds that each thread ran, and those that it could have run but no core
    was free (`schedstat` in the kernel's documentation). Elsewhere nothing is known. Threads that
    have ended do not count: JAX's remain.

    Attributes:
        slowdown: The time that computing took, as a multiple of what it would have taken alone.
    """

    slowdown = 1.0

    def __enter__(self) -> "ContentionMeter":
        self._before = _read_threads()
        return self

    def __exit__(self, *error: object) -> None:
        computed, waited = 0, 0
        for thread, (ran, queued) in _read_threads().items():
            before = self._before.get(thread, (0, 0))
            computed, waited = computed + ran - before[0], waited + queued - before[1]
        if computed >= _ENOUGH_NS:
            self.slowdown = 1 + waited / computed


def _read_threads() -> dict[str, tuple[int, int]]:
    """Nanoseconds that each thread of this process has run and has waited for a core."""
    found = {}
    for task in _TASKS.iterdir() if _TASKS.exists() else ():
        # It has ended, or the kernel counts nothing.
        with contextlib.suppress(OSError, ValueError):
            ran, queued, _ = (task / "schedstat").read_text().split()
            found[task.name] = int(ran), int(queued)
    return found
