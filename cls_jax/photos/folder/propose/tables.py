"""Readings by the tables of other programs, under any name, and by files about an image each.

A table is known by its content: a column names files of the folder, and another one has classes.
"""

import dataclasses
import os
import pathlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from cls_jax.data.sampling import take_evenly
from cls_jax.errors import UserError
from cls_jax.io import PARSE_ERRORS, describe_error, read_bytes, write_count
from cls_jax.photos.folder.columns import (
    Table,
    are_fractions,
    doubt_label,
    is_image_name,
    name_files,
)
from cls_jax.photos.folder.formats import (
    CSV,
    FORMATS,
    SIDECARS,
    WORDS,
    LabelFile,
    find_format,
    get_reader,
    name_images,
    parse_chosen,
    read_sidecar,
)
from cls_jax.photos.folder.index import FOLDED, FileIndex
from cls_jax.photos.folder.kinds import join_tags
from cls_jax.photos.folder.label_table import (
    LABELS_CSV,
    NOTES,
    LabelTable,
    check_table,
    read_cells,
    read_content,
)
from cls_jax.photos.folder.log import FileMarks, Mark, fold
from cls_jax.photos.folder.names import find_part, fold_case
from cls_jax.photos.folder.options import AUTOMATIC, FolderOptions
from cls_jax.photos.folder.reading import (
    CHOSEN,
    MEASURES,
    NO_CLASSES,
    UNREADABLE,
    Fault,
    Folder,
    Reading,
    find_evidence,
)
from cls_jax.photos.images.decode import SUFFIXES
from cls_jax.photos.images.files import Listing, group_by_ending, list_images, list_rare

# Of files that may be tables where nobody names them.
_ENDINGS = {ending for one in FORMATS.values() if one.read for ending in one.endings}
_OF_LINES = (*FORMATS[CSV].endings, *FORMATS[WORDS].endings)
_MAX_BYTES = 2**26  # Of a file about an image. LabelMe may store the image in it.
_NUM_TRIED = 50  # Rows of a table with paths in two columns.
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
    others = (name for name in listing.others if fold_case(name) != LABELS_CSV)
    return list_rare(others, _ENDINGS)


def propose_tables(folder: Folder) -> list[Reading]:
    """The readings of a folder by the tables in it."""
    return [one for name in list_candidates(folder.listing) if (one := _read_table(folder, name))]


def propose_sidecars(folder: Folder, most: int | None = None) -> Iterator[Reading]:
    """The readings by files about an image each, of at most `most` of them in each folder.

    They are called as the images, with or without their endings, as most of the files of a folder
    with this ending must be.
    """
    for (top, ending), names in group_by_ending(folder.listing.others, SIDECARS).items():
        files = [name for name in names if folder.files.has_stem(_get_stem(name))]
        if 2 * len(files) <= len(names):
            continue
        tried = files if most is None else take_evenly(files, most)
        shown = f"{top}/*{ending}".lstrip("/")
        table = _read_sidecars(folder.root, tried, folder.files.near(top), shown, folder.options)
        if one := _add_evidence(shown, table, table.fault):
            yield one._replace(files=files)


def _get_stem(name: str) -> str:
    """The name without its ending, and that of an image before it, as in 1.jpg.json, folded."""
    stem, _ = os.path.splitext(fold_case(name.rpartition("/")[2]))
    return os.path.splitext(stem)[0] if stem.endswith(SUFFIXES) else stem


def _read_sidecars(
    root: pathlib.Path, names: Sequence[str], index: FileIndex, shown: str, options: FolderOptions
) -> LabelTable:
    """What such files say together, which sentences call `shown`: no rows if they are no such.

    Images are named without folders. There is a fault if one of the files is damaged.
    """
    rows = []
    for name in names:
        stem, _ = os.path.splitext(name)
        try:
            classes = read_sidecar(LabelFile(read_bytes(root / name, _MAX_BYTES), root / name))
        except PARSE_ERRORS as error:
            sentence = (
                f"{name!r:.200} cannot be read ({describe_error(error)}), but other files like it "
                "have the label of an image each: repair or remove it."
            )
            return LabelTable([], fault=Fault(sentence))
        if classes is None:
            return LabelTable([])
        *folders, last = stem.split("/")
        rows.append((last, classes, next(filter(find_part, folders), "")))
    table = dataclasses.replace(name_images(rows), name=shown)
    return read_cells(table, index, AUTOMATIC._replace(tags=options.tags))


