"""Rows of CSV that come back as they were, whatever stands in them."""

import csv
from collections.abc import Iterable, Sequence
from typing import Any, TextIO


def write_rows(file: TextIO, rows: Iterable[Sequence[Any]]) -> None:
    """Appends rows; those that need it are quoted.

    Python's writer quotes what holds a line feed, but before 3.13 not always a carriage return,
    which its reader then takes for the end of the row.
    """
    plain = csv.writer(file, lineterminator="\n")
    quoted = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for row in rows:
        has_return = any(isinstance(cell, str) and "\r" in cell for cell in row)
        (quoted if has_return else plain).writerow(row)
