"""Reads untrusted files, and writes files and messages that quote them.

The content of a folder is data: it is never executed, and its size, depth or kind must not block
the program or fill its memory.
"""

import contextlib
import csv
import errno
import io
import json
import os
import pathlib
import secrets
import struct
import tokenize
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO, TextIO, TypeGuard

# Everything that a damaged file raises in our parsers, the standard library's, and NumPy's, whose
# headers are Python literals.
# fmt: off
PARSE_ERRORS: tuple[type[Exception], ...] = (
    OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError,
    MemoryError, RuntimeError, SyntaxError, tokenize.TokenError, struct.error,
    zipfile.BadZipFile, zlib.error,
)
# fmt: on
PARTIAL = ".partial"  # Suffix of a file that is being written.
# Enough for the labeled indices of three million images.
MAX_JSON_BYTES = 32 * 2**20
_LONGEST_REASON = 200
_DIRECTION_MARKS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a file for reading bytes. Refuses a pipe or a device, which might never end.

    Raises an OSError if the system refuses or it is not a regular file.
    """
    # Otherwise opening a pipe waits for a writer. Windows has neither the flag nor such pipes.
    at_once = getattr(os, "O_NONBLOCK", 0)
    file = open(  # noqa: SIM115
        path, "rb", opener=lambda path, flags: os.open(path, flags | at_once)
    )
    if not os.path.isfile(file.fileno()):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def find_cache_folder() -> pathlib.Path:
    """The user's folder for what may be deleted at any time. A relative path is no folder.

    A container may run as a user without a home.
    """
    import platformdirs  # Not at the top, since most files need none.

    try:
        return platformdirs.user_cache_path("cls_jax", appauthor=False)
    except RuntimeError:
        return pathlib.Path("cls_jax")


def read_bytes(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Reads a whole file.

    Raises:
        OSError: If the system refuses or it is not a regular file.
        ValueError: If it is larger than `max_bytes`.
    """
    with open_regular(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it has more than {max_bytes:,} bytes")
    return content


def read_json(path: str | os.PathLike[str]) -> Any:
    """Reads a JSON file. Raises the same as `read_bytes` and `parse_json`."""
    return parse_json(read_bytes(path, MAX_JSON_BYTES).decode("utf-8"))


def parse_json(text: str) -> Any:
    """Parses JSON. Raises a ValueError if it is not JSON or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value from JSON is a finite number that fits a float."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) < 1e300  # Not infinite, not NaN, not an integer of 400 digits.


def describe_error(error: Exception) -> str:
    """An error's message as one short line that is safe to print in a terminal.

    The system's has neither its number nor the file, which the sentence around it names.
    """
    reason = (isinstance(error, OSError) and error.strerror) or str(error)
    text = make_printable(" ".join(reason.split())) or type(error).__name__
    return text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON] + " …"


def write_count(number: int, one: str, several: str) -> str:
    """A number with what it counts, and perhaps a verb: "1 row is", "2 rows are"."""
    return f"{number:,} {one if number == 1 else several}"


def make_printable(text: str) -> str:
    """Escapes every character that is not plain text on one line of a terminal.

    Names of files and classes may contain characters that move the cursor, change colors, break
    lines, reverse the direction of writing or are not Unicode.
    """
    return text if text.isascii() and text.isprintable() else "".join(map(_escape, text))


def _escape(character: str) -> str:
    if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character in _DIRECTION_MARKS:
        return character.encode("unicode_escape").decode()
    return character


def write_rows(file: TextIO, rows: Iterable[Sequence[object]], delimiter: str = ",") -> None:
    """Appends rows, quoting cells that need it. Every cell reads back unchanged.

    A cell that starts with =, +, - or @ is written as it is, although a spreadsheet may take it for
    a formula: programs must read names of files and classes back unchanged. Import the file as
    text if the names are not your own.

    Python's writer quotes cells with a line feed, but before 3.13 not always those with a carriage
    return, which its reader then takes for the end of the row. Cells with spaces around them
    are quoted, because many readers drop these otherwise.
    """
    plain = csv.writer(file, delimiter=delimiter, lineterminator="\n")
    quoted = csv.writer(file, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for row in rows:
        cells = [cell for cell in row if isinstance(cell, str)]
        is_odd = any("\r" in cell or cell != cell.strip() for cell in cells)
        (quoted if is_odd else plain).writerow(row)


def to_csv(rows: Iterable[Sequence[object]], delimiter: str = ",") -> str:
    """Rows as `write_rows` writes them."""
    text = io.StringIO()
    write_rows(text, rows, delimiter)
    return text.getvalue()


def write_atomically(path: pathlib.Path, content: str | bytes) -> None:
    """Writes a file atomically: it exists either completely or not at all.

    If several threads or processes write the same file, the last one wins. Raises an OSError
    if the system refuses. An earlier file then remains.
    """
    partial = path.with_name(f"{path.name}.{secrets.token_hex(6)}{PARTIAL}")
    try:
        if isinstance(content, str):  # Names of files need not be Unicode.
            content = content.encode("utf-8", "surrogateescape")
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()  # A full disk needs the space back.
        raise
