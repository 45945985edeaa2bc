"""Tables of labels that other programs left among the images, under any name.

A table is known by its content: a column names files of the folder, and another one has classes.
"""

import bisect
import functools
import os
import pathlib
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from cls_jax.data.sampling import take_evenly
from cls_jax.errors import UserError
from cls_jax.io import PARSE_ERRORS
from cls_jax.photos.folder.columns import (
    NoClassesError,
    Table,
    UnclearError,
    check_repeated,
    name_files,
)
from cls_jax.photos.folder.find_files import (
    FOLDED,
    INNER,
    NO_MATCH,
    STEM,
    WHOLE_STEM,
    FileIndex,
    Match,
    Matches,
)
from cls_jax.photos.folder.label_table import (
    LABELS_CSV,
    LabelTable,
    ParsedTable,
    read_content,
    read_parsed,
)
from cls_jax.photos.folder.labels import TableLabels, collect_labels, join_labels
from cls_jax.photos.folder.names import find_part, fold, fold_class
from cls_jax.photos.folder.options import FolderOptions
from cls_jax.photos.folder.readers import (
    CSV,
    READERS,
    LabelFile,
    find_format,
    get_reader,
    parse_chosen,
)
from cls_jax.photos.folder.sidecars import list_sidecars, parse_sidecars
from cls_jax.photos.images.decode import SUFFIXES
from cls_jax.photos.images.files import ImageFiles, Listing

# Of files that may be tables where nobody names them.
_ENDINGS = {ending for reader in READERS.values() for ending in reader.endings}
_NUM_TRIED = 50  # Rows of a table with paths in two columns.
_UNREADABLE: tuple[type[Exception], ...] = (UserError, *PARSE_ERRORS)
_MAX_ALIKE = 20  # Of more such files in a folder, each is about one image, and none is a table.
# Headers of the tables with guesses that cls-jax writes: predictions, the table of the labeling
# page, labels during training, suspect labels, and suggestions.
_OWN_HEADERS = (
    {"file", "label", "confidence"},
    {"file", "label", "source", "probability"},
    {"file", "label", "weight"},
    {"rank", "file", "label", "suggested"},
    {"rank", "score", "file"},
)


_Read = Callable[[pathlib.Path, str, Listing, FolderOptions], LabelTable | None]


class OtherTables(NamedTuple):
    """The tables of other programs that count together."""

    names: list[str]  # Relative to the folder. With a star for files about an image each.
    labels: TableLabels
    files: Collection[str] = ()  # All that were read.


class _NearIndex(FileIndex):
    """The files of a folder, as a table in one of its folders may name them.

    Names may be relative to the table's folder, or to any folder around it.
    """

    def __init__(self, files: ImageFiles, root: pathlib.Path, folder: str):
        super().__init__(files.names, root)
        parts = folder.split("/") if folder else []
        tops = ["/".join([*parts[:count], ""]) for count in range(len(parts), 0, -1)]
        self._inner = [
            (top, FileIndex(_NamesBelow(files, top), root / top)) for top in tops
        ]  # The nearest first.

    def match_exactly(self, cells: Iterable[str]) -> dict[str, Match]:
        for top, index in self._inner:
            return {cell: _add(top, one) for cell, one in index.match_exactly(cells).items()}
        return super().match_exactly(cells)

    def match(self, cells: Iterable[str]) -> Matches:
        """The matches relative to the nearest folder in which cells name files.

        A folder around it counts if it agrees on these files and has more. A cell that names a file
        more surely in another folder could mean several.
        """
        cells = list(cells)
        found = self._match_everywhere(cells)
        best = functools.reduce(_choose, found)
        files = dict(best.files)
        for cell, one in files.items():
            for other in found:
                match = other.files.get(cell, one)
                if match.name and match.name != one.name and match.how < one.how:
                    files[cell] = Match(None, one.how)
        return Matches(files, best.dropped)

    def _match_everywhere(self, cells: Sequence[str]) -> list[Matches]:
        """The matches in each folder, the nearest first."""
        found = []
        for top, index in self._inner:
            matches = _keep_alike(index.match(cells))
            files = {cell: _add(top, one) for cell, one in matches.files.items()}
            found.append(Matches(files, matches.dropped))
            if cells and _count_whole(found[-1]) == len(set(cells)):
                return found
        return [*found, _keep_alike(super().match(cells))]


