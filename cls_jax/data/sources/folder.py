"""A folder of the user's images as a Dataset; see `folder_layout` for how it is arranged."""

import hashlib
import pathlib
from collections.abc import Collection, Iterable, Sequence

import numpy as np
from ml_collections import ConfigDict

from cls_jax.data.images.cache import load_decoded
from cls_jax.data.images.decode import find_bit_depth, get_decode_options
from cls_jax.data.images.files import list_images
from cls_jax.data.sources.folder_layout import (
    NO_CLASS_NAME,
    Layout,
    describe_skipped,
    read_layout,
)
from cls_jax.data.sources.folder_summary import take_evenly
from cls_jax.data.types import Dataset
from cls_jax.errors import UserError
from cls_jax.io import make_printable
from cls_jax.parallel.distributed import is_main_process

NO_CLASS = -1


def load_folder(data_config: ConfigDict, layout: Layout | None = None) -> Dataset:
    """Reads the folder `data_config.data_dir`; unlabeled training images have the label -1.

    Training images are ordered by name, labeled before unlabeled.

    Args:
        data_config: The section `data` of a configuration.
        layout: The folder's files, if they have been listed already.

    Raises:
        UserError: if there is nothing to train on, or a class has no image.
    """
    root = pathlib.Path(data_config.data_dir).expanduser()
    if not data_config.data_dir or not root.is_dir():
        raise UserError(
            f"{data_config.data_dir or 'The path after the colon'} is not a folder: name one with "
            "images, as in --config configs/folder.py:/path/to/images."
        )
    layout = layout or list_layout(root)
    options = get_decode_options(data_config)
    parts = layout.train, layout.validation, layout.test
    rows = [row for part in parts for row in part]
    files = [file for file, _ in rows]
    decoded = load_decoded(
        root,
        files,
        data_config.image_size,
        options,
        max_gigabytes=data_config.cache_gigabytes,
        is_silent=not is_main_process(),
    )
    index = {name: k for k, name in enumerate(layout.class_names)} | {NO_CLASS_NAME: NO_CLASS}
    labels = np.array([index[name] for _, name in rows], np.int32)
    split = np.repeat(np.arange(3), [len(part) for part in parts])
    skipped = layout.skipped + [(files[i].name, why) for i, why in decoded.failures.items()]
    is_labeled = (split == 0) & (labels != NO_CLASS)
    readable = decoded.rows
    _check_classes(layout, labels[readable[is_labeled[readable]]], skipped)

    names = [file.name for file in files]
    labeled_by_content = {decoded.digests[i]: i for i in readable[is_labeled[readable]][::-1]}
    copies = {
        i: labeled_by_content[decoded.digests[i]]
        for i in readable
        if labels[i] == NO_CLASS and decoded.digests[i] in labeled_by_content
    }
    skipped += [(names[i], f"the same image as {names[j]}") for i, j in copies.items()]
    is_used = ~np.isin(readable, list(copies))
    places = [np.flatnonzero(is_used & (split[readable] == part)) for part in range(3)]
    train, validation, test = (readable[place] for place in places)

    warnings = list(layout.warnings)
    if skipped:
        warnings.append(f"{len(skipped):,} file(s) were skipped: see skipped_files.csv.")
    if copies:
        i, j = next(iter(copies.items()))
        warnings.append(
            f"{len(copies):,} unlabeled image(s) are labeled ones again, byte for byte, and are "
            f"left out, such as {names[i]!r}, which is {names[j]!r}."
        )
    pairs = [
        (labeled_by_content[decoded.digests[i]], i)
        for i in readable[is_labeled[readable]]
        if labels[labeled_by_content[decoded.digests[i]]] != labels[i]
    ]
    if pairs:
        warnings.append(
            f"{len(pairs):,} image(s) are in two classes, byte for byte, such as "
            f"{names[pairs[0][0]]!r} and {names[pairs[0][1]]!r}: delete the wrong one of each."
        )
    seen = {decoded.digests[i] for i in train}
    for part, what in ((validation, "validation"), (test, "test")):
        again = [decoded.digests[i] for i in part if decoded.digests[i] in seen]
        if again:
            num_labeled = sum(digest in labeled_by_content for digest in again)
            warnings.append(
                f"{len(again):,} of {len(part):,} {what} images are also training images, byte for "
                f"byte ({num_labeled:,} of them labeled): the {what} accuracy will be too high."
            )
    if not len(test) and layout.test:
        warnings.append("No test image could be read, so there will be no test accuracy.")
    if options.bit_depth < 16:
        warnings.append(
            f"16-bit images are scaled from 0 to {2**options.bit_depth - 1:,}, because "
            f"data.bit_depth is {options.bit_depth}."
        )
    else:
        depth = find_bit_depth([root / files[i].name for i in take_evenly(train.tolist(), 200)])
        if depth < 16:
            warnings.append(
                f"The 16-bit images use {depth} bits and will be dark: set "
                f"--config.data.bit_depth={depth}."
            )
    images = [decoded.images.select(place) for place in places]
    size = data_config.image_size
    return Dataset(
        name=make_printable(root.resolve().name),
        class_names=layout.class_names,
        train_images=images[0],
        train_labels=labels[train],
        test_images=images[2],
        test_labels=labels[test],
        validation_images=images[1],
        validation_labels=labels[validation],
        image_shape=(size, size, 3),
        fingerprint=_hash_rows((names[i], files[i].size, labels[i]) for i in train),
        warnings=tuple(warnings),
        skipped_files=tuple(sorted(skipped)),
        train_files=tuple(names[i] for i in train),
        validation_files=tuple(names[i] for i in validation),
        test_files=tuple(names[i] for i in test),
    )


def list_layout(root: pathlib.Path) -> Layout:
    """Lists a folder and sorts its files; raises a UserError as `read_layout` does."""
    return read_layout(root, list_images(root))


def compute_fingerprint(layout: Layout, left_out: Collection[str]) -> str:
    """The fingerprint that a dataset of these files would have, without opening one of them.

    Args:
        layout: The files of a folder.
        left_out: Names of files that the dataset does not have, because they cannot be read.
    """
    index = {name: k for k, name in enumerate(layout.class_names)} | {NO_CLASS_NAME: NO_CLASS}
    return _hash_rows(
        (file.name, file.size, index[name])
        for file, name in layout.train
        if file.name not in left_out
    )


def _check_classes(layout: Layout, labels: np.ndarray, skipped: Sequence[tuple[str, str]]) -> None:
    """Raises a UserError if a class has no image left."""
    counts = np.bincount(labels, minlength=len(layout.class_names))
    if not counts.all():
        name = layout.class_names[int(counts.argmin())]
        files = {file.name for file, label in layout.train if label == name}
        why = describe_skipped([row for row in skipped if row[0] in files])
        raise UserError(
            f"None of the labeled images of class {name!r} can be read{why}: add one or remove "
            "the class."
        )


def _hash_rows(rows: Iterable[tuple]) -> str:
    """A short hash of rows of strings and numbers, 32 hexadecimal digits."""
    digest = hashlib.sha256()
    for row in rows:
        # Names may hold any byte but zero, also what is not Unicode.
        text = "\0".join(map(str, row)) + "\0\n"
        digest.update(text.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:32]
