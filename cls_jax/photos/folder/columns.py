"""Which columns of a table have the files, the classes, and the parts of the data.

The headers of other programs are no evidence: `id`, `name` and `image` mean one thing here and
another there. The column of files is the one whose cells name files of the folder.
"""

import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from cls_jax.data.sampling import take_evenly
from cls_jax.photos.folder.cells import is_part_column
from cls_jax.photos.folder.index import NO_MATCH, FileIndex, Matches
from cls_jax.photos.folder.kinds import ONE_CLASS, ONES, ZEROS, Classes
from cls_jax.photos.folder.names import clean, fold_case, fold_class, list_names, simplify
from cls_jax.photos.folder.options import FolderOptions
from cls_jax.photos.folder.reading import NO_CLASSES, UNCLEAR, Fault
from cls_jax.photos.images.decode import SUFFIXES

_COLUMN_OPTIONS = ("label_column", "file_column", "source_column")
# Headers, simplified, the usual ones first.
_CLEAR_FILE_HEADERS = (
    *("file", "filename", "path", "filepath", "image", "imagename", "imagepath", "imagefile"),
    *("img", "imgname", "imgpath", "imgfile", "fname", "photo", "picture", "url", "imageurl"),
)
_FILE_HEADERS = (*_CLEAR_FILE_HEADERS, "imageid", "imgid", "id", "name")
_LABEL_HEADERS = (
    *("label", "labels", "labelname", "class", "classes", "classname", "classlabel"),
    *("category", "categories", "categoryname", "target", "species", "choice", "choices"),
    *("groundtruth", "tag", "tags", "predictionstring"),
)
# Headers of what an image comes from. Of several, the first one counts.
_SOURCE_HEADERS = tuple(
    f"{name}{ending}"
    for name in (
        *("patient", "subject", "participant", "animal", "specimen", "lesion", "slide", "plate"),
        *("well", "site", "location", "station", "camera", "deployment", "video", "sequence"),
        *("seq", "clip", "batch", "group", "source"),
    )
    for ending in ("", "id", "name", "no", "nr", "number")
)
# Headers of who has labeled an image.
_PEOPLE_HEADERS = tuple(
    f"{name}{ending}"
    for name in ("annotator", "worker", "user", "rater", "labeler", "coder", "createdby")
    for ending in ("", "id", "name")
)
_MOST_SOURCES = 2 / 3  # Of the cells: in columns with more of them, hardly any source repeats.
# Headers of columns that number the rows. pandas leaves the first one out.
_NUMBER_HEADERS = ("", "unnamed0", "index", "id", "no", "nr", "number", "row", "rowid")
# Headers, simplified, of numbers that are no classes.
_MEASURES = (
    *("age", "year", "month", "day", "hour", "time", "width", "height", "size", "weight", "length"),
    *("area", "depth", "distance", "count", "price", "temperature", "lat", "lon", "score"),
    *("latitude", "longitude"),
)
_ROUNDED, _CLEAR_LEAD = 0.02, 0.2  # Of shares: of their sum, and of the largest one.
_LARGEST_GAPS = 3  # Of whole numbers, from the first to the last of them, for each.
_FEWEST_COUNTED = 3  # Consecutive numbers, in a table without a header, that number its rows.
_NUM_TRIED = 1_000  # Cells of a column that are tried first.
_MIN_FOUND = 10  # Cells that name files, enough for a table that has many others, too.


# A name and its value, as VIA has it in a cell.
_PAIR = re.compile(r'\{"[^"{}\[\]]*": ?"[^"{}\[\]]*"\}')


class Columns(NamedTuple):
    """The places of a table's columns."""

    file: int = 0
    label: int = 1
    # Of what `cls-jax label` decides, and its time. A table without these columns has them after
    # its last one, in rows that need them.
    decision: int = 2
    time: int = 3
    parts: tuple[int, ...] = ()  # Those that say which part a row belongs to.
    matches: Matches | None = None  # The files of the column of files, once they are looked up.
    one_hot: tuple[int, ...] = ()  # Columns of 0 and 1 for each class, the first of them `label`.
    source: tuple[int, ...] = ()  # What an image comes from, if a column says it.
    are_shares: bool = False  # Whether the columns of `one_hot` have shares that add up to 1.
    has_people: bool = False  # Whether one says who has labeled the image.
    kind: Classes = ONE_CLASS  # What a label can be.


