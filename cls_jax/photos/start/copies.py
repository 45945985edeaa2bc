"""The file of a run's folder about held-out images that are near-copies of training images."""

import csv
import pathlib
from collections.abc import Mapping

import numpy as np

from cls_jax.data.types import Dataset, Split
from cls_jax.io import to_csv, write_atomically

NEAR_COPIES = "near_copies.csv"
_HEADER = ("file", "part", "copy_of")


def write_copies(
    folder: pathlib.Path, dataset: Dataset, rows: np.ndarray, copies: Mapping[str, np.ndarray]
) -> None:
    """Writes which held-out images are near-copies of which training images, if any are.

    By part, int [n]: the place among the training images at `rows`, or -1.
    """
    lines = [
        (_name(split, i), part, _name(dataset.train, int(rows[copies[part][i]])))
        for part, split in dataset.held_out.items()
        for i in np.flatnonzero(copies.get(part, np.zeros(0)) >= 0).tolist()
    ]
    if lines:
        write_atomically(folder / NEAR_COPIES, to_csv([_HEADER, *lines]))


def read_copies(folder: pathlib.Path, dataset: Dataset) -> dict[str, np.ndarray]:
    """Which images of each held-out part are near-copies of training images, bool [n]."""
    try:
        with (folder / NEAR_COPIES).open(
            newline="", encoding="utf-8", errors="surrogateescape"
        ) as file:
            found = {(row["part"], row["file"]) for row in csv.DictReader(file)}
    except (OSError, ValueError, KeyError, csv.Error):
        found = set()
    return {
        part: np.array([(part, _name(split, i)) in found for i in range(len(split))], bool)
        for part, split in dataset.held_out.items()
    }


def _name(split: Split, row: int) -> str:
    """The file of an image, or its number without files."""
    return split.files[row] if split.files else str(row)
