"""What a label table says about each file, with a sentence about every row that is left out."""

from cls_jax.io import write_count
from cls_jax.photos.folder.label_table import (
    NONE,
    NOTES,
    SKIP,
    LabelTable,
    TableFormat,
)
from cls_jax.photos.folder.log import fold
from cls_jax.photos.folder.reading import Reading


def collect_labels(table: LabelTable) -> Reading:
    """The label of each file, by `fold`.

    Rows that name no file, or could name several, are skipped, with a warning.
    """
    shown = table.format.name
    rows = [row for row in table.rows if row.decision not in NOTES]
    marks = fold(table.rows, find=table.find).files
    unmatched = dict[str, list[str]]()
    for row in rows:
        if not (name := table.find(row)):
            reason = "not in the folder" if name == "" else "it could be several images"
            unmatched.setdefault(reason, []).append(row.file)
    classes = {
        name: None if mark.decision in (NONE, SKIP) else "".join(mark.spelled)
        for name, mark in marks.items()
    }
    parts = {name: mark.part for name, mark in marks.items() if mark.part}
    sources = {name: mark.source for name, mark in marks.items() if mark.source}
    conflicting = [name for name, mark in marks.items() if mark.is_contradicted]
    moved = [name for name, mark in marks.items() if mark.has_moved]
    skipped = []
    warnings = []
    for reason, cells in unmatched.items():
        skipped += [(name, f"in {shown}, but {reason}") for name in cells]
        rows_are = write_count(len(cells), f"row of {shown} is", f"rows of {shown} are")
        what = "no image" if reason == "not in the folder" else "more than one image"
        warnings.append(
            f"{rows_are} left out, such as {cells[0]!r:.200}, which fits {what} of the folder."
        )
    if conflicting:
        warnings.append(
            f"{write_count(len(conflicting), 'image has', 'images have')} different labels in "
            f"{shown}, such as {min(conflicting)!r}: the last one counts."
        )
    if moved:
        warnings.append(
            f"{write_count(len(moved), 'image is', 'images are')} held out, such as "
            f"{min(moved)!r}, since {shown} names several parts."
        )
    if table.missing:
        listed = ", ".join(map(repr, sorted(table.missing)[:3]))
        rows_say = write_count(
            sum(table.missing.values()),
            f"row of {shown} has no label, because it says",
            f"rows of {shown} have no label, because they say",
        )
        warnings.append(f"{rows_say} {listed}.")
    if table.format.one_hot and (num_empty := sum(not row.label for row in rows)):
        rows_have = write_count(num_empty, f"row of {shown} has", f"rows of {shown} have")
        warnings.append(f"{rows_have} no 1, and so no label.")
    if table.matches.dropped:
        warnings.append(
            f"The names in {shown} begin with {table.matches.dropped!r:.200}, which is not in "
            "the folder: they were looked up without it."
        )
    num_rows = len(rows)
    num_found = num_rows - sum(map(len, unmatched.values()))
    return Reading(
        shown,
        labels=classes,
        parts=parts,
        sources=sources,
        source_origin=_name_source_column(table.format) if sources else "",
        skipped=skipped,
        warnings=warnings,
        sentence=_describe_columns(table, num_found, num_rows),
        fault=table.fault,
    )


def _name_source_column(table_format: TableFormat) -> str:
    place = table_format.source
    assert place is not None, "rows have sources"
    return repr(table_format.header[place].strip() or f"column {place + 1}")


def _describe_columns(table: LabelTable, num_found: int, num_rows: int) -> str:
    """The sentence of a plan about a table's columns."""
    header = table.format.header
    text = f"{table.format.name}: {table.format.describe()}"
    kinds = sorted({row.part for row in table.rows} - {"", "train"})
    if kinds:
        columns = [header[place].strip() or f"column {place + 1}" for place in table.format.parts]
        text += f", {' and '.join(kinds)} images in {' and '.join(columns)}"
    return f"{text}; {num_found:,} of {num_rows:,} rows found."