def is_image_name(cell: str) -> bool:
    """Whether a cell ends as the names of images do."""
    return cell.strip().lower().endswith(SUFFIXES)


@dataclasses.dataclass(frozen=True, eq=False)
class Column:
    """A column of a table."""

    place: int
    header: str
    cells: Sequence[str]  # "" where a row is too short.

    @functools.cached_property
    def simple(self) -> str:
        """The header, simplified."""
        return simplify(self.header)

    @functools.cached_property
    def distinct(self) -> list[str]:
        """The distinct cells that are not empty."""
        return list(dict.fromkeys(filter(str.strip, self.cells)))

    @functools.cached_property
    def numbers(self) -> list[str]:
        """Their numbers and percentages, see `_read_number`."""
        return list(map(_read_number, self.distinct))

    @property
    def name(self) -> str:
        """The name for a sentence."""
        return self.header.strip() or f"column {self.place + 1}"

    def has_files(self) -> bool:
        """Whether most of the distinct cells end as names of images do."""
        return 2 * sum(map(is_image_name, self.distinct)) > len(self.distinct)

    def is_nested(self) -> bool:
        """Whether all cells have an object or a list of objects, in JSON, and so no name."""
        texts = list(map(str.strip, self.distinct))
        return bool(texts) and all(
            (text[:1] == "{" and not _PAIR.fullmatch(text)) or text[:2] in ("[{", "[]")
            for text in texts
        )


class _Named(NamedTuple):
    """How far a column names files."""

    column: Column
    kind: int  # 0: with extension, 1: without, 2: bare numbers. Less is better.
    fits: Mapping[str, str | None]  # Distinct cell → the file that it names, None for several.
    num_found: int  # Those that name one.
    matches: Matches


@dataclasses.dataclass(frozen=True)
class Table:
    """The cells of a table."""

    header: Sequence[str] = ()  # Each "" without one. Empty if there is no cell at all.
    lines: Sequence[Sequence[str]] = ()  # Below the header. They may be shorter or longer.
    label_column: str = ""  # The header of the classes, if the format says which one it is.
    delimiter: str = ","
    first_line: str = ""
    name: str = ""  # For sentences.

    @functools.cached_property
    def columns(self) -> list[Column]:
        """Its columns."""
        return [
            Column(place, header, [line[place] if place < len(line) else "" for line in self.lines])
            for place, header in enumerate(self.header)
        ]

    @property
    def names(self) -> list[str]:
        """Their names for sentences."""
        return [column.name for column in self.columns]

    def find_all(self, names: Sequence[str]) -> list[Column]:
        """The columns with these simplified headers, in the order of `names`."""
        return [column for name in names for column in self.columns if column.simple == name]

    def find(self, wanted: str) -> Column | None:
        """The column that a user names, by header or number. None without one."""
        if wanted in self.header:
            return self.columns[list(self.header).index(wanted)]
        found = self.find_all([simplify(wanted)]) if simplify(wanted) else []
        number = int(wanted) if wanted.isdecimal() and len(wanted) < 6 else 0
        if len(found) != 1 and number:
            found = self.columns[number - 1 : number]
        return found[0] if len(found) == 1 else None


