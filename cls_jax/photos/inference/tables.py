"""Tables of predictions and suggestions, as CSV or Parquet."""

import csv
import importlib
import itertools
import os
import pathlib
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cls_jax.errors import UserError, explain_writing
from cls_jax.extras import check_extra
from cls_jax.io import PARTIAL, write_rows

Row = Mapping[str, Any]
_ROWS_PER_GROUP = 10_000
# With a byte-order mark: Excel takes names for Latin-1 without one.
_CSV_ENCODING = "utf-8-sig"

# Column → type of its values. Any value may be missing. For runs of two networks:
PREDICTION_COLUMNS = {
    "file": str,
    "label": str,
    "confidence": float,
    "weight": float,
    "network_1": str,
    "network_2": str,
    "agree": bool,
    "complementary_label": str,
    "top5": str,
    "error": str,
    "calibrated_confidence": float,
    "abstain": bool,
    "unknown": float,
    "foreign": bool,
}
_RUNNER_UP = {"second_label": str, "second_confidence": float}
ALL_COLUMNS = PREDICTION_COLUMNS | _RUNNER_UP
# For all other runs. `error` is left out of a table without errors.
WITHOUT_ERRORS = {"file": str, "label": str, "confidence": float, "unknown": float}
WITHOUT_ERRORS |= {"foreign": bool, **_RUNNER_UP}
SHORT_COLUMNS = {**WITHOUT_ERRORS, "error": str}
# Tables of predicted classes.
PREDICTION_TABLES = (PREDICTION_COLUMNS, ALL_COLUMNS, SHORT_COLUMNS, WITHOUT_ERRORS)
# Of predicted tags, with a column for each tag after the second one.
TAG_COLUMNS = {"file": str, "tags": str, "foreign": bool, "error": str}


def is_prediction_table(columns: Sequence[str]) -> bool:
    """Whether columns are those of a table of predictions, which a later one may replace.

    Those of earlier versions have no column `foreign`, or `unknown` in its place.
    """
    if columns[:2] == ["file", "tags"] and columns[-1] == "error":
        return columns[-2] in ("foreign", "unknown")
    tables = ([name for name in table if name != "foreign"] for table in PREDICTION_TABLES)
    return [name for name in columns if name != "foreign"] in tables


def check_path(
    path: pathlib.Path,
    is_earlier: Callable[[Sequence[str]], bool] | None = None,
    overwrite: bool = False,
) -> None:
    """Checks the name of a table before any work is done.

    An existing file must have the columns of an earlier table, so that only these are overwritten.
    Without `is_earlier`, or with `overwrite`, any file may be. Raises a UserError if it has another
    suffix, needs a package that is not installed, is a folder, or is some other file.
    """
    suffix = path.suffix.lower()
    if suffix not in _WRITERS:
        raise UserError(f"{path} does not end in .csv or .parquet: choose another --output.")
    if suffix == ".parquet":
        check_extra("parquet", f"Writing {path}", "choose an --output that ends in .csv")
    if path.is_dir():
        raise UserError(f"{path} is a folder: choose another --output.")
    if is_earlier is None or overwrite or not path.exists():
        return
    if not is_earlier(_read_columns(path) or []):
        raise UserError(
            f"{path} exists and is not an earlier table of this kind: choose another --output, "
            "or add --overwrite."
        )


def _read_columns(path: pathlib.Path) -> list[str] | None:
    """The names of a table's columns. None if it is not a table."""
    try:
        if path.suffix.lower() == ".parquet":
            return importlib.import_module("pyarrow.parquet").read_schema(path).names
        with path.open(encoding=_CSV_ENCODING, newline="") as file:
            return next(csv.reader([file.readline(10_000)]), None)
    except (OSError, ValueError, csv.Error, ImportError):  # Arrow's errors are ValueErrors.
        return None


def write_table(path: pathlib.Path, columns: Mapping[str, type], rows: Iterable[Row]) -> None:
    """Writes a table. Unless all of `rows` can be written, no file is left behind.

    The path ends in .csv (UTF-8 with a byte-order mark, numbers with six decimals) or .parquet. Its
    folder is created if necessary. `columns` map names to types, and a row may lack any column.
    Raises a UserError if the file cannot be written. `check_path` has accepted the path.
    """
    partial = path.with_name(f"{path.name}.{secrets.token_hex(6)}{PARTIAL}")
    with explain_writing(path, "choose another --output"):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            _WRITERS[path.suffix.lower()](partial, columns, rows)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def _write_csv(path: pathlib.Path, columns: Mapping[str, type], rows: Iterable[Row]) -> None:
    with path.open("w", newline="", encoding=_CSV_ENCODING) as file:
        write_rows(file, [tuple(columns)])
        write_rows(file, ([_to_text(row.get(name)) for name in columns] for row in rows))


def _write_parquet(path: pathlib.Path, columns: Mapping[str, type], rows: Iterable[Row]) -> None:
    arrow, parquet = map(importlib.import_module, ("pyarrow", "pyarrow.parquet"))
    types = {str: arrow.string(), float: arrow.float32(), bool: arrow.bool_(), int: arrow.int64()}
    schema = arrow.schema([(name, types[kind]) for name, kind in columns.items()])
    rows = iter(rows)
    with parquet.ParquetWriter(path, schema) as writer:
        while part := list(itertools.islice(rows, _ROWS_PER_GROUP)):
            valid = [{name: _to_valid(value) for name, value in row.items()} for row in part]
            writer.write_table(arrow.Table.from_pylist(valid, schema=schema))


_WRITERS = {".csv": _write_csv, ".parquet": _write_parquet}


def _to_text(value: Any) -> Any:
    return f"{value:.6f}" if isinstance(value, float) else _to_valid(value)


def _to_valid(value: Any) -> Any:
    """Escapes bytes of a file name that are not UTF-8, so that the table can be read."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value
