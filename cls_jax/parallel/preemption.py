"""A request to stop: SIGTERM, as schedulers send it, or SIGINT, as Ctrl-C does."""

import os
import signal
import threading

import jax
from jax.experimental import multihost_utils

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class PreemptionHandler:
    """Notes the first signal, so that a loop can end in good order; the second ends at once.

    To be used in a `with` statement, in the main thread; in any other it notes nothing.
    """

    def __init__(self):
        """Begins without a request."""
        self._received: int | None = None
        self._previous = {}

    def __enter__(self) -> "PreemptionHandler":
        """Takes over the signals."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                # Between processes JAX's own service watches for SIGTERM and tells the others.
                if number == signal.SIGINT or jax.process_count() == 1:
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_) -> None:
        """Gives the signals back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _) -> None:
        self._received = number
        for other in self._previous:
            signal.signal(other, signal.SIG_DFL)
        os.write(2, b"\nStopping as soon as the run is saved; once more to leave at once.\n")
        if jax.process_count() > 1:
            os.kill(os.getpid(), signal.SIGTERM)

    @property
    def signal(self) -> int:
        """The number of the signal; where another process got it, SIGTERM."""
        return self._received or signal.SIGTERM

    def interrupts_eval(self) -> bool:
        """Whether to cut short what can be done again later; always False with other processes."""
        return self._received is not None and jax.process_count() == 1

    def should_stop(self, step: int) -> bool:
        """Whether to save and end at this step: of several processes, the same for all."""
        if jax.process_count() == 1:
            return self._received is not None
        return multihost_utils.reached_preemption_sync_point(step)
