"""Requests to stop.

Schedulers send SIGTERM, or SIGUSR1 some time before (`sbatch --signal=USR1@90`), Ctrl-C sends
SIGINT, and a terminal or an SSH connection that closes sends SIGHUP.
"""

import contextlib
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

import jax
from jax._src import distributed  # Orbax, too, finds the coordinator's client nowhere else.
from jax.experimental import multihost_utils

# Those that Windows does not have.
_OTHERS = tuple(getattr(signal, name) for name in ("SIGHUP", "SIGUSR1") if hasattr(signal, name))
SIGNALS = (signal.SIGTERM, signal.SIGINT, *_OTHERS)
FINISH: int | None = getattr(signal, "SIGUSR2", None)  # Asks a single process for an earlier end.
# Where JAX's service notes, within a second, that a process has received SIGTERM.
_NOTICE = "RECEIVED_PREEMPTION_NOTICE"
_POLL_SECONDS = 1.0
# What `signal.signal` takes and returns.
_Handler = Callable[[int, FrameType | None], object] | int | None


@contextlib.contextmanager
def leave_when_asked() -> Iterator[Callable[[], None]]:
    """Ends all of several processes within seconds if one is to stop before the first step.

    A single process ends at once by itself. With several, JAX's service catches SIGTERM, and the
    loop polls it at every step. Here SIGHUP and SIGUSR1 become SIGTERM. Before the loop, features,
    graph, heads and compilation take minutes. Finished parts are on disk, so only the one in
    progress is lost. Yields a function to call once the loop has begun.
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

    previous: dict[int, _Handler] = {}
    if jax.process_count() > 1:
        threading.Thread(target=watch, daemon=True).start()
        previous = _handle(_OTHERS, _pass_on)
    try:
        yield begun.set
    finally:
        begun.set()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _handle(numbers: Iterable[int], handler: _Handler) -> dict[int, _Handler]:
    """Handles signals in the main thread, and returns the handlers so far.

    Python delivers signals to no other thread. SIGHUP stays ignored where it is, as under `nohup`.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    handled = [
        number
        for number in numbers
        if number not in _OTHERS or signal.getsignal(number) != signal.SIG_IGN
    ]
    return {number: signal.signal(number, handler) for number in handled}


def _pass_on(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGTERM)  # JAX's service informs the other processes.


def _leave_terminal() -> None:
    """Sends what is printed to nowhere if the terminal, or a pipe's reader, ends with it.

    Otherwise the next line of output would end the program before it has saved.
    """
    for output in (1, 2):
        mode = os.fstat(output).st_mode
        if stat.S_ISFIFO(mode) or (stat.S_ISCHR(mode) and not os.isatty(output)):
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)


class PreemptionHandler:
    """Records the first signal, so that a loop can stop cleanly.

    A second SIGTERM or SIGINT ends the process. A second of the others does nothing: a terminal
    that closes often sends several.

    Use it in a `with` statement in the main thread. In any other thread it records nothing, since
    Python delivers signals only to the main thread.

    Attributes:
        is_finishing: Whether the next step is to be the last one, after which nothing is missing.
    """

    def __init__(self) -> None:
        self.is_finishing = False
        self._received: int | None = None
        self._previous: dict[int, _Handler] = {}

    def __enter__(self) -> "PreemptionHandler":
        # With several processes, JAX's own service handles SIGTERM and informs the others.
        is_single = jax.process_count() == 1
        handled = [number for number in SIGNALS if number != signal.SIGTERM or is_single]
        self._previous = _handle(handled, self._record)
        if FINISH is not None and is_single and _handle([FINISH], self._finish):
            self._previous[FINISH] = signal.SIG_IGN  # Afterward, there is nothing left to shorten.
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _finish(self, *_: object) -> None:
        self.is_finishing = True

    def _record(self, number: int, _: object) -> None:
        if number in _OTHERS:
            _leave_terminal()
        if self._received is not None:
            return
        self._received = number
        for other in self._previous.keys() - {*_OTHERS, FINISH}:
            signal.signal(other, signal.SIG_DFL)
        os.write(2, b"\nSaving, then stopping. Press Ctrl-C again to quit now.\n")
        if jax.process_count() > 1:
            _pass_on()

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
