"""The one exception for mistakes that a user can make and mend."""


class UserError(Exception):
    """A mistake in the input; its message is one sentence that names the remedy.

    `main.py` prints the message without a traceback and exits with code 2.
    """
