"""Sorts the files of a folder into training, validation and test images.

There are three layouts: `labels.csv`, else `labeled/<class>/…` or `train/<class>/…`, else class
folders. Each may have `unlabeled/…`, `test/<class>/…` and `val/<class>/…` beside it. Only names
matter, regardless of case and composition of accents. No image is opened here.
"""

import array
import io
import json
import os
import pathlib
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cls_jax.errors import UserError
from cls_jax.photos.folder.label_table import (
    LABELS_CSV,
    NONE,
    NOTES,
    LabelRow,
    fold,
    order_rows,
    read_label_table,
)
from cls_jax.photos.images.files import ImageFile, ImageFiles, Listing, SkippedFile

NO_CLASS_NAME = ""  # Of unlabeled images.
# Name of a folder → its contents.
_SPLITS = {
    **dict.fromkeys(("labeled", "labelled", "train", "training"), "train"),
    **dict.fromkeys(("unlabeled", "unlabelled"), "unlabeled"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
}
_REMEDY = (
    "arrange the images as labeled/<class>/ and unlabeled/, as one folder with labels.csv beside "
    "it, or as one folder for each class (see cls-jax help own_images)"
)
_PARTS = ("train", "validation", "test")
_FOREIGN = -2  # A class without training images.
Row = tuple[ImageFile, str]  # A file and its class.
Found = Iterator[tuple[str, int, str]]  # The part, the index among all files, and the class.
# Row → the name of its file, "" if there is none, None if there could be several.
Finder = Callable[[LabelRow], str | None]


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


def read_layout(root: pathlib.Path, listing: Listing) -> Layout:
    """Sorts the files of a folder. Raises a UserError without two classes that all have images."""
    files = listing.files
    skipped = list(listing.skipped)
    warnings = list[str]()
    if table := find_table(listing):
        skipped[:] = [row for row in skipped if row[0] != table]
        splits, classes = _read_classes(root / table, listing, skipped, warnings)
        rows = _sort_by_table(files.names(), splits, classes, skipped)
    else:
        splits = _find_splits(listing, has_table=False)
        rows = _sort_by_folder(files.names(), splits, skipped)
    parts = {name: (array.array("q"), array.array("i")) for name in _PARTS}
    numbers = {NO_CLASS_NAME: 0}  # Class → its number in order of appearance.
    for part, place, name in rows:
        column = parts[part]
        column[0].append(place)
        column[1].append(numbers.setdefault(name, len(numbers)))
    columns = {name: [np.array(column) for column in part] for name, part in parts.items()}
    places, labels = columns["train"]
    if not table:
        labeled = files.take(places[labels > 0])
        _check_class_folders(root, listing.folders, splits, labeled, skipped)
    found = list(numbers)
    names = _name_classes([found[k] for k in np.unique(labels) if k], warnings)
    if len(names) < 2:
        what = f"only the class {min(names.values())!r}" if names else "no labeled image"
        raise UserError(
            f"{root} has {what}, but at least two classes are needed"
            f"{describe_skipped(skipped)}: {_REMEDY}."
        )
    class_names = tuple(sorted(names.values()))
    index = {folded: class_names.index(name) for folded, name in names.items()} | {"": -1}
    known = np.array([index.get(fold(name), _FOREIGN) for name in found], np.int32)
    columns["train"][1] = known[labels]
    order = np.argsort(columns["train"][1] == -1, kind="stable")
    columns["train"] = [column[order] for column in columns["train"]]
    for part in ("validation", "test"):
        places, labels = columns[part]
        is_foreign = known[labels] == _FOREIGN
        reason = f"a {part} image of a class without labeled images"
        skipped += [(file.name, reason) for file in files.take(places[is_foreign])]
        if foreign := sorted(found[k] for k in np.unique(labels[is_foreign])):
            warnings.append(
                f"{part}/ has {len(foreign)} class(es) that no labeled image has, such as "
                f"{foreign[0]!r}: their images are left out."
            )
        columns[part] = [places[~is_foreign], known[labels[~is_foreign]]]
    train, validation, test = (
        Rows(files, places, labels, class_names) for places, labels in columns.values()
    )
    return Layout(
        class_names=class_names,
        train=train,
        validation=validation,
        test=test,
        skipped=skipped,
        warnings=warnings,
    )


def pack_layout(layout: Layout) -> bytes:
    """A layout as bytes, for other processes: columns, and the rest as JSON."""
    buffer = io.BytesIO()
    files = layout.train.files
    rest = layout.class_names, layout.skipped, layout.warnings
    parts = zip(_PARTS, (layout.train, layout.validation, layout.test), strict=True)
    columns: Any = {part: np.stack([rows.places, rows.labels]) for part, rows in parts}
    np.savez(
        buffer,
        text=np.frombuffer(files.text, np.uint8),
        numbers=np.frombuffer(files.numbers, np.int64),
        rest=np.array(json.dumps(rest)),
        **columns,
    )
    return buffer.getvalue()


def unpack_layout(content: bytes) -> Layout:
    """Undoes `pack_layout`."""
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        names, skipped, warnings = json.loads(str(stored["rest"]))
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
    )


