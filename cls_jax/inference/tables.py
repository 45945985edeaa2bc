"""Tables of predictions, written row by row as CSV or Parquet."""

import contextlib
import csv
import importlib
import os
import pathlib
import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cls_jax.errors import UserError
from cls_jax.io import PARTIAL, write_rows

Row = Mapping[str, Any]

# Column → type of its values; any value may be missing.
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
}


class CsvTable:
    """A CSV file in UTF-8 with a header; names with commas, quotes and newlines are quoted."""

    def __init__(self, path: pathlib.Path, columns: Mapping[str, type]):
        """Opens the file and writes the header."""
        self._file = path.open("w", newline="", encoding="utf-8")
        self._columns = tuple(columns)
        write_rows(self._file, [self._columns])

    def write(self, rows: Iterable[Row]) -> None:
        """Numbers have six decimals."""
        write_rows(
            self._file, ([_to_text(row.get(name)) for name in self._columns] for row in rows)
        )

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class ParquetTable:
    """A Parquet file; each `write` is a row group."""

    def __init__(self, path: pathlib.Path, columns: Mapping[str, type]):
        """Opens the file.

        Raises:
            UserError: if pyarrow is not installed.
        """
        try:
            self._arrow = importlib.import_module("pyarrow")
            parquet = importlib.import_module("pyarrow.parquet")
        except ImportError as error:
            raise UserError(
                "Writing .parquet needs pyarrow: pip install pyarrow, or give --output a name that "
                "ends in .csv."
            ) from error
        types = {str: self._arrow.string(), float: self._arrow.float32()}
        types |= {bool: self._arrow.bool_(), int: self._arrow.int64()}
        self._schema = self._arrow.schema([(name, types[kind]) for name, kind in columns.items()])
        self._writer = parquet.ParquetWriter(path, self._schema)

    def write(self, rows: Iterable[Row]) -> None:
        """Appends the rows as a row group."""
        rows = [{name: _to_valid(value) for name, value in row.items()} for row in rows]
        if rows:
            self._writer.write_table(self._arrow.Table.from_pylist(rows, schema=self._schema))

    def close(self) -> None:
        """Writes the footer."""
        self._writer.close()


_TABLES = {".csv": CsvTable, ".parquet": ParquetTable}


def check_path(
    path: pathlib.Path, columns: Mapping[str, type] | None = None, overwrite: bool = False
) -> None:
    """Checks the name of a table before any work is done.

    Args:
        path: The table to write.
        columns: Its columns. An existing file must have the same ones, so that only earlier tables
            are overwritten. None if any file may be.
        overwrite: Whether any file may be overwritten.

    Raises:
        UserError: If it has another suffix, is a folder, or is somebody else's file.
    """
    if path.suffix.lower() not in _TABLES:
        raise UserError(f"{path} does not end in .csv or .parquet: give --output such a name.")
    if path.is_dir():
        raise UserError(f"{path} is a folder: give --output the name of a file in it.")
    if columns and not overwrite and path.exists() and _read_columns(path) != list(columns):
        raise UserError(
            f"{path} exists and is not an earlier table of this kind: give --output another name, "
            "or add --overwrite."
        )


def _read_columns(path: pathlib.Path) -> list[str] | None:
    """The names of a table's columns; None if it is no table."""
    try:
        if path.suffix.lower() == ".parquet":
            return importlib.import_module("pyarrow.parquet").read_schema(path).names
        with path.open(encoding="utf-8", newline="") as file:
            return next(csv.reader([file.readline(10_000)]), None)
    except (OSError, ValueError, csv.Error, ImportError):  # Arrow's errors are ValueErrors.
        return None


@contextlib.contextmanager
def create_table(
    path: pathlib.Path, columns: Mapping[str, type]
) -> Iterator[CsvTable | ParquetTable]:
    """Opens a table that is written whole when the block ends, or not at all if it fails.

    Args:
        path: ends in .csv or .parquet; its folder is created if necessary.
        columns: name → type.

    Raises:
        UserError: if the name has another suffix or the file cannot be written.
    """
    check_path(path)
    partial = path.with_name(f"{path.name}.{secrets.token_hex(6)}{PARTIAL}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        table: Any = _TABLES[path.suffix.lower()](partial, columns)
    except OSError as error:
        raise explain_os_error(path, error) from error
    try:
        with contextlib.closing(table):
            yield table
        os.replace(partial, path)
    except OSError as error:
        raise explain_os_error(path, error) from error
    finally:
        partial.unlink(missing_ok=True)


def explain_os_error(path: pathlib.Path, error: OSError) -> UserError:
    """The error for a table that the system does not let us write."""
    return UserError(
        f"{path} cannot be written ({error.strerror or error}): give --output another file."
    )


def _to_text(value: Any) -> Any:
    return f"{value:.6f}" if isinstance(value, float) else _to_valid(value)


def _to_valid(value: Any) -> Any:
    """Escapes bytes of a file name that are not UTF-8, so that the table can be read."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value
