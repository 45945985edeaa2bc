"""Readings by the tables of other programs, under any name, and by files about an image each.

A table is known by its content: a column names files of the folder, and another one has classes.
"""

import dataclasses
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence

from cls_jax.data.sampling import take_evenly
from cls_jax.errors import UserError
from cls_jax.io import PARSE_ERRORS, write_count
from cls_jax.photos.folder.columns import Table, are_fractions, doubt_label, name_files
from cls_jax.photos.folder.index import FOLDED, FileIndex
from cls_jax.photos.folder.judge import find_evidence
from cls_jax.photos.folder.label_table import (
    LABELS_CSV,
    NONE,
    NOTES,
    SKIP,
    LabelTable,
    read_content,
    read_parsed,
)
from cls_jax.photos.folder.log import Mark
from cls_jax.photos.folder.log import fold as fold_rows
from cls_jax.photos.folder.names import fold
from cls_jax.photos.folder.readers import (
    CSV,
    READERS,
    LabelFile,
    find_format,
    get_reader,
    parse_chosen,
)
from cls_jax.photos.folder.reading import (
    CHOSEN,
    MEASURES,
    NO_CLASSES,
    UNREADABLE,
    Fault,
    Folder,
    Reading,
)
from cls_jax.photos.folder.sidecars import list_sidecars, parse_sidecars
from cls_jax.photos.images.decode import SUFFIXES
from cls_jax.photos.images.files import Listing, list_rare

# Of files that may be tables where nobody names them.
_ENDINGS = {ending for reader in READERS.values() for ending in reader.endings}
_NUM_TRIED = 50  # Rows of a table with paths in two columns.
_UNREADABLE: tuple[type[Exception], ...] = (UserError, *PARSE_ERRORS)
# Headers of the tables with guesses that cls-jax writes: predictions, the table of the labeling
# page, labels during training, suspect labels, and suggestions.
_OWN_HEADERS = (
    {"file", "label", "confidence"},
    {"file", "label", "source", "probability"},
    {"file", "label", "weight"},
    {"rank", "file", "label", "suggested"},
    {"rank", "score", "file"},
)


def list_candidates(listing: Listing) -> list[str]:
    """The files of a folder that may be tables by their endings, without labels.csv."""
    others = (name for name in listing.others if fold(name) != LABELS_CSV)
    return list_rare(others, _ENDINGS)


def propose_tables(folder: Folder) -> list[Reading]:
    """The readings of a folder by the tables in it."""
    names = list_candidates(folder.listing)
    return [one for name in names if (one := _read_table(folder, name))]


def propose_sidecars(folder: Folder, most: int | None = None) -> list[Reading]:
    """The readings by files about an image each, of at most `most` of them in each folder."""
    options = folder.options._replace(file_column="", label_column="", source_column="")
    root = folder.root
    readings = []
    for name, files in list_sidecars(folder.listing).items():
        parsed, fault = parse_sidecars(root, files if most is None else take_evenly(files, most))
        if fault:
            readings.append(Reading(name, fault=fault, evidence=(UNREADABLE,)))
        elif parsed is not None:
            near = FileIndex(folder.files, folder=os.path.dirname(name))
            table = read_parsed(root / name, parsed, near, options, name)
            if one := _weigh(name, table, table.fault):
                readings.append(one._replace(files=files))
    return readings


def read_chosen(folder: Folder) -> Reading:
    """The reading by the file that a user names as `options.labels`."""
    typed = folder.options.labels
    path = folder.root / typed
    name = str(path) if os.path.isabs(typed) else typed
    if not path.is_file():
        sentence = f"There is no file {path} with labels: pass another file as --labels."
        return Reading(name, fault=Fault(sentence), evidence=(CHOSEN,))
    return read_named(folder, path, name)._replace(evidence=(CHOSEN,))


def read_named(folder: Folder, path: pathlib.Path, name: str = "", kind: str = "") -> Reading:
    """The reading by a file that a user names, which may lie outside of the folder.

    Sentences call it `name`, and `kind` is one of `FORMATS`, "" for the one that the content has.
    """
    index, options = folder.files, folder.options
    inside = os.path.relpath(path, folder.root).replace(os.sep, "/")
    if not inside.startswith(os.pardir):
        index = FileIndex(index, folder=os.path.dirname(inside))
    try:
        parsed = _join_paths(parse_chosen(path, index, options, kind), index)
        table = read_parsed(path, parsed, index, options, name)
    except UserError as error:
        return Reading(name, fault=Fault(str(error)))
    return collect_labels(table)._replace(origin=name, files={name})


