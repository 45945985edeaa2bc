"""The table `labels.csv` of a folder of images: an append-only log.

Only a column of files and one of classes are required, see `columns`. `cls-jax label` appends a row
per decision, with two more: `decision` gives the meaning of an empty label, and `time` orders the
rows of tables that were merged by appending one to the other. Since tables are never rewritten,
several programs can add rows at the same time.
"""

import codecs
import contextlib
import csv
import dataclasses
import datetime
import errno
import io
import os
import pathlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from cls_jax.errors import UserError
from cls_jax.io import describe_error, read_bytes, to_csv
from cls_jax.photos.folder.cells import (
    is_read_as_written,
    read_classes,
    read_parts,
    refuse_several,
)
from cls_jax.photos.folder.columns import (
    Columns,
    Table,
    find_columns,
    find_header,
    find_largest,
)
from cls_jax.photos.folder.index import NO_MATCH, FileIndex
from cls_jax.photos.folder.log import CHECK, LABEL, NONE, NOTES, NOTHING, SKIP, UNDO, LabelRow
from cls_jax.photos.folder.names import clean
from cls_jax.photos.folder.options import AUTOMATIC, FolderOptions
from cls_jax.photos.folder.reading import Fault

LABELS_CSV = "labels.csv"
HEADER = ["file", "label", "decision", "time"]  # Of a new one.
_HEAD_CHARACTERS = 10_000  # At least the header and a row.
_HEAD_LINES = 100
_MAX_BYTES = 2**28  # Some five million rows.
# Windows has no O_NOFOLLOW, but needs O_BINARY to keep line ends.
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_DECISIONS = (LABEL, CHECK, NONE, SKIP, UNDO, *NOTES)
_DETAILED = (CHECK, NONE, SKIP)  # Decisions whose cell may say more, see `log`.
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
# Times from the year 9000 on count as unknown.
_TIME = re.compile(r"[0-8]\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|\+00:00)", re.ASCII)


_NEW = Table(HEADER, delimiter=",", first_line=to_csv([HEADER]), name=LABELS_CSV)


class LabelTable(NamedTuple):
    """What a table says about the files of a folder."""

    rows: list[LabelRow]  # In the order of the file.
    cells: Table = _NEW  # How it is written, without its lines.
    columns: Columns = Columns()
    unclear: Collection[str] = ()  # Names of rows that could mean several files.
    dropped: str = ""  # See `Matches`.
    missing: Mapping[str, int] = NOTHING  # Words that mean no label → the rows with them.
    fault: Fault | None = None  # Why it cannot be read, or may mean something else.

    def check_appending(self) -> None:
        """Raises a UserError if the table has no place for the row of a decision."""
        if self.columns.one_hot:
            raise UserError(
                f"{self.cells.name} has a column for each class, so no label can be added to it: "
                "rename it, for example to given.csv. It is then still read, beside a new "
                f"{LABELS_CSV}."
            )

    @property
    def has_decisions(self) -> bool:
        """Whether there is a column of decisions."""
        return self.columns.decision < len(self.cells.header)


def read_label_table(
    path: pathlib.Path,
    index: FileIndex,
    options: FolderOptions,
    content: bytes,
) -> LabelTable:
    """Reads a table from its `content`.

    The files of the folder, in `index`, tell which column names them. Headers of appended tables
    are skipped. Raises a UserError if it cannot be read, its columns are not clear, or a row has
    several classes.
    """
    return check_table(read_cells(parse_table(path, index, options, content), index, options))


def check_table(table: LabelTable) -> LabelTable:
    """The table itself. Raises a UserError if it has a fault."""
    if table.fault:
        raise UserError(table.fault.sentence)
    return table


def parse_table(
    path: pathlib.Path, index: FileIndex, options: FolderOptions, content: bytes
) -> Table:
    """The cells of a CSV file. Raises a UserError if it is none."""
    with _explain(path):
        text, _ = _decode(content)
        delimiter = _find_delimiter(text, index)
        lines = _read_csv(text, delimiter) if text.strip() else []
    header = list(find_header(lines, index, options)) if lines else []
    return Table(
        header, lines[any(header) :], "", delimiter, first_line=_take_lines(text), name=path.name
    )


