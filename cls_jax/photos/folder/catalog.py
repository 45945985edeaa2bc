"""A folder of images as everybody sees it: its files, their labels and parts, and where from.

Training, the labeling page, suggestions, evaluation, exports and packed folders open the same
catalog. Labels are those of `labels.csv`, on top of class folders or tables of other programs. No
image is opened here.
"""

import array
import dataclasses
import functools
import io
import itertools
import json
import os
import pathlib
import re
import shlex
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cls_jax.errors import UserError
from cls_jax.io import write_count
from cls_jax.photos.folder.class_names import ClassNames, find_class_names
from cls_jax.photos.folder.index import FileIndex
from cls_jax.photos.folder.judge import Question, choose, compare, join_alike, judge
from cls_jax.photos.folder.label_table import (
    LABELS_CSV,
    LabelTable,
    is_begun_here,
    read_label_table,
)
from cls_jax.photos.folder.labels import collect_labels
from cls_jax.photos.folder.log import choose_spellings
from cls_jax.photos.folder.names import (
    find_part,
    fold,
    fold_class,
    may_mean_unlabeled,
    means_unlabeled,
    resemble,
)
from cls_jax.photos.folder.options import AUTOMATIC, CLASSES, FolderOptions
from cls_jax.photos.folder.propose.folders import find_splits, propose_folders, propose_labeled
from cls_jax.photos.folder.propose.names import (
    describe_inner_folders,
    describe_names,
    read_pattern,
)
from cls_jax.photos.folder.propose.tables import (
    list_candidates,
    propose_sidecars,
    propose_tables,
    read_chosen,
)
from cls_jax.photos.folder.reading import (
    HELD_OUT,
    NO_CLASS_NAME,
    SORTED,
    Fault,
    Folder,
    Reading,
    join_readings,
)
from cls_jax.photos.folder.skipped import describe_skipped
from cls_jax.photos.folder.sources import (
    NUM_NAMES,
    Sources,
    describe_shared,
    find_sources,
    number_sources,
    propose_by_folders,
    propose_pattern,
)
from cls_jax.photos.folder.unread import describe_packed
from cls_jax.photos.images.files import ImageFile, ImageFiles, Listing, SkippedFile

_REMEDY = (
    "arrange the images as labeled/<class>/ and unlabeled/, as one folder with labels.csv beside "
    "it, or as one folder for each class (see cls-jax help own_images)"
)
_NUM_TRIED = 100_000  # Names that may carry classes.
# Endings of tables → what makes one readable.
_TABLES = {
    (".csv",): "pass --labels {}",
    (".csv.txt", ".ods", ".tsv", ".xls", ".xlsx"): f"save it as {LABELS_CSV}, a CSV file in UTF-8",
}
_NUMBER = re.compile("0*([0-9]+)")
_MAX_COMPARED = 1_000  # Files about an image each that are compared with its folder.
_PARTS = ("train", "validation", "test")
_FOREIGN = -2  # A class without training images.
Row = tuple[ImageFile, str]  # A file and its class.
Found = Iterator[tuple[str, int, str]]  # The part, the index among all files, and the class.


class Rows(Sequence[Row]):
    """Some files of a folder with their classes, at 12 bytes per file."""

    def __init__(
        self,
        files: ImageFiles,
        places: np.ndarray,
        labels: np.ndarray,
        class_names: tuple[str, ...],
    ):
        """Files by their indices, int64 [n], and labels int32 [n], -1 for unlabeled ones."""
        self.files = files
        self.places = places
        self.labels = labels
        self._names = *class_names, NO_CLASS_NAME  # The last one for -1.

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: Any) -> Any:
        return self.files[self.places[index]], self._names[self.labels[index]]

    def __iter__(self) -> Iterator[Row]:
        names = map(self._names.__getitem__, self.labels)
        return zip(self.files.take(self.places), names, strict=True)