def _join_paths(parsed: Table, index: FileIndex) -> Table:
    """Adds a column of paths if files are in one column, and their folders in another one."""
    if parsed.label_column:
        return parsed
    tried = dataclasses.replace(parsed, lines=take_evenly(parsed.lines, _NUM_TRIED))
    places = range(len(parsed.header))
    best, pair = 0, None
    for file in places:
        cells = tried.get(file)
        if not all(cell.strip().lower().endswith(SUFFIXES) for cell in cells):
            continue
        best = max(best, index.match(cells).count(FOLDED))
        if best == len(cells):  # Each row names a file of its own.
            return parsed
        for folder in (place for place in places if place != file):
            paths = list(map(_join_path, tried.get(folder), cells))
            if (num_found := index.match(paths).count(FOLDED)) > best:
                best, pair = num_found, (folder, file)
    if pair is None:
        return parsed
    joined = map(_join_path, *map(parsed.get, pair))
    width = len(parsed.header)
    lines = [
        [*line[:width], *[""] * (width - len(line)), path]
        for line, path in zip(parsed.lines, joined, strict=True)
    ]
    header = [*parsed.header, "/".join(map(parsed.show, pair))]
    return dataclasses.replace(parsed, header=header, lines=lines)


def _join_path(folder: str, file: str) -> str:
    return f"{folder.strip()}/{file.strip()}" if folder.strip() else file


def _read_table(folder: Folder, name: str) -> Reading | None:
    """The reading by a table, or None if the file is none that names images of the folder."""
    path = folder.root / name
    near, options = FileIndex(folder.files, folder=os.path.dirname(name)), folder.options
    try:
        file = LabelFile(read_content(path), path, near, options)
    except UserError:
        return None
    kind = find_format(file)
    if not kind or (kind == CSV and not fold(name).endswith(READERS[CSV].endings)):
        return None
    try:
        reader = get_reader(kind, name)
    except UserError as error:
        return Reading(name, fault=Fault(str(error)), evidence=(UNREADABLE,))
    try:
        table = dataclasses.replace(_join_paths(reader.read(file), near), name=name)
    except _UNREADABLE:
        return None
    if any(own <= set(table.header) for own in _OWN_HEADERS) or not name_files(table, near):
        return None
    read = read_parsed(path, table, near, options, name)
    if options.label_column or table.label_column or read.format.columns.one_hot or read.fault:
        return _weigh(name, read, read.fault)
    fault, has_measures = doubt_label(table, read.format.places[1])
    return _weigh(name, read, fault, has_measures)


def _weigh(
    name: str, table: LabelTable, fault: Fault | None, has_measures: bool = False
) -> Reading | None:
    """The reading by a table with its evidence, or None if it has no classes."""
    if fault:
        found = Reading(name, fault=fault, evidence=(UNREADABLE,))
        return None if fault.kind == NO_CLASSES else found
    found = collect_labels(table)
    if not any(row.label for row in table.rows):
        return None
    if not found.list_labels() and name.lower().endswith(".json"):  # About something else.
        return None
    evidence = {find_evidence(found.labels), *([MEASURES] if has_measures else [])}
    return found._replace(origin=name, files={name}, evidence=evidence)