def _choose(one: Matches, other: Matches) -> Matches:
    """The better matches, of those in a folder and those in one around it."""
    num_whole = _count_whole(one)
    if not num_whole:
        return min(one, other, key=_rank)
    whole = {cell: match.name for cell, match in one.files.items() if _is_whole(match)}
    agree = all(other.files[cell].name == name for cell, name in whole.items())
    return other if agree and _count_whole(other) > num_whole else one


class _NamesBelow:
    """The names of the files below a folder, relative to it, each time it is called."""

    def __init__(self, files: ImageFiles, top: str):
        """`top` ends with "/"."""
        self._files, self._top = files, top
        places = range(len(files))
        start = bisect.bisect_left(places, top, key=self._get_name)
        end = bisect.bisect_left(places, f"{top[:-1]}0", key=self._get_name)  # "0" follows "/".
        self._places = range(start, end)

    def _get_name(self, place: int) -> str:
        return str(self._files[place].name)

    def __call__(self) -> Iterator[str]:
        for names, _ in self._files.read(self._places):
            yield from (name.removeprefix(self._top) for name in names)


def _add(top: str, match: Match) -> Match:
    return match._replace(name=top + match.name) if match.name else match


def _keep_alike(matches: Matches) -> Matches:
    """The matches of cells that name files as the others do: if some have paths, all have."""
    files = {
        cell: one if _is_whole(one) or not one.name or _have_same_stem(cell, one.name) else NO_MATCH
        for cell, one in matches.files.items()
    }
    has_paths = any(one.name for one in files.values())
    return Matches(files, matches.dropped) if has_paths else matches


def _have_same_stem(cell: str, name: str) -> bool:
    return os.path.splitext(fold(cell))[0] == os.path.splitext(fold(name))[0]


def _rank(matches: Matches) -> tuple[int, ...]:
    """The surer ones first, and of those without folders of another machine, the longest paths."""
    inner, every = (_count(matches, how) for how in (INNER, STEM))
    return not every, -_count_whole(matches), -inner, len(matches.dropped), -every


def _is_whole(match: Match) -> bool:
    """Whether a cell is the path of a file, with its extension or without."""
    return bool(match.name) and (match.how <= FOLDED or match.how == WHOLE_STEM)


def _count_whole(matches: Matches) -> int:
    """The cells that are the path of a file, none of which begins on another machine."""
    return 0 if matches.dropped else sum(map(_is_whole, matches.files.values()))


def _count(matches: Matches, how: int) -> int:
    """The cells that name a file at least this surely."""
    files = matches.files.values() if how == STEM or not matches.dropped else ()
    return sum(bool(one.name) and one.how <= how for one in files)


