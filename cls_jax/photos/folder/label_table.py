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
from collections.abc import Iterable, Mapping, Sequence
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
    ONES,
    Columns,
    Table,
    choose_columns,
    find_header,
    find_largest,
)
from cls_jax.photos.folder.index import NO_MATCH, FileIndex, Match, Matches
from cls_jax.photos.folder.names import clean, fold_class
from cls_jax.photos.folder.options import AUTOMATIC, FolderOptions
from cls_jax.photos.folder.reading import NOTHING, Fault

LABELS_CSV = "labels.csv"
LABEL, CHECK, NONE, SKIP, UNDO = "label", "check", "none", "skip", "undo"
# About a class: they label nothing.
NOTES = EXAMPLE, DESCRIBE, KEY = "example", "describe", "key"
LONGEST_CLASS = 255  # Characters, as in the name of a folder.
_HEAD_CHARACTERS = 10_000  # At least the header and a row.
_HEAD_LINES = 100
_MAX_BYTES = 2**28  # Some five million rows.
# Windows has no O_NOFOLLOW, but needs O_BINARY to keep line ends.
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_DECISIONS = (LABEL, CHECK, NONE, SKIP, UNDO, *NOTES)
_DETAILED = (CHECK, NONE)  # Decisions whose cell may say more, see `log`.
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|\+00:00)", re.ASCII)
_LAST_TIME = "9999"  # Times from here on count as unknown.


class LabelRow(NamedTuple):
    """A row of the table."""

    # Name as written, relative to the folder. In "describe" the description, in "key" the key.
    file: str
    label: str  # Class, or "".
    # "label", "check" (of a random photo), "none" (the image belongs to no class), "skip", "undo"
    # (`label` is the one before) or one of `NOTES`. "" in rows of other programs.
    decision: str = ""
    time: str = ""  # UTC, ISO 8601 to the microsecond. "" if unknown.
    part: str = ""  # "train", "unlabeled", "test" or "validation", if another program says so.
    detail: str = ""  # What follows the decision in its cell, of a random photo.
    source: str = ""  # What the image comes from.
    rival: str = ""  # Of several people's classes, the one that comes second.


class TableFormat(NamedTuple):
    """How a table is written."""

    delimiter: str
    header: list[str]  # The cells of the first line, each "" without a header.
    # The columns of file, label, decision and time. A table without the last two has them after
    # its last column, in rows that need them.
    places: tuple[int, int, int, int]
    first_line: str = ""
    name: str = LABELS_CSV  # Of the table, for sentences.
    columns: Columns = Columns()  # Those of another program's table.

    def show(self, place: int) -> str:
        """A column's name for a sentence."""
        return self.header[place].strip() or f"column {place + 1}"

    def describe(self) -> str:
        """The columns of a table, for a plan."""
        classes = self.show(self.places[1])
        if one_hot := self.columns.one_hot:
            kind = "shares, of which the largest counts" if self.columns.are_shares else "0 and 1"
            classes = f"{len(one_hot)} columns of {kind}"
        return f"files in {self.show(self.places[0])}, classes in {classes}"

    def check_appending(self) -> None:
        """Raises a UserError if the table has no place for the row of a decision."""
        if self.columns.one_hot:
            raise UserError(
                f"{self.name} has a column for each class, so no label can be added to it: rename "
                f"it, for example to given.csv. It is then still read, beside a new {LABELS_CSV}."
            )

    @property
    def has_decisions(self) -> bool:
        """Whether there is a column of decisions."""
        return self.places[2] < len(self.header)


_NEW_HEADER = ["file", "label", "decision", "time"]
_NEW = TableFormat(",", _NEW_HEADER, (0, 1, 2, 3), first_line=to_csv([_NEW_HEADER]))


class LabelTable(NamedTuple):
    """What a table says about the files of a folder."""

    rows: list[LabelRow]  # In the order of the file.
    format: TableFormat = _NEW
    own: Mapping[str, Match] = NOTHING  # The files of the rows that `cls-jax label` has written.
    matches: Matches = Matches({})  # Those of all others.
    missing: Mapping[str, int] = NOTHING  # Words that mean no label → the rows with them.
    fault: Fault | None = None  # Why it cannot be read, or may mean something else.

    def find(self, row: LabelRow) -> str | None:
        """The file of a row, "" if there is none, None if it could be several."""
        files = self.own if row.decision else self.matches.files
        return files.get(row.file, NO_MATCH).name


