"""Which columns of a table have the files, the classes, and the parts of the data.

The headers of other programs are no evidence: `id`, `name` and `image` mean one thing here and
another there. The column of files is the one whose cells name files of the folder.
"""

import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cls_jax.data.sampling import take_evenly
from cls_jax.photos.folder.cells import holds_parts, is_part_column
from cls_jax.photos.folder.index import NO_MATCH, FileIndex, Matches
from cls_jax.photos.folder.names import clean, fold, fold_class, simplify
from cls_jax.photos.folder.options import FolderOptions
from cls_jax.photos.folder.reading import NO_CLASSES, UNCLEAR, Fault
from cls_jax.photos.images.decode import SUFFIXES

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
ONES, _ZEROS = ("1", "true"), ("0", "false")  # Folded cells of a column for one class.
# Headers, simplified, of numbers that are no classes.
_MEASURES = (
    *("age", "year", "month", "day", "hour", "time", "width", "height", "size", "weight", "length"),
    *("area", "depth", "distance", "count", "price", "temperature", "lat", "lon", "score"),
    *("latitude", "longitude"),
)
_ROUNDED, _CLEAR_LEAD = 0.02, 0.2  # Of shares: of their sum, and of the largest one.
_LARGEST_GAPS = 3  # Of whole numbers, from the first to the last of them, for each.
_MAX_NAMED = 6
_FEWEST_COUNTED = 3  # Consecutive numbers, in a table without a header, that number its rows.
_NUM_TRIED = 1_000  # Cells of a column that are tried first.
_MIN_FOUND = 10  # Cells that name files, enough for a table that has many others, too.


# A name and its value, as VIA has it in a cell.
_PAIR = re.compile(r'\{"[^"{}\[\]]*": ?"[^"{}\[\]]*"\}')


class Columns(NamedTuple):
    """The places of a table's columns."""

    file: int = 0
    label: int = 0
    parts: tuple[int, ...] = ()  # Those that say which part a row belongs to.
    matches: Matches | None = None  # The files of the column of files, once they are looked up.
    one_hot: tuple[int, ...] = ()  # Columns of 0 and 1 for each class, the first of them `label`.
    source: int | None = None  # What an image comes from.
    are_shares: bool = False  # Whether the columns of `one_hot` have shares that add up to 1.
    person: int | None = None  # Who has labeled the image.
    fault: Fault | None = None  # Why these are not the columns, or may not be.


class _Column(NamedTuple):
    """How far a column names files."""

    place: int
    kind: int  # 0: with extension, 1: without, 2: bare numbers. Less is better.
    num_fits: int  # Distinct cells that name a file, or could name several.
    num_found: int  # Those that name one.
    share: float  # Of the cells that name a file, or could name several.
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
    def simple(self) -> list[str]:
        """The headers, simplified."""
        return list(map(simplify, self.header))

    def get(self, place: int) -> list[str]:
        """The cells of a column, "" where a row is too short."""
        return [line[place] if place < len(line) else "" for line in self.lines]

    def get_distinct(self, place: int) -> dict[str, None]:
        """The distinct cells of a column that are not empty."""
        return dict.fromkeys(cell for cell in self.get(place) if cell.strip())

    def show(self, place: int) -> str:
        """A column's name for a sentence."""
        return self.header[place].strip() or f"column {place + 1}"

    def list_columns(self, places: Sequence[int]) -> str:
        """Names of columns for a sentence."""
        listed = ", ".join(repr(self.show(place)) for place in places[:_MAX_NAMED])
        return listed + (" and others" if len(places) > _MAX_NAMED else "")

    def find_all(self, names: Sequence[str]) -> list[int]:
        """The columns with these simplified headers, in the order of `names`."""
        return [place for name in names for place, n in enumerate(self.simple) if n == name]

    def find(self, wanted: str) -> int | None:
        """The column that a user names, by header or number. None without one."""
        if wanted in self.header:
            return list(self.header).index(wanted)
        simple = simplify(wanted)
        if simple and self.simple.count(simple) == 1:
            return self.simple.index(simple)
        number = int(wanted) if wanted.isdecimal() and len(wanted) < 6 else 0
        return number - 1 if 1 <= number <= len(self.header) else None


