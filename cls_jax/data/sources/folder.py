"""A folder of one's own images as a Dataset.

Three layouts, told apart by what the folder holds: `labels.csv`, else `labeled/<class>/…`, else
class folders, directly or in `train/`. Each may have `unlabeled/…` and `test/<class>/…` beside it.
"""

import pathlib

import numpy as np

from cls_jax.data.images.cache import DecodedSet, load_decoded
from cls_jax.data.images.index import hash_rows, list_images
from cls_jax.data.sources.folder_layout import NO_CLASS_NAME, Layout, read_layout
from cls_jax.data.types import Dataset
from cls_jax.errors import UserError
from cls_jax.io import make_printable
from cls_jax.parallel.distributed import is_main_process

NO_CLASS = -1


def load_folder(data_config) -> Dataset:
    """Reads the folder `data_config.data_dir`; unlabelled training images have the label -1.

    Training images are ordered by name, labelled before unlabelled. What cannot be used is in
    `skipped_files`, what should be said of the rest in `warnings`.

    Raises:
        UserError: if there is nothing to train on, or a class has no image.
    """
    root = pathlib.Path(data_config.data_dir).expanduser()
    if not data_config.data_dir or not root.is_dir():
        raise UserError(
            f"{data_config.data_dir or 'The path after the colon'} is not a folder: name one with "
            "images, as in --config configs/folder.py:/path/to/images."
        )
    layout = read_layout(root, list_images(root))
    num_train, num_labeled = (
        len(layout.train),
        sum(name != NO_CLASS_NAME for _, name in layout.train),
    )
    files = [file for file, _ in (*layout.train, *layout.test)]
    decoded = load_decoded(root, files, data_config.image_size, is_silent=not is_main_process())

    is_good = np.ones(len(files), bool)
    is_good[list(decoded.failures)] = False
    labels = _to_labels(layout)
    train = np.flatnonzero(is_good[:num_train])
    test = num_train + np.flatnonzero(is_good[num_train:])
    skipped = layout.skipped + [(files[i].name, why) for i, why in decoded.failures.items()]
    _check_classes(layout, labels[train], len(decoded.failures))

    warnings = list(layout.warnings)
    if skipped:
        warnings.append(f"{len(skipped):,} file(s) were skipped: see skipped_files.csv.")
    warnings += _warn_of_copies(decoded, train, test, num_labeled)
    if not len(test) and layout.test:
        warnings.append("No test image could be read, so there will be no test accuracy.")
    size = data_config.image_size
    return Dataset(
        name=make_printable(root.resolve().name),
        class_names=layout.class_names,
        train_images=decoded.images.select(train),
        train_labels=labels[train],
        test_images=decoded.images.select(test),
        test_labels=labels[test],
        image_shape=(size, size, 3),
        fingerprint=hash_rows((files[i].name, files[i].size, labels[i]) for i in train),
        warnings=tuple(warnings),
        skipped_files=tuple(sorted(skipped)),
    )


def _to_labels(layout: Layout) -> np.ndarray:
    """Classes of training and test files, int32, `NO_CLASS` where unknown."""
    index = {name: k for k, name in enumerate(layout.class_names)} | {NO_CLASS_NAME: NO_CLASS}
    return np.array([index[name] for _, name in (*layout.train, *layout.test)], np.int32)


def _check_classes(layout: Layout, labels: np.ndarray, num_failures: int) -> None:
    """Raises a UserError if a class has no image left."""
    counts = np.bincount(labels[labels != NO_CLASS], minlength=len(layout.class_names))
    for name, count in zip(layout.class_names, counts, strict=True):
        if count == 0:
            raise UserError(
                f"None of the labelled images of class {name!r} can be read ({num_failures:,} "
                "file(s) are damaged or no images): put in one that can, or take the class away."
            )


def _warn_of_copies(
    decoded: DecodedSet, train: np.ndarray, test: np.ndarray, num_labeled: int
) -> list[str]:
    """Looks for test images that are training images too, byte for byte."""

    def hash_files(rows: np.ndarray) -> list[bytes]:
        return [digest.tobytes() for digest in decoded.digests[rows]]

    tested, labeled = hash_files(test), set(hash_files(train[train < num_labeled]))
    seen = labeled.union(hash_files(train))
    num_copies = sum(digest in seen for digest in tested)
    if not num_copies:
        return []
    num_labeled_copies = sum(digest in labeled for digest in tested)
    return [
        f"{num_copies:,} of {len(tested):,} test images are training images too, byte for byte "
        f"({num_labeled_copies:,} of them labelled): the test accuracy will be too high."
    ]
