"""Rows of numbers on disk, by the hash of what they were computed from."""

import os
import pathlib
import zlib
from typing import Any

import filelock
import numpy as np
import platformdirs

KEY_BYTES = 16
_HEADER_BYTES = 8  # Length of a row, and a checksum of it.


def get_cache_folder() -> pathlib.Path:
    """The folder of all stores, which may be deleted at any time."""
    return platformdirs.user_cache_path("cls_jax", appauthor=False) / "features"


class Store:
    """A file of records (checksum, key, row) that is only ever appended to.

    A record that a crash or a failing disk has damaged does not match its checksum. It counts as
    missing, so its row is computed and appended again.
    """

    def __init__(self, path: pathlib.Path, dtype: Any):
        """Opens a file, which need not exist, with rows of numbers of a type."""
        self._path, self._dtype = path, dtype

    def read(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Looks up the rows of keys uint8 [n, 16].

        Returns:
            Whether each key has a row, bool [n], and the rows [n, length], 0 for missing ones. An
            empty store has rows of length 0.
        """
        records = self._map()
        rows = np.zeros((len(keys), *records.dtype["row"].shape), self._dtype)
        is_known = np.zeros(len(keys), bool)
        position = {key.tobytes(): i for i, key in enumerate(records["key"])}
        for i, key in enumerate(keys):
            j = position.get(key.tobytes())
            if j is not None and _compute_checksum(records[j]) == records[j]["checksum"]:
                rows[i], is_known[i] = records[j]["row"], True
        return is_known, rows

    def append(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """Adds rows [n, length], of the same length each time, by keys uint8 [n, 16].

        A row with an existing key replaces the earlier one.

        Raises:
            OSError: If the file cannot be written.
        """
        records = np.zeros(len(keys), self._get_record(rows.shape[1]))
        records["key"], records["row"] = keys, rows
        for record in records:
            record["checksum"] = _compute_checksum(record)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{self._path}.lock"), open(self._path, "a+b") as file:
            header = _make_header(rows.shape[1])
            file.seek(0)
            if file.read(_HEADER_BYTES) != header:  # New, or damaged.
                file.truncate(0)
                file.write(header)
            size = file.seek(0, os.SEEK_END)  # A crash may have left a part of a record.
            file.truncate(size - (size - _HEADER_BYTES) % records.itemsize)
            file.write(records.tobytes())

    def _map(self) -> np.ndarray:
        """The records of the file, as a memory map. None if it cannot be read or is damaged."""
        try:
            with open(self._path, "rb") as file:
                header = file.read(_HEADER_BYTES)
                size = os.fstat(file.fileno()).st_size
        except OSError:
            header, size = b"", 0
        length = int.from_bytes(header[:4], "little")
        if header != _make_header(length):
            return np.zeros(0, self._get_record(0))
        record = self._get_record(length)
        count = (size - _HEADER_BYTES) // record.itemsize
        if not count:
            return np.zeros(0, record)
        return np.memmap(self._path, record, mode="r", offset=_HEADER_BYTES, shape=count)

    def _get_record(self, length: int) -> np.dtype:
        return np.dtype(
            [("checksum", "<u4"), ("key", np.uint8, KEY_BYTES), ("row", self._dtype, (length,))]
        )


def _make_header(length: int) -> bytes:
    encoded = length.to_bytes(4, "little")
    return encoded + zlib.crc32(b"row length" + encoded).to_bytes(4, "little")


def _compute_checksum(record: np.void) -> int:
    return zlib.crc32(record.tobytes()[4:])