def choose_columns(table: Table, index: FileIndex, options: FolderOptions) -> Columns:
    """Finds the columns of a table by their cells in all rows, and by their headers.

    Has a fault if there is no such column, or there could be several.
    """
    wanted = {
        name: table.find(getattr(options, name))
        for name in ("label_column", "file_column", "source_column")
        if getattr(options, name)
    }
    for name, place in wanted.items():
        if place is None:
            return Columns(fault=_miss(table, getattr(options, name), name))
    labels = table.find_all(_LABEL_HEADERS)
    if "label_column" in wanted:
        labels = [wanted["label_column"] or 0]
    file = wanted.get("file_column")
    if file is None:
        column = _find_file_column(table, index, labels)
        if isinstance(column, Fault):
            return Columns(fault=column)
        file, matches = column.place, column.matches
    else:
        matches = index.match(table.get_distinct(file))
    if labels == [file] and options.label_column:
        return Columns(
            fault=Fault(
                f"{table.show(file)!r} of {table.name} cannot have both the files and the classes: "
                "pass another --file-column or --label-column."
            )
        )
    labels = [place for place in labels if place != file]
    rest = [place for place in range(len(table.header)) if place not in (file, *labels)]
    source = wanted.get("source_column")
    if source is None:
        source = _find_source_column(table, rest, has_label=bool(labels))
    person = next(iter(table.find_all(_PEOPLE_HEADERS)), None)
    rest = [place for place in rest if place not in (source, person)]
    parts = [p for p in rest if is_part_column(table.header[p], table.get_distinct(p))]
    found = Columns(file, 0, tuple(parts), matches, source=source, person=person)
    return _add_labels(found, table, labels, rest)


def _miss(table: Table, wanted: str, name: str) -> Fault:
    """The fault that a table has no column of the name that a user wants."""
    return Fault(
        f"{table.name} has no column {wanted!r:.100}: choose --{name.replace('_', '-')} from "
        f"{table.list_columns(range(len(table.header)))}."
    )


def _add_labels(
    found: Columns, table: Table, labels: Sequence[int], rest: Sequence[int]
) -> Columns:
    """Adds the column of the classes: one of the usual `labels`, or one of the `rest`."""
    if len(labels) == 1:
        return _check_label_column(found._replace(label=labels[0]), table)
    if labels:
        return _check_label_column(_choose_among(found, table, labels), table)
    candidates = [place for place in rest if _may_be_label(table, place)]
    others = [place for place in candidates if place not in found.parts]
    if not others and len(candidates) == 1 and holds_parts(table.get_distinct(candidates[0])):
        # Classes called train and test.
        found = found._replace(parts=tuple(p for p in found.parts if p != candidates[0]))
        others = candidates
    others = _leave_out_confidences(table, others)
    nested = [place for place in rest if _are_nested(table.get_distinct(place))]
    if nested and not any(_hold_words(table, place) for place in others):
        fault = Fault(
            f"{table.name} has objects with values of their own in {table.list_columns(nested)}, "
            "and no column of classes: write the class of each image into a column called label."
        )
        return found._replace(fault=fault)
    are_shares = _are_shares(table, others)
    if are_shares or _are_one_hot(table, others):
        return found._replace(label=others[0], one_hot=tuple(others), are_shares=are_shares)
    return _check_label_column(_choose_only(found, table, others), table)


def _find_source_column(table: Table, places: Sequence[int], has_label: bool) -> int | None:
    """The column of what images come from, with a usual header.

    Without a column of classes, another column must be left for them. The cells must repeat: an
    image that is alone in its source needs none.
    """
    for place in table.find_all(_SOURCE_HEADERS):
        num_cells = sum(1 for cell in table.get(place) if cell.strip())
        num_sources = len({fold(clean(cell)) for cell in table.get_distinct(place)})
        is_repeated = 1 < num_sources <= _MOST_SOURCES * num_cells
        is_free = place in places and not is_part_column(
            table.header[place], table.get_distinct(place)
        )
        others = [other for other in places if other != place and _may_be_label(table, other)]
        if is_free and is_repeated and (has_label or others):
            return place
    return None


def name_files(table: Table, index: FileIndex) -> bool:
    """Whether a column names files of the folder, judged by a part of its cells.

    Bare numbers do so only below a usual header, or as `_find_bare_files` says.
    """
    if _find_bare_files(table, index) is not None:
        return True
    for place in range(len(table.header)):
        cells = take_evenly(list(table.get_distinct(place)), _NUM_TRIED)
        if not cells:
            continue
        column = _match_column(place, cells, index)
        is_sure = 2 * column.num_found >= len(cells) or column.num_found >= _MIN_FOUND
        is_file = column.kind < 2 or table.simple[place] in _FILE_HEADERS
        if column.num_found and is_sure and is_file:
            return True
    return False