def read_label_table(
    path: pathlib.Path,
    index: FileIndex,
    options: FolderOptions = AUTOMATIC,
    content: bytes | None = None,
) -> LabelTable:
    """Reads a table, from its `content` if that is known.

    The files of the folder, in `index`, tell which column names them. Headers of appended tables
    are skipped. Raises a UserError if it cannot be read, its columns are not clear, or a row has
    several classes.
    """
    content = read_content(path) if content is None else content
    parsed = parse_table(path, index, options, content)
    return check_table(read_parsed(path, parsed, index, options))


def check_table(table: LabelTable) -> LabelTable:
    """The table itself. Raises a UserError if it has a fault."""
    if table.fault:
        raise UserError(table.fault.sentence)
    return table


def parse_table(
    path: pathlib.Path, index: FileIndex, options: FolderOptions, content: bytes
) -> Table:
    """The cells of a CSV file. Raises a UserError if it is none."""
    text, _ = _decode(path, content)
    delimiter = _find_delimiter(path, text, index)
    lines = _read_csv(path, text, delimiter) if text.strip() else []
    if not lines:
        return Table()
    header = list(find_header(lines, index, options))
    first_line = _take_first(text)
    return Table(header, lines[any(header) :], delimiter=delimiter, first_line=first_line)


def read_parsed(
    path: pathlib.Path,
    parsed: Table,
    index: FileIndex,
    options: FolderOptions = AUTOMATIC,
    name: str = "",
) -> LabelTable:
    """What the cells of a table mean, without rows if it has a fault."""
    name = name or path.name
    if not parsed.header:
        return LabelTable([], _NEW._replace(name=name))
    header, width = list(parsed.header), len(parsed.header)
    options = options._replace(label_column=options.label_column or parsed.label_column)
    decision, time = width, width + 1
    if "decision" in header:  # Otherwise "time" may mean anything.
        decision = header.index("decision")
        time = header.index("time") if "time" in header else width
    if set(_NEW.header[:3]) <= set(header) and not any(options[:2]):
        columns = Columns(header.index("file"), header.index("label"))
    else:
        others = [
            line
            for line in parsed.lines
            if line[:width] != header
            and not any(_has_decision(line, place) for place in (width, decision))
        ]
        columns = choose_columns(
            dataclasses.replace(parsed, lines=others, name=name), index, options
        )
    if columns.fault:
        return LabelTable([], _NEW._replace(name=name), fault=columns.fault)
    places = (columns.file, columns.label, decision, time)
    table_format = TableFormat(parsed.delimiter, header, places, parsed.first_line, name, columns)
    return _read_rows(path, parsed.lines, table_format, index, columns.matches)


def is_begun_here(path: pathlib.Path) -> bool:
    """Whether a table is empty, or its first row has a decision of `cls-jax label`.

    Raises a UserError if it cannot be read.
    """
    text = read_text(path)
    first = _read_csv(path, _take_head(text), ",")[:2]
    if len(first) < 2:
        return not first or set(_NEW.header[:2]) <= set(first[0])
    return any(_read_decision(cell)[0] for cell in first[1][2:])


def read_more_rows(
    path: pathlib.Path, index: FileIndex, table_format: TableFormat, content: bytes, start: int
) -> LabelTable:
    """The rows from the byte `start` on, the beginning of a row, of a table with a known format.

    Raises a UserError if they cannot be read.
    """
    _, encoding = _decode(path, content)
    lines = _read_csv(path, content[start:].decode(encoding), table_format.delimiter)
    return check_table(_read_rows(path, lines, table_format, index))


def _has_decision(line: Sequence[str], place: int) -> bool:
    """Whether a row has a decision of `cls-jax label` in a place, as after the last column."""
    return len(line) > place and bool(_read_decision(line[place])[0])


def _read_decision(cell: str) -> tuple[str, str]:
    """The decision in a cell and what follows it, or twice "" if there is none."""
    decision, _, detail = cell.partition(" ")
    is_one = decision in _DECISIONS and (not detail or decision in _DETAILED)
    return (decision, detail) if is_one else ("", "")


