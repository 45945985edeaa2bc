"""A folder of images as everybody sees it: its files, their labels and parts, and where from.

Training, the labeling page, suggestions, evaluation, exports and packed folders open the same
catalog. Labels are those of `labels.csv`, on top of class folders or tables of other programs. No
image is opened here.
"""

import array
import dataclasses
import functools
import pathlib
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cls_jax.errors import UserError
from cls_jax.io import write_count
from cls_jax.photos.folder.class_names import ClassNames, find_class_names
from cls_jax.photos.folder.columns import Table
from cls_jax.photos.folder.index import FileIndex
from cls_jax.photos.folder.kinds import SEPARATOR, split_tags
from cls_jax.photos.folder.label_table import (
    LABELS_CSV,
    LabelTable,
    check_table,
    is_begun_here,
    parse_table,
    read_cells,
    read_content,
)
from cls_jax.photos.folder.log import (
    NO_MARK,
    NO_MARKS,
    FileMarks,
    choose_spellings,
    fold,
    mark_labels,
    start_log,
)
from cls_jax.photos.folder.names import (
    HELD_OUT,
    fold_case,
    fold_class,
    group_pairs,
    may_mean_unlabeled,
    means_unlabeled,
    resemble,
)
from cls_jax.photos.folder.options import AUTOMATIC, CLASSES, FolderOptions
from cls_jax.photos.folder.propose import (
    collect_labels,
    find_splits,
    label_within,
    list_candidates,
    propose_folders,
    propose_labeled,
    propose_sidecars,
    propose_tables,
    read_named,
    read_pattern,
)
from cls_jax.photos.folder.reading import (
    NO_CLASS_NAME,
    SORTED,
    Folder,
    Question,
    Reading,
    choose,
    compare,
    describe_choice,
    join_alike,
    judge,
)
from cls_jax.photos.folder.remedies import (
    describe_class_folders,
    describe_missing,
    describe_unnamed,
)
from cls_jax.photos.folder.sources import (
    NUM_NAMES,
    Sources,
    describe_shared,
    number_sources,
    propose_by_folders,
    propose_pattern,
    search_names,
)
from cls_jax.photos.images.files import ImageFile, ImageFiles, Listing, SkippedFile, list_images

PARTS = ("train", "validation", "test")
Row = tuple[ImageFile, str]  # A file and its class.
_MAX_COMPARED = 1_000  # Files about an image each that are compared with its folder.
_FOREIGN = -2  # A class without training images.


def find_table(listing: Listing) -> str:
    """The name of the label table, ignoring case, or "" if there is none.

    Raises a UserError if there are several.
    """
    names = [name for name in listing.others if fold_case(name) == LABELS_CSV]
    if len(names) > 1:
        _refuse(f"The folder has {' and '.join(map(repr, names))}: remove one of them.")
    return names[0] if names else ""


def list_tables(listing: Listing) -> list[str]:
    """The files at the top of a folder that may have labels, labels.csv first.

    Raises a UserError as `find_table` does.
    """
    table = find_table(listing)
    others = [name for name in list_candidates(listing) if "/" not in name]
    return [table, *others] if table else others


def _is_unicode(name: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _refuse(sentence: str | None) -> None:
    """Raises a UserError if there is something to say."""
    if sentence:
        raise UserError(sentence)


@dataclasses.dataclass(frozen=True, eq=False)
class Rows(Sequence[Row]):
    """Some files of a folder with their classes, at 12 bytes per file."""

    files: ImageFiles
    places: np.ndarray  # int64 [n], their indices.
    labels: np.ndarray  # int32 [n], -1 for unlabeled ones.
    class_names: tuple[str, ...]

    @property
    def _names(self) -> tuple[str, ...]:
        return *self.class_names, NO_CLASS_NAME  # The last one for -1.

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: Any) -> Any:
        return self.files[self.places[index]], self._names[self.labels[index]]

    def __iter__(self) -> Iterator[Row]:
        return zip(
            self.files.take(self.places), map(self._names.__getitem__, self.labels), strict=True
        )


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

    @property
    def proposal(self) -> str:
        """A sentence about unknown sources that folders or names of images may carry, or ""."""
        if self.sources is not None:
            return ""
        train = self.train
        is_labeled = train.labels >= 0
        of_labeled = [file.name for file in train.files.take(train.places[is_labeled])]
        first = [file.name for file in train.files.take(train.places[:NUM_NAMES])]
        return (
            propose_by_folders(of_labeled, train.labels[is_labeled]) or propose_pattern(first) or ""
        )


