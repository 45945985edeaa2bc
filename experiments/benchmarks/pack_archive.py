"""Packs an archive of small images into the `.npz` that --config.data.data_dir takes.

python -m experiments.benchmarks.pack_archive ARCHIVE OUTPUT

ARCHIVE is a tar of .../SPLIT/CLASS/FILE, with the splits train and test. Classes are numbered in
alphabetical order.
"""

import argparse
import io
import pathlib
import tarfile

import numpy as np
from PIL import Image

from experiments.paper import grid


def pack_archive(archive: str) -> dict[str, np.ndarray]:
    """The arrays of the `.npz`: images uint8 [n, H, W, 3], labels int32 [n], and names."""
    found: dict[str, list[tuple[str, np.ndarray]]] = {"train": [], "test": []}
    with tarfile.open(archive) as tar:
        for member in tar:
            if not (member.isfile() and (stored := tar.extractfile(member))):
                continue
            split, class_name, _ = pathlib.PurePosixPath(member.name).parts[-3:]
            image = np.asarray(Image.open(io.BytesIO(stored.read())).convert("RGB"))
            found[split].append((class_name, image))
    names = sorted({class_name for class_name, _ in found["train"]})
    arrays = {"class_names": np.array(names)}
    for split, rows in found.items():
        arrays[f"{split}_images"] = np.stack([image for _, image in rows])
        arrays[f"{split}_labels"] = np.array([names.index(name) for name, _ in rows], np.int32)
    return arrays


def main() -> None:
    """Packs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", help="a tar, compressed or not")
    parser.add_argument("output", help=".npz")
    arguments = parser.parse_args()
    np.savez(arguments.output, **pack_archive(arguments.archive))


if __name__ == "__main__":
    grid.run_main(main)