def find_columns(table: Table, index: FileIndex, options: FolderOptions) -> Columns | Fault:
    """Finds the columns of a table by their cells in all rows, and by their headers.

    It is a fault if there is no such column, or there could be several.
    """
    wanted = _find_wanted(table, options)
    if isinstance(wanted, Fault):
        return wanted
    label, file = wanted.get("label_column"), wanted.get("file_column")
    labels = [label] if label else table.find_all(_LABEL_HEADERS)
    named = _match(file, index) if file else _find_file_column(table, index, labels)
    if isinstance(named, Fault):
        return named
    file = named.column
    if label is file:
        return Fault(
            f"{file.name!r} of {table.name} cannot have both the files and the classes: pass "
            "another --file-column or --label-column."
        )
    labels = [column for column in labels if column is not file]
    rest = [column for column in table.columns if column not in (file, *labels)]
    source = wanted.get("source_column") or _find_source_column(table, rest, bool(labels))
    person = next(iter(table.find_all(_PEOPLE_HEADERS)), None)
    rest = [column for column in rest if column not in (source, person)]
    parts = [column for column in rest if is_part_column(column.header, column.distinct)]
    found = Columns(
        file.place,
        parts=tuple(column.place for column in parts),
        matches=named.matches,
        source=(source.place,) if source else (),
        has_people=person is not None,
        kind=options.kind,
    )
    return _add_labels(found, table, labels, rest)


def _find_wanted(table: Table, options: FolderOptions) -> dict[str, Column | None] | Fault:
    """The columns that a user names, by the option."""
    typed = {name: getattr(options, name) for name in _COLUMN_OPTIONS if getattr(options, name)}
    found = {option: table.find(name) for option, name in typed.items()}
    if missing := [option for option, column in found.items() if column is None]:
        return Fault(
            f"{table.name} has no column {typed[missing[0]]!r:.100}: choose "
            f"--{missing[0].replace('_', '-')} from {list_names(table.names)}."
        )
    return found


def _add_labels(
    found: Columns, table: Table, labels: Sequence[Column], rest: Sequence[Column]
) -> Columns | Fault:
    """Adds the column of the classes: one of the usual `labels`, or one of the `rest`."""
    has_header = any(table.header)
    if labels:
        return _add_label(found, table, labels[:1] if _divide_alike(labels) else labels)
    others = [
        column
        for column in rest
        if column.place not in found.parts and _may_be_label(column, has_header)
    ]
    others = _leave_out_confidences(others)
    nested = [column.name for column in rest if column.is_nested()]
    if nested and all(all(column.numbers) for column in others):
        return Fault(
            f"{table.name} has objects with values of their own in {list_names(nested)}, and no "
            "column of classes: write the class of each image into a column called label."
        )
    are_shares = _are_shares(others)
    if are_shares or _are_one_hot(others, found.kind.open_marks):
        places = tuple(column.place for column in others)
        return found._replace(label=places[0], one_hot=places, are_shares=are_shares)
    return _add_label(found, table, others)


def _divide_alike(columns: Sequence[Column]) -> bool:
    """Whether several columns divide the images in the same way."""
    first, *others = (list(map(fold_class, column.cells)) for column in columns)
    return all(
        len(set(zip(first, other, strict=True))) <= min(len(set(first)), len(set(other)))
        for other in others
    )


def _find_source_column(table: Table, columns: Sequence[Column], has_label: bool) -> Column | None:
    """The column of what images come from, with a usual header.

    Without a column of classes, another column must be left for them. The cells must repeat: an
    image that is alone in its source needs none.
    """
    for column in table.find_all(_SOURCE_HEADERS):
        num_cells = sum(map(bool, map(str.strip, column.cells)))
        num_sources = len({fold_case(clean(cell)) for cell in column.distinct})
        is_repeated = 1 < num_sources <= _MOST_SOURCES * num_cells
        is_free = column in columns and not is_part_column(column.header, column.distinct)
        others = (other for other in columns if other is not column)
        if (
            is_free
            and is_repeated
            and (has_label or any(_may_be_label(one, any(table.header)) for one in others))
        ):
            return column
    return None


def name_files(table: Table, index: FileIndex) -> bool:
    """Whether a column names files of the folder, judged by a part of its cells.

    Bare numbers do so only below a usual header, or as `_find_bare_files` says.
    """
    tried = (_match(column, index, _NUM_TRIED) for column in table.columns if column.distinct)
    return _find_bare_files(table, index) is not None or any(
        one.num_found >= min(_MIN_FOUND, max(len(one.matches.files) / 2, 1))
        and (one.kind < 2 or one.column.simple in _FILE_HEADERS)
        for one in tried
    )