def list_candidates(listing: Listing) -> list[str]:
    """The files of a folder that may be tables by their endings, without labels.csv."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for name in listing.others:
        folded = fold(name)
        ending = os.path.splitext(folded)[1]
        if ending in _ENDINGS and folded != LABELS_CSV:
            kinds.setdefault((os.path.dirname(name), ending), []).append(name)
    return sorted(name for names in kinds.values() if len(names) <= _MAX_ALIKE for name in names)


def read_other_tables(
    root: pathlib.Path,
    listing: Listing,
    options: FolderOptions,
    is_strict: bool,
    *,
    with_tables: bool = True,
    with_sidecars: bool = True,
    most_sidecars: int | None = None,
) -> OtherTables | None:
    """The labels of the tables of other programs, None without any.

    Files that are about an image each make up a table as well, in each folder of at most
    `most_sidecars` of them.

    Tables of one name in several folders count together, if they label different images. Raises a
    UserError if there are others, or, if `is_strict`, if the only table has no clear classes.
    """
    found: dict[str, LabelTable] = {}
    faults: dict[str, UserError] = {}
    tables = list_candidates(listing) if with_tables else []
    reads: dict[str, _Read] = dict.fromkeys(tables, _read_table)
    of_each = list_sidecars(listing) if with_sidecars else {}
    if most_sidecars is not None:
        of_each = {name: take_evenly(files, most_sidecars) for name, files in of_each.items()}
    reads |= {name: functools.partial(_read_sidecars, files) for name, files in of_each.items()}
    for name, read in reads.items():
        try:
            table = read(root, name, listing, options)
        except NoClassesError:  # A list of files.
            continue
        except UserError as error:
            faults[name] = error
            continue
        if table:
            found[name] = table
    if faults and is_strict:
        # The table of another split must not be left out without a word, nor one beside a table
        # with one class for all, which may be an example of a submission.
        kinds = {_split_name(name)[0] for name in found}
        alike = [
            error
            for name, error in faults.items()
            if _split_name(name)[0] in kinds and not isinstance(error, UnclearError)
        ]
        if alike or not any(map(_has_several_classes, found.values())):
            raise [*alike, *faults.values()][0]
    if not found:
        return None
    found = _leave_out_constant(found)
    labels = [collect_labels(table) for table in found.values()]
    _check_one_source(root, list(found), labels)
    if len(found) > 1:
        labels = list(map(_mark_part, found, labels))
    files = {file for name in found for file in of_each.get(name, [name])}
    return OtherTables(list(found), join_labels(labels), files)


def read_chosen_table(root: pathlib.Path, listing: Listing, options: FolderOptions) -> OtherTables:
    """The labels of the file that a user names as `options.labels`.

    Raises a UserError if there is none, or it cannot be read.
    """
    path = root / options.labels
    if not path.is_file():
        raise UserError(f"There is no file {path} with labels: pass another file as --labels.")
    name = str(path) if os.path.isabs(options.labels) else options.labels
    table = read_named_table(root, listing, path, options, name)
    return OtherTables([name], collect_labels(table), {name})


def read_named_table(
    root: pathlib.Path,
    listing: Listing,
    path: pathlib.Path,
    options: FolderOptions,
    name: str = "",
    kind: str = "",
) -> LabelTable:
    """The table of a file that a user names, which may lie outside of the folder.

    Sentences call it `name`, and `kind` is one of `FORMATS`, "" for the one that the content has.
    Raises a UserError if it cannot be read, or its columns are not clear.
    """
    inside = os.path.relpath(path, root).replace(os.sep, "/")
    index: FileIndex = FileIndex(listing.files.names, root)
    if not inside.startswith(os.pardir):
        index = _NearIndex(listing.files, root, os.path.dirname(inside))
    parsed = parse_chosen(path, index, options, kind)
    return read_parsed(path, _join_paths(parsed, index), index, options, name)


def _has_several_classes(table: LabelTable) -> bool:
    return len({fold_class(row.label) for row in table.rows if row.label}) > 1


def _leave_out_constant(tables: dict[str, LabelTable]) -> dict[str, LabelTable]:
    """All tables but those that give one class to all images, as examples of submissions do.

    Tables with the name of another one stay.
    """
    kinds: dict[tuple[str, ...], set[str]] = {}
    for name, table in tables.items():
        classes = {fold_class(row.label) for row in table.rows if row.label}
        kinds.setdefault(_split_name(name)[0], set()).update(classes)
    kept = [words for words, classes in kinds.items() if len(classes) > 1] or list(kinds)
    return {name: table for name, table in tables.items() if _split_name(name)[0] in kept}


def _check_one_source(
    root: pathlib.Path, names: Sequence[str], labels: Sequence[TableLabels]
) -> None:
    """Raises a UserError if tables have different names, or label the same images.

    Names such as train.csv and val.csv, which differ only in the part of the data, are alike.
    """
    first = names[0]
    others = [name for name in names if _split_name(name)[0] != _split_name(first)[0]]
    if not others:
        counts = Counter(file for one in labels for file in one.classes)
        others = [
            name
            for name, one in zip(names[1:], labels[1:], strict=True)
            if any(counts[file] > 1 for file in one.classes)
        ]
    if others:
        ways = " or ".join(describe_choice(root, name) for name in (first, others[0]))
        raise UserError(
            f"Both {first!r} and {others[0]!r} name images of the folder and have classes: {ways}."
        )


def describe_choice(root: pathlib.Path, name: str) -> str:
    """What makes a table count before all others, or removes one of many files."""
    if "*" in name:
        return f"move {name} out of the folder"
    return f"pass --labels {shlex.quote(str(root / name))}"


def _split_name(name: str) -> tuple[tuple[str, ...], str | None]:
    """The words of a table's name but the part of the data, and this part, if there is one."""
    words = re.findall(r"[^\W\d_]+", fold(os.path.basename(name)))
    parts = [part for word in words if (part := find_part(word))]
    return tuple(word for word in words if not find_part(word)), parts[0] if parts else None


