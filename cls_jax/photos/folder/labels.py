"""What a label table says about each file, with a sentence about every row that is left out."""

import pathlib
from typing import NamedTuple

from cls_jax.io import write_count
from cls_jax.photos.folder.label_table import NONE, NOTES, LabelTable, order_rows
from cls_jax.photos.folder.names import fold_class
from cls_jax.photos.images.files import SkippedFile

NO_CLASS_NAME = ""  # Of unlabeled images.


class TableLabels(NamedTuple):
    """The labels of a table by file."""

    classes: dict[str, str | None]  # Class, NO_CLASS_NAME, or None for an image of no class.
    parts: dict[str, str]  # "train", "unlabeled", "test" or "validation", of files with a mark.
    skipped: list[SkippedFile]  # Rows without a file, by their cells.
    warnings: list[str]
    sentence: str  # Which columns were read.


def collect_labels(path: pathlib.Path, table: LabelTable) -> TableLabels:
    """The label of each file. The last row of a file counts.

    Rows that name no file, or could name several, are skipped, with a warning.
    """
    rows = [row for row in table.rows if row.decision not in NOTES]
    classes: dict[str, str | None] = {}
    parts: dict[str, str] = {}
    conflicting = set()
    moved = set()
    unmatched = dict[str, list[str]]()
    for row in order_rows(rows):
        name = table.find(row)
        label = row.label
        if not name:
            reason = "not in the folder" if name == "" else "it could be several images"
            unmatched.setdefault(reason, []).append(row.file)
            continue
        before = classes.get(name)
        if label and before and fold_class(before) != fold_class(label) and not row.time:
            conflicting.add(name)
        classes[name] = None if row.decision == NONE else label
        if row.part:
            # What one row holds out is never trained on.
            known = parts.get(name, row.part)
            if known != row.part:
                moved.add(name)
            parts[name] = known if known in ("test", "validation") else row.part
    skipped = []
    warnings = []
    for reason, cells in unmatched.items():
        skipped += [(name, f"in {path.name}, but {reason}") for name in cells]
        rows_are = write_count(len(cells), f"row of {path.name} is", f"rows of {path.name} are")
        what = "no image" if reason == "not in the folder" else "more than one image"
        warnings.append(
            f"{rows_are} left out, such as {cells[0]!r:.200}, which fits {what} of the folder."
        )
    if conflicting:
        warnings.append(
            f"{write_count(len(conflicting), 'image has', 'images have')} different labels in "
            f"{path.name}, such as {min(conflicting)!r}: the last one counts."
        )
    if moved:
        warnings.append(
            f"{write_count(len(moved), 'image is', 'images are')} held out, such as "
            f"{min(moved)!r}, since {path.name} names several parts."
        )
    if table.missing:
        listed = ", ".join(map(repr, sorted(table.missing)[:3]))
        rows_say = write_count(
            sum(table.missing.values()),
            f"row of {path.name} has no label, because it says",
            f"rows of {path.name} have no label, because they say",
        )
        warnings.append(f"{rows_say} {listed}.")
    if table.matches.dropped:
        warnings.append(
            f"The names in {path.name} begin with {table.matches.dropped!r:.200}, which is not in "
            "the folder: they were looked up without it."
        )
    num_rows = len(rows)
    num_found = num_rows - sum(map(len, unmatched.values()))
    return TableLabels(
        classes,
        parts,
        skipped,
        warnings,
        _describe_columns(path.name, table, num_found, num_rows),
    )


def _describe_columns(name: str, table: LabelTable, num_found: int, num_rows: int) -> str:
    """The sentence of a plan about a table's columns."""
    header, places, parts = table.format.header, table.format.places, table.format.parts

    def show(place: int) -> str:
        return header[place].strip() or f"column {place + 1}"

    text = f"{name}: files in {show(places[0])}, classes in {show(places[1])}"
    kinds = sorted({row.part for row in table.rows} - {"", "train"})
    if kinds:
        text += f", {' and '.join(kinds)} images in {' and '.join(map(show, parts))}"
    return f"{text}; {num_found:,} of {num_rows:,} rows found."