def _read_all_sidecars(
    folder: pathlib.Path, index: FileIndex, options: FolderOptions
) -> LabelTable:
    """The same of a folder that has such files without the images.

    Of several endings, the most frequent one counts. Raises a UserError if a file is damaged.
    """
    names = list_images(folder).others
    kinds = Counter(os.path.splitext(name)[1].lower() for name in names)
    suffix = max(SIDECARS, key=lambda suffix: kinds[suffix])
    found = [name for name in names if name.lower().endswith(suffix)]
    return check_table(_read_sidecars(folder, found, index, folder.name, options))


def read_chosen(folder: Folder) -> Reading:
    """The reading by the file that a user names as `options.labels`."""
    typed = folder.options.labels
    path = folder.root / typed
    name = str(path) if os.path.isabs(typed) else typed
    return read_named(folder, path, name)._replace(evidence=(CHOSEN,))


def read_named(folder: Folder, path: pathlib.Path, name: str = "", kind: str = "") -> Reading:
    """The reading by a file that a user names, which may lie outside of the folder.

    The same by a folder of files about an image each. Sentences call it `name`, and `kind` is one
    of `FORMATS`, "" for the one that the content has. Raises a UserError if it cannot be read.
    """
    index, options = folder.files, folder.options
    if path.is_dir() and (sidecars := _read_all_sidecars(path, index, options)).rows:
        return collect_labels(sidecars)
    inside = os.path.relpath(path, folder.root).replace(os.sep, "/")
    if not inside.startswith(os.pardir):
        index = index.near(os.path.dirname(inside))
    cells = _join_paths(parse_chosen(path, index, options, kind), index)
    cells = dataclasses.replace(cells, name=name or path.name)
    return collect_labels(check_table(read_cells(cells, index, options)))


def _join_paths(table: Table, index: FileIndex) -> Table:
    """Adds a column of paths if files are in one column, and their folders in another one."""
    if table.label_column:
        return table
    tried = dataclasses.replace(table, lines=take_evenly(table.lines, _NUM_TRIED)).columns
    files = [one for one in tried if all(map(is_image_name, one.cells))]
    counts = [index.match(file.cells).count(FOLDED) for file in files]
    if not files or max(counts) == len(files[0].cells):  # Each row names a file of its own.
        return table
    pairs = [(folder, file) for file in files for folder in tried if folder is not file]
    found = [
        index.match(map(_join_path, folder.cells, file.cells)).count(FOLDED)
        for folder, file in pairs
    ]
    most = max(found, default=0)
    if most <= max(counts):
        return table
    folder, file = (table.columns[one.place] for one in pairs[found.index(most)])
    paths = map(_join_path, folder.cells, file.cells)
    columns = [*(column.cells for column in table.columns), paths]
    header = [*table.header, f"{folder.name}/{file.name}"]
    lines = list(map(list, zip(*columns, strict=True)))
    return dataclasses.replace(table, header=header, lines=lines)


def _join_path(folder: str, file: str) -> str:
    return f"{folder.strip()}/{file.strip()}" if folder.strip() else file


def _read_table(folder: Folder, name: str) -> Reading | None:
    """The reading by a table, or None if the file is none that names images of the folder."""
    near, options = folder.files.near(os.path.dirname(name)), folder.options
    path, kind = folder.root / name, ""
    try:
        file = LabelFile(read_content(path), path, near, options)
        kind = find_format(file)
        if not kind or (kind == CSV and not fold_case(name).endswith(_OF_LINES)):
            return None
        cells = _join_paths(get_reader(kind, name)(file), near)
    except UserError as error:  # It is too large, no table, or needs an extra.
        found = Reading(name, fault=Fault(str(error)), evidence=(UNREADABLE,))
        return None if kind in ("", CSV) else found
    except PARSE_ERRORS:
        return None
    if any(own <= set(cells.header) for own in _OWN_HEADERS) or not name_files(cells, near):
        return None
    table = read_cells(dataclasses.replace(cells, name=name), near, options)
    fault, has_measures = table.fault, False
    if not (fault or options.label_column or cells.label_column or table.columns.one_hot):
        fault, has_measures = doubt_label(cells, table.columns.label, name)
    return _add_evidence(name, table, fault, has_measures)


def _add_evidence(
    name: str, table: LabelTable, fault: Fault | None, has_measures: bool = False
) -> Reading | None:
    """The reading by a table with its evidence, or None if it has no classes."""
    if fault:
        found = Reading(name, fault=fault, evidence=(UNREADABLE,))
        return None if fault.kind == NO_CLASSES else found
    found = collect_labels(table)
    is_about_others = name.lower().endswith(".json") and not found.list_labels()
    if is_about_others or not any(row.label for row in table.rows):
        return None
    evidence = {find_evidence(found.labels), *([MEASURES] if has_measures else [])}
    return found._replace(evidence=evidence)