def _mark_part(name: str, labels: TableLabels) -> TableLabels:
    """The labels of one of several tables, whose name may say which part of the data it is about.

    Rows and folders that say so themselves count more.
    """
    _, part = _split_name(name)
    if part not in ("test", "validation") or labels.parts:
        return labels
    columns, _, rows = labels.sentence.rpartition("; ")
    sentence = f"{columns}, {part} images; {rows}"
    return labels._replace(parts=dict.fromkeys(labels.classes, part), sentence=sentence)


def _join_paths(parsed: ParsedTable | None, index: FileIndex) -> ParsedTable | None:
    """Adds a column of paths if files are in one column, and their folders in another one."""
    if parsed is None or parsed.label_column:
        return parsed
    tried = Table("", parsed.header, take_evenly(parsed.lines, _NUM_TRIED))
    places = range(len(parsed.header))
    best, pair = 0, None
    for file in places:
        cells = tried.get(file)
        if not all(cell.strip().lower().endswith(SUFFIXES) for cell in cells):
            continue
        best = max(best, _count(index.match(cells), FOLDED))
        for folder in (place for place in places if place != file):
            paths = list(map(_join_path, tried.get(folder), cells))
            if (num_found := _count(index.match(paths), FOLDED)) > best:
                best, pair = num_found, (folder, file)
    if pair is None:
        return parsed
    table = Table("", parsed.header, parsed.lines)
    joined = map(_join_path, *map(table.get, pair))
    width = len(parsed.header)
    lines = [
        [*line[:width], *[""] * (width - len(line)), path]
        for line, path in zip(parsed.lines, joined, strict=True)
    ]
    header = [*parsed.header, "/".join(map(table.show, pair))]
    return parsed._replace(header=header, lines=lines)


def _join_path(folder: str, file: str) -> str:
    return f"{folder.strip()}/{file.strip()}" if folder.strip() else file


def _read_table(
    root: pathlib.Path, name: str, listing: Listing, options: FolderOptions
) -> LabelTable | None:
    """A table, or None if the file is none that names images of the folder.

    Raises a UserError if it does, but cannot be read.
    """
    path = root / name
    index = _NearIndex(listing.files, root, os.path.dirname(name))
    try:
        file = LabelFile(read_content(path), path, index, options)
    except UserError:
        return None
    kind = find_format(file)
    if not kind or (kind == CSV and not fold(name).endswith(READERS[CSV].endings)):
        return None
    reader = get_reader(kind, name)
    try:
        parsed = _join_paths(reader.read(file), index)
    except _UNREADABLE:
        return None
    if parsed is None or any(own <= set(parsed.header) for own in _OWN_HEADERS):
        return None
    table = Table(name, parsed.header, parsed.lines)
    if not name_files(table, index):
        return None
    read = read_parsed(path, parsed, index, options, name)
    if not (options.label_column or parsed.label_column or read.format.one_hot):
        check_repeated(table, read.format.places[1])
    return read if any(row.label for row in read.rows) else None


def _read_sidecars(
    names: list[str], root: pathlib.Path, name: str, listing: Listing, options: FolderOptions
) -> LabelTable | None:
    """The table that files for an image each make up, or None if they are of another kind.

    Raises a UserError if one of them is damaged, or has several classes.
    """
    parsed = parse_sidecars(root, names)
    if parsed is None:
        return None
    index = _NearIndex(listing.files, root, os.path.dirname(name))
    options = options._replace(file_column="", label_column="", source_column="")
    read = read_parsed(root / name, parsed, index, options, name)
    return read if any(row.label for row in read.rows) else None
