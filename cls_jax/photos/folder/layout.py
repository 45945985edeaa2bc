"""Sorts the files of a folder into training, validation and test images.

There are three layouts: `labels.csv`, else `labeled/<class>/…` or `train/<class>/…`, else class
folders. Each may have `unlabeled/…`, `test/<class>/…` and `val/<class>/…` beside it. Only names
matter, regardless of case and composition of accents. No image is opened here.
"""

import array
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
from cls_jax.photos.folder.class_names import ClassNames
from cls_jax.photos.folder.given_labels import find_table, label_all, read_given, read_sources
from cls_jax.photos.folder.label_table import LABELS_CSV
from cls_jax.photos.folder.labels import NO_CLASS_NAME, TableLabels
from cls_jax.photos.folder.names import (
    clean,
    find_part,
    fold,
    fold_class,
    may_mean_unlabeled,
    means_unlabeled,
    resemble,
)
from cls_jax.photos.folder.options import AUTOMATIC, CLASSES, FolderOptions
from cls_jax.photos.folder.patterns import describe_inner_folders, describe_names
from cls_jax.photos.folder.skipped import describe_skipped
from cls_jax.photos.folder.sources import (
    NUM_NAMES,
    Sources,
    describe_shared,
    number_sources,
    propose_folders,
    propose_pattern,
)
from cls_jax.photos.folder.splits import find_splits
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
    """The parts of a folder."""

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


def read_layout(root: pathlib.Path, listing: Listing, options: FolderOptions = AUTOMATIC) -> Layout:
    """Sorts the files of a folder.

    Raises a UserError without two classes that all have images, or if the folder or its table can
    be read in several ways and the `options` do not say how.
    """
    files = listing.files
    warnings = list[str]()
    given = read_given(root, listing, options, is_strict=True)
    tables = given.others.names if given.others else []
    skipped = listing.skip_others(given.files)
    table = find_table(listing) or next(iter(tables), None)
    if given.others is not None and table is None:
        table = "--label-pattern"
    sentence = given.names.sentence
    splits = given.splits
    found = None
    if table is not None:
        found = label_all(listing, given)
        skipped += found.skipped
        warnings += found.warnings
        sentence = found.sentence
        if found.skipped and not found.classes and len(files):
            raise UserError(
                f"No row of {table} names an image of {root}: it has names such as "
                f"{found.skipped[0][0]!r:.200}, and the folder has "
                f"{_find_alike(found.skipped[0][0], files.names())}"
            )
        rows = _sort_by_table(files.names(), splits, found, skipped, table)
    else:
        splits = find_splits(listing, has_table=False, options=options)
        rows = _sort_by_folder(files.names(), splits, skipped)
        warnings += filter(None, [given.names.warning, *given.warnings])
    columns, classes = _number_classes(rows, given.names)
    places, labels = columns["train"]
    if not table:
        chosen = places[labels > 0]
        _check_class_folders(
            root,
            listing,
            splits,
            lambda: (file.name for file in files.take(chosen)),
            skipped,
            options,
        )
    names = _name_classes([classes[k] for k in np.unique(labels) if k], warnings)
    not_trained = [name for name, kind in splits.items() if kind in ("test", "validation")]
    _check_two_classes(root, names, table, skipped, listing, not_trained, options)
    class_names = tuple(sorted(names.values()))
    remedy = f"empty these cells of {table}" if table else "rename its folder to 'unlabeled'"
    if options.label_pattern:
        remedy = "change --label-pattern"
    warnings += [
        f"{name!r} counts as a class: if it means that there is no label, {remedy}."
        for name in class_names
        if may_mean_unlabeled(name)
    ]
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
    of_files, origin = read_sources(listing, given, found)
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
        table=sentence,
        sources=sources,
        proposal="" if of_files else _propose_sources(train),
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
    return propose_folders(of_labeled, train.labels[is_labeled]) or propose_pattern(first) or ""


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


def _check_two_classes(
    root: pathlib.Path,
    names: Mapping[str, str],
    table: str | None,
    skipped: list[SkippedFile],
    listing: Listing,
    held_out: Sequence[str],
    options: FolderOptions,
) -> None:
    """Raises a UserError, with what to do, if fewer than two classes have a labeled image."""
    if len(names) >= 2:
        return
    what = f"only the class {min(names.values())!r}" if names else "no labeled image"
    needed = f"{root} has {what}, but at least two classes are needed"
    if table:
        write = f"write the classes of more images into {table}"
        if "*" in table:
            write = "label more of the images"
        if table == "--label-pattern":
            write = "change the pattern of --label-pattern"
        raise UserError(f"{needed}{describe_skipped(skipped)}: {write}.")
    if remedy := _find_remedy(root, listing, held_out, options):
        raise UserError(f"{needed}: {remedy}.")
    raise UserError(f"{needed}{describe_skipped(skipped)}: {_REMEDY}.")


