"""Sorts the files of a folder into training, validation and test images.

There are three layouts: `labels.csv`, else `labeled/<class>/…` or `train/<class>/…`, else class
folders. Each may have `unlabeled/…`, `test/<class>/…` and `val/<class>/…` beside it. Only
names decide, whatever their case and however their accents are composed. No image is opened here.
"""

import os
import pathlib
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from cls_jax.data.images.files import ImageFile, Listing, SkippedFile
from cls_jax.data.sources.label_table import (
    LABELS_CSV,
    NONE,
    NOTES,
    LabelRow,
    fold,
    order_rows,
    read_label_table,
)
from cls_jax.errors import UserError

NO_CLASS_NAME = ""  # Of unlabeled images.
# What folders are called → what they hold.
_SPLITS = {
    **dict.fromkeys(("labeled", "labelled", "train", "training"), "train"),
    **dict.fromkeys(("unlabeled", "unlabelled"), "unlabeled"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
}
_REMEDY = (
    "arrange the images as labeled/<class>/ and unlabeled/, as one folder with labels.csv beside "
    "it, or as one folder for each class (see docs/own_images.md)"
)
Row = tuple[ImageFile, str]  # A file and its class.
# From a row to the name of its file, "" if there is none, None if it could be several.
Finder = Callable[[LabelRow], str | None]


class Layout(NamedTuple):
    """The parts of a folder."""

    class_names: tuple[str, ...]  # Sorted.
    train: list[Row]  # Labeled before unlabeled, sorted by name within each.
    validation: list[Row]  # None is unlabeled.
    test: list[Row]  # None is unlabeled.
    skipped: list[SkippedFile]  # All other files, and why.
    warnings: list[str]  # One sentence each.


def read_layout(root: pathlib.Path, listing: Listing) -> Layout:
    """Finds out which layout a folder has, and sorts its files.

    Raises:
        UserError: if it has no layout, fewer than two classes, or a class without an image.
    """
    layout = Layout((), [], [], [], list(listing.skipped), [])
    if table := find_table(listing):
        layout.skipped[:] = [row for row in layout.skipped if row[0] != table]
        splits, classes = _read_classes(root / table, listing, layout)
        _sort_by_table(listing.files, splits, classes, layout)
    else:
        splits = _find_splits(listing, has_table=False)
        _sort_by_folder(listing.files, splits, layout)
        _check_class_folders(root, listing.folders, splits, layout)
    names = _name_classes(layout)
    if len(names) < 2:
        found = f"only the class {min(names.values())!r}" if names else "no labeled image"
        raise UserError(
            f"{root} has {found}, but at least two classes are needed"
            f"{describe_skipped(layout.skipped)}: {_REMEDY}."
        )
    train = [(file, names.get(fold(name), name)) for file, name in layout.train]
    train.sort(key=lambda row: (row[1] == NO_CLASS_NAME, row[0].name))
    return layout._replace(
        class_names=tuple(sorted(names.values())),
        train=train,
        validation=_keep_known(layout.validation, names, "validation", layout),
        test=_keep_known(layout.test, names, "test", layout),
    )


def _find_splits(listing: Listing, has_table: bool) -> dict[str, str]:
    """Folder → what it holds, a value of `_SPLITS`.

    Without a table, a folder called train or val that holds images itself is a class of that name:
    "valid" and "invalid" are classes, too. Of `labeled` and `train`, only the first has classes.
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


def _sort_by_folder(files: Iterable[ImageFile], splits: Mapping[str, str], layout: Layout) -> None:
    has_base = "train" in splits.values()
    parts = {"train": layout.train, "validation": layout.validation, "test": layout.test}
    for file in files:
        top, *rest = file.name.split("/")
        kind = splits.get(top) if rest else None
        if kind == "unlabeled":
            layout.train.append((file, NO_CLASS_NAME))
        elif kind and len(rest) >= 2:
            parts[kind].append((file, rest[0]))
        elif kind == "train" or (rest and has_base and not kind):
            where = next(name for name, kind in splits.items() if kind == "train")
            reason = "outside of a class folder" if kind else f"not in {where}, unlabeled or test"
            layout.skipped.append((file.name, reason))
        elif kind:
            layout.skipped.append((file.name, f"a {kind} image outside of a class folder"))
        elif rest:
            layout.train.append((file, top))
        else:
            layout.skipped.append((file.name, "outside of a class folder"))


def _check_class_folders(
    root: pathlib.Path, folders: Sequence[str], splits: Mapping[str, str], layout: Layout
) -> None:
    """Raises a UserError if a class folder has no image, or only images in subfolders."""
    bases = [name for name, kind in splits.items() if kind == "train"]
    depth = 1 if bases else 0
    own: set[str] = set()
    nested: dict[str, str] = {}
    for file, name in layout.train:
        parts = file.name.split("/")
        if name == NO_CLASS_NAME:
            continue
        folder = "/".join(parts[: depth + 1])
        if len(parts) == depth + 2:
            own.add(folder)
        else:
            nested.setdefault(folder, "/".join(parts[: depth + 2]))
    if only_nested := sorted(set(nested) - own):
        folder = only_nested[0]
        raise UserError(
            f"The class folder {folder!r} has no image of its own, only folders such as "
            f"{nested[folder]!r}: move the images up, or name the folder whose folders are the "
            "classes."
        )
    if own and not bases and all(fold(name) in _SPLITS for name in own):
        raise UserError(
            f"{root} has no labeled image, because there is no class folder in "
            f"{' or '.join(map(repr, sorted(own)))}: {_REMEDY}."
        )
    candidates = {name for name in folders if name.count("/") == depth}
    if bases:
        candidates = {name for name in candidates if name.split("/")[0] in bases}
    empty = sorted(candidates - own - splits.keys())
    if empty and own:
        raise UserError(
            f"The class {empty[0].split('/')[-1]!r} has no image in {root / empty[0]}"
            f"{describe_skipped(layout.skipped, empty[0] + '/')}: add at least one, or move the "
            "folder elsewhere."
        )


def describe_skipped(skipped: Iterable[SkippedFile], prefix: str = "") -> str:
    """The reason for which most files were skipped, in parentheses."""
    rows = [(name, reason) for name, reason in skipped if name.startswith(prefix)]
    if not rows:
        return ""
    reason, count = Counter(reason for _, reason in rows).most_common(1)[0]
    example = min(name for name, why in rows if why == reason)
    return f" ({count:,} file(s) were skipped, such as {example!r:.100}: {reason})"


def _name_classes(layout: Layout) -> dict[str, str]:
    """Folded name → name, of all classes of training images."""
    spellings: dict[str, set[str]] = {}
    for name in {name for _, name in layout.train} - {NO_CLASS_NAME}:
        spellings.setdefault(fold(name), set()).add(name)
    for names in spellings.values():
        different = {unicodedata.normalize("NFC", name) for name in names}
        if len(different) > 1:
            layout.warnings.append(
                f"{' and '.join(map(repr, sorted(different)))} count as one class: rename one of "
                "them if they are not."
            )
    return {folded: min(names) for folded, names in spellings.items()}


def _keep_known(
    rows: Iterable[Row], names: Mapping[str, str], split: str, layout: Layout
) -> list[Row]:
    """Rows of a split whose class has training images. The others are skipped."""
    known, foreign = [], set()
    for file, name in rows:
        if fold(name) in names:
            known.append((file, names[fold(name)]))
        else:
            foreign.add(name)
            layout.skipped.append((file.name, f"a {split} image of a class without labeled images"))
    if foreign:
        layout.warnings.append(
            f"{split}/ has {len(foreign)} class(es) that no labeled image has, such as "
            f"{min(foreign)!r}: their images are left out."
        )
    return sorted(known)


def _sort_by_table(
    files: Iterable[ImageFile],
    splits: Mapping[str, str],
    classes: Mapping[str, str | None],
    layout: Layout,
) -> None:
    """Sorts by folder and by class. A test or validation image may have it from its folder only."""
    parts = {"validation": layout.validation, "test": layout.test}
    for file in files:
        top, *rest = file.name.split("/")
        kind = splits.get(top, "train") if rest else "train"
        name = classes.get(file.name, NO_CLASS_NAME)
        if name is None:
            layout.skipped.append((file.name, f"of no class, as {LABELS_CSV} says"))
        elif kind not in parts:
            layout.train.append((file, name))
        elif name or len(rest) >= 2:
            parts[kind].append((file, name or rest[0]))
        else:
            layout.skipped.append((file.name, f"a {kind} image outside of a class folder"))


def label_by_folder(
    listing: Listing, rows: Sequence[LabelRow] = ()
) -> tuple[dict[str, str], dict[str, str]]:
    """What the folders say where there is a table with these rows, in the order of the file.

    A table that `cls-jax label` has begun, or is about to, adds to what the folders say without
    one. Any other table is all there is, but for labeled/<class>/.

    Returns:
        Folder → what it holds, a value of `_SPLITS`, and image → class.
    """
    names = [file.name for file in listing.files]
    if not rows or rows[0].decision:
        splits = _find_splits(listing, has_table=False)
        if "train" in splits.values():
            return splits, {
                name: name.split("/")[1]
                for name in names
                if name.count("/") >= 2 and splits.get(name.split("/")[0]) == "train"
            }
        tops = {name.split("/")[0] for name in names if name.count("/") == 1} - splits.keys()
        if len({fold(top) for top in tops}) >= 2 and not all(fold(top) in _SPLITS for top in tops):
            return splits, {
                name: name.split("/")[0] for name in names if name.split("/")[0] in tops
            }
    bases = ("labeled/", "labelled/")
    return _find_splits(listing, has_table=True), {
        name: name.split("/")[1]
        for name in names
        if name.count("/") >= 2 and fold(name).startswith(bases)
    }


def list_labelable(listing: Listing, splits: Mapping[str, str]) -> list[str]:
    """The images that a person may label, where folders hold `splits`: no test images.

    Names that are not Unicode cannot be written to a table and are left out, and so are validation
    images.
    """
    kinds = {name for name, kind in splits.items() if kind in ("test", "validation")}
    return [
        file.name
        for file in listing.files
        if not ("/" in file.name and file.name.split("/")[0] in kinds)
        if not any("\ud800" <= character <= "\udfff" for character in file.name)
    ]


def sort_by_label(root: pathlib.Path, listing: Listing) -> tuple[list[str], list[str]]:
    """The images that a person may label, without and with a class. None needs to have one.

    Those of no class are left out. Raises a UserError if labels.csv cannot be read.
    """
    if table := find_table(listing):
        nothing = Layout((), [], [], [], [], [])
        splits, classes = _read_classes(root / table, listing, nothing)
    else:
        splits, by_folder = label_by_folder(listing)
        classes = dict(by_folder)
    found = [(name, classes.get(name, "")) for name in list_labelable(listing, splits)]
    return [name for name, label in found if label == ""], [name for name, label in found if label]


def find_table(listing: Listing) -> str | None:
    """The name of the table of labels, whatever its case. None if there is none."""
    return next((name for name, _ in listing.skipped if fold(name) == LABELS_CSV), None)


def _read_classes(
    path: pathlib.Path, listing: Listing, layout: Layout
) -> tuple[dict[str, str], dict[str, str | None]]:
    """Reads the table beside the folders. The last row of a file counts.

    Rows that name no file, or could name several, are skipped, with a warning.

    Returns:
        Folder → what it holds, and file → class, NO_CLASS_NAME, or None for an image of no class.

    Raises:
        UserError: if it cannot be read or lacks one of the two columns.
    """
    find = index_files(file.name for file in listing.files)
    rows = read_label_table(path, lambda cell: find(LabelRow(cell, "")) != "")
    splits, by_folder = label_by_folder(listing, rows)
    classes: dict[str, str | None] = {}
    conflicting, unmatched = set(), dict[str, list[str]]()
    for row in order_rows(row for row in rows if row.decision not in NOTES):
        name, label = find(row), row.label.strip()
        if not name:
            reason = "not in the folder" if name == "" else "it could be several images"
            unmatched.setdefault(reason, []).append(row.file)
            continue
        before = classes.get(name)
        if label and before and fold(before) != fold(label) and not row.time:
            conflicting.add(name)
        classes[name] = None if row.decision == NONE else label
    for reason, names in unmatched.items():
        layout.skipped.extend((name, f"in {path.name}, but {reason}") for name in names)
        what = "name no image" if reason == "not in the folder" else "could mean several images"
        layout.warnings.append(
            f"{len(names):,} row(s) of {path.name} {what} of the folder, such as "
            f"{names[0]!r:.200}, and are left out."
        )
    if conflicting:
        layout.warnings.append(
            f"{len(conflicting):,} image(s), such as {min(conflicting)!r}, have different labels "
            f"in {path.name}: the last one counts."
        )
    rest = [name for name in by_folder if name not in classes]
    if rest and "train" not in splits.values():
        layout.warnings.append(
            f"{len(rest):,} image(s) without a row in {path.name}, such as {rest[0]!r}, have the "
            "name of their folder as label: move those without a label to unlabeled/."
        )
    return splits, by_folder | classes


def index_files(names: Iterable[str]) -> Finder:
    """How to find the files that the rows of a table name.

    A name may be relative to the table's folder, or to the one folder of images beside it, with or
    without extension, and in any case. The exact name comes first, then the one with accents
    composed otherwise, and then the others. Rows of `cls-jax label` have a file's whole name: if
    the file is gone, they never mean another one.
    """
    names = list(names)
    tops = {name.split("/")[0] for name in names if "/" in name}
    tops -= {top for top in tops if _SPLITS.get(fold(top), "train") != "train"}
    prefix = f"{fold(tops.pop())}/" if len(tops) == 1 else ""
    exact, stages = set(names), [dict[str, str | None]() for _ in range(4)]
    for name in names:
        folded = fold(name)
        inner = folded.removeprefix(prefix)
        short = {folded, inner, folded.split("/")[-1]}
        loose = short | {os.path.splitext(key)[0] for key in short}
        for stage, keys in zip(
            stages, ([unicodedata.normalize("NFC", name)], [folded], [inner], loose), strict=True
        ):
            for key in keys:
                stage[key] = name if stage.get(key, name) == name else None

    def find(row: LabelRow) -> str | None:
        cleaned = row.file.strip().replace("\\", "/").removeprefix("./")
        spellings = (row.file,) if row.decision else (row.file, cleaned)
        if known := next((name for name in spellings if name in exact), None):
            return known
        composed = (unicodedata.normalize("NFC", name) for name in spellings)
        keys = [(stages[0], key) for key in composed]
        if not row.decision:
            keys += [(stage, fold(cleaned)) for stage in stages[1:]]
        return next((stage[key] for stage, key in keys if key in stage), "")

    return find