class Layout(NamedTuple):
    """The parts of a folder that is trained on."""

    class_names: tuple[str, ...]  # Sorted.
    train: Rows  # Labeled before unlabeled, sorted by name within each.
    validation: Rows  # All labeled.
    test: Rows  # All labeled.
    skipped: list[SkippedFile]  # All other files, with the reason.
    warnings: list[str]  # One sentence each.
    table: str = ""  # A sentence about the columns of labels.csv, "" without one.
    # What the training images come from. None where nothing says it.
    sources: Sources | None = None
    proposal: str = ""  # A sentence about sources that the names of files may carry.


def find_table(listing: Listing) -> str | None:
    """The name of the label table, ignoring case. None if there is none.

    Raises a UserError if there are several.
    """
    names = [name for name in listing.others if fold(name) == LABELS_CSV]
    if len(names) > 1:
        _refuse(f"The folder has {' and '.join(map(repr, names))}: remove one of them.")
    return names[0] if names else None


def list_tables(listing: Listing) -> list[str]:
    """The files at the top of a folder that may have labels, labels.csv first.

    Raises a UserError as `find_table` does.
    """
    table = find_table(listing)
    others = [name for name in list_candidates(listing) if "/" not in name]
    return [table, *others] if table else others


def _refuse(sentence: str | None) -> None:
    """Raises a UserError if there is something to say."""
    if sentence:
        raise UserError(sentence)