def collect_labels(table: LabelTable) -> Reading:
    """The reading by a table alone: what `log.fold` says of each image.

    Rows that name no image, or could name several, are skipped, with a warning.
    """
    shown = table.format.name
    rows = [row for row in table.rows if row.decision not in NOTES]
    marks = fold_rows(table.rows, find=table.find).files
    found = [(row.file, table.find(row)) for row in rows]
    unknown = [cell for cell, name in found if name == ""]
    unclear = [cell for cell, name in found if name is None]
    reasons = {"not in the folder": unknown, "it could be several images": unclear}
    skipped = [(cell, f"in {shown}, but {why}") for why in reasons for cell in reasons[why]]
    sources = {name: mark.source for name, mark in marks.items() if mark.source}
    parts = {name: mark.part for name, mark in marks.items() if mark.part}
    return Reading(
        shown,
        labels={
            name: None if mark.decision in (NONE, SKIP) else "".join(mark.spelled)
            for name, mark in marks.items()
        },
        parts=parts,
        sources=sources,
        source_origin=repr(table.format.show(table.format.columns.source or 0)) if sources else "",
        rivals={name: mark.rival for name, mark in marks.items() if mark.rival},
        skipped=skipped,
        warnings=[
            *_describe_unmatched(shown, unknown, "no image"),
            *_describe_unmatched(shown, unclear, "more than one image"),
            *_list_contradictions(shown, marks),
            *_list_disputes(table, marks),
            *_list_without_label(table),
        ],
        sentence=f"{_describe_columns(table)}; {len(rows) - len(skipped):,} of {len(rows):,} rows "
        "found.",
        fault=table.fault,
    )


def _describe_unmatched(table: str, cells: Sequence[str], what: str) -> Iterator[str]:
    """A warning about the rows with these names of files, if there are any."""
    if cells:
        rows_are = write_count(len(cells), f"row of {table} is", f"rows of {table} are")
        yield f"{rows_are} left out, such as {cells[0]!r:.200}, which fits {what} of the folder."


def _list_contradictions(table: str, marks: Mapping[str, Mark]) -> Iterator[str]:
    """Warnings about images with rows that differ."""
    if conflicting := [name for name, mark in marks.items() if mark.is_contradicted]:
        have = write_count(len(conflicting), "image has", "images have")
        yield (
            f"{have} different labels in {table}, such as {min(conflicting)!r}: the last one "
            "counts."
        )
    if moved := [name for name, mark in marks.items() if mark.has_moved]:
        are = write_count(len(moved), "image is", "images are")
        yield f"{are} held out, such as {min(moved)!r}, since {table} names several parts."


def _list_disputes(table: LabelTable, marks: Mapping[str, Mark]) -> Iterator[str]:
    """Warnings about images that people see differently, and about classes that are numbers."""
    shown, are_shares = table.format.name, table.format.columns.are_shares
    disputed = [name for name, m in marks.items() if m.rival or (are_shares and not m.decision)]
    if disputed:
        who = "shares" if are_shares else "people"
        images = write_count(len(disputed), "image", "images")
        num_unclear = sum(not marks[name].labels for name in disputed)
        unlabeled = f", and {num_unclear:,} without one are unlabeled" if num_unclear else ""
        yield (
            f"The {who} in {shown} differ about {images}, such as {min(disputed)!r:.200}: "
            f"the class of a clear majority counts{unlabeled}."
        )
    names = sorted({row.label for row in table.rows if row.label})
    if names and are_fractions(names):
        yield (
            f"The classes in {shown} are numbers, such as {names[0]!r:.100}: if these are shares "
            "or confidences, pass --label-column with another column."
        )


def _list_without_label(table: LabelTable) -> Iterator[str]:
    """Warnings about rows without a label, and names that begin on another machine."""
    shown = table.format.name
    if table.missing:
        listed = ", ".join(map(repr, sorted(table.missing)[:3]))
        rows_say = write_count(
            sum(table.missing.values()),
            f"row of {shown} has no label, because it says",
            f"rows of {shown} have no label, because they say",
        )
        yield f"{rows_say} {listed}."
    has_marks = table.format.columns.one_hot and not table.format.columns.are_shares
    if has_marks and (num_empty := sum(not row.label for row in table.rows)):
        rows_have = write_count(num_empty, f"row of {shown} has", f"rows of {shown} have")
        yield f"{rows_have} no 1, and so no label."
    if table.matches.dropped:
        yield (
            f"The names in {shown} begin with {table.matches.dropped!r:.200}, which is not in the "
            "folder: they were looked up without it."
        )


def _describe_columns(table: LabelTable) -> str:
    """The columns of a table, for a plan."""
    text = f"{table.format.name}: {table.format.describe()}"
    if kinds := sorted({row.part for row in table.rows} - {"", "train"}):
        columns = " and ".join(map(table.format.show, table.format.columns.parts))
        text += f", {' and '.join(kinds)} images in {columns}"
    return text