@dataclasses.dataclass(frozen=True)
class Catalog:
    """The images of a folder, and what is known of them."""

    folder: Folder  # With the options that labels.csv is read with.
    base: Reading  # Labels without those of labels.csv.
    table: LabelTable  # labels.csv, which may be written otherwise. Without one, it has no name.
    names: ClassNames  # Of classes that have numbers.

    @property
    def table_path(self) -> pathlib.Path:
        """Where labels.csv is, or will be."""
        return self.folder.root / (self.table.cells.name or LABELS_CSV)

    @functools.cached_property
    def splits(self) -> Mapping[str, str]:
        """Folder → its contents. Where no image has a class, folders called train are not one."""
        splits = self.base.splits
        is_sorted = self.base.marks or self.base.origin or "train" in splits.values()
        return splits if is_sorted else find_splits(self.folder.listing, self.folder.options)

    @functools.cached_property
    def told(self) -> Reading:
        """What labels.csv says by itself."""
        return collect_labels(self.table) if self.table.cells.name else Reading()

    @functools.cached_property
    def marks(self) -> FileMarks:
        """What the folder, tables in it and the rows of labels.csv say of each image."""
        return fold(self.table.rows, self._start)

    @functools.cached_property
    def _start(self) -> FileMarks:
        """The same without labels.csv.

        Images for testing or validation have a class, too: one that is renamed is so there as well.
        """
        kind = self.folder.options.kind
        tops = {top: part for top, part in self.splits.items() if part in HELD_OUT}
        inner = self.names.name_marks(mark_labels(label_within(self.folder.listing, tops), kind))
        files = dict(self.base.marks)
        for name in self.folder.listing.files.names() if tops else ():
            if part := tops.get(name.partition("/")[0]):
                mark = files.get(name, NO_MARK)
                if mark.given == NO_CLASS_NAME:
                    mark = inner.get(name, mark)._replace(source=mark.source)
                files[name] = mark._replace(part=part)
        return start_log(files, kind)

    def start_marks(self) -> FileMarks:
        """The same of the images whose names a table can contain."""
        files = {name: mark for name, mark in self._start.files.items() if _is_unicode(name)}
        return start_log(files, self._start.kind)

    def check_kind(self) -> None:
        """Raises a UserError if labels of one class look like several tags: "cat;dog" and "cat"."""
        used = self.marks.find_used()
        for name in sorted(used):  # Tags have no separator in them.
            if SEPARATOR in name and not used.isdisjoint(split_tags(name)):
                _refuse(
                    f"{self.marks.names[name]!r} may be one class or several: pass --tags if "
                    "images may have several, or rename the class."
                )

    def labelable(self) -> dict[str, str | None]:
        """Image → class of those that a person may label: none for testing or validation.

        It is "" without a label, and None for an image of no class, or one that was skipped. Names
        that are not Unicode are left out, since a table cannot contain them.
        """
        names = filter(_is_unicode, self.folder.listing.files.names())
        marks = ((name, self.marks.get(name)) for name in names)
        return {name: mark.given for name, mark in marks if mark.part not in HELD_OUT}

    def sources(self) -> tuple[dict[str, str], str]:
        """Image → what it comes from, as far as anything says it, and what does, as a column.

        Raises a UserError as `search_names` does.
        """
        if pattern := self.folder.options.source_pattern:
            names = list(self.folder.listing.files.names())
            return search_names(names, pattern), f"the pattern {pattern!r:.100}"
        column = self.base.source_origin or self.told.source_origin
        if not column:
            return {}, ""
        of_files = {name: mark.source for name, mark in self.marks.files.items() if mark.source}
        return of_files, f"the column {column}"

    def train(self) -> Layout:
        """The images to train on, and those that are held out.

        Raises a UserError without two classes that all have images, or if a table that may have
        labels cannot be read.
        """
        folder, base, told = self.folder, self.base, self.told
        splits, files = base.splits, folder.listing.files
        self.check_kind()
        _refuse(base.fault and base.fault.sentence)
        skipped = [
            *folder.listing.skip_others({*base.files, self.names.file, self.table.cells.name}),
            *base.skipped,
            *told.skipped,
        ]
        warnings = [*told.warnings, *self._compare_folders(), *base.warnings, self.names.warning]
        warnings = list(filter(None, warnings))
        table = self.table.cells.name or base.origin  # Without one, folders have the classes.
        if not any((base.marks, told.marks)):
            _refuse(describe_unnamed(folder, table, [*base.skipped, *told.skipped]))
        columns, classes = self._sort(table, skipped)
        places, numbers = columns["train"]
        if not table:
            labeled = [file.name for file in files.take(places[numbers > 0])]
            _refuse(describe_class_folders(folder, splits, labeled, skipped))
        trained = [classes[k] for k in np.unique(numbers) if k]
        names = {name for label in trained for name in self._split(label)}
        if len(trained) < 2:
            _refuse(describe_missing(folder, names, splits, table, skipped))
        warnings += self._list_doubtful(sorted(names), table)
        class_names = tuple(
            sorted(label for label in classes[1:] if names.issuperset(self._split(label)))
        )
        index = {label: k for k, label in enumerate(class_names)} | {NO_CLASS_NAME: -1}
        known = np.array([index.get(label, _FOREIGN) for label in classes])
        rows = {}
        for part, (places, numbers) in columns.items():
            labels = known[numbers]
            if foreign := [classes[k] for k in np.unique(numbers[labels == _FOREIGN])]:
                warnings.append(
                    f"{part}/ has {write_count(len(foreign), 'class', 'classes')} that no labeled "
                    f"image has, such as {min(foreign)!r}: their images are left out."
                )
                reason = f"a {part} image of a class without labeled images"
                skipped += [(file.name, reason) for file in files.take(places[labels == _FOREIGN])]
            order = np.argsort(labels == -1, kind="stable")  # Labeled before unlabeled.
            order = order[labels[order] != _FOREIGN]
            rows[part] = Rows(files, places[order], labels[order].astype(np.int32), class_names)
        sources, shared = self._compare_sources(rows)
        return Layout(
            class_names,
            **rows,
            skipped=skipped,
            warnings=warnings + shared,
            table=" ".join(filter(None, [base.sentence, told.sentence, self.names.sentence])),
            sources=sources,
        )

    def _split(self, label: str) -> list[str]:
        """The names of the classes in a label."""
        return self.marks.kind.name(self.marks.kind.split(label))

    def _compare_sources(self, rows: Mapping[str, Rows]) -> tuple[Sources | None, list[str]]:
        """The sources of training images, if anything says them, and warnings about shared ones."""
        of_files, origin = self.sources()
        if not of_files:
            return None, []
        numbers = number_sources((file.name for file, _ in rows["train"]), of_files)
        known, *others = ([of_files.get(file.name, "") for file, _ in rows[part]] for part in PARTS)
        shared = map(describe_shared, [known, known], others, PARTS[1:])
        return Sources(numbers, origin), list(filter(None, shared))

    def _sort(
        self, table: str, skipped: list[SkippedFile]
    ) -> tuple[dict[str, list[np.ndarray]], list[str]]:
        """The images of each part as places and numbers of classes, int [B], by folder or `table`.

        Also the classes by number, in order of appearance, after "" for none.
        """
        parts = {part: (array.array("q"), array.array("i")) for part in PARTS}
        numbers = {NO_CLASS_NAME: 0}
        find = self._place_by_table if table else self._place_by_folder
        for place, name in enumerate(self.folder.listing.files.names()):
            part, label = find(name)
            if part:
                places, labels = parts[part]
                places.append(place)
                labels.append(numbers.setdefault(label, len(numbers)))
            else:
                skipped.append((name, label))
        return {part: list(map(np.array, both)) for part, both in parts.items()}, list(numbers)

    def _place_by_folder(self, name: str) -> tuple[str, str]:
        """The part and the class of an image by its folders, or "" and the reason to skip it."""
        top, *rest = name.split("/", 2)
        kind = self.base.splits.get(top, "") if rest else ""
        is_aside = len(rest) > 1 and means_unlabeled(rest[0])
        label = self.marks.get(name).label
        if kind == "unlabeled" or (kind == "train" and is_aside):
            return "train", NO_CLASS_NAME
        if kind and label:
            return kind, label
        if kind in HELD_OUT:
            return "", f"a {kind} image outside of a class folder"
        if not rest or kind:
            return "", "outside of a class folder"
        # The folder with the class folders, if these are not at the top.
        base = next((name for name, kind in self.base.splits.items() if kind == "train"), "")
        if base:
            return "", f"not in {base}, unlabeled or test"
        return "train", label or self._tops[fold_class(self.names.get(top))]

    @functools.cached_property
    def _tops(self) -> Mapping[str, str]:
        """Folded name → class by a folder at the top, which need not be a class folder."""
        tops = {name.partition("/")[0] for name in self.folder.listing.files.names()}
        return {**choose_spellings(map(self.names.get, tops)), **self.marks.names}

    def _place_by_table(self, name: str) -> tuple[str, str]:
        """The same by a table. What a folder or a row of the table holds out is not trained on."""
        top, _, rest = name.partition("/")
        mark = self.marks.get(name)
        label = mark.label
        kind = mark.part or (self.base.splits.get(top, "train") if rest else "train")
        if mark.given is None:
            return "", f"marked as no class or skipped in {LABELS_CSV}"
        if kind == "unlabeled":
            return "train", NO_CLASS_NAME if mark.part else label
        if kind == "train" or label:
            return kind, label
        return "", f"a {kind} image without a label"

    def _compare_folders(self) -> Iterator[str]:
        """Warnings about images that labels.csv leaves to class folders, or labels otherwise."""
        base, told, shown = self.base, self.told, self.table.cells.name
        if not shown or base.origin:
            return
        rest = [name for name in base.marks if name not in told.marks]
        if rest and "train" not in base.splits.values():
            images_are = write_count(
                len(rest),
                f"image without a row in {shown} is labeled by its folder",
                f"images without a row in {shown} are labeled by their folders",
            )
            yield f"{images_are}, such as {rest[0]!r}: move those without a label to unlabeled/."
        own = told.list_labels()
        classes = set(map(fold_class, own.values()))
        if any(row.decision for row in self.table.rows):
            classes.clear()  # Answers correct the folders.
        others = []
        for name, label in own.items():
            folder = fold_class(self.names.get(name.rpartition("/")[0].rpartition("/")[2]))
            is_train = base.splits.get(name.partition("/")[0], "train") == "train"
            if is_train and folder in classes and fold_class(label) != folder:
                others.append(name)
        if others:
            have = write_count(len(others), "image has", "images have")
            where = f"in {shown} than by its folder, such as {min(others)!r}: {shown} counts."
            yield f"{have} another class {where}"

    def _list_doubtful(self, class_names: Sequence[str], table: str) -> Iterator[str]:
        """Warnings about classes that may be one, or mean that there is no label."""
        marks = self.marks
        kept = {mark.spelled for mark in marks.files.values() if mark.part not in HELD_OUT}
        spelled = {one for spelled in kept for one in marks.kind.name(spelled)}
        found = {unicodedata.normalize("NFC", name) for name in spelled}
        for alike in _list_alike(found, fold_class):
            yield f"{alike} count as one class: rename one if they are different."
        for alike in _list_alike(class_names, resemble):
            yield f"{alike} count as different classes: rename one if they are the same."
        remedy = f"empty these cells of {table}" if table else "rename its folder to 'unlabeled'"
        if self.folder.options.label_pattern:
            remedy = "change --label-pattern"
        for name in filter(may_mean_unlabeled, class_names):
            yield f"{name!r} counts as a class: if it means that there is no label, {remedy}."


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
    folder = Folder(root, listing, FileIndex(listing.files, root), options)
    path = root / (name or LABELS_CSV)
    cells = parse_table(path, folder.files, options, read_content(path)) if name else Table()
    is_begun = is_begun_here(cells)
    base = _choose_base(folder, name, is_begun)
    if base.origin:  # The columns are its own.
        base = base._replace(splits=find_splits(listing, options))
        options = options._replace(file_column="", label_column="", source_column="")
    table = check_table(read_cells(cells, folder.files, options))
    if not is_begun:
        named = base.marks.keys() | {row.file for row in table.rows}
        base = base._replace(warnings=list(_count_unused(cells.name, named, folder)))
    labels = {row.label for row in table.rows if not row.decision} - {NO_CLASS_NAME}
    names = find_class_names(
        root, listing, {*labels, *base.list_labels().values()}, {*base.files, name}
    )
    return Catalog(
        folder=folder._replace(options=options),
        base=base._replace(marks=names.name_marks(base.marks)),
        table=table._replace(rows=names.name_rows(table.rows)),
        names=names,
    )


