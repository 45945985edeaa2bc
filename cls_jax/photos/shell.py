"""What to type in the shell of this program, in messages, and its version."""

import importlib.metadata
import os
import pathlib
import shlex
import shutil
import sys
from collections.abc import Sequence


def write_command(words: Sequence[str]) -> str:
    """The `cls-jax` command with these arguments, to be typed in the shell of this program."""
    start = "cls-jax"
    program = os.path.basename(sys.argv[0])
    if program in ("main.py", "__main__.py"):  # From a clone, `cls-jax` need not be installed.
        start = f"{find_program('python')} -m cls_jax"
    elif program == "cls-jax":
        start = find_program(program)
    return f"{start} {shlex.join(words)}"


def find_program(name: str) -> str:
    """What to type in this shell for a program of this environment, which may not be active."""
    folder = os.path.dirname(sys.executable)
    if os.path.dirname(shutil.which(name) or "") == folder:
        return name
    path = os.path.join(folder, name)
    is_below = pathlib.Path(path).is_relative_to(os.getcwd())
    return shlex.quote(os.path.relpath(path) if is_below else path)


def find_version() -> str:
    """The version of this package."""
    try:
        return importlib.metadata.version("cls-jax")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
