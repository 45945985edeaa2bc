"""Writes what a run measures: `metrics.jsonl` always, TensorBoard where clu is installed.

The only file that imports clu, and with it TensorFlow.
"""

import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import logging

from cls_jax.reading import is_number, open_regular, parse_json

METRICS = "metrics.jsonl"
_LONGEST_LINE = 2**20
Scalars = Mapping[str, float]


class MetricsWriter:
    """Writes scalars and images of a run, going on after `first_step` of an earlier session."""

    def __init__(self, workdir: pathlib.Path, first_step: int = 0):
        """Drops what an interrupted session wrote for `first_step` and later: it comes again."""
        self._path = workdir / METRICS
        kept = [row for row in read_metrics(workdir) if row["step"] < first_step]
        partial = self._path.with_suffix(".partial")
        partial.write_text("".join(map(_to_line, kept)))
        partial.replace(self._path)
        self._file = self._path.open("a")
        self._tensorboard = _create_tensorboard_writer(workdir)

    def write(self, step: int, scalars: Scalars) -> None:
        """Writes one JSON object; values that are not finite become null."""
        row = {name: float(value) for name, value in scalars.items()}
        self._file.write(_to_line({"step": step, **row}))
        self._file.flush()
        if self._tensorboard is not None:
            finite = {name: value for name, value in row.items() if math.isfinite(value)}
            self._tensorboard.write_scalars(step, finite)

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Shows images, uint8 [n, H, W, C], in TensorBoard."""
        if self._tensorboard is not None:
            self._tensorboard.write_images(step, images)

    def flush(self) -> None:
        """Hands everything to the operating system."""
        self._file.flush()
        if self._tensorboard is not None:
            self._tensorboard.flush()

    def close(self) -> None:
        """Flushes and closes."""
        self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()


class SilentWriter:
    """Takes what `MetricsWriter` takes and drops it: only one process writes."""

    def write(self, step: int, scalars: Scalars) -> None:
        """Nothing."""

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Nothing."""

    def flush(self) -> None:
        """Nothing."""

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
