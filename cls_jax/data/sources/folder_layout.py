"""Sorts the files of a folder into training images, with or without a class, and test images.

There are three layouts: `labels.csv`, else `labeled/<class>/…`, else class folders, directly or in
`train/`. Each may have `unlabeled/…` and `test/<class>/…` beside it. Names alone decide; no image
is opened here.
"""

import csv
import io
import pathlib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cls_jax.data.images.index import ImageFile, Listing, SkippedFile
from cls_jax.errors import UserError
from cls_jax.io import describe_error, read_bytes

LABELS_CSV = "labels.csv"
_LONGEST_CLASS = 255  # As the name of a folder.
_MAX_CSV_BYTES = 2**28  # Some five million rows.
NO_CLASS_NAME = ""  # Of unlabeled images.
_UNLABELED_FOLDER, _TEST_FOLDER = "unlabeled", "test"
_REMEDY = (
    "arrange the images as labeled/<class>/ and unlabeled/, as one folder with labels.csv beside "
    "it, or as one folder for each class (see docs/own_images.md)"
)
Row = tuple[ImageFile, str]


class Layout(NamedTuple):
    """The parts of a folder.

    Attributes:
        class_names: sorted.
        train: files and their classes, labeled before unlabeled, sorted by name within each.
        test: files and their classes; none is unlabeled.
        skipped: all other files, and why.
        warnings: one sentence each.
    """

    class_names: tuple[str, ...]
    train: list[Row]
    test: list[Row]
    skipped: list[SkippedFile]
    warnings: list[str]


def read_layout(root: pathlib.Path, listing: Listing) -> Layout:
    """Finds out which layout a folder has, and sorts its files.

    Raises:
        UserError: if it has no layout, fewer than two classes, or a class without an image.
    """
    layout = Layout((), [], [], list(listing.skipped), [])
    has_csv = (root / LABELS_CSV).is_file()
    if has_csv and not (root / LABELS_CSV).resolve().is_relative_to(root.resolve()):
        raise UserError(
            f"{root / LABELS_CSV} leads out of the folder: replace the link by the file."
        )
    if has_csv:
        layout.skipped[:] = [row for row in layout.skipped if row[0] != LABELS_CSV]
    others = _take_common_folders(listing.files, layout)
    if has_csv:
        classes = _read_csv(root / LABELS_CSV, others, layout)
        layout.train.extend((file, classes.get(file.name, NO_CLASS_NAME)) for file in others)
        names = set(classes.values())
    else:
        base = _find_base(listing.folders)
        names = _take_class_folders(base, others, layout)
        empty = _find_class_folders(base, listing.folders) - names
        if empty and names:
            raise UserError(
                f"The class {min(empty)!r} has no image in {root / base / min(empty)}: add at "
                "least one, or remove the folder."
            )
    if len(names) < 2:
        found = f"only the class {min(names)!r}" if names else "no labeled image"
        raise UserError(f"{root} has {found}, but at least two classes are needed: {_REMEDY}.")
    _drop_foreign_tests(names, layout)
    layout.train.sort(key=lambda row: (row[1] == NO_CLASS_NAME, row[0].name))
    layout.test.sort()
    return layout._replace(class_names=tuple(sorted(names)))


def _take_common_folders(files: Iterable[ImageFile], layout: Layout) -> list[ImageFile]:
    """Sorts `unlabeled/` and `test/`, which every layout may have; returns the other files."""
    others = []
    for file in files:
        top, *rest = file.name.split("/")
        if top == _UNLABELED_FOLDER and rest:
            layout.train.append((file, NO_CLASS_NAME))
        elif top == _TEST_FOLDER and len(rest) >= 2:
            layout.test.append((file, rest[0]))
        elif top == _TEST_FOLDER and rest:
            layout.skipped.append((file.name, "a test image outside of a class folder"))
        else:
            others.append(file)
    return others


def _take_class_folders(base: str, files: Iterable[ImageFile], layout: Layout) -> set[str]:
    """Sorts `<base>/<class>/…`; returns the classes."""
    depth = 1 if base else 0
    names = set()
    for file in files:
        parts = file.name.split("/")
        if base and parts[0] != base:
            layout.skipped.append((file.name, f"not in {base}, {_UNLABELED_FOLDER} or test"))
        elif len(parts) < depth + 2:
            layout.skipped.append((file.name, "outside of a class folder"))
        else:
            layout.train.append((file, parts[depth]))
            names.add(parts[depth])
    return names


