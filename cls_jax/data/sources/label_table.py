"""The table `labels.csv` of a folder of images, as people and programs write it.

The columns `file` and `label` are enough. `cls-jax label` appends a row per decision and adds two
columns: `decision` says what an empty label means, and `time` orders the rows of tables that were
merged by appending one to the other.
"""

import codecs
import csv
import datetime
import errno
import io
import os
import pathlib
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cls_jax.data.images.decode import SUFFIXES
from cls_jax.errors import UserError
from cls_jax.io import describe_error, read_bytes, to_csv, write_atomically

LABELS_CSV = "labels.csv"
LABEL, NONE, SKIP, UNDO = "label", "none", "skip", "undo"
LONGEST_CLASS = 255  # Characters, as in the name of a folder.
_MAX_BYTES = 2**28  # Some five million rows.
# Windows has no such links, but changes line ends unless told otherwise.
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
# Headers of the columns, the usual ones first.
_FILE_COLUMNS = (
    *("file", "filename", "path", "filepath", "image", "imagename", "imagepath", "img"),
    *("imageid", "imgid", "id", "name"),
)
_LABEL_COLUMNS = ("label", "labels", "class", "classname", "category", "target", "species", "y")
_OWN_COLUMNS = ("decision", "time")


class LabelRow(NamedTuple):
    """A row of the table."""

    file: str  # Name as written, relative to the folder.
    label: str  # Class, or "".
    # "label", "none" (the image belongs to no class), "skip" or "undo" (`label` is what it was
    # before). "" in rows that other programs wrote.
    decision: str = ""
    time: str = ""  # UTC, ISO 8601. "" if unknown.


class _Format(NamedTuple):
    """How a table is written."""

    header: list[str]  # Cells of the first line, or what it should be in a table without a header.
    has_header: bool
    delimiter: str
    places: tuple[int, int, int, int]  # Columns of file, label, decision and time, -1 for missing.


_NEW = _Format(["file", "label", *_OWN_COLUMNS], True, ",", (0, 1, 2, 3))


def fold(name: str) -> str:
    """The same text for names that differ in case, or in how accents are composed."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def read_label_table(path: pathlib.Path) -> list[LabelRow]:
    """Reads the rows in the order in which they count.

    That is the order of `time`. Rows without a time come first, in the order of the file. The
    header of a table that was appended to another one is no row.

    Raises:
        UserError: if it cannot be read, or has no columns of files and labels.
    """
    text, _ = _read_text(path)
    table_format, cells = _parse(path, text)
    header = [table_format.header[place] for place in table_format.places[:2]]
    rows = []
    for row in cells[table_format.has_header :]:
        values = [row[place] if 0 <= place < len(row) else "" for place in table_format.places]
        if len(row) > table_format.places[0] and values[:2] != header:
            rows.append(LabelRow(*values))
    if any(len(row.label) > LONGEST_CLASS for row in rows):
        raise _explain(path, ValueError(f"a label has more than {LONGEST_CLASS} characters"))
    return sorted(rows, key=lambda row: row.time)


def append_rows(path: pathlib.Path, rows: Iterable[LabelRow]) -> int:
    """Appends rows and waits until they are on the disk.

    All rows are one write at the end of the file, so two programs can append at a time. A table of
    another program gets the columns `decision` and `time` first.

    Returns:
        The number of bytes appended.

    Raises:
        OSError: if the system refuses.
        UserError: if the table is a link, or cannot be read as a table.
    """
    if path.is_symlink():
        raise UserError(f"{path} is a link: replace it with the file, so that labels can be added.")
    is_new = not path.exists() or not path.stat().st_size
    table_format = _NEW if is_new else _prepare(path)
    lines = [table_format.header] if is_new else []
    for row in rows:
        line = [""] * len(table_format.header)
        for place, value in zip(table_format.places, row, strict=True):
            line[place] = value
        lines.append(line)
    content = to_csv(lines, table_format.delimiter).encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_LINKS, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        if os.write(descriptor, content) < len(content):  # The disk is full.
            os.ftruncate(descriptor, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return len(content)


def now() -> str:
    """The time as the tables have it: UTC to the microsecond."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _prepare(path: pathlib.Path) -> _Format:
    """Rewrites a table to which rows cannot be appended as it is. Returns its format."""
    text, is_utf8 = _read_text(path)
    old, _ = _parse(path, text)
    header = [*old.header, *(column for column in _OWN_COLUMNS if column not in old.header)]
    if not old.has_header or header != old.header or not is_utf8 or not text.endswith("\n"):
        _, _, rest = text.partition("\n")
        body = rest if old.has_header else text
        end = "\n" if body and not body.endswith("\n") else ""
        write_atomically(path, to_csv([header], old.delimiter) + body + end)
    places = (*old.places[:2], header.index("decision"), header.index("time"))
    return _Format(header, True, old.delimiter, places)


def _read_text(path: pathlib.Path) -> tuple[str, bool]:
    """The text of a table, and whether it is UTF-8."""
    try:
        content = read_bytes(path, _MAX_BYTES)
        is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        return content.decode("utf-16" if is_utf16 else "utf-8-sig"), not is_utf16
    except (OSError, ValueError) as error:
        raise _explain(path, error) from error


def _parse(path: pathlib.Path, text: str) -> tuple[_Format, list[list[str]]]:
    """The format of a table and all of its lines."""
    try:
        first = text[: text.find("\n") + 1] or text
        delimiter = max(",;\t", key=first.count)  # Excel writes semicolons or tabs.
        file = io.StringIO(text, newline="")
        lines = list(filter(None, csv.reader(file, delimiter=delimiter, skipinitialspace=True)))
        cells = lines[0] if lines else []
        places = _find_columns(cells)
    except (ValueError, csv.Error) as error:
        raise _explain(path, error) from error
    if cells[places[0]].strip().lower().endswith(SUFFIXES):
        header = ["file", "label", *[""] * (len(cells) - 2)]
        return _Format(header, False, delimiter, (*places, -1, -1)), lines
    decision, time = (cells.index(name) if name in cells else -1 for name in _OWN_COLUMNS)
    return _Format(cells, True, delimiter, (*places, decision, time)), lines


def _find_columns(header: Sequence[str]) -> tuple[int, int]:
    """The columns of files and labels, by name. A table of two columns has them in this order."""
    columns = ["".join(filter(str.isalnum, fold(cell))) for cell in header]
    files = [columns.index(name) for name in _FILE_COLUMNS if name in columns]
    labels = [columns.index(name) for name in _LABEL_COLUMNS if name in columns]
    if files and labels:
        return files[0], labels[0]
    if len(columns) == 2:
        return 0, 1
    raise ValueError("it has no columns file and label")


def _explain(path: pathlib.Path, error: Exception) -> UserError:
    return UserError(
        f"{path} cannot be read as a table ({type(error).__name__}: {describe_error(error)}): "
        "make it a CSV file in UTF-8 whose first line is file,label."
    )