def _find_bare_files(table: Table, index: FileIndex) -> _Named | None:
    """The column of files of a list of bare numbers, where only one can have them, or None.

    Each line has two numbers and no header is above them. All of one column name different files,
    and those of the other one repeat, so they are classes.
    """
    columns = table.columns
    if len(columns) != 2 or any(table.header):
        return None
    if not all(cell.strip().isdecimal() for column in columns for cell in column.cells):
        return None
    for column, other in (columns, columns[::-1]):
        repeat = 3 * len(other.distinct) <= 2 * len(other.cells)
        if repeat and len(column.distinct) == len(column.cells) > 0:
            named = _match(column, index)
            return named if named.num_found == len(column.cells) else None
    return None


def doubt_label(table: Table, label: int, name: str) -> tuple[Fault | None, bool]:
    """What speaks against a column that no header calls classes.

    The fault that its cells hardly repeat, and whether they are rather ages or sizes than classes:
    the header says so, or the numbers have large gaps or fractions, which no classes have.
    """
    column = table.columns[label]
    if column.simple in _LABEL_HEADERS:
        return None, False
    if 3 * len(column.distinct) > 2 * sum(map(bool, map(str.strip, column.cells))):
        sentence = (
            f"{name} may have the classes in {column.name!r}, but they hardly repeat: "
            "pass --label-column with the column of the classes."
        )
        return Fault(sentence, UNCLEAR), False
    if not all(column.numbers) or not any(table.header):
        return None, False
    values = [float(number.removesuffix("%")) for number in column.numbers]
    has_gaps = max(values) - min(values) >= _LARGEST_GAPS * len(values)
    has_fractions = not all(value.is_integer() for value in values)
    return None, column.simple in _MEASURES or has_gaps or has_fractions


def _find_file_column(table: Table, index: FileIndex, labels: Sequence[Column]) -> _Named | Fault:
    """The column whose cells name files. `labels` cannot have them."""
    if bare := _find_bare_files(table, index):
        return bare
    columns = [column for column in table.columns if column not in labels]
    usual = [column for column in table.find_all(_FILE_HEADERS) if column in columns]
    found, clear = _list_named(dict.fromkeys([*usual, *columns]), usual, index)
    if not found and (not columns or (not usual and len(columns) > 1 and len(table.header) > 2)):
        return Fault(
            f"No column of {table.name} ({list_names(table.names)}) names images of the folder: "
            "write the names of the files into a column called file, or pass --file-column."
        )
    if not found:
        return _match((usual or columns)[0], index)
    found.sort(key=lambda one: (one.column not in usual, one.kind, -len(one.fits)))
    chosen = found[0]
    for other in found[1:]:
        better = _choose_better(chosen, other, clear)
        if better is None:
            return Fault(
                f"{table.name} names different images in {chosen.column.name!r} and "
                f"{other.column.name!r}: pass --file-column with the one whose images are labeled."
            )
        chosen = better
    return chosen


def _list_named(
    columns: Iterable[Column], usual: Sequence[Column], index: FileIndex
) -> tuple[list[_Named], list[Column]]:
    """The columns whose cells name files of the folder, and those whose headers say so.

    Numbers may name anything, unless their header, one of the `usual` ones, says that these are
    files.
    """
    # Measurements differ in each row and name no file: a few of them show that.
    tried = [column for column in columns if _match(column, index, _NUM_TRIED).fits]
    found = [_match(column, index) for column in tried]
    # A column that names the same file in each row says nothing about the rows.
    found = [one for one in found if len(one.matches.files) > 1 or not one.num_found] or found
    named = [one.column for one in found if one.kind < 2]
    clear = [column for column in usual if column.simple in _CLEAR_FILE_HEADERS]
    clear = [column for column in named if column in clear] or clear
    return [one for one in found if not named or one.kind < 2 or one.column in clear], clear


