"""The table `labels.csv` of a folder of images: an append-only log.

Only the columns `file` and `label` are required. `cls-jax label` appends a row per decision, with
two more: `decision` gives the meaning of an empty label, and `time` orders the rows of tables that
were merged by appending one to the other. Since tables are never rewritten, several programs can
add rows at the same time.
"""

import codecs
import contextlib
import csv
import datetime
import errno
import io
import os
import pathlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from cls_jax.errors import UserError
from cls_jax.io import describe_error, read_bytes, to_csv
from cls_jax.photos.images.decode import SUFFIXES

LABELS_CSV = "labels.csv"
LABEL, NONE, SKIP, UNDO = "label", "none", "skip", "undo"
NOTES = EXAMPLE, DESCRIBE = "example", "describe"  # About a class: they label nothing.
LONGEST_CLASS = 255  # Characters, as in the name of a folder.
_HEAD_CHARACTERS = 10_000  # At least the header and a row.
_MAX_BYTES = 2**28  # Some five million rows.
# Windows has no O_NOFOLLOW, but needs O_BINARY to keep line ends.
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
# Headers of the columns, the usual ones first.
_FILE_COLUMNS = (
    "file",
    "filename",
    "path",
    "filepath",
    "image",
    "imagename",
    "imagepath",
    "img",
    "imageid",
    "imgid",
    "id",
    "name",
)
_LABEL_COLUMNS = ("label", "labels", "class", "classname", "category", "target", "species", "y")
_DECISIONS = (LABEL, NONE, SKIP, UNDO, *NOTES)
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|\+00:00)", re.ASCII)
_LAST_TIME = "9999"  # Times from here on count as unknown.


class LabelRow(NamedTuple):
    """A row of the table."""

    file: str  # Name as written, relative to the folder. In "describe", the description.
    label: str  # Class, or "".
    # "label", "none" (the image belongs to no class), "skip", "undo" (`label` is the one before)
    # or one of `NOTES`. "" in rows of other programs.
    decision: str = ""
    time: str = ""  # UTC, ISO 8601 to the microsecond. "" if unknown.


# The format of a table: its delimiter, the cells of its first line, each "" without a header, and
# the columns of file, label, decision and time. A table without the last two has them after its
# last column, in rows that need them.
_Format = tuple[str, list[str], tuple[int, ...]]
_NEW: _Format = ",", ["file", "label", "decision", "time"], (0, 1, 2, 3)


def fold(name: str) -> str:
    """Normalizes case and the composition of accents."""
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def read_label_table(
    path: pathlib.Path,
    names_file: Callable[[str], object] = lambda cell: False,
    content: bytes | None = None,
    start: int = 0,
) -> list[LabelRow]:
    """Reads the rows in the order of the file, from its `content` if that is known.

    Headers of appended tables are skipped. In a table of two columns with unusual names, the first
    line is a row if it has a number or an image's name, or if `names_file` recognizes its file.
    Rows before the byte `start`, the beginning of a row, are left out. Raises a UserError if it
    cannot be read, or has no columns of files and labels.
    """
    content = read_content(path) if content is None else content
    text, encoding = _decode(path, content)
    if not text.strip():
        return []
    (delimiter, header, places), lines = _parse(
        path, _take_head(text) if start else text, names_file
    )
    if start:
        lines = _read_csv(path, content[start:].decode(encoding), delimiter)
    has_decisions = places[2] < len(header)
    headers = ([header[place] for place in places[:2]], _NEW[1][:2])
    rows = []
    labels = dict[str, str]()  # Each label is stored once.
    for line in lines:
        cells = [line[place] if place < len(line) else "" for place in places]
        if len(line) <= places[0] or cells[:2] in headers:
            continue
        file, label, decision = cells[:3]
        moment = _read_time(cells[3])
        if decision not in _DECISIONS or not (moment or has_decisions):
            decision = ""
            if not has_decisions:
                moment = ""
        rows.append(LabelRow(file, labels.setdefault(label, label), decision, moment))
    if any(len(row.label) > LONGEST_CLASS for row in rows):
        raise _explain(path, ValueError(f"a label has more than {LONGEST_CLASS} characters"))
    return rows


def order_rows(rows: Iterable[LabelRow]) -> list[LabelRow]:
    """The rows of a table by `time`. One without a time comes after all rows above it."""
    rows = list(rows)
    if not any(row.time for row in rows):
        return rows
    latest = ""
    keys = []
    for row in rows:
        keys.append((row.time or latest, row))
        latest = max(latest, row.time)
    return [row for _, row in sorted(keys, key=lambda pair: pair[0])]


