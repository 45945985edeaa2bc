"""Progress on standard error: a line that changes in a terminal, or a line a minute in a file."""

import sys
from typing import Any, TextIO

from tqdm import tqdm

_SECONDS = 60.0


class _Lines:
    """A stream that gives each state of a progress bar a line of its own."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> None:
        """Writes a state of the bar, which comes with what would replace the one before."""
        if line := text.strip():
            self._stream.write(f"{line}\n")

    def flush(self) -> None:
        """Flushes the stream."""
        self._stream.flush()


def show_progress(*args: Any, **options: Any) -> tqdm:
    """A progress bar with tqdm's arguments. What takes less than a minute writes nothing to a file.

    A terminal shows what takes longer than a second. Notebooks show the changing line, too.
    """
    if sys.stderr.isatty() or "ipykernel" in sys.modules:
        return tqdm(*args, dynamic_ncols=True, delay=1, **options)
    # Without `miniters`, tqdm looks at the clock only after some number of updates.
    seldom = {"mininterval": _SECONDS, "maxinterval": _SECONDS, "delay": _SECONDS, "miniters": 1}
    return tqdm(*args, file=_Lines(sys.stderr), **seldom, **options)