def _find_remedy(
    root: pathlib.Path, listing: Listing, held_out: Sequence[str], options: FolderOptions
) -> str | None:
    """What to do with a folder without classes, by what lies in it, or None.

    Images in folders that are `held_out` carry no classes.
    """
    names = [
        name
        for name in itertools.islice(listing.files.names(), _NUM_TRIED)
        if name.split("/")[0] not in held_out
    ]
    if remedy := describe_names(root, names, options):
        return remedy
    for endings, remedy in _TABLES.items():
        tables = [name for name in listing.others if name.lower().endswith(endings)]
        if top := [name for name in tables if "/" not in name]:
            return f"if {top[0]!r} has the labels, {remedy.format(shlex.quote(str(root / top[0])))}"
    return describe_packed(root, listing.others) or _describe_table_around(root)


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


def _check_class_folders(
    root: pathlib.Path,
    listing: Listing,
    splits: Mapping[str, str],
    list_labeled: Callable[[], Iterable[str]],
    skipped: Sequence[SkippedFile],
    options: FolderOptions,
) -> None:
    """Raises a UserError if a class folder has no image, or only images in subfolders.

    `list_labeled` returns the names of the labeled images. Those in subfolders are allowed if the
    user has said that these folders are classes.
    """
    bases = [name for name, kind in splits.items() if kind == "train"]
    depth = 1 if bases else 0
    with_images: set[str] = set()
    nested: dict[str, str] = {}
    for name in list_labeled():
        parts = name.split("/")
        folder = "/".join(parts[: depth + 1])
        if len(parts) == depth + 2 or options.layout == CLASSES:
            with_images.add(folder)
        else:
            nested.setdefault(folder, "/".join(parts[: depth + 2]))
    if only_nested := sorted(set(nested) - with_images):
        folder = only_nested[0]
        no_image = f"The class folder {folder!r} has no image of its own, only folders such as"
        if inner := describe_inner_folders(root, list_labeled(), depth, options):
            raise UserError(f"{no_image} {nested[folder]!r}: {inner}.")
        whole = _find_inner_root(root, listing)
        remedy = "pass the folder whose subfolders are the classes"
        if whole:
            remedy = f"pass {whole}, whose folders are then the classes"
        raise UserError(f"{no_image} {nested[folder]!r}: move the images up, or {remedy}.")
    if with_images and not bases and all(map(find_part, with_images)):
        held_out = [name for name, kind in splits.items() if kind != "train"]
        held_out += [name for name in with_images if find_part(name) != "train"]
        raise UserError(
            f"{root} has no labeled image, because there is no class folder in "
            f"{' or '.join(map(repr, sorted(with_images)))}: "
            f"{_find_remedy(root, listing, held_out, options) or _REMEDY}."
        )
    candidates = {name for name in listing.folders if name.count("/") == depth}
    if bases:
        candidates = {name for name in candidates if name.split("/")[0] in bases}
    candidates = {name for name in candidates if not means_unlabeled(name.split("/")[-1])}
    empty = sorted(candidates - with_images - splits.keys())
    if empty and with_images:
        raise UserError(
            f"The class {empty[0].split('/')[-1]!r} has no image in {root / empty[0]}"
            f"{describe_skipped(skipped, empty[0] + '/')}: add at least one, or move the "
            "folder elsewhere."
        )


def _find_inner_root(root: pathlib.Path, listing: Listing) -> str | None:
    """The folder that has all images, in at least two folders, shell-quoted, or None."""
    folders = {os.path.dirname(name) for name in listing.files.names()}
    common = os.path.commonpath(folders) if all(folders) else ""
    inner = {folder[len(common) :].count("/") for folder in folders}
    return shlex.quote(str(root / common)) if common and inner == {1} and len(folders) > 1 else None


def _name_classes(found: Iterable[str], warnings: list[str]) -> dict[str, str]:
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
    chosen = {folded: min(map(clean, names)) for folded, names in spellings.items()}
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
    labels: TableLabels,
    skipped: list[SkippedFile],
    table: str,
) -> Found:
    """Sorts by folder and class. Test and validation images may get their class from the folder.

    What a folder or a row of the table holds out is not trained on.
    """
    for place, file in enumerate(names):
        top, _, rest = file.partition("/")
        kind = splits.get(top, "train") if rest else "train"
        name = labels.classes.get(file, NO_CLASS_NAME)
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
            where = "without a label" if file in labels.classes else where
            skipped.append((file, f"a {kind} image {where}"))