def _find_bare_files(table: Table, index: FileIndex) -> int | None:
    """The column of files of a list of bare numbers, where only one can have them, or None.

    Each line has two numbers and no header is above them. All of one column name different files,
    and those of the other one repeat, so they are classes.
    """
    columns = [[cell.strip() for cell in table.get(place)] for place in range(len(table.header))]
    if len(columns) != 2 or any(table.header):
        return None
    if not all(cell.isdecimal() for cells in columns for cell in cells):
        return None
    for place, cells in enumerate(columns):
        others = columns[1 - place]
        repeat = 3 * len(set(others)) <= 2 * len(others)
        if repeat and len(set(cells)) == len(cells) > 0:
            files = index.match(cells).files.values()
            return place if all(match.name for match in files) else None
    return None


def doubt_label(table: Table, label: int) -> tuple[Fault | None, bool]:
    """What speaks against a column that no header calls classes.

    The fault that its cells hardly repeat, and whether they are rather ages or sizes than classes:
    the header says so, or the numbers have large gaps or fractions, which no classes have.
    """
    header, cells = table.simple[label], table.get_distinct(label)
    if header in _LABEL_HEADERS:
        return None, False
    num_cells = sum(map(bool, map(str.strip, table.get(label))))
    if 3 * len(cells) > 2 * num_cells:
        sentence = (
            f"{table.name} may have the classes in {table.show(label)!r}, but they hardly repeat: "
            "pass --label-column with the column of the classes."
        )
        return Fault(sentence, UNCLEAR), False
    numbers = [_read_number(cell).removesuffix("%") for cell in cells]
    if not all(numbers) or not any(table.header):
        return None, False
    values = list(map(float, numbers))
    has_gaps = max(values) - min(values) >= _LARGEST_GAPS * len(values)
    has_fractions = not all(value.is_integer() for value in values)
    return None, header in _MEASURES or has_gaps or has_fractions


def _find_file_column(table: Table, index: FileIndex, labels: Sequence[int]) -> _Column | Fault:
    """The column whose cells name files. `labels` cannot have them."""
    if (bare := _find_bare_files(table, index)) is not None:
        return _match_column(bare, list(table.get_distinct(bare)), index)
    places = [place for place in range(len(table.header)) if place not in labels]
    usual = [place for place in table.find_all(_FILE_HEADERS) if place in places]
    found = _list_file_columns(table, index, dict.fromkeys([*usual, *places]))
    if not found and (not places or (not usual and len(places) > 1 and len(table.header) > 2)):
        return Fault(
            f"No column of {table.name} "
            f"({table.list_columns(range(len(table.header)))}) names images of the folder: "
            "write the names of the files into a column called file, or pass --file-column."
        )
    if not found:
        place = (usual or places)[0]
        return _match_column(place, list(table.get_distinct(place)), index)
    best, clear = _leave_out_numbers(table, found, usual)
    chosen = min(best, key=lambda one: (one.place not in usual, one.kind, -one.num_fits))
    for other in (one for one in best if one.place != chosen.place):
        better = _choose_better(table, chosen, other, clear)
        if better is None:
            return Fault(
                f"{table.name} names different images in {table.show(chosen.place)!r} and "
                f"{table.show(other.place)!r}: pass --file-column with the one whose images are "
                "labeled."
            )
        chosen = better
    return chosen


def _leave_out_numbers(
    table: Table, found: list[_Column], usual: Sequence[int]
) -> tuple[list[_Column], list[int]]:
    """The columns that may have files, and those whose headers say so.

    Numbers may name anything, unless their header says that these are files.
    """
    named = [one for one in found if one.kind < 2]
    clear = [place for place in usual if table.simple[place] in _CLEAR_FILE_HEADERS]
    clear = [one.place for one in named if one.place in clear] or clear
    return [one for one in found if one.kind < 2 or one.place in clear] if named else found, clear


def _list_file_columns(table: Table, index: FileIndex, places: Iterable[int]) -> list[_Column]:
    """The columns whose cells name files of the folder."""
    found = []
    for place in places:
        cells = list(table.get_distinct(place))
        # Measurements differ in each row and name no file: a few of them show that.
        if cells and _match_column(place, take_evenly(cells, _NUM_TRIED), index).num_fits:
            found.append(_match_column(place, cells, index))
    # A column that names the same file in each row says nothing about the rows.
    return [one for one in found if len(one.matches.files) > 1 or not one.num_found] or found