def _find_splits(listing: Listing, has_table: bool) -> dict[str, str]:
    """Folder → its contents, a value of `_SPLITS`.

    Without a table, a folder called train or val that directly contains images is a class, since
    "valid" and "invalid" may be classes. Of `labeled` and `train`, only the first has classes.
    """
    with_folders = {name.split("/")[0] for name in listing.folders if "/" in name}
    splits = {}
    for name in listing.folders:
        folded = fold(name)
        is_reserved = has_table or "label" in folded or folded == "test"
        if folded in _SPLITS and (is_reserved or name in with_folders):
            splits[name] = _SPLITS[folded]
    if any(fold(name).startswith("label") for name in splits):
        return {name: kind for name, kind in splits.items() if not fold(name).startswith("train")}
    return splits


def _sort_by_folder(
    names: Iterable[str], splits: Mapping[str, str], skipped: list[SkippedFile]
) -> Found:
    has_base = "train" in splits.values()
    for place, name in enumerate(names):
        top, *rest = name.split("/", 2)
        kind = splits.get(top) if rest else None
        if kind == "unlabeled":
            yield "train", place, NO_CLASS_NAME
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
    folders: Sequence[str],
    splits: Mapping[str, str],
    labeled: Iterable[ImageFile],
    skipped: Sequence[SkippedFile],
) -> None:
    """Raises a UserError if a class folder has no image, or only images in subfolders."""
    bases = [name for name, kind in splits.items() if kind == "train"]
    depth = 1 if bases else 0
    with_images: set[str] = set()
    nested: dict[str, str] = {}
    for file in labeled:
        parts = file.name.split("/")
        folder = "/".join(parts[: depth + 1])
        if len(parts) == depth + 2:
            with_images.add(folder)
        else:
            nested.setdefault(folder, "/".join(parts[: depth + 2]))
    if only_nested := sorted(set(nested) - with_images):
        folder = only_nested[0]
        raise UserError(
            f"The class folder {folder!r} has no image of its own, only folders such as "
            f"{nested[folder]!r}: move the images up, or pass the folder whose subfolders are the "
            "classes."
        )
    if with_images and not bases and all(fold(name) in _SPLITS for name in with_images):
        raise UserError(
            f"{root} has no labeled image, because there is no class folder in "
            f"{' or '.join(map(repr, sorted(with_images)))}: {_REMEDY}."
        )
    candidates = {name for name in folders if name.count("/") == depth}
    if bases:
        candidates = {name for name in candidates if name.split("/")[0] in bases}
    empty = sorted(candidates - with_images - splits.keys())
    if empty and with_images:
        raise UserError(
            f"The class {empty[0].split('/')[-1]!r} has no image in {root / empty[0]}"
            f"{describe_skipped(skipped, empty[0] + '/')}: add at least one, or move the "
            "folder elsewhere."
        )


def describe_skipped(skipped: Iterable[SkippedFile], prefix: str = "") -> str:
    """The most frequent reason for skipped files, in parentheses."""
    rows = [(name, reason) for name, reason in skipped if name.startswith(prefix)]
    if not rows:
        return ""
    reason, count = Counter(reason for _, reason in rows).most_common(1)[0]
    example = min(name for name, why in rows if why == reason)
    return f" ({count:,} file(s) were skipped, such as {example!r:.100}: {reason})"


