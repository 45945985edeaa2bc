"""Writes the metrics of a run: `metrics.jsonl` always, a TensorBoard file if that is installed."""

import errno
import io
import json
import math
import os
import pathlib
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from absl import logging
from PIL import Image

from cls_jax.io import is_number, open_regular, parse_json, write_atomically

METRICS = "metrics.jsonl"
_LONGEST_LINE = 2**20
_MAX_DAMAGED_LINES = 100
Scalars = Mapping[str, float]


class MetricsWriter:
    """Writes scalars and images of a run.

    Rows that a full disk does not take are kept and tried again with the next write.
    """

    def __init__(
        self,
        workdir: pathlib.Path,
        first_step: int = 0,
        warn: Callable[[str], None] = logging.warning,
    ):
        """Drops rows of `first_step` and later, which this session writes again.

        `warn` shows a sentence to the user.
        """
        self._path = workdir / METRICS
        kept = [row for row in read_metrics(workdir) if row["step"] < first_step]
        write_atomically(self._path, "".join(map(_to_line, kept)))
        self._file = self._path.open("ab", buffering=0)
        self._unwritten = b""
        self._warn, self._has_warned = warn, False
        self._tensorboard = _create_tensorboard_writer(workdir)

    def write(self, step: int, scalars: Scalars) -> None:
        """Writes one JSON object. Values that are not finite become null."""
        row = {name: float(value) for name, value in scalars.items()}
        self._unwritten += _to_line({"step": step, **row}).encode()
        self._write_out()
        finite = {name: value for name, value in row.items() if math.isfinite(value)}
        self._try_tensorboard(lambda writer: writer.write_scalars(step, finite))

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Shows images, uint8 [n, H, W, C], in TensorBoard."""
        self._try_tensorboard(lambda writer: writer.write_images(step, images))

    def flush(self) -> bool:
        """Hands everything to the operating system. False if rows still wait for room."""
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
            self._file.truncate(size)  # The row is written again as a whole.
            if not self._has_warned:
                self._has_warned = True
                self._warn(
                    f"Warning: {self._path} cannot be written ({error.strerror}): training "
                    "continues, and its rows are kept in memory until it can."
                )
        else:
            self._unwritten, self._has_warned = b"", False

    def _try_tensorboard(self, write: Callable[[Any], None]) -> None:
        if self._tensorboard is None:
            return
        try:
            write(self._tensorboard)
        except Exception as error:  # Protocol buffers have exceptions of their own.
            self._tensorboard = None
            self._warn(
                f"Warning: TensorBoard's files cannot be written ({type(error).__name__}): the "
                f"rest of this session is in {METRICS} alone."
            )


class SilentWriter:
    """Stands in for `MetricsWriter` in all processes but the one that writes."""

    def write(self, step: int, scalars: Scalars) -> None:
        """Accepts a row."""

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Accepts images."""

    def flush(self) -> bool:
        """True: no row is waiting here."""
        return True

    def close(self) -> None:
        """Has nothing to close."""


def read_metrics(workdir: pathlib.Path) -> list[dict[str, Any]]:
    """The rows of a run's `metrics.jsonl`: a step, and numbers or None by name.

    Damaged lines are skipped, such as a last one cut short by a crash. Of rows with the same step
    and the same names the last one counts: a later session writes a step again only if it computed
    it again. (Losses and accuracies of one step have different names, so both are kept.)
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
                num_damaged += 1  # With many it is some other file, which may be endless.
    return list(rows.values())


def _is_row(row: Any) -> bool:
    if not isinstance(row, dict):
        return False
    step = row.get("step")
    if type(step) is not int or not 0 <= step < 2**53:  # Not isinstance: True is an int, too.
        return False
    return all(value is None or is_number(value) for value in row.values())


def _to_line(row: Mapping[str, Any]) -> str:
    # JSON has no NaN.
    finite = {k: v if v is not None and math.isfinite(v) else None for k, v in row.items()}
    return json.dumps(finite) + "\n"


def _create_tensorboard_writer(workdir: pathlib.Path) -> Any:
    try:
        return _TensorBoardFile(workdir)
    except ImportError as error:
        logging.info("No TensorBoard files: %s. All scalars are in %s.", error, METRICS)
        return None


class _TensorBoardFile:
    """An event file, written without TensorFlow, which takes ten seconds to import."""

    def __init__(self, folder: pathlib.Path):
        """Begins a new file. Raises an ImportError if TensorBoard is not installed."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.image import metadata as image_metadata
        from tensorboard.plugins.scalar import metadata as scalar_metadata
        from tensorboard.summary.writer.record_writer import RecordWriter
        from tensorboard.util.tensor_util import make_tensor_proto

        self._event, self._summary, self._to_tensor = Event, Summary, make_tensor_proto
        self._of_scalar = scalar_metadata.create_summary_metadata("", "")
        self._of_images = image_metadata.create_summary_metadata("", "")
        name = f"{time.time_ns() // 10**9}.{socket.gethostname()}.{os.getpid()}.{id(self)}"
        self._records = RecordWriter((folder / f"events.out.tfevents.{name}").open("xb"))
        self._write(file_version="brain.Event:2")

    def write_scalars(self, step: int, scalars: Scalars) -> None:
        """Writes scalars of a step."""
        tensors = {name: np.float32(value) for name, value in scalars.items()}
        self._write_tensors(step, tensors, self._of_scalar)

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Writes images uint8 [n, H, W, C] of a step, as PNG after their width and height."""
        tensors = {
            name: [*(str(side).encode() for side in part.shape[2:0:-1]), *map(_to_png, part)]
            for name, part in images.items()
        }
        self._write_tensors(step, tensors, self._of_images)

    def flush(self) -> None:
        """Hands everything to the operating system."""
        self._records.flush()

    def close(self) -> None:
        """Flushes and closes."""
        self._records.close()

    def _write_tensors(self, step: int, tensors: Mapping[str, Any], metadata: Any) -> None:
        values = [
            self._summary.Value(tag=name, metadata=metadata, tensor=self._to_tensor(tensor))
            for name, tensor in tensors.items()
        ]
        self._write(step=step, summary=self._summary(value=values))

    def _write(self, **fields: Any) -> None:
        event = self._event(wall_time=time.time(), **fields)
        self._records.write(event.SerializeToString())


def _to_png(image: np.ndarray) -> bytes:
    """The file of an image uint8 [H, W, 1 or 3]."""
    file = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(file, "PNG")
    return file.getvalue()