@dataclasses.dataclass(frozen=True)
class Catalog:
    """The images of a folder, and what is known of them."""

    root: pathlib.Path
    listing: Listing
    index: FileIndex
    base: Reading  # Labels without those of labels.csv.
    table_name: str | None  # Of labels.csv, which may be written otherwise.
    table: LabelTable  # labels.csv, empty without one.
    options: FolderOptions  # Those that labels.csv is read with.
    names: ClassNames  # Of classes that have numbers.
    warnings: Sequence[str] = ()  # About images with other classes in tables than by folder.
    fault: Fault | None = None  # Of a table that may have labels, which training must not miss.

    @property
    def table_path(self) -> pathlib.Path:
        """Where labels.csv is, or will be."""
        return self.root / (self.table_name or LABELS_CSV)

    @property
    def is_by_folder(self) -> bool:
        """Whether folders alone have the classes."""
        return not self.base.origin and self.table_name is None

    def list_base(self) -> dict[str, str]:
        """Image → class, without labels.csv."""
        return {name: self.names.get(label) for name, label in self.base.list_labels().items()}

    @functools.cached_property
    def splits(self) -> Mapping[str, str]:
        """Folder → its contents. Where no image has a class, folders called train are not one."""
        splits = self.base.splits
        is_sorted = self.base.labels or self.base.origin or "train" in splits.values()
        return splits if is_sorted else find_splits(self.listing, self.options)

    @functools.cached_property
    def parts(self) -> dict[str, str]:
        """Image → part, of those whose rows say it."""
        found = dict(self.base.parts)
        for row in self.table.rows:
            name = self.table.find(row) if row.part else None
            if name and found.get(name) not in HELD_OUT:
                found[name] = row.part
        return found

    def has_part(self, part: str) -> bool:
        """Whether a folder or a row of a table is for a part of the data."""
        return part in (*self.splits.values(), *self.parts.values())

    @functools.cached_property
    def reading(self) -> Reading:
        """What all of the folder says of its images, with the names of classes."""
        found = self._join()
        names = self.names
        return found._replace(
            labels={k: names.get(v) if v else v for k, v in found.labels.items()}
            if names.names
            else found.labels,
            warnings=[*found.warnings, *filter(None, [names.warning])],
            sentence=" ".join(filter(None, [found.sentence, names.sentence])),
        )

    def _join(self) -> Reading:
        """The same, with the numbers of classes that have names elsewhere."""
        base = self.base
        own = collect_labels(self.table)
        if base.origin:
            return join_readings([base, *([own] if self.table_name else [])])
        if self.table_name is None:
            return base
        shown = self.table.format.name
        warnings = list(own.warnings)
        rest = [name for name in base.labels if name not in own.labels]
        if rest and "train" not in base.splits.values():
            images_are = write_count(
                len(rest),
                f"image without a row in {shown} is labeled by its folder",
                f"images without a row in {shown} are labeled by their folders",
            )
            warnings.append(
                f"{images_are}, such as {rest[0]!r}: move those without a label to unlabeled/."
            )
        if not any(row.decision for row in self.table.rows):
            warnings += _compare_with_folders(shown, self.listing, self.base, own)
        labels = {**base.labels, **own.labels}
        return own._replace(labels=labels, splits=base.splits, warnings=warnings)

    def list_labelable(self) -> list[str]:
        """The images that a person may label: none for testing or validation.

        Names that are not Unicode are left out, since a table cannot contain them.
        """
        kinds = {name for name, kind in self.splits.items() if kind in HELD_OUT}
        return [
            name
            for name in self.listing.files.names()
            if not ("/" in name and name.split("/")[0] in kinds)
            if self.parts.get(name) not in HELD_OUT
            if not any("\ud800" <= character <= "\udfff" for character in name)
        ]

    def labelable(self) -> dict[str, str | None]:
        """Image → class of those that a person may label.

        It is "" without a label, and None for an image of no class, or one that was skipped.
        """
        labels = self.reading.labels
        return {name: labels.get(name, NO_CLASS_NAME) for name in self.list_labelable()}

    def sources(self) -> tuple[dict[str, str], str]:
        """Image → what it comes from, as far as anything says it, and what does, as a column.

        Raises a UserError as `find_sources` does.
        """
        if pattern := self.options.source_pattern:
            names = list(self.listing.files.names())
            return find_sources(names, pattern), f"the pattern {pattern!r:.100}"
        found = self.reading
        return dict(found.sources), f"the column {found.source_origin}" if found.sources else ""

    def train(self) -> Layout:
        """The images to train on, and those that are held out.

        Raises a UserError without two classes that all have images, or if a table that may have
        labels cannot be read.
        """
        files = self.listing.files
        _refuse(self.fault and self.fault.sentence)
        table = "" if self.is_by_folder else self.table_name or self.base.origin
        found = self.reading
        skipped = self.listing.skip_others(
            {*self.base.files, self.names.file, self.table_name or ""}
        )
        skipped += found.skipped
        warnings = list(found.warnings)
        splits = self.base.splits
        if table:
            _refuse(_describe_unnamed(self.root, table, files, found))
            rows = _sort_by_table(files.names(), splits, found, skipped, table)
        else:
            rows = _sort_by_folder(files.names(), splits, skipped)
            warnings += self.warnings
        columns, classes = _number_classes(rows, self.names)
        places, labels = columns["train"]
        if not table:
            chosen = places[labels > 0]
            _refuse(self._check_class_folders(lambda: files.take(chosen), skipped))
        names = _name_classes([classes[k] for k in np.unique(labels) if k], warnings)
        if len(names) < 2:
            _refuse(self._describe_missing(names, table, skipped))
        class_names = tuple(sorted(names.values()))
        warnings += self._list_doubtful(class_names, table)
        index = {folded: class_names.index(name) for folded, name in names.items()} | {"": -1}
        known = np.array([index.get(fold_class(name), _FOREIGN) for name in classes], np.int32)
        columns["train"][1] = known[labels]
        order = np.argsort(columns["train"][1] == -1, kind="stable")
        columns["train"] = [column[order] for column in columns["train"]]
        for part in ("validation", "test"):
            places, labels = columns[part]
            is_foreign = known[labels] == _FOREIGN
            reason = f"a {part} image of a class without labeled images"
            skipped += [(file.name, reason) for file in files.take(places[is_foreign])]
            foreign = sorted(classes[k] for k in np.unique(labels[is_foreign]))
            warnings += _describe_foreign(part, foreign)
            columns[part] = [places[~is_foreign], known[labels[~is_foreign]]]
        train, validation, test = (
            Rows(files, places, labels, class_names) for places, labels in columns.values()
        )
        of_files, origin = self.sources()
        sources = None
        if of_files:
            sources = Sources(number_sources((file.name for file, _ in train), of_files), origin)
            held_out = {"validation": validation, "test": test}
            warnings += _describe_shared_sources(of_files, train, held_out)
        return Layout(
            class_names=class_names,
            train=train,
            validation=validation,
            test=test,
            skipped=skipped,
            warnings=warnings,
            table=found.sentence,
            sources=sources,
            proposal="" if of_files else _propose_sources(train),
        )

    def _list_doubtful(self, class_names: Sequence[str], table: str) -> list[str]:
        """A warning about each class whose name may mean that there is no label."""
        remedy = f"empty these cells of {table}" if table else "rename its folder to 'unlabeled'"
        if self.options.label_pattern:
            remedy = "change --label-pattern"
        return [
            f"{name!r} counts as a class: if it means that there is no label, {remedy}."
            for name in class_names
            if may_mean_unlabeled(name)
        ]

    def _describe_missing(
        self, names: Mapping[str, str], table: str, skipped: Sequence[SkippedFile]
    ) -> str:
        """The sentence that fewer than two classes have a labeled image, with what to do."""
        root = self.root
        what = f"only the class {min(names.values())!r}" if names else "no labeled image"
        needed = f"{root} has {what}, but at least two classes are needed"
        if not table:
            held_out = [name for name, kind in self.base.splits.items() if kind in HELD_OUT]
            if remedy := self._find_remedy(held_out):
                return f"{needed}: {remedy}."
            return f"{needed}{describe_skipped(skipped)}: {_REMEDY}."
        write = f"write the classes of more images into {table}"
        if "*" in table:
            write = "label more of the images"
        if table == "--label-pattern":
            write = "change the pattern of --label-pattern"
        return f"{needed}{describe_skipped(skipped)}: {write}."

    def _find_remedy(self, held_out: Sequence[str]) -> str | None:
        """What to do with a folder without classes, by what lies in it, or None.

        Images in folders that are `held_out` carry no classes.
        """
        root, listing = self.root, self.listing
        names = [
            name
            for name in itertools.islice(listing.files.names(), _NUM_TRIED)
            if name.split("/")[0] not in held_out
        ]
        if remedy := describe_names(root, names, self.options):
            return remedy
        for endings, remedy in _TABLES.items():
            tables = [name for name in listing.others if name.lower().endswith(endings)]
            if top := [name for name in tables if "/" not in name]:
                path = shlex.quote(str(root / top[0]))
                return f"if {top[0]!r} has the labels, {remedy.format(path)}"
        return describe_packed(root, listing.others) or _describe_table_around(root)

    def _check_class_folders(
        self, list_labeled: Callable[[], Iterable[ImageFile]], skipped: Sequence[SkippedFile]
    ) -> str | None:
        """A sentence if a class folder has no image, or only images in subfolders.

        `list_labeled` returns the labeled images. Those in subfolders are allowed if the user has
        said that these folders are classes.
        """
        root, listing, splits, options = self.root, self.listing, self.base.splits, self.options
        bases = [name for name, kind in splits.items() if kind == "train"]
        depth = 1 if bases else 0
        with_images: set[str] = set()
        nested: dict[str, str] = {}
        for name in (file.name for file in list_labeled()):
            parts = name.split("/")
            folder = "/".join(parts[: depth + 1])
            if len(parts) == depth + 2 or options.layout == CLASSES:
                with_images.add(folder)
            else:
                nested.setdefault(folder, "/".join(parts[: depth + 2]))
        if only_nested := sorted(set(nested) - with_images):
            folder = only_nested[0]
            no_image = f"The class folder {folder!r} has no image of its own, only folders such as"
            if inner := describe_inner_folders(
                root, (file.name for file in list_labeled()), depth, options
            ):
                return f"{no_image} {nested[folder]!r}: {inner}."
            whole = _find_inner_root(root, listing)
            remedy = "pass the folder whose subfolders are the classes"
            if whole:
                remedy = f"pass {whole}, whose folders are then the classes"
            return f"{no_image} {nested[folder]!r}: move the images up, or {remedy}."
        if with_images and not bases and all(map(find_part, with_images)):
            held_out = [name for name, kind in splits.items() if kind != "train"]
            held_out += [name for name in with_images if find_part(name) != "train"]
            return (
                f"{root} has no labeled image, because there is no class folder in "
                f"{' or '.join(map(repr, sorted(with_images)))}: "
                f"{self._find_remedy(held_out) or _REMEDY}."
            )
        candidates = {name for name in listing.folders if name.count("/") == depth}
        if bases:
            candidates = {name for name in candidates if name.split("/")[0] in bases}
        candidates = {name for name in candidates if not means_unlabeled(name.split("/")[-1])}
        empty = sorted(candidates - with_images - splits.keys())
        if empty and with_images:
            return (
                f"The class {empty[0].split('/')[-1]!r} has no image in {root / empty[0]}"
                f"{describe_skipped(skipped, empty[0] + '/')}: add at least one, or move the "
                "folder elsewhere."
            )
        return None


