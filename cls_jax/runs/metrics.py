"""Writes what a run measures: `metrics.jsonl` always, TensorBoard where clu is installed.

The only file that imports clu, and with it TensorFlow.
"""

import errno
import json
import math
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from absl import logging

from cls_jax.io import is_number, open_regular, parse_json

METRICS = "metrics.jsonl"
_LONGEST_LINE = 2**20
Scalars = Mapping[str, float]


class MetricsWriter:
    """Writes scalars and images of a run, going on after `first_step` of an earlier session.

    What the disk does not take is kept and tried again with the next write.
    """

    def __init__(
        self,
        workdir: pathlib.Path,
        first_step: int = 0,
        warn: Callable[[str], None] = logging.warning,
    ):
        """Drops what an interrupted session wrote for `first_step` and later: it comes again.

        Args:
            workdir: the run's folder.
            first_step: with which this session begins.
            warn: shows a sentence to the user.
        """
        self._path = workdir / METRICS
        kept = [row for row in read_metrics(workdir) if row["step"] < first_step]
        partial = self._path.with_suffix(".partial")
        partial.write_text("".join(map(_to_line, kept)))
        partial.replace(self._path)
        self._file = self._path.open("ab", buffering=0)
        self._unwritten = b""
        self._warn, self._has_warned = warn, False
        self._tensorboard = _create_tensorboard_writer(workdir)

    def write(self, step: int, scalars: Scalars) -> None:
        """Writes one JSON object; values that are not finite become null."""
        row = {name: float(value) for name, value in scalars.items()}
        self._unwritten += _to_line({"step": step, **row}).encode()
        self._write_out()
        finite = {name: value for name, value in row.items() if math.isfinite(value)}
        self._try_tensorboard(lambda writer: writer.write_scalars(step, finite))

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Shows images, uint8 [n, H, W, C], in TensorBoard."""
        self._try_tensorboard(lambda writer: writer.write_images(step, images))

    def flush(self) -> bool:
        """Hands everything to the operating system; whether `metrics.jsonl` holds it all."""
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
            self._file.truncate(size)  # Half a line would hide those that follow.
            if not self._has_warned:
                self._has_warned = True
                self._warn(
                    f"Warning: {self._path} cannot be written ({error.strerror}): training goes "
                    "on, and its rows are kept in memory until it can."
                )
        else:
            self._unwritten, self._has_warned = b"", False

    def _try_tensorboard(self, write: Callable[[Any], None]) -> None:
        if self._tensorboard is None:
            return
        try:
            write(self._tensorboard)
        except Exception as error:  # TensorFlow has its own for everything.
            self._tensorboard = None
            self._warn(
                f"Warning: TensorBoard's files cannot be written ({type(error).__name__}): the "
                f"rest of this session is in {METRICS} alone."
            )


class SilentWriter:
    """Takes what `MetricsWriter` takes and drops it: only one process writes."""

    def write(self, step: int, scalars: Scalars) -> None:
        """Nothing."""

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Nothing."""

    def flush(self) -> bool:
        """Nothing; another process writes."""
        return True

    def close(self) -> None:
        """Nothing."""


def read_metrics(workdir: pathlib.Path) -> list[dict[str, Any]]:
    """The rows of a run's `metrics.jsonl`: a step, and numbers or None by name.

    A last line cut short by a crash is left out, and so is whatever comes after a line that is not
    one of ours.
    """
    path = workdir / METRICS
    if not path.exists():
        return []
    rows = []
    with open_regular(path) as file:
        while line := file.readline(_LONGEST_LINE):
            try:
                row = parse_json(line.decode("utf-8"))
            except ValueError:
                break
            if not _is_row(row):
                break
            rows.append(row)
    return rows


def _is_row(row: Any) -> bool:
    if not isinstance(row, dict) or not 0 <= _to_step(row.get("step")) < 2**53:
        return False
    return all(value is None or is_number(value) for value in row.values())


def _to_step(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def _to_line(row: Mapping[str, Any]) -> str:
    # JSON knows no NaN.
    finite = {k: v if v is not None and math.isfinite(v) else None for k, v in row.items()}
    return json.dumps(finite) + "\n"


def _create_tensorboard_writer(workdir: pathlib.Path):
    try:
        from clu import metric_writers
    except ImportError as error:
        logging.info("No TensorBoard files: %s. All scalars are in %s.", error, METRICS)
        return None
    return metric_writers.SummaryWriter(str(workdir))
