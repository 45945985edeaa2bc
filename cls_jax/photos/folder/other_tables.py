"""Tables of labels that other programs left among the images, under any name.

A table is known by its content: a column names files of the folder, and another one has classes.
"""

import bisect
import os
import pathlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from cls_jax.errors import UserError
from cls_jax.photos.folder.columns import NoClassesError, Table, check_repeated, name_files
from cls_jax.photos.folder.find_files import INNER, FileIndex, Match, Matches
from cls_jax.photos.folder.label_table import (
    LABELS_CSV,
    LabelTable,
    parse_table,
    read_content,
    read_parsed,
)
from cls_jax.photos.folder.labels import TableLabels, collect_labels, join_labels
from cls_jax.photos.folder.names import fold
from cls_jax.photos.folder.options import FolderOptions
from cls_jax.photos.images.files import ImageFiles, Listing

# Endings that a table may have.
_SUFFIXES = (".csv", ".tsv", ".tab", ".csv.txt", ".tsv.txt", ".txt")
_MAX_ALIKE = 20  # Of more such files in a folder, each is about one image, and none is a table.
# Headers of the tables that cls-jax writes about images: predictions and suggestions.
_OWN_HEADERS = ({"file", "label", "confidence"}, {"rank", "score", "file"})


class OtherTables(NamedTuple):
    """The tables of other programs that count together."""

    names: list[str]  # Relative to the folder.
    labels: TableLabels


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
        """The matches in the folder that has most of the files, the nearest of these.

        A cell that names a file more surely in another folder could mean several.
        """
        cells = list(cells)
        best, *others = self._match_everywhere(cells)
        files = dict(best.files)
        for cell, one in files.items():
            for other in others:
                match = other.files.get(cell, one)
                if match.name and match.name != one.name and match.how < one.how:
                    files[cell] = Match(None, one.how)
        return Matches(files, best.dropped)

    def _match_everywhere(self, cells: Sequence[str]) -> list[Matches]:
        """The matches in each folder, the best first."""
        found = []
        for top, index in self._inner:
            matches = index.match(cells)
            files = {cell: _add(top, one) for cell, one in matches.files.items()}
            found.append(Matches(files, matches.dropped))
            if cells and _count_sure(found[-1]) == len(set(cells)):
                return found[-1:]
        found.append(super().match(cells))
        return sorted(found, key=lambda one: (-_count_sure(one), -_count_found(one)))


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


def _count_sure(matches: Matches) -> int:
    files = () if matches.dropped else matches.files.values()
    return sum(bool(one.name) and one.how <= INNER for one in files)


def _count_found(matches: Matches) -> int:
    return sum(bool(one.name) for one in matches.files.values())


def list_candidates(listing: Listing) -> list[str]:
    """The files of a folder that may be tables by their endings, without labels.csv."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for name, reason in listing.skipped:
        folded = fold(name)
        suffix = next((suffix for suffix in _SUFFIXES if folded.endswith(suffix)), "")
        if suffix and folded != LABELS_CSV and reason.startswith(("not an image", "not among")):
            kinds.setdefault((os.path.dirname(name), suffix), []).append(name)
    return sorted(name for names in kinds.values() if len(names) <= _MAX_ALIKE for name in names)


def read_other_tables(
    root: pathlib.Path, listing: Listing, options: FolderOptions, is_strict: bool
) -> OtherTables | None:
    """The labels of the tables of other programs, None without any.

    Tables of one name in several folders count together, if they label different images. Raises a
    UserError if there are others, or, if `is_strict`, if the only table has no clear classes.
    """
    found: dict[str, LabelTable] = {}
    faults = []
    for name in list_candidates(listing):
        try:
            table = _read_table(root, name, listing, options)
        except NoClassesError:  # A list of files.
            continue
        except UserError as error:
            faults.append(error)
            continue
        if table:
            found[name] = table
    if not found:
        if faults and is_strict:
            raise faults[0]
        return None
    labels = [collect_labels(table) for table in found.values()]
    _check_one_source(list(found), labels)
    return OtherTables(list(found), join_labels(labels))


def _check_one_source(names: Sequence[str], labels: Sequence[TableLabels]) -> None:
    """Raises a UserError if tables have different names, or label the same images."""
    first = names[0]
    kinds = {fold(os.path.basename(name)): name for name in reversed(names)}
    others = [name for name in kinds.values() if name != first]
    if not others:
        counts = Counter(file for one in labels for file in one.classes)
        others = [
            name
            for name, one in zip(names[1:], labels[1:], strict=True)
            if any(counts[file] > 1 for file in one.classes)
        ]
    if others:
        raise UserError(
            f"Both {first!r} and {others[0]!r} name images of the folder and have classes: rename "
            f"the one that counts to {LABELS_CSV} at the top of the folder, or move the other one "
            "out of it."
        )


def _read_table(
    root: pathlib.Path, name: str, listing: Listing, options: FolderOptions
) -> LabelTable | None:
    """A table, or None if the file is none that names images of the folder.

    Raises a UserError if it does, but cannot be read.
    """
    path = root / name
    index = _NearIndex(listing.files, root, os.path.dirname(name))
    try:
        parsed = parse_table(path, index, options, read_content(path))
    except UserError:
        return None
    if parsed is None or any(own <= set(parsed.header) for own in _OWN_HEADERS):
        return None
    table = Table(name, parsed.header, parsed.lines)
    if not name_files(table, index):
        return None
    read = read_parsed(path, parsed, index, options, name)
    if not (options.label_column or read.format.one_hot):
        check_repeated(table, read.format.places[1])
    return read if any(row.label for row in read.rows) else None
