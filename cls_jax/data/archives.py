"""Datasets from one file: NumPy's `.npz`, or an archive of images. Neither needs TensorFlow.

Files are read as data only: arrays without pickle, archives member by member into memory.
"""

import io
import pathlib
import tarfile

import numpy as np

from cls_jax.errors import UserError

Split = tuple[np.ndarray, np.ndarray]
_ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz")
_SPLITS = ("train", "test")


def is_single_file(path: str) -> bool:
    """Whether a path names a dataset in one file."""
    return path.endswith((".npz", *_ARCHIVE_SUFFIXES))


def read_single_file(path: str) -> tuple[dict[str, Split], tuple[str, ...]]:
    """Reads the splits "train" and "test" of a dataset in one file.

    Args:
        path: an `.npz` with `train_images`, `train_labels`, `test_images`, `test_labels` and
            optionally `class_names`; or an archive of `…/train/<class>/<image>` and
            `…/test/<class>/<image>`.

    Returns:
        Split name → images uint8 [n, H, W, C] and labels int32 [n]; and the class names.

    Raises:
        UserError: if the file is missing, damaged or has another layout.
    """
    file = pathlib.Path(path).expanduser()
    try:
        return _read_npz(file) if file.suffix == ".npz" else _read_archive(file)
    except (OSError, EOFError, ValueError, KeyError, tarfile.TarError) as error:
        raise UserError(
            f"{file} cannot be read as a dataset ({error}): set --config.data.data_dir to an .npz "
            "with train_images, train_labels, test_images and test_labels, or to an archive of "
            "train/<class>/<image> and test/<class>/<image>."
        ) from error


def _read_npz(file: pathlib.Path) -> tuple[dict[str, Split], tuple[str, ...]]:
    with np.load(file, allow_pickle=False) as arrays:
        splits = {}
        for split in _SPLITS:
            images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
            if images.dtype != np.uint8 or images.ndim != 4 or len(images) != len(labels):
                raise ValueError(f"{split}_images is not uint8 [n, H, W, C] with n labels")
            splits[split] = images, labels.astype(np.int32)
        num_classes = int(splits["train"][1].max()) + 1
        if "class_names" in arrays:
            names = tuple(map(str, arrays["class_names"]))
        else:
            names = tuple(str(k) for k in range(num_classes))
    return splits, names


def _read_archive(file: pathlib.Path) -> tuple[dict[str, Split], tuple[str, ...]]:
    from PIL import Image

    found: dict[str, list[tuple[str, str, np.ndarray]]] = {split: [] for split in _SPLITS}
    with tarfile.open(file) as archive:
        for member in archive:
            parts = pathlib.PurePosixPath(member.name).parts
            if not member.isfile() or len(parts) < 3 or parts[-3] not in found:
                continue
            content = io.BytesIO(archive.extractfile(member).read())
            image = np.asarray(Image.open(content).convert("RGB"))
            found[parts[-3]].append((parts[-2], parts[-1], image))
    names = tuple(sorted({name for name, _, _ in found["train"]}))
    splits = {}
    for split, rows in found.items():
        rows.sort(key=lambda row: row[:2])  # Whatever the archive's order.
        labels = np.array([names.index(name) for name, _, _ in rows], np.int32)
        splits[split] = np.stack([image for _, _, image in rows]), labels
    return splits, names
