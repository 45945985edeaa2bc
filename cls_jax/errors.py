"""The exceptions that end the program with a sentence and no traceback."""


class UserError(Exception):
    """A mistake in the input; its message is one sentence that names the remedy.

    `main.py` prints the message without a traceback and exits with code 2.
    """


class StoppedError(Exception):
    """The user or the system asked the program to stop, and it did in good order.

    Attributes:
        signal: the number of the signal; `main.py` exits with 128 + this, as shells do.
    """

    def __init__(self, message: str, signal: int):
        """Keeps what to say and the signal."""
        super().__init__(message)
        self.signal = signal