def _match_column(place: int, cells: Sequence[str], index: FileIndex) -> _Column:
    matches = index.match(cells)
    if not cells:
        return _Column(place, 2, 0, 0, 0.0, matches)
    fits = {cell: match.name for cell, match in matches.files.items() if match.name != ""}
    found = {cell: name for cell, name in fits.items() if name}
    kind = 1
    if all(cell.strip().isdecimal() for cell in cells):
        kind = 2
    elif any(cell.strip().lower().endswith(SUFFIXES) for cell in fits) or any(
        _has_extension(cell, name) for cell, name in found.items()
    ):
        kind = 0
    return _Column(place, kind, len(fits), len(found), len(fits) / len(cells), matches)


def _has_extension(cell: str, name: str) -> bool:
    extension = os.path.splitext(name)[1].lower()
    return not extension or extension in cell.lower()


def _choose_better(
    table: Table, one: _Column, other: _Column, clear: Sequence[int]
) -> _Column | None:
    """Which of two columns has the files. None if they name different ones.

    `clear` are the columns whose headers say that they have files.
    """
    cells = zip(table.get(one.place), table.get(other.place), strict=True)
    pairs = {(a, b) for a, b in cells if a.strip() and b.strip()}
    if all(_agree(one, a, other, b) for a, b in pairs):  # Take the one that names more.
        return max(one, other, key=lambda column: (column.num_found, -column.kind))
    # A name and a path that ends with it: the path says more.
    for shorter, longer, sign in ((one, other, 1), (other, one, -1)):
        ends = (pair[::sign] for pair in pairs)
        if all(b.strip().replace("\\", "/").endswith("/" + a.strip()) for a, b in ends):
            return max(longer, shorter, key=lambda column: column.num_found)
    for better, worse in ((one, other), (other, one)):
        is_clear = better.place in clear and worse.place not in clear
        if better.share >= 2 * worse.share or (is_clear and better.kind <= worse.kind):
            return better
    return None


def _agree(one: _Column, a: str, other: _Column, b: str) -> bool:
    """Whether two cells of a row do not name different files."""
    first, second = (
        column.matches.files.get(cell, NO_MATCH).name for column, cell in ((one, a), (other, b))
    )
    if first is None or second is None:  # Several files have this name, so the others' must be it.
        stems = [
            os.path.splitext(os.path.basename(name or cell))[0]
            for name, cell in ((first, a), (second, b))
        ]
        return first == "" or second == "" or fold(stems[0]) == fold(stems[1])
    return first == second or first == "" or second == ""


def _may_be_label(table: Table, place: int) -> bool:
    """Whether a column without a usual header may have classes: no numbering, no names of files."""
    cells = table.get_distinct(place)
    if not cells or _are_file_names(cells) or _are_nested(cells):
        return False
    may_number = table.simple[place] in _NUMBER_HEADERS
    if not any(table.header):
        may_number = len(cells) >= _FEWEST_COUNTED
    return not (may_number and _count_up([cell for cell in table.get(place) if cell.strip()]))


def _hold_words(table: Table, place: int) -> bool:
    return not all(map(_read_number, table.get_distinct(place)))


def _are_nested(cells: dict[str, None]) -> bool:
    return bool(cells) and all(map(_is_nested, cells))


def _is_nested(cell: str) -> bool:
    """Whether a cell has an object or a list of objects, in JSON, and so no name."""
    text = cell.strip()
    return (text[:1] == "{" and not _PAIR.fullmatch(text)) or text[:2] in ("[{", "[]")


def _count_up(cells: Sequence[str]) -> bool:
    """Whether cells are consecutive numbers, at least two."""
    if len(cells) < 2 or not all(cell.strip().isdecimal() for cell in cells):
        return False
    return all(int(b) == int(a) + 1 for a, b in itertools.pairwise(cells))


def _are_file_names(cells: dict[str, None]) -> bool:
    return 2 * sum(cell.strip().lower().endswith(SUFFIXES) for cell in cells) > len(cells)


def _leave_out_confidences(table: Table, places: list[int]) -> list[int]:
    """The columns of words, if all others have fractions, as predictions have beside them.

    Words are no numbers. Fractions are numbers from 0 to 1 that are not all whole, or percentages.
    Otherwise all columns.
    """
    numbers = {place: list(map(_read_number, table.get_distinct(place))) for place in places}
    words = [place for place in places if not any(numbers[place])]
    others = [numbers[place] for place in places if place not in words]
    return words if words and all(map(are_fractions, others)) else places


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
    if not all(numbers):
        return False
    if all(number.endswith("%") for number in numbers):
        return True
    values = [float(number) for number in numbers if not number.endswith("%")]
    is_one = len(values) == len(numbers) and all(0 <= value <= 1 for value in values)
    return is_one and any(value not in (0, 1) for value in values)


