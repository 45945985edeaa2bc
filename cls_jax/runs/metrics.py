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
from cls_jax.io import is_number, open_regular, parse_json, write_atomically

METRICS = "metrics.jsonl"
_LONGEST_LINE = 2**20
_MAX_DAMAGED_LINES = 100
Scalars = Mapping[str, float]


class MetricsWriter:
    """Writes scalars and images of a run from `first_step` on.

    Rows of this and later steps from an earlier session are dropped: they will be written again.
    Rows that a full disk refuses are kept and retried with the next write. `warn` shows a sentence
    to the user. Only the main process writes and warns.
    """

    def __init__(
        self,
        workdir: pathlib.Path,
        first_step: int = 0,
        warn: Callable[[str], None] = logging.warning,
        is_silent: bool = False,
    ):
        self._path = pathlib.Path(os.devnull) if is_silent else workdir / METRICS
        if not is_silent:
            kept = [row for row in read_metrics(workdir) if row["step"] < first_step]
            write_atomically(self._path, "".join(json.dumps(row) + "\n" for row in kept))
        self._file = self._path.open("ab", buffering=0)
        self._unwritten = b""
        self._warn = warn
        self._has_warned = False
        self._tensorboard = None if is_silent else _create_tensorboard_writer(workdir)

    def write(self, step: int, scalars: Scalars) -> None:
        """Writes one JSON object. Values that are not finite become null, since JSON has no NaN."""
        row = {name: float(value) for name, value in scalars.items()}
        finite = {name: value for name, value in row.items() if math.isfinite(value)}
        line = json.dumps({"step": step, **{name: finite.get(name) for name in row}})
        self._unwritten += f"{line}\n".encode()
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

    Damaged lines are skipped, such as a last one cut short by a crash. Of rows with the same step
    and names the last one counts: a later session writes a step again only if it recomputed it.
    (Losses and accuracies of one step have different names, so both are kept.)
    """
    path = workdir / METRICS
    if not path.exists():
        return []
    rows: dict[tuple[int, frozenset[str]], dict[str, Any]] = {}
    num_damaged = 0
    with open_regular(path) as file:
        while num_damaged < _MAX_DAMAGED_LINES and (line := file.readline(_LONGEST_LINE)):
            try:
                row = parse_json(line.decode("utf-8"))
            except ValueError:
                row = None
            if _is_row(row):
                rows[row["step"], frozenset(row)] = row
            else:
                num_damaged += 1  # With many it is some other file, which may never end.
    return list(rows.values())


def _is_row(row: object) -> TypeGuard[dict[str, Any]]:
    if not isinstance(row, dict):
        return False
    step = row.get("step")
    if type(step) is not int or not 0 <= step < 2**53:  # Not isinstance: True is an int, too.
        return False
    return all(value is None or is_number(value) for value in row.values())


def _create_tensorboard_writer(workdir: pathlib.Path) -> Any:
    if not is_installed("tf"):  # All scalars are in the table of metrics anyway.
        return None
    from cls_jax.data import host_tensorflow  # noqa: F401, I001 # Before clu.
    from clu import metric_writers

    return metric_writers.SummaryWriter(str(workdir))