def read_catalog(
    root: pathlib.Path, listing: Listing, options: FolderOptions = AUTOMATIC
) -> Catalog:
    """Reads what lies in a folder beside its images.

    What the user chooses in the `options` counts before class folders and all other tables. What
    other programs left beside the images counts where neither class folders nor rows of other
    programs in labels.csv do. Raises a UserError if the folder or labels.csv can be read in several
    ways and the `options` do not say how, or if labels.csv or what the user chooses cannot be read.
    """
    name = find_table(listing)
    index = FileIndex(listing.files, root)
    folder = Folder(root, listing, index, options)
    is_own = name is None or is_begun_here(root / name)
    fault, warnings = None, list[str]()
    found: Reading | Question
    if options.label_pattern or options.labels not in ("", name):
        found = _read_chosen(folder, "" if is_own else name or "")
        _refuse(found.fault and found.fault.sentence)
    else:
        found, *others = propose_folders(listing, options)
        if others:
            found = Question(found, others[0])
        elif is_own and not options.labels:
            if SORTED not in found.evidence:
                found, fault = _choose_best(found, folder)
            elif name is None and options.layout != CLASSES:
                found, warnings = _compare_others(found, folder)
    if isinstance(found, Reading) and found.origin:
        found = found._replace(splits=find_splits(listing, options))
        # The columns are theirs.
        options = options._replace(file_column="", label_column="", source_column="")
    table = LabelTable([]) if name is None else read_label_table(root / name, index, options)
    if table.rows and not table.rows[0].decision and not getattr(found, "origin", ""):
        found = propose_labeled(listing, options)
    if isinstance(found, Question):
        raise UserError(found.write(root))
    rows = (row.label for row in table.rows if not row.decision)
    labels = {*found.list_labels().values(), *rows} - {""}
    tables = {*found.files, *filter(None, [name])}
    return Catalog(
        root=root,
        listing=listing,
        index=index,
        base=found,
        table_name=name,
        table=table,
        options=options,
        names=find_class_names(root, listing, labels, tables),
        warnings=warnings,
        fault=fault if name is None else None,
    )


