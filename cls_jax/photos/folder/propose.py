"""What folders, tables, files about an image each, and names may mean: a reading for each.

A table is known by its content, under any name: a column names files of the folder, and another one
has classes. Case and the composition of accents make no difference to folders.
"""

import dataclasses
import os
import pathlib
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from cls_jax.data.sampling import take_evenly
from cls_jax.errors import UserError
from cls_jax.io import PARSE_ERRORS, describe_error, make_printable, read_bytes, write_count
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
from cls_jax.photos.folder.label_table import (
    LABELS_CSV,
    LabelTable,
    check_table,
    read_cells,
    read_content,
)
from cls_jax.photos.folder.log import NOTES, FileMarks, Mark, fold, mark_labels
from cls_jax.photos.folder.names import (
    clean,
    find_part,
    fold_case,
    fold_class,
    list_names,
    list_words,
    means_unlabeled,
)
from cls_jax.photos.folder.options import AUTOMATIC, CLASSES, SPLITS, FolderOptions
from cls_jax.photos.folder.reading import (
    MEASURES,
    NO_CLASSES,
    SORTED,
    UNREADABLE,
    Fault,
    Folder,
    Reading,
    find_evidence,
)
from cls_jax.photos.folder.sources import search_names
from cls_jax.photos.images.decode import SUFFIXES
from cls_jax.photos.images.files import Listing, group_by_ending, list_images, list_rare

_EXAMPLE = r"'([^/]+)_\d+\.'"
# Last words of the names of folders that are numbered, since one would be too large.
_STORAGE = (
    *("image", "images", "img", "imgs", "photo", "photos", "picture", "pictures", "data"),
    *("batch", "features", "folder", "frames", "input", "part", "set", "split"),
)
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


class _Top(NamedTuple):
    """A folder at the top."""

    part: str | None  # What its name stands for.
    num_direct: int  # Images directly in it.
    inner: set[str]  # Folders in it that have images, folded, without those of unlabeled images.

    @property
    def has_images(self) -> bool:
        return self.num_direct > 0 or len(self.inner) > 0

    @property
    def has_classes(self) -> bool:
        """Whether it may hold class folders: of those called train, not all do."""
        return bool(self.part) and (self.part != "train" or len(self.inner) > 0)


def propose_folders(listing: Listing, options: FolderOptions) -> Iterator[Reading]:
    """The readings of a folder by its folders alone: one, or two where both are possible."""
    if not listing.folders:
        yield Reading()
        return
    tops = _list_tops(listing)
    sure = _find_sure(tops)
    layouts = {options.layout: ""}
    if not options.layout and "train" not in sure.values():
        layouts = _list_layouts(tops, sure)
    for layout, meaning in layouts.items():
        splits = _find_splits(listing, tops, layout)
        if layout == SPLITS and not options.layout:
            splits = {n: k for n, k in splits.items() if n in sure or tops[n].has_classes}
        labels = _label_by_class(listing, splits)
        yield Reading(
            marks=mark_labels(labels, options.kind),
            splits=splits,
            evidence=(SORTED,) if _are_classes(set(labels.values()), options) else (),
            arguments=("--layout", layout) if layout else (),
            meaning=meaning,
        )


def find_splits(listing: Listing, options: FolderOptions) -> dict[str, str]:
    """Folder → its contents, as `find_part` names them, where a table has the classes."""
    if not listing.folders:
        return {}
    return _find_splits(listing, _list_tops(listing), options.layout, has_table=True)


def propose_labeled(listing: Listing, options: FolderOptions) -> Reading:
    """What folders say beside a table of another program: labeled/<class>/ and the splits."""
    bases = {name for name in listing.folders if fold_class(name) in ("labeled", "labelled")}
    marks = mark_labels(label_within(listing, bases), options.kind)
    return Reading(marks=marks, splits=find_splits(listing, options))


def _list_tops(listing: Listing) -> dict[str, _Top]:
    """The folders at the top, by name."""
    counts = Counter[str]()
    inner: dict[str, set[str]] = {}
    for name in listing.files.names():
        top, *rest = name.split("/", 2)
        if len(rest) == 1:
            counts[top] += 1
        elif rest and not means_unlabeled(rest[0]):
            inner.setdefault(top, set()).add(fold_class(rest[0]))
    tops = dict.fromkeys(name for name in listing.folders if "/" not in name)
    return {name: _Top(find_part(name), counts[name], inner.get(name, set())) for name in tops}


def _find_sure(tops: Mapping[str, _Top]) -> dict[str, str]:
    """The folders called labeled and unlabeled, which are no classes."""
    return {
        name: top.part for name, top in tops.items() if top.part and "label" in fold_class(name)
    }


def _find_splits(
    listing: Listing, tops: Mapping[str, _Top], layout: str, has_table: bool = False
) -> dict[str, str]:
    """Folder → its contents. Of `labeled` and `train`, the first counts.

    Beside `labeled`, a folder for validation has class folders, or a table has its classes.
    """
    named = {name: top.part for name, top in tops.items() if top.part is not None}
    sure = _find_sure(tops)
    if "train" not in sure.values():
        return sure if layout == CLASSES else named
    with_folders = {name.split("/")[0] for name in listing.folders if "/" in name}
    return sure | {
        name: part
        for name, part in named.items()
        if part != "train" and (has_table or part == "test" or name in with_folders)
    }