def _read_rows(
    path: pathlib.Path,
    lines: Iterable[Sequence[str]],
    table_format: TableFormat,
    index: FileIndex,
    matches: Matches | None = None,
) -> LabelTable:
    """The rows of the lines below the header, with the files that they name, if not yet known."""
    header, (file, label, *_) = table_format.header, table_format.places
    headers = ([header[file], header[label]], _NEW.header[:2])
    lines = [line for line in lines if len(line) > file]
    lines = [line for line in lines if _take_cells(line, (file, label)) not in headers]
    rows = [_read_row(line, table_format) for line in lines]
    faults = [fault for line in lines if (fault := _find_fault(line, table_format))]
    own = index.match_exactly(row.file for row in rows if row.decision)
    others = [row for row in rows if not row.decision]
    labels = {row.label: row.file for row in reversed(others)}
    label_header = "" if table_format.columns.one_hot else header[label]
    classes, fault = read_classes(table_format.name, label_header, labels)
    parts, of_parts = _read_parts(table_format, [row.part for row in others])
    faults += filter(None, [fault, of_parts])
    if faults:
        return LabelTable([], table_format, fault=faults[0])
    missing = {
        word: sum(row.label == word for row in others)
        for word, names in classes.items()
        if not names and clean(word)
    }
    rows = [
        row._replace(label=clean(row.label), part="")
        if row.decision
        else row._replace(label="".join(classes[row.label]), part=parts[row.part])
        for row in rows
    ]
    if table_format.columns.person is not None and not table_format.columns.are_shares:
        rows = _take_majority(rows)
    if any(len(row.label) > LONGEST_CLASS for row in rows):
        long = ValueError(f"a label has more than {LONGEST_CLASS} characters")
        return LabelTable([], table_format, fault=Fault(str(_explain(path, long))))
    matches = matches or index.match(row.file for row in others)
    return LabelTable(rows, table_format, own, matches, missing)


def _take_cells(line: Sequence[str], places: Iterable[int]) -> list[str]:
    """Some cells of a line, which may be shorter."""
    return [line[place] if place < len(line) else "" for place in places]


def _read_row(line: Sequence[str], table_format: TableFormat) -> LabelRow:
    """A line below the header, with its class and part as they are written."""
    columns = table_format.columns
    file, label, decision, moment = _take_cells(line, table_format.places)
    if columns.one_hot:
        label = "".join(_list_marked(line, table_format)[:1])
    decision, detail = _read_decision(decision)
    moment = _read_time(moment)
    if not decision or not (moment or table_format.has_decisions):
        decision = detail = ""
        moment = moment if table_format.has_decisions else ""
    part = "\0".join(_take_cells(line, columns.parts))
    sources = [] if columns.source is None else [columns.source]
    source = "".join(_take_cells(line, sources)).strip()
    return LabelRow(file, label, decision, moment, part, detail, source)


def _take_majority(rows: list[LabelRow]) -> list[LabelRow]:
    """Rows with the class that most people have chosen for their file, or "" without a majority."""
    votes: dict[str, Counter[str]] = {}
    for row in rows:
        if row.label and not row.decision:
            votes.setdefault(row.file, Counter())[fold_class(row.label)] += 1
    winners = {}
    for file, counts in votes.items():
        (first, most), (second, fewer) = [*counts.most_common(2), ("", 0)][:2]
        winners[file] = (first if fewer < most else "", second)
    spelled = {fold_class(row.label): row.label for row in reversed(rows)}
    chosen = {file: [spelled.get(name, "") for name in both] for file, both in winners.items()}
    return [
        row._replace(label=chosen[row.file][0], rival=chosen[row.file][1])
        if row.file in chosen and not row.decision
        else row
        for row in rows
    ]


def _list_marked(line: Sequence[str], table_format: TableFormat) -> list[str]:
    """The classes of a row with a 1 in their columns, or with the share that clearly leads."""
    header, places = table_format.header, table_format.columns.one_hot
    if table_format.columns.are_shares:
        largest = find_largest(_take_cells(line, places))
        return [] if largest is None else [header[places[largest]]]
    return [header[p] for p in places if p < len(line) and fold_class(line[p]) in ONES]


def _find_fault(line: Sequence[str], table_format: TableFormat) -> Fault | None:
    """The fault that a row of another program has several classes, or cells without a column."""
    marked = _list_marked(line, table_format)
    if len(marked) > 1:
        return refuse_several(table_format.name, line[table_format.places[0]], marked)
    width = len(table_format.header)
    if table_format.has_decisions or not any(line[width:]) or _has_decision(line, width):
        return None
    # A crash may have cut a decision.
    if len(line) == width + 1 and any(word.startswith(line[width]) for word in _DECISIONS):
        return None
    return Fault(
        f"{table_format.name} has a row of {len(line):,} cells, "
        f"{', '.join(map(repr, line)):.200}, but {width:,} columns: an image has one class here, "
        f"and a cell with a {table_format.delimiter!r} in it needs quotes."
    )