def _name_classes(found: Iterable[str], warnings: list[str]) -> dict[str, str]:
    """Folded name → name, of all classes of training images."""
    spellings: dict[str, set[str]] = {}
    for name in found:
        spellings.setdefault(fold(name), set()).add(name)
    for names in spellings.values():
        different = {unicodedata.normalize("NFC", name) for name in names}
        if len(different) > 1:
            warnings.append(
                f"{' and '.join(map(repr, sorted(different)))} count as one class: rename one if "
                "they are different."
            )
    return {folded: min(names) for folded, names in spellings.items()}


def _sort_by_table(
    names: Iterable[str],
    splits: Mapping[str, str],
    classes: Mapping[str, str | None],
    skipped: list[SkippedFile],
) -> Found:
    """Sorts by folder and class. Test and validation images may get their class from the folder."""
    for place, file in enumerate(names):
        top, _, rest = file.partition("/")
        kind = splits.get(top, "train") if rest else "train"
        name = classes.get(file, NO_CLASS_NAME)
        if name is None:
            skipped.append((file, f"marked as no class in {LABELS_CSV}"))
        elif kind not in ("validation", "test"):
            yield "train", place, name
        elif name or "/" in rest:
            yield kind, place, name or rest.split("/")[0]
        else:
            skipped.append((file, f"a {kind} image outside of a class folder"))


def label_by_folder(
    listing: Listing, rows: Sequence[LabelRow] = ()
) -> tuple[dict[str, str], dict[str, str]]:
    """The labels by folder, given a table with these rows, in the order of the file.

    A table of `cls-jax label`, even an empty one, adds to the labels of all class folders. Any
    other table replaces them, except for labeled/<class>/. Returns folder → its contents, a value
    of `_SPLITS`, and image → class.
    """
    names = listing.files.names
    bases = set[str]()
    if not rows or rows[0].decision:
        splits = _find_splits(listing, has_table=False)
        bases = {name for name, kind in splits.items() if kind == "train"}
        tops = {name.split("/")[0] for name in names() if name.count("/") == 1} - splits.keys()
        folded = set(map(fold, tops))
        if not bases and len(folded) >= 2 and not folded <= _SPLITS.keys():
            return splits, {name: top for name in names() if (top := name.split("/")[0]) in tops}
    if not bases:
        splits = _find_splits(listing, has_table=True)
        bases = {name for name in listing.folders if fold(name) in ("labeled", "labelled")}
    return splits, {
        name: name.split("/")[1]
        for name in (names() if bases else ())
        if name.count("/") >= 2 and name.split("/")[0] in bases
    }


def list_labelable(listing: Listing, splits: Mapping[str, str]) -> list[str]:
    """The images that a person may label, given the contents of folders: no test or validation.

    Names that are not Unicode are left out, since a table cannot contain them.
    """
    kinds = {name for name, kind in splits.items() if kind in ("test", "validation")}
    return [
        file.name
        for file in listing.files
        if not ("/" in file.name and file.name.split("/")[0] in kinds)
        if not any("\ud800" <= character <= "\udfff" for character in file.name)
    ]


def sort_by_label(root: pathlib.Path, listing: Listing) -> tuple[list[str], list[str]]:
    """The images that a person may label, without and with a class.

    Those marked as no class are left out. Raises a UserError if labels.csv cannot be read.
    """
    if table := find_table(listing):
        splits, classes = _read_classes(root / table, listing, [], [])
    else:
        splits, by_folder = label_by_folder(listing)
        classes = dict(by_folder)
    found = [(name, classes.get(name, "")) for name in list_labelable(listing, splits)]
    return [name for name, label in found if label == ""], [name for name, label in found if label]


def find_table(listing: Listing) -> str | None:
    """The name of the label table, ignoring case. None if there is none."""
    return next((name for name, _ in listing.skipped if fold(name) == LABELS_CSV), None)