def _read_chosen(folder: Folder, table: str) -> Reading:
    """The labels that the user chooses with a file or a pattern.

    They contradict each other, or a `table` of another program that is called labels.csv.
    """
    options = folder.options
    option = "--label-pattern" if options.label_pattern else f"--labels {options.labels}"
    sentence = ""
    if options.labels and options.label_pattern:
        sentence = "--labels and --label-pattern both say where the classes are: remove one."
    elif table:
        sentence = (
            f"{table} has labels, too: rename it, for example to old_{LABELS_CSV}, to use {option}."
        )
    if sentence:
        return Reading(option, fault=Fault(sentence))
    if options.labels:
        return read_chosen(folder)
    splits = find_splits(folder.listing, options)
    return read_pattern(folder.listing.files.names(), options.label_pattern, splits)


def _choose_best(folders: Reading, folder: Folder) -> tuple[Reading | Question, Fault | None]:
    """The best reading by folders and tables, and what is wrong with a better one."""
    tables = join_alike([*propose_tables(folder), *propose_sidecars(folder)])
    readable = [one for one in tables if one.labels or not one.fault]
    best = max([*tables, folders], key=judge)
    return choose([folders, *readable]), best.fault


def _compare_others(folders: Reading, folder: Folder) -> tuple[Reading | Question, list[str]]:
    """Class folders, or a question, and warnings about images with other classes in tables.

    The same for files about an image each. What cannot be read contradicts nothing.
    """
    warnings = list[str]()
    for kind in propose_tables(folder), propose_sidecars(folder, most=_MAX_COMPARED):
        readable = [one for one in join_alike(kind) if one.labels]
        other = choose(readable) if readable else None
        if isinstance(other, Reading):
            found, warning = compare(folders, other)
            if isinstance(found, Question):
                return found, warnings
            warnings += filter(None, [warning])
    return folders, warnings