def read_cells(table: Table, index: FileIndex, options: FolderOptions = AUTOMATIC) -> LabelTable:
    """What the cells of a table mean, without rows if it has a fault."""
    header, width = list(table.header), len(table.header)
    if not header:
        return LabelTable([], dataclasses.replace(_NEW, name=table.name))
    places = _place_decisions(header)
    columns: Columns | Fault
    if set(HEADER[:3]) <= set(header) and not any(options[:2]):
        columns = Columns(header.index("file"), header.index("label"), kind=options.kind)
    else:
        lines = [
            line
            for line in table.lines
            if line[:width] != header
            and not any(map(_read_decision, _take_cells(line, {width, places[0]})))
        ]
        options = options._replace(label_column=options.label_column or table.label_column)
        columns = find_columns(dataclasses.replace(table, lines=lines), index, options)
    if isinstance(columns, Fault):
        return LabelTable([], fault=columns)
    decision, time = places
    return _read_lines(table, columns._replace(decision=decision, time=time), index)


def _place_decisions(header: Sequence[str]) -> tuple[int, int]:
    """The columns of decisions and their times, after the last one where the header has none."""
    width = len(header)
    if "decision" not in header:  # Otherwise "time" may mean anything.
        return width, width + 1
    return header.index("decision"), header.index("time") if "time" in header else width


def is_begun_here(table: Table) -> bool:
    """Whether a table has no row, or its first one has a decision of `cls-jax label`."""
    places = _place_decisions(table.header)
    return not table.lines or any(map(_read_decision, _take_cells(table.lines[0], places)))


def read_more_rows(
    path: pathlib.Path, index: FileIndex, table: LabelTable, content: bytes, start: int
) -> LabelTable:
    """The rows from the byte `start` on, the beginning of a row, of a table with known columns.

    Raises a UserError if they cannot be read.
    """
    with _explain(path):
        _, encoding = _decode(content)
        lines = _read_csv(content[start:].decode(encoding), table.cells.delimiter)
    return check_table(
        _read_lines(dataclasses.replace(table.cells, lines=lines), table.columns, index)
    )


def _read_decision(cell: str) -> tuple[str, str] | None:
    """The decision in a cell and what follows it. None for any other cell."""
    decision, _, detail = cell.partition(" ")
    is_one = decision in _DECISIONS and (not detail or decision in _DETAILED)
    return (decision, detail) if is_one else None


def _read_lines(table: Table, columns: Columns, index: FileIndex) -> LabelTable:
    """The rows of the lines below the header, with the files that they name."""
    names = (columns.file, columns.label)
    headers = (_take_cells(table.header, names), HEADER[:2])
    lines = [
        line
        for line in table.lines
        if len(line) > columns.file and _take_cells(line, names) not in headers
    ]
    rows = [_read_row(line, table, columns) for line in lines]
    others = [row for row in rows if not row.decision]
    header = "" if columns.one_hot else table.header[columns.label]
    cells = {row.label: row.cell for row in reversed(others)}
    classes, fault = read_classes(table.name, header, cells, columns.kind)
    if columns.one_hot and columns.kind.most > 1:  # Names of columns are no lists.
        classes, fault = {label: label for label in cells}, None
    headers_of_parts = _take_cells(table.header, columns.parts)
    parts, of_parts = read_parts(table.name, headers_of_parts, [row.part for row in others])
    faults = [*(_find_fault(line, table, columns) for line in lines), fault, of_parts]
    if first := next(filter(None, faults), None):
        return LabelTable([], fault=first)
    counts = Counter(row.label for row in others)
    missing = {word: counts[word] for word, found in classes.items() if not found and clean(word)}
    rows = [
        row if row.decision else row._replace(label=classes[row.label], part=parts[row.part])
        for row in rows
    ]
    return _find_files(rows, table, columns, index)._replace(missing=missing)


