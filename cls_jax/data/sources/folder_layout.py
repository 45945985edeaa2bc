"""Sorts the files of a folder into training, validation and test images.

There are three layouts: `labels.csv`, else `labeled/<class>/…` or `train/<class>/…`, else class
folders. Each may have `unlabeled/…`, `test/<class>/…` and `val/<class>/…` beside it. Only
names decide, whatever their case and however their accents are composed. No image is opened here.
"""

import os
import pathlib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cls_jax.data.images.files import ImageFile, Listing, SkippedFile
from cls_jax.data.sources.label_table import LABELS_CSV, NONE, LabelRow, fold, read_label_table
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
    table = find_table(listing)
    splits = _find_splits(listing, has_table=table is not None)
    if table:
        layout.skipped[:] = [row for row in layout.skipped if row[0] != table]
        classes = _read_table(root / table, listing.files, layout)
        _sort_by_table(listing.files, splits, classes, layout)
    else:
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
    """Sorts by folder and by what the table says.

    A file without a row may have its label from a class folder in labeled/ or in a test folder.
    """
    parts = {"validation": layout.validation, "test": layout.test}
    for file in files:
        top, *rest = file.name.split("/")
        kind = splits.get(top, "train") if rest else "train"
        name = classes.get(file.name, get_folder_label(file.name))
        if name is None:
            layout.skipped.append((file.name, f"of no class, as {LABELS_CSV} says"))
        elif kind not in parts:
            layout.train.append((file, name))
        elif name or len(rest) >= 2:
            parts[kind].append((file, name or rest[0]))
        else:
            layout.skipped.append((file.name, f"a {kind} image outside of a class folder"))


def get_folder_label(name: str) -> str:
    """The class of an image in labeled/<class>/, NO_CLASS_NAME for all others."""
    top, *rest = name.split("/")
    return rest[0] if fold(top) in ("labeled", "labelled") and len(rest) >= 2 else NO_CLASS_NAME


def list_labelable(listing: Listing) -> list[ImageFile]:
    """The images that a person may label: all except test and validation images.

    Names that are not Unicode cannot be written to a table and are left out.
    """
    splits = _find_splits(listing, has_table=True)
    kinds = {name for name, kind in splits.items() if kind in ("test", "validation")}
    return [
        file
        for file in listing.files
        if not ("/" in file.name and file.name.split("/")[0] in kinds)
        if not any("\ud800" <= character <= "\udfff" for character in file.name)
    ]


def find_table(listing: Listing) -> str | None:
    """The name of the table of labels, whatever its case. None if there is none."""
    return next((name for name, _ in listing.skipped if fold(name) == LABELS_CSV), None)


def _read_table(
    path: pathlib.Path, files: Sequence[ImageFile], layout: Layout
) -> dict[str, str | None]:
    """Reads file names and classes. The last row of a file counts.

    Rows that name no file are skipped, with a warning.

    Returns:
        File name → class, NO_CLASS_NAME, or None for an image of no class.

    Raises:
        UserError: if it cannot be read or lacks one of the two columns.
    """
    matched, unknown = match_rows(read_label_table(path), [file.name for file in files])
    classes: dict[str, str | None] = {}
    conflicting = set()
    for name, row in matched:
        label = row.label.strip()
        before = classes.get(name)
        if label and before and fold(before) != fold(label) and not row.decision:
            conflicting.add(name)
        classes[name] = None if row.decision == NONE else label
    layout.skipped.extend((name, f"in {path.name}, but not in the folder") for name in unknown)
    if unknown:
        layout.warnings.append(
            f"{len(unknown):,} row(s) of {path.name} name no image of the folder, such as "
            f"{unknown[0]!r:.200}, and are left out."
        )
    if conflicting:
        layout.warnings.append(
            f"{len(conflicting):,} image(s), such as {min(conflicting)!r}, have different labels "
            f"in {path.name}: the last one counts."
        )
    return classes


def match_rows(
    rows: Iterable[LabelRow], names: Sequence[str]
) -> tuple[list[tuple[str, LabelRow]], list[str]]:
    """Finds the files that the rows of a table name.

    Names are relative to the table's folder, or to the one folder of images beside it, with or
    without extension.

    Returns:
        The rows that name a file, each with its name, and what the others have instead of one.
    """
    exact, loose = _index_names(names)
    matched, unknown = [], []
    for row in rows:
        key = row.file.strip().replace("\\", "/").removeprefix("./")
        name = (
            exact.get(unicodedata.normalize("NFC", row.file))
            or exact.get(unicodedata.normalize("NFC", key))
            or loose.get(fold(key))
        )
        if name is None:
            unknown.append(row.file)
        else:
            matched.append((name, row))
    return matched, unknown


def _index_names(names: Sequence[str]) -> tuple[dict[str, str], dict[str, str | None]]:
    """How a table may name files.

    Returns:
        Exact names → files, and folded names, with and without folder and extension, → files, or
        None for a name that several files share.
    """
    tops = {name.split("/")[0] for name in names if "/" in name}
    tops -= {top for top in tops if _SPLITS.get(fold(top), "train") != "train"}
    prefix = f"{tops.pop()}/" if len(tops) == 1 else ""
    exact: dict[str, str] = {}
    loose: dict[str, set[str]] = {}
    for name in names:
        for key in (name, name.removeprefix(prefix)):
            exact.setdefault(unicodedata.normalize("NFC", key), name)
        folded = fold(name)
        for key in {folded, folded.removeprefix(fold(prefix)), folded.split("/")[-1]}:
            for variant in (key, os.path.splitext(key)[0]):
                loose.setdefault(variant, set()).add(name)
    return exact, {
        key: next(iter(found)) if len(found) == 1 else None for key, found in loose.items()
    }