def _read_classes(
    path: pathlib.Path, listing: Listing, skipped: list[SkippedFile], warnings: list[str]
) -> tuple[dict[str, str], dict[str, str | None]]:
    """Reads the table beside the folders. The last row of a file counts.

    Rows that name no file, or could name several, are skipped, with a warning. Returns folder → its
    contents, and file → class, NO_CLASS_NAME, or None for an image of no class. Raises a UserError
    if it cannot be read or lacks one of the two columns.
    """

    def names_file(cell: str) -> bool:
        row = LabelRow(cell, "")
        return index_files(listing.files.names, [row])(row) != ""

    rows = read_label_table(path, names_file)
    find = index_files(listing.files.names, rows)
    splits, by_folder = label_by_folder(listing, rows)
    classes: dict[str, str | None] = {}
    conflicting = set()
    unmatched = dict[str, list[str]]()
    for row in order_rows(row for row in rows if row.decision not in NOTES):
        name = find(row)
        label = row.label.strip()
        if not name:
            reason = "not in the folder" if name == "" else "it could be several images"
            unmatched.setdefault(reason, []).append(row.file)
            continue
        before = classes.get(name)
        if label and before and fold(before) != fold(label) and not row.time:
            conflicting.add(name)
        classes[name] = None if row.decision == NONE else label
    for reason, cells in unmatched.items():
        skipped.extend((name, f"in {path.name}, but {reason}") for name in cells)
        what = "name no image" if reason == "not in the folder" else "could mean several images"
        warnings.append(
            f"{len(cells):,} row(s) of {path.name} {what} of the folder, such as "
            f"{cells[0]!r:.200}, and are left out."
        )
    if conflicting:
        warnings.append(
            f"{len(conflicting):,} image(s), such as {min(conflicting)!r}, have different labels "
            f"in {path.name}: the last one counts."
        )
    rest = [name for name in by_folder if name not in classes]
    if rest and "train" not in splits.values():
        warnings.append(
            f"{len(rest):,} image(s) without a row in {path.name}, such as {rest[0]!r}, are "
            "labeled by their folder: move those without a label to unlabeled/."
        )
    return splits, by_folder | classes


def index_files(
    names: Callable[[], Iterable[str]], rows: Iterable[LabelRow] | None = None
) -> Finder:
    """Returns a function that finds the file of a row.

    A name may be relative to the table's folder or to the one folder of images beside it, with or
    without extension, in any case. An exact match takes precedence, then one up to the composition
    of accents, then the others. Rows of `cls-jax label` match by the whole name only: if the file
    is gone, they match no other.

    `names` yields all names whenever it is called. The index is limited to names that `rows` can
    match, or has all for None.
    """
    rows = None if rows is None else list(rows)
    if rows is None:
        exact = set(names())
        wanted = None
    else:
        exact = {spelling for row in rows for spelling in _spell(row)}.intersection(names())
        rows = [row for row in rows if exact.isdisjoint(_spell(row))]
        wanted = {key for row in rows for _, key in _list_keys(row)}
    stages = [dict[str, str | None]() for _ in range(4)]
    if wanted or rows is None:
        tops = {name.split("/")[0] for name in names() if "/" in name}
        tops -= {top for top in tops if _SPLITS.get(fold(top), "train") != "train"}
        prefix = f"{fold(tops.pop())}/" if len(tops) == 1 else ""
        for name in names():
            folded = fold(name)
            inner = folded.removeprefix(prefix)
            short = {folded, inner, folded.split("/")[-1]}
            loose = short | {os.path.splitext(key)[0] for key in short}
            keys = [unicodedata.normalize("NFC", name)], [folded], [inner], loose
            for stage, found in zip(stages, keys, strict=True):
                for key in found if wanted is None else wanted.intersection(found):
                    stage[key] = name if stage.get(key, name) == name else None

    def find(row: LabelRow) -> str | None:
        if known := next((name for name in _spell(row) if name in exact), None):
            return known
        return next((stages[k][key] for k, key in _list_keys(row) if key in stages[k]), "")

    return find


def _spell(row: LabelRow) -> tuple[str, ...]:
    """The exact names that a row can match, the likeliest first."""
    cleaned = row.file.strip().replace("\\", "/").removeprefix("./")
    return (row.file,) if row.decision else (row.file, cleaned)


def _list_keys(row: LabelRow) -> list[tuple[int, str]]:
    """The keys to look up in each stage of `index_files` without an exact match."""
    keys = [(0, unicodedata.normalize("NFC", name)) for name in _spell(row)]
    folded = fold(_spell(row)[-1])
    return keys if row.decision else [*keys, *((stage, folded) for stage in (1, 2, 3))]
