"""Requests to stop: SIGTERM, as schedulers send it, and SIGINT, as Ctrl-C sends it."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import jax
from jax._src import distributed  # Orbax, too, finds the coordinator's client nowhere else.
from jax.experimental import multihost_utils

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Where JAX's service notes, within a second, that a process has received SIGTERM.
_NOTICE = "RECEIVED_PREEMPTION_NOTICE"
_POLL_SECONDS = 1.0
# What `signal.signal` takes and returns.
_Handler = Callable[[int, FrameType | None], object] | int | None


@contextlib.contextmanager
def leave_when_asked() -> Iterator[Callable[[], None]]:
    """Ends all of several processes within seconds if one receives SIGTERM before the first step.

    A single process ends at once by itself. With several, JAX's service catches the signal, and the
    loop polls it at every step. Before the loop, features, graph, heads and compilation take
    minutes. Finished parts are on disk, so only the one in progress is lost. Yields a function to
    call once the loop has begun.
    """
    begun = threading.Event()

    def watch() -> None:
        client = distributed.global_state.client
        assert client is not None, "several processes have one"
        while not begun.wait(_POLL_SECONDS):
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # Nothing was noted.
                client.key_value_try_get(_NOTICE)
                message = "Stopped before the first step: rerun the command to continue."
                print(message, file=sys.stderr, flush=True)
                if jax.process_index() == 0:  # This process serves the others.
                    time.sleep(3 * _POLL_SECONDS)
                os._exit(128 + signal.SIGTERM)

    if jax.process_count() > 1:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield begun.set
    finally:
        begun.set()


class PreemptionHandler:
    """Records the first signal, so that a loop can stop cleanly. The second ends the process.

    Use it in a `with` statement in the main thread. In any other thread it records nothing, since
    Python delivers signals only to the main thread.
    """

    def __init__(self) -> None:
        self._received: int | None = None
        self._previous: dict[int, _Handler] = {}

    def __enter__(self) -> "PreemptionHandler":
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                # With several processes, JAX's own service handles SIGTERM and informs the others.
                if number == signal.SIGINT or jax.process_count() == 1:
                    self._previous[number] = signal.signal(number, self._record)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _record(self, number: int, _: object) -> None:
        self._received = number
        for other in self._previous:
            signal.signal(other, signal.SIG_DFL)
        os.write(2, b"\nSaving, then stopping. Press Ctrl-C again to quit now.\n")
        if jax.process_count() > 1:  # So that JAX's service informs the others.
            os.kill(os.getpid(), signal.SIGTERM)

    @property
    def signal(self) -> int:
        """The number of the signal, or SIGTERM if another process received it."""
        return self._received or signal.SIGTERM

    def interrupts_eval(self) -> bool:
        """Whether to abandon an evaluation. Never with several processes, which must agree."""
        return self._received is not None and jax.process_count() == 1

    def should_stop(self, step: int) -> bool:
        """Whether to save and stop before this step. The same in every process."""
        if jax.process_count() == 1:
            return self._received is not None
        return multihost_utils.reached_preemption_sync_point(step)