def _compare_with_folders(
    table: str,
    listing: Listing,
    by_folder: Reading,
    found: Reading,
) -> list[str]:
    """Warnings about images in folders that are called as classes of a table without decisions."""
    fold_once = functools.cache(fold_class)
    classes = {fold_once(label) for label in found.labels.values() if label}
    others, unlabeled = [], []
    for name in listing.files.names():
        parts = name.split("/")
        folder = fold_once(parts[-2]) if len(parts) > 1 else ""
        if folder not in classes or by_folder.splits.get(parts[0], "train") != "train":
            continue
        if label := found.labels.get(name):
            others += [name] if fold_once(label) != folder else []
        elif name not in found.labels and name not in by_folder.labels:
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


def _describe_unnamed(
    root: pathlib.Path, table: str, files: ImageFiles, found: Reading
) -> str | None:
    """A sentence if no row of a table names an image."""
    if not found.skipped or found.labels or not len(files):
        return None
    cell = found.skipped[0][0]
    return (
        f"No row of {table} names an image of {root}: it has names such as {cell!r:.200}, and the "
        f"folder has {_find_alike(cell, files.names())}"
    )


def _number_classes(
    rows: Iterable[tuple[str, int, str]], names: ClassNames
) -> tuple[dict[str, list[np.ndarray]], list[str]]:
    """The rows (part, place, class) of each part as places and numbers of classes, int [B].

    Also the classes by number, in order of appearance, after "" for none.
    """
    parts = {part: (array.array("q"), array.array("i")) for part in _PARTS}
    numbers = {NO_CLASS_NAME: 0}
    for part, place, name in rows:
        places, labels = parts[part]
        places.append(place)
        labels.append(numbers.setdefault(names.get(name), len(numbers)))
    columns = {part: [np.array(column) for column in both] for part, both in parts.items()}
    return columns, list(numbers)


def _propose_sources(train: Rows) -> str:
    """A sentence about sources that folders or names of training images may carry, or ""."""
    is_labeled = train.labels >= 0
    of_labeled = [file.name for file in train.files.take(train.places[is_labeled])]
    first = [file.name for file, _ in itertools.islice(train, NUM_NAMES)]
    return propose_by_folders(of_labeled, train.labels[is_labeled]) or propose_pattern(first) or ""