def _match(column: Column, index: FileIndex, most: int | None = None) -> _Named:
    """How far a column names files, by all cells or at `most` so many."""
    cells = column.distinct if most is None else take_evenly(column.distinct, most)
    matches = index.match(cells)
    fits = {cell: match.name for cell, match in matches.files.items() if match.name != ""}
    found = {cell: name for cell, name in fits.items() if name}
    have_extensions = any(map(is_image_name, fits)) or any(
        os.path.splitext(name)[1].lower() in cell.lower() for cell, name in found.items()
    )
    kind = 0 if have_extensions else 1
    if all(cell.strip().isdecimal() for cell in cells):
        kind = 2
    return _Named(column, kind, fits, len(found), matches)


def _choose_better(one: _Named, other: _Named, clear: Sequence[Column]) -> _Named | None:
    """Which of two columns has the files. None if they name different ones.

    `clear` are the columns whose headers say that they have files.
    """
    pairs = {
        (a, b)
        for a, b in zip(one.column.cells, other.column.cells, strict=True)
        if a.strip() and b.strip()
    }
    if all(_agree(a, one.fits.get(a, ""), b, other.fits.get(b, "")) for a, b in pairs):
        # Take the one that names more.
        return max(one, other, key=lambda each: (each.num_found, -each.kind))
    for better, worse in ((one, other), (other, one)):
        shares = [len(each.fits) / len(each.column.distinct) for each in (better, worse)]
        is_clear = better.column in clear and worse.column not in clear
        if shares[0] >= 2 * shares[1] or (is_clear and better.kind <= worse.kind):
            return better
    return None


def _agree(a: str, first: str | None, b: str, second: str | None) -> bool:
    """Whether two cells of a row do not name different files, each with the one that it names."""
    if None not in (first, second):
        return first == second or "" in (first, second)
    # Several files have this name, so the others' must be it.
    stems = [os.path.splitext(os.path.basename(name))[0] for name in (first or a, second or b)]
    return "" in (first, second) or fold_case(stems[0]) == fold_case(stems[1])


def _may_be_label(column: Column, has_header: bool) -> bool:
    """Whether a column without a usual header may have classes: no numbering, no names of files."""
    if not column.distinct or column.has_files() or column.is_nested():
        return False
    may_number = len(column.distinct) >= _FEWEST_COUNTED
    if has_header:
        may_number = column.simple in _NUMBER_HEADERS
    cells = [cell for cell in column.cells if cell.strip()]
    if not may_number or len(cells) < 2 or not all(cell.strip().isdecimal() for cell in cells):
        return True
    return any(int(b) != int(a) + 1 for a, b in itertools.pairwise(cells))


def _leave_out_confidences(columns: list[Column]) -> list[Column]:
    """The columns of words, if all others have fractions, as predictions have beside them.

    Words are no numbers. Otherwise all columns.
    """
    words = [column for column in columns if not any(column.numbers)]
    others = (column for column in columns if any(column.numbers))
    return words if words and all(are_fractions(one.numbers) for one in others) else columns


def _read_number(cell: str) -> str:
    """The number or percentage in a cell, with a decimal point. "" for any other cell."""
    text = cell.strip().replace(",", ".").replace(" ", "")
    try:
        float(text.removesuffix("%"))
    except ValueError:
        return ""
    return text


def are_fractions(cells: Sequence[str]) -> bool:
    """Whether cells are numbers from 0 to 1 that are not all whole, or percentages."""
    numbers = list(map(_read_number, cells))
    if not all(numbers) or any(number.endswith("%") for number in numbers):
        return all(number.endswith("%") for number in numbers)
    values = list(map(float, numbers))
    return all(0 <= value <= 1 for value in values) and not {0, 1}.issuperset(values)