def _find_base(folders: Iterable[str]) -> str:
    """The folder of class folders. If "train" itself holds images, it is a class."""
    tops = {name.split("/")[0] for name in folders if "/" in name}
    return next((name for name in ("labeled", "train") if name in tops), "")


def _find_class_folders(base: str, folders: Iterable[str]) -> set[str]:
    prefix = f"{base}/" if base else ""
    within = {name.removeprefix(prefix) for name in folders if name.startswith(prefix)}
    reserved = set() if base else {_UNLABELED_FOLDER, _TEST_FOLDER}
    return {name for name in within if "/" not in name} - reserved


def _drop_foreign_tests(names: set[str], layout: Layout) -> None:
    foreign = sorted({name for _, name in layout.test} - names)
    if foreign:
        layout.skipped.extend(
            (file.name, "a test image of a class without labeled images")
            for file, name in layout.test
            if name in foreign
        )
        layout.test[:] = [row for row in layout.test if row[1] in names]
        layout.warnings.append(
            f"{_TEST_FOLDER}/ has {len(foreign)} class(es) that no labeled image has, such as "
            f"{foreign[0]!r}: their images are left out."
        )


def _read_csv(path: pathlib.Path, files: Sequence[ImageFile], layout: Layout) -> dict[str, str]:
    """Reads file names and classes; rows that name no file are skipped, with a warning.

    Names are relative to the table's folder, or to the one folder of images beside it.

    Returns:
        File name → class.

    Raises:
        UserError: if it cannot be read or lacks one of the two columns.
    """
    known = {_normalize(file.name): file.name for file in files}
    tops = {file.name.split("/")[0] for file in files if "/" in file.name}
    prefix = f"{_normalize(tops.pop())}/" if len(tops) == 1 else ""
    labels: dict[str, set[str]] = {}
    num_rows: Counter[str] = Counter()
    unknown = []
    for written, label in _read_rows(path):
        key = _normalize(written.strip().removeprefix("./"))
        name = known.get(key) or known.get(prefix + key)
        if name is None:
            unknown.append(written)
        elif label.strip():
            labels.setdefault(name, set()).add(label.strip())
            num_rows[name] += 1
    conflicting = {name for name, given in labels.items() if len(given) > 1}
    num_repeated = sum(num_rows[name] > 1 for name in labels) - len(conflicting)
    layout.skipped.extend((name, f"in {LABELS_CSV}, but not in the folder") for name in unknown)
    if unknown:
        layout.warnings.append(
            f"{len(unknown):,} row(s) of {LABELS_CSV} name no image of the folder, such as "
            f"{unknown[0]!r:.200}, and are left out."
        )
    if num_repeated:
        layout.warnings.append(
            f"{LABELS_CSV} lists {num_repeated:,} image(s) more than once, with the same label."
        )
    if conflicting:
        layout.warnings.append(
            f"{len(conflicting):,} image(s), such as {min(conflicting)!r}, have different labels "
            f"in {LABELS_CSV} and count as unlabeled."
        )
    return {name: min(given) for name, given in labels.items() if len(given) == 1}


def _read_rows(path: pathlib.Path) -> list[tuple[str, str]]:
    try:
        text = read_bytes(path, _MAX_CSV_BYTES).decode("utf-8-sig")
        header = text[: text.find("\n") + 1]
        delimiter = ";" if ";" in header and "," not in header else ","  # As Excel writes it.
        file = io.StringIO(text, newline="")
        rows = csv.DictReader(file, delimiter=delimiter, skipinitialspace=True)
        pairs = [(row["file"] or "", row["label"] or "") for row in rows]
        if any(len(label) > _LONGEST_CLASS for _, label in pairs):
            raise ValueError(f"a label has more than {_LONGEST_CLASS} characters")
        return pairs
    except (OSError, ValueError, csv.Error, KeyError) as error:
        raise UserError(
            f"{path} cannot be read as a table ({type(error).__name__}: {describe_error(error)}): "
            "make it a CSV file in UTF-8 whose first line is file,label."
        ) from error


def _normalize(name: str) -> str:
    """The same name for letters with accents, however a system composes them."""
    return unicodedata.normalize("NFC", name)