def _find_files(
    rows: list[LabelRow], table: Table, columns: Columns, index: FileIndex
) -> LabelTable:
    """The rows with the names of their files, each with the class that most people have chosen."""
    votes = ((row.cell, row.label) for row in rows if not row.decision)
    settled = columns.kind.settle(votes, columns.has_people and not columns.are_shares)
    rows = [
        row if row.decision else row._replace(label=label, rival=rival)
        for row in rows
        for label, rival in [settled.get(row.cell, (row.label, ""))]
    ]
    own = index.match_exactly(row.cell for row in rows if row.decision)
    found, dropped = columns.matches or index.match(row.cell for row in rows if not row.decision)
    matches = ((own if row.decision else found).get(row.cell, NO_MATCH) for row in rows)
    return LabelTable(
        [
            row._replace(file=row.cell if row.decision in NOTES else match.name or "")
            for row, match in zip(rows, matches, strict=True)
        ],
        dataclasses.replace(table, lines=()),
        columns._replace(matches=None),
        {cell for files in (own, found) for cell, match in files.items() if match.name is None},
        dropped,
    )


def _take_cells(line: Sequence[str], places: Iterable[int]) -> list[str]:
    """Some cells of a line, which may be shorter."""
    return [line[place] if place < len(line) else "" for place in places]


def _read_row(line: Sequence[str], table: Table, columns: Columns) -> LabelRow:
    """A line below the header, with its class and part as they are written."""
    places = (columns.file, columns.label, columns.decision, columns.time)
    file, label, mark, moment = _take_cells(line, places)
    if columns.one_hot:
        label = columns.kind.join(_list_marked(line, table, columns), len(columns.one_hot))
    has_decisions = columns.decision < len(table.header)
    decision, detail = _read_decision(mark) or ("", "")
    moment = _read_time(moment)
    if not has_decisions and not (decision and moment):
        decision = detail = moment = ""
    label = clean(label) if decision else label
    part = "" if decision else "\0".join(_take_cells(line, columns.parts))
    source = "".join(_take_cells(line, columns.source)).strip()
    return LabelRow("", label, decision, moment, part, detail, source, cell=file)


def _list_marked(line: Sequence[str], table: Table, columns: Columns) -> Sequence[str]:
    """The classes of a row with a 1 in their columns, or with the share that clearly leads."""
    if not columns.one_hot:
        return []
    cells = _take_cells(line, columns.one_hot)
    names = _take_cells(table.header, columns.one_hot)
    choose = find_largest if columns.are_shares else columns.kind.mark
    return choose(names, cells)


def _find_fault(line: Sequence[str], table: Table, columns: Columns) -> Fault | None:
    """The fault that a row of another program has several classes, or cells without a column."""
    marked = _list_marked(line, table, columns)
    if len(marked) > columns.kind.most:
        return refuse_several(table.name, line[columns.file], marked)
    width = len(table.header)
    rest = line[width:]
    # A crash may have cut a decision.
    is_cut = len(rest) == 1 and any(word.startswith(rest[0]) for word in _DECISIONS)
    if columns.decision < width or not any(rest) or is_cut or _read_decision(rest[0]):
        return None
    return Fault(
        f"{table.name} has a row of {len(line):,} cells, "
        f"{', '.join(map(repr, line)):.200}, but {width:,} columns: a cell with a "
        f"{table.delimiter!r} in it needs quotes."
    )


def append_rows(
    path: pathlib.Path,
    rows: Iterable[LabelRow],
    table: LabelTable,
    index: FileIndex,
    options: FolderOptions = AUTOMATIC,
    has_numbers: bool = False,
) -> tuple[int, bytes]:
    """Appends rows and waits until they are on disk.

    All rows are appended by one write, in the columns of the table, as read before: it is read
    again only if it begins with another line. Without a column for
    decisions, decisions other than labels get two cells after the last column, and so do classes
    that would mean something else in a table of another program, as names do if it `has_numbers`
    in their place. Returns the byte where the rows begin, and the appended bytes. Raises an OSError
    if the system refuses, and a UserError if the table is a link, or cannot be read as a table.
    """
    if path.is_symlink():
        raise UserError(f"{path} is a link: replace it with the file itself.")
    content = read_content(path)
    with _explain(path):
        text, encoding = _decode(content)
        if _take_lines(text) != table.cells.first_line:
            table = read_label_table(path, index, options, content)
        head = _read_csv(_take_lines(text, _HEAD_CHARACTERS), table.cells.delimiter)
        has_rows = len(head) > any(table.cells.header)
        start = _find_end(text, table.cells.delimiter) if text.strip() else to_csv([HEADER])
    table.check_appending()
    # The first row shows who started the table.
    may_be_plain = has_rows and not table.has_decisions and not has_numbers
    added = (
        start
        + to_csv([_write_line(row, table, may_be_plain) for row in rows], table.cells.delimiter)
    ).encode(encoding)
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