def read_checked(root: pathlib.Path, options: FolderOptions) -> FileMarks:
    """The marks of a folder's images, or none without a labels.csv, since no other file has checks.

    Raises a UserError as `read_catalog` does.
    """
    listing = list_images(root)
    return read_catalog(root, listing, options).marks if find_table(listing) else NO_MARKS


def _list_alike(names: Iterable[str], key: Callable[[str], str]) -> Iterator[str]:
    """The names that have a key in common, for a sentence."""
    groups = group_pairs((key(name), name) for name in sorted(names))
    return (" and ".join(map(repr, group)) for group in groups.values() if len(group) > 1)


def _choose_base(folder: Folder, table: str, is_begun: bool) -> Reading:
    """What a folder says without labels.csv, which is called `table`, "" without one.

    What the user chooses counts before class folders and all other tables, and a table that was not
    begun by `cls-jax label` before all but labeled/<class>/. Raises a UserError with the question
    if two readings are as good, or if what the user chooses cannot be read.
    """
    listing, options = folder.listing, folder.options
    if options.label_pattern or options.labels not in ("", table):
        return _read_chosen(folder, "" if is_begun else table)
    if not is_begun:
        return propose_labeled(listing, options)
    folders, *others = propose_folders(listing, options)
    found: Reading | Question = folders
    if others:
        found = Question(folders, others[0])
    elif SORTED not in folders.evidence and not options.labels:
        found = _choose_table(folders, folder, is_alone=not table)
    elif not table and options.layout != CLASSES:
        found = _compare_others(folders, folder)
    if isinstance(found, Question):
        raise UserError(found.write(folder.root))
    return found