def _describe_shared_sources(
    of_files: Mapping[str, str], train: Rows, held_out: Mapping[str, Rows]
) -> list[str]:
    """A sentence for each held-out part that has sources of the training images, too."""
    known = {of_files.get(file.name, "") for file, _ in train}
    of_parts = {
        part: [of_files.get(file.name, "") for file, _ in rows] for part, rows in held_out.items()
    }
    sentences = [describe_shared(known, sources, part) for part, sources in of_parts.items()]
    return [sentence for sentence in sentences if sentence]


def _find_alike(cell: str, names: Iterable[str]) -> str:
    """The file that a cell of a table seems to mean, or any other, and what to write instead."""

    def simplify_path(path: str) -> tuple[str, str]:
        stem, ending = os.path.splitext(fold(path.replace("\\", "/").rpartition("/")[2]))
        return stem, ending

    stem, ending = simplify_path(cell)
    first = ""
    for name in names:
        first = first or name
        other, other_ending = simplify_path(name)
        if stem == other and ending != other_ending:
            return f"{name!r:.200}. Write names with the extensions of the files."
        if stem != other and _NUMBER.sub(r"\1", stem) == _NUMBER.sub(r"\1", other):
            return f"{name!r:.200}. Write names with all their zeros, which spreadsheets leave out."
    return f"{first!r:.200}. Write names relative to the folder."


def _describe_table_around(root: pathlib.Path) -> str | None:
    """How to use the only table in the folder around, or None if there is not exactly one."""
    try:
        names = [entry.name for entry in os.scandir(root.parent) if entry.is_file()]
    except OSError:
        return None
    (endings,) = (endings for endings, remedy in _TABLES.items() if "--labels" in remedy)
    tables = [name for name in names if name.lower().endswith(endings)]
    if len(tables) != 1:
        return None
    remedy = _TABLES[endings].format(shlex.quote(str(root.parent / tables[0])))
    return f"if {tables[0]!r} beside this folder has the labels, {remedy}"


def _describe_foreign(part: str, foreign: list[str]) -> list[str]:
    """A warning about the classes of a part that no labeled image has, if there are any."""
    if not foreign:
        return []
    return [
        f"{part}/ has {write_count(len(foreign), 'class', 'classes')} that no labeled image has, "
        f"such as {foreign[0]!r}: their images are left out."
    ]


def pack_layout(layout: Layout) -> bytes:
    """A layout as bytes, for other processes: columns, and the rest as JSON."""
    buffer = io.BytesIO()
    files = layout.train.files
    origin = layout.sources.origin if layout.sources else ""
    rest = (
        layout.class_names,
        layout.skipped,
        layout.warnings,
        layout.table,
        origin,
        layout.proposal,
    )
    parts = zip(_PARTS, (layout.train, layout.validation, layout.test), strict=True)
    columns: Any = {part: np.stack([rows.places, rows.labels]) for part, rows in parts}
    if layout.sources:
        columns["sources"] = layout.sources.numbers
    np.savez(
        buffer,
        text=np.frombuffer(files.text, np.uint8),
        numbers=np.frombuffer(files.numbers, np.int64),
        rest=np.array(json.dumps(rest)),
        **columns,
    )
    return buffer.getvalue()


def unpack_layout(content: bytes) -> Layout:
    """The layout that `pack_layout` has packed."""
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        names, skipped, warnings, table, origin, proposal = json.loads(str(stored["rest"]))
        sources = Sources(stored["sources"], origin) if "sources" in stored else None
        files = ImageFiles((), stored["text"].tobytes(), stored["numbers"].tobytes())
        train, validation, test = (
            Rows(files, stored[part][0], stored[part][1].astype(np.int32), tuple(names))
            for part in _PARTS
        )
    skipped = [(name, reason) for name, reason in skipped]
    return Layout(
        class_names=tuple(names),
        train=train,
        validation=validation,
        test=test,
        skipped=skipped,
        warnings=warnings,
        table=table,
        sources=sources,
        proposal=proposal,
    )