def _write_line(row: LabelRow, table: LabelTable, may_be_plain: bool) -> list[str]:
    """The cells of a row. Those of a label may be plain: without a decision after the columns."""
    header, columns = table.cells.header, table.columns
    places = [columns.file, columns.label, columns.decision, columns.time]
    # Other classes are read back only beside a decision.
    is_read = not row.label or is_read_as_written(header[columns.label], row.label)
    if may_be_plain and is_read and row.decision in ("", LABEL, UNDO):
        places = places[:2]
    cells = [row.file, row.label, f"{row.decision} {row.detail}".rstrip(), row.time]
    values = dict(zip(places, cells, strict=False))
    return [values.get(place, "") for place in range(max([len(header) - 1, *places]) + 1)]


def _sync_folder(folder: pathlib.Path) -> None:
    """Waits until the name of a new file is on disk, if the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _find_end(text: str, delimiter: str) -> str:
    """The text that completes a table before a new row. A crash may have cut the last one."""
    end = "" if text.endswith(("\n", "\r")) else "\n"
    if text.count('"') % 2:
        mark = "\x1f"
        lines = _read_csv(f"{text}{end}{mark}", delimiter)
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
        return _write_time(datetime.datetime.fromisoformat(text))
    except ValueError:  # Such as February 30.
        return ""


def read_content(path: pathlib.Path) -> bytes:
    """The bytes of a table, b"" without one. Raises a UserError if it cannot be read."""
    with _explain(path), contextlib.suppress(FileNotFoundError):
        return read_bytes(path, _MAX_BYTES)
    return b""


def _decode(content: bytes) -> tuple[str, str]:
    """The text of a table and its encoding."""
    encoding = _UTF16.get(content[:2], "utf-8")
    return content.decode(encoding).removeprefix("\ufeff"), encoding


def _take_lines(text: str, least: int = 0) -> str:
    """The first line or, of at least so many characters, the first lines."""
    return text[: text.find("\n", least) + 1] or text


def _find_delimiter(text: str, index: FileIndex) -> str:
    """The delimiter that divides the first lines into cells. Excel writes semicolons or tabs.

    If several do, the one whose cells name most files, and then the most frequent one.
    """
    head, first = _take_lines(text, _HEAD_CHARACTERS), _take_lines(text)
    lines = {one: _read_csv(head, one)[:_HEAD_LINES] for one in ",;\t|" if one in first}
    found = [delimiter for delimiter, rows in lines.items() if min(map(len, rows)) > 1]
    if len(found) < 2:
        return next(iter(found), max(",;\t", key=first.count))

    def rank(delimiter: str) -> tuple[int, int, int]:
        cells = [cell for line in lines[delimiter] for cell in line if cell.strip()]
        files = index.match(cells).files
        named = [cell for cell, match in files.items() if match.name != ""]
        # A cell with the next one in it, as after the "?" of an address, is longer.
        return len(named), -sum(map(len, named)), first.count(delimiter)

    return max(found, key=rank)


def _read_csv(text: str, delimiter: str) -> list[list[str]]:
    """All lines that are not empty, without the one that tells Excel the delimiter."""
    # In a `StringIO`, a character takes four bytes.
    file = io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8", newline="")
    lines = list(filter(None, csv.reader(file, delimiter=delimiter, skipinitialspace=True)))
    return lines[1:] if lines and lines[0] == ["sep=", ""] else lines


@contextlib.contextmanager
def _explain(path: pathlib.Path) -> Iterator[None]:
    """Turns the errors of a file that is no table into a UserError."""
    try:
        yield
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(
            f"{path} cannot be read as a table ({type(error).__name__}: {describe_error(error)}): "
            "make it a CSV file in UTF-8 whose first line is file,label."
        ) from error