def collect_labels(table: LabelTable) -> Reading:
    """The reading by a table alone: what `log.fold` says of each image.

    Rows that name no image, or could name several, are skipped, with a warning.
    """
    shown, columns, names = table.cells.name, table.columns, table.cells.names
    rows = [row for row in table.rows if row.decision not in NOTES]
    marks = fold(rows, FileMarks(kind=columns.kind)).files
    unnamed = [row.cell for row in rows if not row.file]
    why = {True: "it could be several images", False: "not in the folder"}
    sources = {name: mark.source for name, mark in marks.items() if mark.source}
    num_found = len(rows) - len(unnamed)
    return Reading(
        shown,
        labels={name: mark.given and join_tags(mark.spelled) for name, mark in marks.items()},
        parts={name: mark.part for name, mark in marks.items() if mark.part},
        sources=sources,
        source_origin=repr(names[columns.source[0]]) if sources else "",
        rivals={name: mark.rival for name, mark in marks.items() if mark.rival},
        files={shown},
        skipped=[(cell, f"in {shown}, but {why[cell in table.unclear]}") for cell in unnamed],
        warnings=[*_warn_of_files(table, marks, unnamed), *_warn_of_classes(table, marks)],
        sentence=f"{_describe_columns(table)}; {num_found:,} of {len(rows):,} rows found.",
    )


def _describe_columns(table: LabelTable) -> str:
    """The columns of a table, for a plan."""
    columns, names = table.columns, table.cells.names
    classes = names[columns.label]
    if columns.one_hot:
        kind = "shares, of which the largest counts" if columns.are_shares else "0 and 1"
        classes = f"{len(columns.one_hot)} columns of {kind}"
    of_files = f"files in {names[columns.file]}"
    text = f"{table.cells.name}: {of_files}, {columns.kind.word} in {classes}"
    if kinds := sorted({row.part for row in table.rows} - {"", "train"}):
        of_parts = " and ".join(names[place] for place in columns.parts)
        text += f", {' and '.join(kinds)} images in {of_parts}"
    return text


def _warn_of_files(
    table: LabelTable, marks: Mapping[str, Mark], unnamed: Sequence[str]
) -> Iterator[str]:
    """Warnings about rows that name no file, or could name several, and about those that differ."""
    shown = table.cells.name
    for what, is_clear in (("no image", True), ("more than one image", False)):
        if cells := [cell for cell in unnamed if (cell not in table.unclear) == is_clear]:
            rows_are = write_count(len(cells), f"row of {shown} is", f"rows of {shown} are")
            yield (
                f"{rows_are} left out, such as {cells[0]!r:.200}, which fits {what} of the folder."
            )
    if differing := [name for name, mark in marks.items() if mark.is_contradicted]:
        yield (
            f"{write_count(len(differing), 'image has', 'images have')} different labels in "
            f"{shown}, such as {min(differing)!r}: the last one counts. Pass --tags if images may "
            "have several."
        )
    if moved := [name for name, mark in marks.items() if mark.has_moved]:
        yield (
            f"{write_count(len(moved), 'image is', 'images are')} held out, such as "
            f"{min(moved)!r}, since {shown} names several parts."
        )
    if table.dropped:
        yield (
            f"The names in {shown} begin with {table.dropped!r:.200}, which is not in the folder: "
            "they were looked up without it."
        )


def _warn_of_classes(table: LabelTable, marks: Mapping[str, Mark]) -> Iterator[str]:
    """Warnings about images that people see differently, numbers as classes, and empty labels."""
    shown, columns = table.cells.name, table.columns
    are_shares, labels = columns.are_shares, [row.label for row in table.rows]
    if disputed := [k for k, m in marks.items() if m.rival or (are_shares and not m.decision)]:
        num_unclear = sum(not marks[name].labels for name in disputed)
        unlabeled = f", and {num_unclear:,} without one are unlabeled" if num_unclear else ""
        yield (
            f"The {'shares' if are_shares else 'people'} in {shown} differ about "
            f"{write_count(len(disputed), 'image', 'images')}, such as {min(disputed)!r:.200}: "
            f"the class of a clear majority counts{unlabeled}."
        )
    names = sorted({*labels} - {""})
    if names and are_fractions(names):
        yield (
            f"The classes in {shown} are numbers, such as {names[0]!r:.100}: if these are shares "
            "or confidences, pass --label-column with another column."
        )
    if table.missing:
        rows_say = write_count(
            sum(table.missing.values()),
            f"row of {shown} has no label, because it says",
            f"rows of {shown} have no label, because they say",
        )
        yield f"{rows_say} {', '.join(map(repr, sorted(table.missing)[:3]))}."
    if columns.one_hot and not are_shares and "" in labels:
        rows_have = write_count(labels.count(""), f"row of {shown} has", f"rows of {shown} have")
        yield f"{rows_have} no 1, and so no label."