def _sort_by_folder(
    names: Iterable[str], splits: Mapping[str, str], skipped: list[SkippedFile]
) -> Found:
    has_base = "train" in splits.values()
    for place, name in enumerate(names):
        top, *rest = name.split("/", 2)
        kind = splits.get(top) if rest else None
        if kind == "unlabeled":
            yield "train", place, NO_CLASS_NAME
        elif kind and len(rest) >= 2 and means_unlabeled(rest[0]):
            if kind == "train":
                yield kind, place, NO_CLASS_NAME
            else:
                skipped.append((name, f"a {kind} image without a class"))
        elif kind and len(rest) >= 2:
            yield kind, place, rest[0]
        elif kind == "train" or (rest and has_base and not kind):
            where = next(base for base, kind in splits.items() if kind == "train")
            reason = "outside of a class folder" if kind else f"not in {where}, unlabeled or test"
            skipped.append((name, reason))
        elif kind:
            skipped.append((name, f"a {kind} image outside of a class folder"))
        elif rest:
            yield "train", place, top
        else:
            skipped.append((name, "outside of a class folder"))


def _find_inner_root(root: pathlib.Path, listing: Listing) -> str | None:
    """The folder that has all images, in at least two folders, shell-quoted, or None."""
    folders = {os.path.dirname(name) for name in listing.files.names()}
    common = os.path.commonpath(folders) if all(folders) else ""
    inner = {folder[len(common) :].count("/") for folder in folders}
    return shlex.quote(str(root / common)) if common and inner == {1} and len(folders) > 1 else None


def _name_classes(found: Sequence[str], warnings: list[str]) -> dict[str, str]:
    """Folded name → name, of all classes of training images."""
    spellings: dict[str, set[str]] = {}
    for name in found:
        spellings.setdefault(fold_class(name), set()).add(name)
    for names in spellings.values():
        different = {unicodedata.normalize("NFC", name) for name in names}
        if len(different) > 1:
            warnings.append(
                f"{' and '.join(map(repr, sorted(different)))} count as one class: rename one if "
                "they are different."
            )
    chosen = choose_spellings(found)
    alike: dict[str, list[str]] = {}
    for folded, name in chosen.items():
        alike.setdefault(resemble(folded), []).append(name)
    warnings += [
        f"{' and '.join(map(repr, sorted(names)))} count as different classes: rename one if they "
        "are the same."
        for names in alike.values()
        if len(names) > 1
    ]
    return chosen


def _sort_by_table(
    names: Iterable[str],
    splits: Mapping[str, str],
    labels: Reading,
    skipped: list[SkippedFile],
    table: str,
) -> Found:
    """Sorts by folder and class. Test and validation images may get their class from the folder.

    What a folder or a row of the table holds out is not trained on.
    """
    for place, file in enumerate(names):
        top, _, rest = file.partition("/")
        kind = splits.get(top, "train") if rest else "train"
        name = labels.labels.get(file, NO_CLASS_NAME)
        is_split = kind in ("validation", "test")
        if not is_split:
            kind = labels.parts.get(file, kind)
        if name is None:
            skipped.append((file, f"marked as no class or skipped in {LABELS_CSV}"))
        elif kind == "unlabeled":
            yield "train", place, name if file not in labels.parts else NO_CLASS_NAME
        elif kind == "train":
            yield "train", place, name
        elif name or (is_split and "/" in rest and not means_unlabeled(rest.split("/")[0])):
            yield kind, place, name or rest.split("/")[0]
        else:
            where = "outside of a class folder" if is_split else f"without a class in {table}"
            where = "without a label" if file in labels.labels else where
            skipped.append((file, f"a {kind} image {where}"))
