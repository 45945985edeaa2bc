"""A folder of the user's images as a Dataset; see `folder_layout` for how it is arranged."""

import pathlib

import numpy as np
from ml_collections import ConfigDict

from cls_jax.data.images.cache import DecodedSet, load_decoded
from cls_jax.data.images.index import hash_rows, list_images
from cls_jax.data.sources.folder_layout import NO_CLASS_NAME, Layout, read_layout
from cls_jax.data.types import Dataset
from cls_jax.errors import UserError
from cls_jax.io import make_printable
from cls_jax.parallel.distributed import is_main_process

NO_CLASS = -1


def load_folder(data_config: ConfigDict) -> Dataset:
    """Reads the folder `data_config.data_dir`; unlabeled training images have the label -1.

    Training images are ordered by name, labeled before unlabeled.

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
    num_train = len(layout.train)
    files = [file for file, _ in (*layout.train, *layout.test)]
    decoded = load_decoded(root, files, data_config.image_size, is_silent=not is_main_process())

    index = {name: k for k, name in enumerate(layout.class_names)} | {NO_CLASS_NAME: NO_CLASS}
    labels = np.array([index[name] for _, name in (*layout.train, *layout.test)], np.int32)
    good = np.setdiff1d(np.arange(len(files)), list(decoded.failures))
    train, test = good[good < num_train], good[good >= num_train]
    skipped = layout.skipped + [(files[i].name, why) for i, why in decoded.failures.items()]
    _check_classes(layout, labels[train], len(decoded.failures))

    warnings = list(layout.warnings)
    if skipped:
        warnings.append(f"{len(skipped):,} file(s) were skipped: see skipped_files.csv.")
    warnings += _warn_of_copies(decoded, train, test, train[labels[train] != NO_CLASS])
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
        train_files=tuple(files[i].name for i in train),
        test_files=tuple(files[i].name for i in test),
    )


def _check_classes(layout: Layout, labels: np.ndarray, num_failures: int) -> None:
    """Raises a UserError if a class has no image left."""
    counts = np.bincount(labels[labels != NO_CLASS], minlength=len(layout.class_names))
    for name, count in zip(layout.class_names, counts, strict=True):
        if count == 0:
            raise UserError(
                f"None of the labeled images of class {name!r} can be read ({num_failures:,} "
                "file(s) are corrupt or not images): add one or remove the class."
            )


def _warn_of_copies(
    decoded: DecodedSet, train: np.ndarray, test: np.ndarray, labeled: np.ndarray
) -> list[str]:
    """Looks for test images that are also training images, byte for byte."""

    def count_copies(rows: np.ndarray) -> int:
        seen = {digest.tobytes() for digest in decoded.digests[rows]}
        return sum(digest.tobytes() in seen for digest in decoded.digests[test])

    if not count_copies(train):
        return []
    return [
        f"{count_copies(train):,} of {len(test):,} test images are also training images, byte for "
        f"byte ({count_copies(labeled):,} of them labeled): the test accuracy will be too high."
    ]
