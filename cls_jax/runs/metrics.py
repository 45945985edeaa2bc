"""Writes the metrics of a run: `metrics.jsonl` always, TensorBoard files if clu is installed.

The only file that imports clu, and with it TensorFlow.
"""

import errno
import json
import math
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

import numpy as np
from absl import logging

from cls_jax.extras import is_installed
from cls_jax.io import is_number, open_regular, parse_json

METRICS = "metrics.jsonl"
_LONGEST_LINE = 2**20
_MAX_DAMAGED_BYTES = 2**26  # With more it is some other file, which may be endless.
# Of the row with which a session begins.
_FIRST_STEP = "session/first_step"
Scalars = Mapping[str, float]


class MetricsWriter:
    """Appends scalars and images of the session of a run that begins with `first_step`.

    Nothing is ever removed from the file. A row before the session's first one says where it
    begins, and with that what it repeats, see `read_metrics`. Rows that a full disk refuses are
    kept and retried with the next write. `warn` shows a sentence to the user. Only the main process
    writes and warns.
    """

    def __init__(
        self,
        workdir: pathlib.Path,
        first_step: int = 0,
        warn: Callable[[str], None] = logging.warning,
        is_silent: bool = False,
    ):
        self._path = pathlib.Path(os.devnull) if is_silent else workdir / METRICS
        self._file = self._path.open("ab", buffering=0)
        self._start = _format_row(first_step, {_FIRST_STEP: first_step})
        if _ends_within_a_line(self._path):
            self._start = b"\n" + self._start
        self._unwritten = b""
        self._warn = warn
        self._has_warned = False
        self._tensorboard = None if is_silent else _create_tensorboard_writer(workdir)

    def write(self, step: int, scalars: Scalars) -> None:
        """Writes one JSON object. Values that are not finite become null, since JSON has no NaN."""
        row = {name: float(value) for name, value in scalars.items()}
        finite = {name: value for name, value in row.items() if math.isfinite(value)}
        self._unwritten += self._start + _format_row(step, {name: finite.get(name) for name in row})
        self._start = b""
        self._write_out()
        self._try_tensorboard(lambda writer: writer.write_scalars(step, finite))

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Shows images, uint8 [n, H, W, C], in TensorBoard."""
        self._try_tensorboard(lambda writer: writer.write_images(step, images))

    def flush(self) -> bool:
        """Hands everything to the operating system. False if rows still wait for disk space."""
        self._write_out()
        self._try_tensorboard(lambda writer: writer.flush())
        return not self._unwritten

    def close(self) -> None:
        """Flushes and closes."""
        self._write_out()
        self._file.close()
        self._try_tensorboard(lambda writer: writer.close())

    def _write_out(self) -> None:
        if not self._unwritten:
            return
        size = self._path.stat().st_size if self._path.exists() else 0
        try:
            written = self._file.write(self._unwritten)
            if written < len(self._unwritten):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._file.truncate(size)  # The whole row is written again.
            if not self._has_warned:
                self._has_warned = True
                self._warn(
                    f"Warning: {self._path} cannot be written ({error.strerror}): training "
                    "continues, and rows are kept in memory until it can be written."
                )
        else:
            self._unwritten = b""
            self._has_warned = False

    def _try_tensorboard(self, write: Callable[[Any], None]) -> None:
        if self._tensorboard is None:
            return
        try:
            write(self._tensorboard)
        except Exception as error:  # TensorFlow has its own exceptions.
            self._tensorboard = None
            self._warn(
                f"Warning: TensorBoard's files cannot be written ({type(error).__name__}): the "
                f"rest of this session is only in {METRICS}."
            )


def read_metrics(workdir: pathlib.Path) -> list[dict[str, Any]]:
    """The rows of a run's `metrics.jsonl`: a step, and numbers or None by name.

    Damaged lines are skipped, such as a last one cut short by a crash. A session repeats the steps
    of earlier ones from its first step on, so their rows of these steps are left out, and with them
    what was measured after its first step. (What was measured before that step stays, such as the
    last accuracies of a run that is given more steps.) Of rows with the same step and names the
    last one counts.
    """
    path = workdir / METRICS
    if not path.exists():
        return []
    rows: dict[tuple[int, frozenset[str]], dict[str, Any]] = {}
    num_damaged = 0
    with open_regular(path) as file:
        while num_damaged < _MAX_DAMAGED_BYTES and (line := file.readline(_LONGEST_LINE)):
            try:
                row = parse_json(line.decode("utf-8"))
            except ValueError:
                row = None
            if not _is_row(row):
                num_damaged += len(line)
            elif _FIRST_STEP in row:
                first = row["step"]
                rows = {key: row for key, row in rows.items() if _is_before(row, first)}
            else:
                rows[row["step"], frozenset(row)] = row
    return list(rows.values())


def _is_before(row: dict[str, Any], first_step: int) -> bool:
    """Whether a session from `first_step` on repeats nothing of a row. From 0, it repeats all."""
    is_measured = "train/loss" not in row and first_step > 0  # Before the step, not in it.
    return bool(row["step"] < first_step or (row["step"] == first_step and is_measured))


def _format_row(step: int, values: Mapping[str, float | None]) -> bytes:
    return (json.dumps({"step": step, **values}) + "\n").encode()


def _ends_within_a_line(path: pathlib.Path) -> bool:
    """Whether a crash cut the last line short, to which the next row must not be appended."""
    with path.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - 1, 0))
        return file.read(1) not in (b"", b"\n")


def _is_row(row: object) -> TypeGuard[dict[str, Any]]:
    return (
        isinstance(row, dict)
        and type(row.get("step")) is int  # Not isinstance: True is an int, too.
        and 0 <= row["step"] < 2**53
        and all(value is None or is_number(value) for value in row.values())
    )


def _create_tensorboard_writer(workdir: pathlib.Path) -> Any:
    if not is_installed("tf"):  # All scalars are in the table of metrics anyway.
        return None
    from cls_jax.data import host_tensorflow  # noqa: F401, I001 # Before clu.
    from clu import metric_writers

    return metric_writers.SummaryWriter(str(workdir))