def _hold_marks(columns: Sequence[Column], others: Collection[str] = ()) -> bool:
    """Whether there are several columns of 0 and 1, and of what else may be in them."""
    cells = (set(map(fold_class, column.distinct)) for column in columns)
    return len(columns) > 1 and all(found <= {*ONES, *ZEROS, *others} for found in cells)


def _are_one_hot(columns: Sequence[Column], others: Collection[str]) -> bool:
    """Whether columns with names have 0 and 1 for each class, and some row has a class."""
    if not _hold_marks(columns, others) or not all(clean(column.header) for column in columns):
        return False
    return any(fold_class(cell) in ONES for column in columns for cell in column.distinct)


def _are_shares(columns: Sequence[Column]) -> bool:
    """Whether columns with names have shares of each class, such as of votes, that add up to 1."""
    if len(columns) < 2 or not all(clean(column.header) for column in columns):
        return False
    numbers = [list(map(_read_number, column.cells)) for column in columns]
    rows = [row for row in zip(*numbers, strict=True) if any(row)]
    if not all(map(all, rows)) or any("%" in "".join(row) for row in rows):
        return False
    values = [tuple(map(float, row)) for row in rows]
    are_ones = all(abs(sum(row) - 1) <= _ROUNDED and min(row) >= 0 for row in values)
    return are_ones and any(0 < value < 1 for row in values for value in row)


def find_largest(names: Sequence[str], shares: Sequence[str]) -> Sequence[str]:
    """The class whose cell has the largest of some shares, nothing unless it clearly leads."""
    values = [float(_read_number(cell) or 0) for cell in shares]
    second, first = sorted(values)[-2:]
    return [names[values.index(first)]] if first - second >= _CLEAR_LEAD else []


def _add_label(found: Columns, table: Table, columns: Sequence[Column]) -> Columns | Fault:
    """Adds the only one of some columns of classes, or the fault that there are several, or none.

    It is a fault, too, if the classes would be names of files.
    """
    if not columns:
        return Fault(
            f"{table.name} has no column of classes: add one called label, or pass its name as "
            "--label-column.",
            NO_CLASSES,
        )
    if len(columns) == 1 and not columns[0].has_files():
        return found._replace(label=columns[0].place)
    listed = list_names([column.name for column in columns])
    if _hold_marks(columns):
        return Fault(
            f"{table.name} has a column of 0 and 1 for each of {listed}: write the class of each "
            "image into one column called label."
        )
    if len(columns) > 1:
        return Fault(
            f"{table.name} may have the classes in {listed}: pass --label-column with one of them.",
            UNCLEAR,
        )
    return Fault(
        f"{listed} of {table.name} has names of images, such as {columns[0].distinct[0]!r:.100}, "
        "not classes: pass --label-column with the column of the classes."
    )


def find_header(
    lines: Sequence[Sequence[str]], index: FileIndex, options: FolderOptions
) -> Sequence[str]:
    """The first line of a table if it is a header, otherwise "" for each of its cells."""
    first, *rest = lines
    cells = list(map(str.strip, first))
    usual = [simplify(cell) in (*_FILE_HEADERS, *_LABEL_HEADERS) for cell in cells]
    wanted = {options.file_column, options.label_column} - {""}
    if sum(usual) > 1 or wanted & {*first} or _are_numbers(cells, rest):
        return first
    files = index.match(list(filter(str.strip, first))).files
    is_file = [files.get(cell, NO_MATCH).name != "" for cell in first]
    if any(one and not other for one, other in zip(usual, is_file, strict=True)):
        return first
    has_numbers = len(first) == 2 and clean(first[0]).isdecimal()
    are_files = any(is_file) or any(map(is_image_name, cells))
    return [""] * len(first) if are_files or has_numbers else first


def _are_numbers(cells: Sequence[str], rest: Sequence[Sequence[str]]) -> bool:
    """Whether the cells of a first line are pandas's own names, and number no row."""
    numbers = list(map(str, range(len(cells))))
    last = len(cells) - 1
    return cells == numbers and not any(line[last:][:1] == numbers[-1:] for line in rest)