def _read_parts(
    table_format: TableFormat, marks: Sequence[str]
) -> tuple[dict[str, str], Fault | None]:
    """The cells of all columns of parts, joined → the part. There is a fault if they differ."""
    table, header, places = table_format.name, table_format.header, table_format.columns.parts
    if not places:
        return {"": ""}, None
    columns = zip(*(mark.split("\0") for mark in marks), strict=True)
    read = []
    for place, cells in zip(places, columns, strict=False):
        of_column, fault = read_parts(table, header[place], cells)
        read.append(of_column)
        if fault:
            return {}, fault
    parts = {}
    for mark in dict.fromkeys(marks):
        found = {part[cell] for part, cell in zip(read, mark.split("\0"), strict=True)}
        found = found - {"train"} or found
        if len(found) > 1:
            names = " and ".join(repr(header[place]) for place in places)
            return {}, Fault(
                f"{table} has rows that are {' and '.join(sorted(found))} images at once by the "
                f"columns {names}: keep one of the columns."
            )
        parts[mark] = found.pop()
    return parts, None


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
    text, encoding = _decode(path, content)
    found = _NEW
    start = to_csv([found.header])
    before = list[list[str]]()
    lines = []
    if text.strip():
        found = table.format
        if _take_first(text) != found.first_line:
            found = read_label_table(path, index, options, content).format
        before = _read_csv(path, _take_head(text), found.delimiter)[any(found.header) :]
        start = _find_end(path, text, found.delimiter)
    found.check_appending()
    header, places = found.header, found.places
    for row in rows:
        # The first row shows who started the table.
        is_label = row.decision in ("", LABEL, UNDO)
        is_plain = before and places[2] >= len(header) and is_label and not has_numbers
        # Other classes are read back only beside a decision.
        is_plain = is_plain and (not row.label or is_read_as_written(header[places[1]], row.label))
        written = places[:2] if is_plain else places
        line = [""] * (max([len(header) - 1, *written]) + 1)
        cells = [row.file, row.label, f"{row.decision} {row.detail}".rstrip(), row.time]
        for place, value in zip(written, cells, strict=False):
            line[place] = value
        lines.append(line)
    added = (start + to_csv(lines, found.delimiter)).encode(encoding)
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


def read_text(path: pathlib.Path) -> str:
    """The text of a table, "" without one. Raises a UserError if it cannot be read."""
    return _decode(path, read_content(path))[0]


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


def _take_first(text: str) -> str:
    return text[: text.find("\n") + 1] or text


def _find_delimiter(path: pathlib.Path, text: str, index: FileIndex) -> str:
    """The delimiter that divides the first lines into cells. Excel writes semicolons or tabs.

    If several do, the one whose cells name most files, and then the most frequent one.
    """
    head = _take_head(text)
    first = _take_first(text)
    found = {}
    for delimiter in ",;\t|":
        if delimiter in first:
            lines = _read_csv(path, head, delimiter)[:_HEAD_LINES]
            if min(map(len, lines)) > 1:
                found[delimiter] = lines
    if len(found) < 2:
        return next(iter(found), max(",;\t", key=first.count))

    def rank(delimiter: str) -> tuple[int, int, int]:
        cells = [cell for line in found[delimiter] for cell in line if cell.strip()]
        files = index.match(cells).files
        named = [cell for cell, match in files.items() if match.name != ""]
        # A cell with the next one in it, as after the "?" of an address, is longer.
        return len(named), -sum(map(len, named)), first.count(delimiter)

    return max(found, key=rank)


def _read_csv(path: pathlib.Path, text: str, delimiter: str) -> list[list[str]]:
    """All lines that are not empty, without the one that tells Excel the delimiter."""
    # In a `StringIO`, a character takes four bytes.
    file = io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8", newline="")
    try:
        lines = list(filter(None, csv.reader(file, delimiter=delimiter, skipinitialspace=True)))
    except csv.Error as error:
        raise _explain(path, error) from error
    return lines[1:] if lines and lines[0] == ["sep=", ""] else lines


def _explain(path: pathlib.Path, error: Exception) -> UserError:
    return UserError(
        f"{path} cannot be read as a table ({type(error).__name__}: {describe_error(error)}): "
        "make it a CSV file in UTF-8 whose first line is file,label."
    )
