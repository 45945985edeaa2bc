"""The labels of a folder's images, by its label table and by its class folders."""

import functools
import pathlib
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from cls_jax.errors import UserError
from cls_jax.io import write_count
from cls_jax.photos.folder.class_names import ClassNames, find_class_names
from cls_jax.photos.folder.find_files import FileIndex
from cls_jax.photos.folder.label_table import (
    LABELS_CSV,
    LabelTable,
    is_begun_here,
    read_label_table,
)
from cls_jax.photos.folder.labels import TableLabels, collect_labels, join_labels
from cls_jax.photos.folder.names import find_part, fold, fold_class, means_unlabeled
from cls_jax.photos.folder.options import AUTOMATIC, CLASSES, FolderOptions
from cls_jax.photos.folder.other_tables import (
    OtherTables,
    describe_choice,
    list_candidates,
    read_chosen_table,
    read_other_tables,
)
from cls_jax.photos.folder.patterns import label_by_pattern
from cls_jax.photos.folder.sidecars import may_have_sidecars
from cls_jax.photos.folder.sources import find_sources
from cls_jax.photos.folder.splits import find_splits
from cls_jax.photos.images.files import Listing

_MAX_COMPARED = 1_000  # Files about an image each that are compared with its folder.
_WORD = re.compile(r"[^\W\d_]+")
# Last words of the names of folders that are numbered, since one would be too large.
_STORAGE = (
    *("image", "images", "img", "imgs", "photo", "photos", "picture", "pictures", "data"),
    *("batch", "features", "folder", "frames", "input", "part", "set", "split"),
)


def label_by_folder(
    listing: Listing, table: LabelTable | None = None, options: FolderOptions = AUTOMATIC
) -> tuple[dict[str, str], dict[str, str]]:
    """The labels by folder, given a table.

    A table of `cls-jax label`, even an empty one, adds to the labels of all class folders. Any
    other table replaces them, except for labeled/<class>/. Returns folder → its contents, as
    `find_part` names them, and image → class.
    """
    names = listing.files.names
    rows = table.rows if table else []
    bases = set[str]()
    if not rows or rows[0].decision:
        splits = find_splits(listing, has_table=False, options=options)
        bases = {name for name, kind in splits.items() if kind == "train"}
        tops = {name.split("/")[0] for name in names() if name.count("/") == 1} - splits.keys()
        are_classes = len(set(map(fold_class, tops))) >= 2 and not all(map(find_part, tops))
        if not bases and are_classes:
            return splits, {name: top for name in names() if (top := name.split("/")[0]) in tops}
    if not bases:
        splits = find_splits(listing, has_table=True, options=options)
        bases = {name for name in listing.folders if fold_class(name) in ("labeled", "labelled")}
    return splits, {
        name: name.split("/")[1]
        for name in (names() if bases else ())
        if name.count("/") >= 2 and name.split("/")[0] in bases
        if not means_unlabeled(name.split("/")[1])
    }


