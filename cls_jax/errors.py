"""Exceptions that end the program with one sentence instead of a traceback."""


class UserError(Exception):
    """A problem that the user can fix. The message is one sentence that names the remedy.

    `main.py` prints the message without a traceback and exits with code 2.
    """


class StoppedError(Exception):
    """The user or the system asked the program to stop, and it did so cleanly.

    Attributes:
        signal: The number of the signal. `main.py` exits with 128 plus this, as shells do.
    """

    def __init__(self, message: str, signal: int):
        super().__init__(message)
        self.signal = signal