def append_rows(path: pathlib.Path, rows: Iterable[LabelRow]) -> tuple[int, bytes]:
    """Appends rows and waits until they are on disk.

    All rows are appended by one write, in the table's columns. Without a column for decisions,
    decisions other than labels get two cells after the last column. Returns the byte where the rows
    begin, and the appended bytes. Raises an OSError if the system refuses, and a UserError if the
    table is a link, or cannot be read as a table.
    """
    if path.is_symlink():
        raise UserError(f"{path} is a link: replace it with the file itself.")
    text, encoding = _decode(path, read_content(path))
    delimiter, header, places = _NEW
    start = to_csv([header])
    before = list[list[str]]()
    lines = []
    if text.strip():
        (delimiter, header, places), before = _parse(path, _take_head(text), lambda cell: False)
        start = _find_end(path, text, delimiter)
    for row in rows:
        # The first row shows who started the table.
        is_label = row.decision in ("", LABEL, UNDO)
        is_plain = before and places[2] >= len(header) and is_label
        line = [""] * max(len(header), 0 if is_plain else places[3] + 1)
        for place, value in zip(places[: 2 if is_plain else 4], row, strict=False):
            line[place] = value
        lines.append(line)
    added = (start + to_csv(lines, delimiter)).encode(encoding)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_LINKS, 0o666)
    try:
        num_written = os.write(descriptor, added)
        end = os.lseek(descriptor, 0, os.SEEK_CUR)
        if num_written < len(added):  # The disk is full.
            if os.fstat(descriptor).st_size == end:  # No other program has appended meanwhile.
                os.ftruncate(descriptor, end - num_written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if not text:
        _sync_folder(path.parent)
    return end - num_written, added


def _sync_folder(folder: pathlib.Path) -> None:
    """Waits until the name of a new file is on disk, if the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _find_end(path: pathlib.Path, text: str, delimiter: str) -> str:
    """The text that completes a table before a new row. A crash may have cut the last one."""
    end = "" if text.endswith(("\n", "\r")) else "\n"
    if text.count('"') % 2:
        mark = "\x1f"
        lines = _read_csv(path, f"{text}{end}{mark}", delimiter)
        if lines[-1] != [mark]:  # The last row ends within quotes.
            return '"\n'
    return end


def find_next_time(last: str) -> str:
    """The time in the table's format, UTC to the microsecond: now, but always after `last`."""
    now = datetime.datetime.now(datetime.UTC)
    if last:
        now = max(now, datetime.datetime.fromisoformat(last) + datetime.timedelta(microseconds=1))
    return _write_time(now)


def _write_time(moment: datetime.datetime) -> str:
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _read_time(text: str) -> str:
    """A time in a form that sorts as text, or "" unless it is UTC in ISO 8601."""
    if not _TIME.fullmatch(text):
        return ""
    try:
        moment = _write_time(datetime.datetime.fromisoformat(text))
    except ValueError:  # Such as February 30.
        return ""
    return moment if moment < _LAST_TIME else ""


def read_content(path: pathlib.Path) -> bytes:
    """The bytes of a table, b"" without one. Raises a UserError if it cannot be read."""
    try:
        return read_bytes(path, _MAX_BYTES)
    except FileNotFoundError:
        return b""
    except (OSError, ValueError) as error:
        raise _explain(path, error) from error


def _decode(path: pathlib.Path, content: bytes) -> tuple[str, str]:
    """The text of a table and its encoding."""
    encoding = _UTF16.get(content[:2], "utf-8")
    try:
        return content.decode(encoding).removeprefix("\ufeff"), encoding
    except ValueError as error:
        raise _explain(path, error) from error


def _take_head(text: str) -> str:
    """The first lines."""
    return text[: text.find("\n", _HEAD_CHARACTERS) + 1] or text


def _parse(
    path: pathlib.Path, text: str, names_file: Callable[[str], object]
) -> tuple[_Format, list[list[str]]]:
    """The format of a table and its lines below the header."""
    first = text[: text.find("\n") + 1] or text
    delimiter = max(",;\t", key=first.count)  # Excel writes semicolons or tabs.
    lines = _read_csv(path, text, delimiter)
    cells = lines[0] if lines else []
    try:
        places = _find_columns(cells)
    except ValueError as error:
        raise _explain(path, error) from error
    if places is None:  # Two columns without a usual name.
        places = (0, 1)
        start = cells[0].strip()
        if start.lower().endswith(SUFFIXES) or start.isdecimal() or names_file(cells[0]):
            return (delimiter, ["", ""], (0, 1, 2, 3)), lines
    width = len(cells)
    decision_places = (width, width + 1)
    if "decision" in cells:  # Otherwise "time" may mean anything.
        decision_places = (
            cells.index("decision"),
            cells.index("time") if "time" in cells else width,
        )
    return (delimiter, cells, (*places, *decision_places)), lines[1:]


def _read_csv(path: pathlib.Path, text: str, delimiter: str) -> list[list[str]]:
    """All lines that are not empty."""
    # In a `StringIO`, a character takes four bytes.
    file = io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8", newline="")
    try:
        return list(filter(None, csv.reader(file, delimiter=delimiter, skipinitialspace=True)))
    except csv.Error as error:
        raise _explain(path, error) from error


def _find_columns(header: Sequence[str]) -> tuple[int, int] | None:
    """The columns of files and labels by name, or None for two columns with other names."""
    columns = ["".join(filter(str.isalnum, fold(cell))) for cell in header]
    files = [columns.index(name) for name in _FILE_COLUMNS if name in columns]
    labels = [columns.index(name) for name in _LABEL_COLUMNS if name in columns]
    if files and labels:
        return files[0], labels[0]
    if len(columns) == 2:
        return None
    raise ValueError("it has no columns file and label")


def _explain(path: pathlib.Path, error: Exception) -> UserError:
    return UserError(
        f"{path} cannot be read as a table ({type(error).__name__}: {describe_error(error)}): "
        "make it a CSV file in UTF-8 whose first line is file,label."
    )