def list_labelable(
    listing: Listing, splits: Mapping[str, str], parts: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """The images that a person may label, given the contents of folders: no test or validation.

    Neither those whose part, by a table, is one of these. Names that are not Unicode are left out,
    since a table cannot contain them.
    """
    held_out = ("test", "validation")
    kinds = {name for name, kind in splits.items() if kind in held_out}
    return [
        file.name
        for file in listing.files
        if not ("/" in file.name and file.name.split("/")[0] in kinds)
        if parts.get(file.name) not in held_out
        if not any("\ud800" <= character <= "\udfff" for character in file.name)
    ]


def sort_by_label(
    root: pathlib.Path, listing: Listing, options: FolderOptions = AUTOMATIC
) -> tuple[list[str], list[str]]:
    """The images that a person may label, without and with a class.

    Those marked as no class or skipped are left out. Raises a UserError if labels.csv cannot be
    read.
    """
    found = label_labelable(root, listing, options).items()
    return [name for name, label in found if label == ""], [name for name, label in found if label]


def find_table(listing: Listing) -> str | None:
    """The name of the label table, ignoring case. None if there is none.

    Raises a UserError if there are several.
    """
    names = [name for name in listing.others if fold(name) == LABELS_CSV]
    if len(names) > 1:
        raise UserError(f"The folder has {' and '.join(map(repr, names))}: remove one of them.")
    return names[0] if names else None


def list_tables(listing: Listing) -> list[str]:
    """The files at the top of a folder that may have labels, labels.csv first.

    Raises a UserError as `find_table` does.
    """
    table = find_table(listing)
    others = [name for name in list_candidates(listing) if "/" not in name]
    return [table, *others] if table else others


def read_table(
    root: pathlib.Path, listing: Listing, options: FolderOptions = AUTOMATIC
) -> LabelTable:
    """The label table of a folder, empty without one. Raises as `read_label_table` does."""
    name = find_table(listing)
    if name is None:
        return LabelTable([])
    return read_label_table(root / name, FileIndex(listing.files.names, root), options)


class Given(NamedTuple):
    """The labels of a folder by all that is in it."""

    splits: dict[str, str]  # Folder → its contents, as `find_part` names them.
    by_folder: dict[str, str]  # Image → class, of those labeled by class folders.
    table: LabelTable  # labels.csv, empty without one.
    others: OtherTables | None  # Tables of other programs under other names.
    options: FolderOptions  # Those that labels.csv is read with.
    files: frozenset[str] = frozenset()  # All that were read.
    names: ClassNames = ClassNames()  # Of classes that have numbers.
    warnings: tuple[str, ...] = ()  # Of what contradicts class folders, which count.

    @property
    def base(self) -> dict[str, str]:
        """Image → class, without labels.csv."""
        others = self.others.labels.classes if self.others else {}
        classes = {**self.by_folder, **{name: label for name, label in others.items() if label}}
        return {name: self.names.get(label) for name, label in classes.items()}

    @property
    def parts(self) -> dict[str, str]:
        """Image → part, of those whose rows say it."""
        found = dict(self.others.labels.parts) if self.others else {}
        for row in self.table.rows:
            name = self.table.find(row) if row.part else None
            if name and found.get(name) not in ("test", "validation"):
                found[name] = row.part
        return found


def read_given(
    root: pathlib.Path,
    listing: Listing,
    options: FolderOptions = AUTOMATIC,
    is_strict: bool = False,
) -> Given:
    """Reads the labels of a folder.

    What the user chooses in the `options` counts before class folders and all other tables. What
    other programs left beside the images counts where neither class folders nor rows of other
    programs in labels.csv do. Raises as `read_label_table` and `read_other_tables` do, the latter
    with `is_strict` unless there is a labels.csv.
    """
    name = find_table(listing)
    others = None
    warnings = list[str]()
    is_chosen = bool(options.label_pattern) or options.labels not in ("", name)
    if is_chosen:
        others = _read_chosen(root, listing, options)
    elif (
        not options.labels
        and (list_candidates(listing) or may_have_sidecars(listing))
        and (name is None or is_begun_here(root / name))
    ):
        if by_classes := _label_by_class_folders(listing, options):
            if name is None and options.layout != CLASSES:
                warnings = _compare_others(root, listing, options, by_classes)
        else:
            others = read_other_tables(root, listing, options, is_strict and name is None)
    if others is not None:  # The columns are theirs.
        options = options._replace(file_column="", label_column="", source_column="")
    table = read_table(root, listing, options)
    by_folder: dict[str, str] = {}
    if others is not None:
        splits = find_splits(listing, has_table=True, options=options)
    else:
        splits, by_folder = label_by_folder(listing, table, options)
    given = Given(splits, by_folder, table, others, options)
    labels = {*given.base.values(), *(row.label for row in table.rows if not row.decision)} - {""}
    files = {*filter(None, [name]), *(others.files if others else ())}
    names = find_class_names(root, listing, labels, files)
    return given._replace(
        names=names, files=frozenset(files | {names.file}), warnings=tuple(warnings)
    )


def _read_chosen(root: pathlib.Path, listing: Listing, options: FolderOptions) -> OtherTables:
    """The labels that the user chooses with a file or a pattern.

    Raises a UserError if that contradicts itself or labels.csv, or as `read_chosen_table` and
    `label_by_pattern` do.
    """
    if options.labels and options.label_pattern:
        raise UserError("--labels and --label-pattern both say where the classes are: remove one.")
    option = "--label-pattern" if options.label_pattern else f"--labels {options.labels}"
    name = find_table(listing)
    if name is not None and not is_begun_here(root / name):
        raise UserError(
            f"{name} has labels, too: rename it, for example to old_{LABELS_CSV}, to use {option}."
        )
    if options.labels:
        return read_chosen_table(root, listing, options)
    splits = find_splits(listing, has_table=True, options=options)
    names = listing.files.names()
    return OtherTables([], label_by_pattern(names, options.label_pattern, splits))


def _compare_others(
    root: pathlib.Path, listing: Listing, options: FolderOptions, by_folder: Mapping[str, str]
) -> list[str]:
    """Warnings about images with other classes in tables, or in files beside them, than by folder.

    Raises a UserError if these are most of the images. What cannot be read contradicts nothing.
    """
    warnings = list[str]()
    for reads_tables in (True, False):
        try:
            others = read_other_tables(
                root,
                listing,
                options,
                is_strict=False,
                with_tables=reads_tables,
                with_sidecars=not reads_tables,
                most_sidecars=_MAX_COMPARED,
            )
        except UserError:
            continue
        if others is not None:
            warnings += filter(None, [_compare_classes(root, others, by_folder)])
    return warnings


def _label_by_class_folders(listing: Listing, options: FolderOptions) -> dict[str, str]:
    """Image → class, if there are at least two class folders, or folders that may be some.

    Folders that differ only in numbers and parts of the data, as images_1 and images_2, or as
    train_images and test_images, are none beside a table, unless `options.layout` says so.
    """
    try:
        _, labels = label_by_folder(listing, options=options)
    except UserError:  # Folders may be classes or splits: they are asked about.
        return {"": ""}
    folders = set(map(fold_class, labels.values()))
    if len(folders) < 2 or options.layout == CLASSES:
        return labels if len(folders) >= 2 else {}
    words = {name: _WORD.findall(name) for name in folders}
    kinds = {tuple(word for word in found if not find_part(word)) for found in words.values()}
    is_storage = all(find_part(w) or w in _STORAGE for found in words.values() for w in found[-1:])
    return {} if len(kinds) == 1 and kinds != {()} and is_storage else labels


def _compare_classes(
    root: pathlib.Path, others: OtherTables, by_folder: Mapping[str, str]
) -> str | None:
    """A warning about images that have other classes in tables than by their folders, or None.

    Raises a UserError if these are most of the images. Files about an image each may have one class
    for all, such as that of a detector, or other names for the same classes.
    """
    fold_once = functools.cache(fold_class)
    pairs = {
        name: (by_folder[name], label)
        for name, label in others.labels.classes.items()
        if label and name in by_folder
    }
    different = [name for name, pair in pairs.items() if len(set(map(fold_once, pair))) > 1]
    table = others.names[0]
    if "*" in table:
        found = {tuple(map(fold_once, pair)) for pair in pairs.values()}
        theirs = {label for _, label in found}
        if len(theirs) < 2 or len(theirs) == len(found) == len({label for label, _ in found}):
            return None
    if 2 * len(different) > len(pairs):
        name = different[0]
        own, other = pairs[name]
        way = f"or for the table {describe_choice(root, table)}"
        if "*" in table:
            way = "or for these files move all images into one folder"
        raise UserError(
            f"{name!r} has the class {own!r} by its folder and {other!r} in {table}: pass --layout "
            f"classes for the folders, {way}."
        )
    if not different:
        return None
    have = write_count(len(different), "image has", "images have")
    return (
        f"{have} another class in {table} than by the folder, such as {different[0]!r}: the "
        "folders count."
    )


def label_labelable(
    root: pathlib.Path, listing: Listing, options: FolderOptions = AUTOMATIC
) -> dict[str, str | None]:
    """File → class, "" without a label, None for no class, of the images that a person may label.

    None also for those that a person has skipped. Raises a UserError if labels.csv cannot be read.
    """
    given = read_given(root, listing, options)
    classes = label_all(listing, given).classes
    return {
        name: classes.get(name, "") for name in list_labelable(listing, given.splits, given.parts)
    }


def label_all(listing: Listing, given: Given) -> TableLabels:
    """The labels by the tables beside the folders, and by folder."""
    found = _join_all(listing, given)
    names = given.names
    classes = {k: names.get(v) if v else v for k, v in found.classes.items()}
    warnings = [*found.warnings, *filter(None, [names.warning])]
    sentence = " ".join(filter(None, [found.sentence, names.sentence]))
    return found._replace(classes=classes, warnings=warnings, sentence=sentence)


def read_sources(
    listing: Listing, given: Given, found: TableLabels | None = None
) -> tuple[dict[str, str], str]:
    """File → what it comes from, as far as anything says it, and what does, such as a column.

    `found` is what `label_all` returned, if that is known. Raises a UserError as `find_sources`.
    """
    if pattern := given.options.source_pattern:
        return find_sources(list(listing.files.names()), pattern), f"the pattern {pattern!r:.100}"
    found = found or label_all(listing, given)
    return dict(found.sources), f"the column {found.source_origin}" if found.sources else ""


def _join_all(listing: Listing, given: Given) -> TableLabels:
    """The same, with the numbers of classes that have names elsewhere."""
    found = collect_labels(given.table)
    if given.others is not None:
        own = [found] if find_table(listing) else []
        return join_labels([given.others.labels, *own])
    if find_table(listing) is None:
        return TableLabels(dict(given.by_folder), {}, [], [], "")
    shown = given.table.format.name
    rest = [name for name in given.by_folder if name not in found.classes]
    if rest and "train" not in given.splits.values():
        images_are = write_count(
            len(rest),
            f"image without a row in {shown} is labeled by its folder",
            f"images without a row in {shown} are labeled by their folders",
        )
        found.warnings.append(
            f"{images_are}, such as {rest[0]!r}: move those without a label to unlabeled/."
        )
    if not any(row.decision for row in given.table.rows):
        found.warnings.extend(
            _compare_with_folders(shown, listing, given.splits, given.by_folder, found)
        )
    return found._replace(classes={**given.by_folder, **found.classes})


def _compare_with_folders(
    table: str,
    listing: Listing,
    splits: Mapping[str, str],
    by_folder: Mapping[str, str],
    found: TableLabels,
) -> list[str]:
    """Warnings about images in folders that are called as classes of a table without decisions."""
    fold_once = functools.cache(fold_class)
    classes = {fold_once(label) for label in found.classes.values() if label}
    others, unlabeled = [], []
    for name in listing.files.names():
        parts = name.split("/")
        folder = fold_once(parts[-2]) if len(parts) > 1 else ""
        if folder not in classes or splits.get(parts[0], "train") != "train":
            continue
        if label := found.classes.get(name):
            others += [name] if fold_once(label) != folder else []
        elif name not in found.classes and name not in by_folder:
            unlabeled.append(name)
    warnings = []
    if others:
        have = write_count(len(others), "image has", "images have")
        warnings.append(
            f"{have} another class in {table} than by its folder, such as {others[0]!r}: {table} "
            "counts."
        )
    if unlabeled:
        have = write_count(len(unlabeled), "image is", "images are")
        warnings.append(
            f"{have} unlabeled, such as {unlabeled[0]!r}, since {table} has the classes, and no "
            "row for it: add rows, or move the class folders into labeled/."
        )
    return warnings