def _list_layouts(tops: Mapping[str, _Top], sure: Mapping[str, str]) -> dict[str, str]:
    """The layouts that folders called train, val or test may mean, with the end of a sentence.

    It is "" if there is only one.
    """
    found = {name: top for name, top in tops.items() if name not in sure and top.has_images}
    # A folder called train without class folders is a class, if anything.
    doubtful = {name: top for name, top in found.items() if top.has_classes}
    others = {name: top for name, top in found.items() if name not in doubtful}
    within = [top.inner for top in doubtful.values() if top.part == "train"]
    classes = set().union(*within) if within else set(map(fold_class, others))
    may_be_classes = _may_be_classes(others, doubtful, classes)
    if may_be_classes and doubtful and len(classes) >= 2:
        kinds = {"train": "training", "test": "test", "validation": "validation"}
        parts = dict.fromkeys(kinds[top.part] for top in doubtful.values() if top.part)
        a_class = "a class" if len(doubtful) == 1 else "classes"
        return {
            CLASSES: f"{list_names([*doubtful])} may be {a_class} beside {list_names([*others])}",
            SPLITS: f"{' and '.join(parts)} images of the classes {list_names(sorted(classes))}",
        }
    # Photos and test photos, none of them labeled, are no two classes.
    is_test = any(top.part == "test" for top in doubtful.values())
    return {CLASSES if may_be_classes and not is_test else SPLITS: ""}


def _may_be_classes(
    others: Mapping[str, _Top], doubtful: Mapping[str, _Top], classes: set[str]
) -> bool:
    """Whether all of these folders may be classes: a class has images of its own."""
    bases = [top for top in doubtful.values() if top.part == "train"]
    held_out = [top for top in doubtful.values() if top.part != "train"]
    if any(top.inner & classes for top in held_out) and not any(top.num_direct for top in bases):
        return False
    # Beside two classes, it may be one whose images are all in folders.
    num_clear = sum(top.num_direct > 0 for top in others.values())
    have_images = all(top.num_direct for top in doubtful.values())
    return bool(others) and (have_images or num_clear >= 2)


def _label_by_class(listing: Listing, splits: Mapping[str, str]) -> dict[str, str]:
    """Image → class, by the folders in those for training, or else by at least two at the top."""
    bases = {name for name, kind in splits.items() if kind == "train"}
    if bases:
        return label_within(listing, bases)
    tops = {name.split("/")[0] for name in listing.files.names() if name.count("/") == 1}
    tops -= splits.keys()
    if len(set(map(fold_class, tops))) < 2 or all(map(find_part, tops)):
        return {}
    return {name: top for name in listing.files.names() if (top := name.split("/")[0]) in tops}


def label_within(listing: Listing, bases: Collection[str]) -> dict[str, str]:
    """Image → class, by the class folders in some folders."""
    paths = ((name, name.split("/", 2)) for name in (listing.files.names() if bases else ()))
    return {
        name: path[1]
        for name, path in paths
        if len(path) > 2 and path[0] in bases and not means_unlabeled(path[1])
    }


def _are_classes(folders: Iterable[str], options: FolderOptions) -> bool:
    """Whether there are at least two class folders, or folders that may be some.

    Folders that differ only in numbers and parts of the data, as images_1 and images_2, or as
    train_images and test_images, are none beside a table, unless `options.layout` says so.
    """
    folders = set(map(fold_class, folders))
    if len(folders) < 2 or options.layout == CLASSES:
        return len(folders) >= 2
    words = list(map(list_words, folders))
    kinds = {tuple(word for word in found if not find_part(word)) for found in words}
    is_storage = all(find_part(w) or w in _STORAGE for found in words for w in found[-1:])
    return not (len(kinds) == 1 and kinds != {()} and is_storage)


def read_pattern(listing: Listing, options: FolderOptions) -> Reading:
    """The reading by a pattern that the user gives, searched in each name with all folders.

    Files in folders of unlabeled images have no class. Raises a UserError as `search_names` does.
    """
    pattern, splits = options.label_pattern, find_splits(listing, options)
    files = listing.files.names()
    names = [name for name in files if splits.get(name.partition("/")[0]) != "unlabeled"]
    found = search_names(names, pattern, "--label-pattern", "class", _EXAMPLE)
    labels = {name: clean(found.get(name, "")) for name in names}
    labels = {name: "" if means_unlabeled(label) else label for name, label in labels.items()}
    shown = f"--label-pattern {make_printable(shlex.quote(pattern)):.200}"
    of_files = f"{sum(map(bool, labels.values())):,} of {write_count(len(labels), 'file', 'files')}"
    return Reading(
        "--label-pattern",
        marks=mark_labels(labels, options.kind),
        sentence=f"{shown}: classes of {of_files}.",
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
    labels = found.list_labels()
    is_about_others = name.lower().endswith(".json") and not labels
    if is_about_others or not any(row.label for row in table.rows):
        return None
    evidence = {find_evidence(labels.values()), *([MEASURES] if has_measures else [])}
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
    has_sources = any(mark.source for mark in marks.values())
    num_found = len(rows) - len(unnamed)
    return Reading(
        shown,
        marks={name: mark.drop_history() for name, mark in marks.items()},
        source_origin=repr(names[columns.source[0]]) if has_sources else "",
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
