"""Exceptions that end the program with one sentence instead of a traceback."""

import contextlib
from collections.abc import Iterator


class UserError(Exception):
    """A problem that the user can fix. The message is one sentence that names the remedy.

    Programs print the message without a traceback and exit with code 2.
    """


class StoppedError(Exception):
    """The program stopped cleanly, as the user or system asked by `signal`. Exits with 128 + it."""

    def __init__(self, message: str, signal: int):
        super().__init__(message)
        self.signal = signal


@contextlib.contextmanager
def explain_writing(path: object, remedy: str) -> Iterator[None]:
    """Turns an OSError into a UserError: the path cannot be written, and what to do about it."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{path} cannot be written ({reason}): {remedy}.") from error