def _choose_table(folders: Reading, folder: Folder, is_alone: bool) -> Reading | Question:
    """The best reading by tables, or that by folders, or a question.

    If no labels.csv adds to it, it has the fault of a better one, which training must not miss.
    """
    tables = join_alike([*propose_tables(folder), *propose_sidecars(folder)])
    found = choose([folders, *(one for one in tables if one.marks or not one.fault)])
    best = max([*tables, folders], key=judge)
    if isinstance(found, Question):
        return found
    return found._replace(fault=best.fault if is_alone else None)


def _read_chosen(folder: Folder, table: str) -> Reading:
    """The labels that the user chooses with a file or a pattern, and those in labeled/<class>/.

    Raises a UserError if they contradict each other, or a `table` of another program that is called
    labels.csv.
    """
    options, listing = folder.options, folder.listing
    option = "--label-pattern" if options.label_pattern else f"--labels {options.labels}"
    if options.labels and options.label_pattern:
        raise UserError("--labels and --label-pattern both say where the classes are: remove one.")
    if table:
        raise UserError(
            f"{table} has labels, too: rename it, for example to old_{LABELS_CSV}, to use {option}."
        )
    if options.label_pattern:
        return read_pattern(listing, options)
    found = read_named(folder, folder.root / options.labels, options.labels)
    labeled = propose_labeled(listing, options).marks
    marks = {**labeled, **found.marks}
    for image in labeled.keys() & found.marks.keys():
        if not (mark := marks[image]).decision:
            marks[image] = labeled[image]._replace(part=mark.part, source=mark.source)
    return found._replace(
        marks=marks, warnings=[*found.warnings, *_count_unused(found.origin, marks, folder)]
    )