def _hold_marks(table: Table, places: Sequence[int]) -> bool:
    """Whether there are several columns of 0 and 1."""
    cells = (set(map(fold_class, table.get_distinct(place))) for place in places)
    return len(places) > 1 and all(found <= {*ONES, *_ZEROS} for found in cells)


def _are_one_hot(table: Table, places: Sequence[int]) -> bool:
    """Whether columns with names have 0 and 1 for each class, and some row has a class."""
    if not _hold_marks(table, places) or not all(clean(table.header[p]) for p in places):
        return False
    return any(fold_class(cell) in ONES for place in places for cell in table.get(place))


def _are_shares(table: Table, places: Sequence[int]) -> bool:
    """Whether columns with names have shares of each class, such as of votes, that add up to 1."""
    if len(places) < 2 or not all(clean(table.header[p]) for p in places):
        return False
    numbers = [list(map(_read_number, table.get(place))) for place in places]
    rows = [row for row in zip(*numbers, strict=True) if any(row)]
    if not all(map(all, rows)) or any("%" in "".join(row) for row in rows):
        return False
    values = [tuple(map(float, row)) for row in rows]
    are_ones = all(abs(sum(row) - 1) <= _ROUNDED and min(row) >= 0 for row in values)
    return are_ones and any(0 < value < 1 for row in values for value in row)


def find_largest(shares: Sequence[str]) -> int | None:
    """The place of the largest of some cells with shares, None unless it clearly leads."""
    values = [float(_read_number(cell) or 0) for cell in shares]
    second, first = sorted(values)[-2:]
    return values.index(first) if first - second >= _CLEAR_LEAD else None


def _choose_only(found: Columns, table: Table, places: Sequence[int]) -> Columns:
    if len(places) == 1:
        return found._replace(label=places[0])
    fault = Fault(
        f"{table.name} may have the classes in {table.list_columns(places)}: pass --label-column "
        "with one of them.",
        UNCLEAR,
    )
    if not places:
        fault = Fault(
            f"{table.name} has no column of classes: add one called label, or pass its name as "
            "--label-column.",
            NO_CLASSES,
        )
    elif _hold_marks(table, places):
        fault = Fault(
            f"{table.name} has a column of 0 and 1 for each of {table.list_columns(places)}: write "
            "the class of each image into one column called label."
        )
    return found._replace(fault=fault)


def _choose_among(found: Columns, table: Table, labels: Sequence[int]) -> Columns:
    """One of several columns with usual headers, if all divide the images in the same way."""
    first, *others = ([fold_class(cell) for cell in table.get(place)] for place in labels)
    for other in others:
        pairs = set(zip(first, other, strict=True))
        if len(pairs) > min(len(set(first)), len(set(other))):
            return _choose_only(found, table, labels)
    return found._replace(label=labels[0])


def _check_label_column(found: Columns, table: Table) -> Columns:
    """Adds a fault if the classes would be names of files."""
    cells = table.get_distinct(found.label)
    if found.fault or not _are_file_names(cells):
        return found
    return found._replace(
        fault=Fault(
            f"{table.show(found.label)!r} of {table.name} has names of images, such as "
            f"{next(iter(cells))!r:.100}, not classes: pass --label-column with the column of the "
            "classes."
        )
    )


def find_header(
    lines: Sequence[Sequence[str]], index: FileIndex, options: FolderOptions
) -> Sequence[str]:
    """The first line of a table if it is a header, otherwise "" for each of its cells."""
    first, *rest = lines
    usual = [simplify(cell) in (*_FILE_HEADERS, *_LABEL_HEADERS) for cell in first]
    wanted = {options.file_column, options.label_column} - {""}
    if sum(usual) > 1 or wanted & {*first}:
        return first
    files = index.match(list(filter(str.strip, first))).files
    is_file = [files.get(cell, NO_MATCH).name != "" for cell in first]
    if any(one and not other for one, other in zip(usual, is_file, strict=True)):
        return first
    cells = [cell.strip() for cell in first]
    if _number_columns(cells, rest):
        return first
    has_numbers = len(first) == 2 and clean(first[0]).isdecimal()
    are_files = any(is_file) or any(cell.lower().endswith(SUFFIXES) for cell in cells)
    return [""] * len(first) if are_files or has_numbers else first


def _number_columns(cells: Sequence[str], rest: Sequence[Sequence[str]]) -> bool:
    """Whether the cells of a first line are pandas's own names, and number no row."""
    last = len(cells) - 1
    is_numbered = cells == [str(i) for i in range(len(cells))]
    return is_numbered and not any(line[last:] and line[last].strip() == str(last) for line in rest)