def _count_unused(table: str, named: Collection[str | None], folder: Folder) -> Iterator[str]:
    """A warning about images in class folders that a table does not name, if there are any."""
    folders, *others = propose_folders(folder.listing, folder.options)
    splits = find_splits(folder.listing, folder.options)
    new = [image for image in folders.list_labels() if image not in named]
    unused = [image for image in new if splits.get(image.partition("/")[0]) not in HELD_OUT]
    if SORTED in folders.evidence and unused and not others:
        are = write_count(len(unused), "image in a folder is", "images in folders are")
        yield (
            f"{are} unlabeled, such as {min(unused)!r:.200}, since {table} does not name "
            f"{'it' if len(unused) == 1 else 'them'}: if the folders are classes, move them into "
            "labeled/."
        )


def _compare_others(folders: Reading, folder: Folder) -> Reading | Question:
    """Class folders with warnings about images with other classes in tables, or a question.

    The same for files about an image each. What cannot be read contradicts nothing.
    """
    warnings = list[str]()
    for kind in propose_tables(folder), propose_sidecars(folder, most=_MAX_COMPARED):
        readable = [one for one in join_alike(kind) if one.marks]
        other = choose(readable) if readable else None
        if isinstance(other, Reading):
            found = compare(folders, other)
            if isinstance(found, Question):
                return found
            warnings += filter(None, [found])
            new = sorted(other.list_labels().keys() - folders.list_labels())
            if new and "*" not in other.origin:
                warnings.append(
                    f"{other.origin} has classes of "
                    f"{write_count(len(new), 'unlabeled image', 'unlabeled images')}, such as "
                    f"{new[0]!r:.200}, and is not read: to use it, "
                    f"{describe_choice(folder.root, other.origin)}."
                )
    return folders._replace(warnings=warnings)
