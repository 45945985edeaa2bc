"""A folder of the user's images as a Dataset. See `catalog` for what counts."""

import contextlib
import functools
import hashlib
import io
import json
import os
import pathlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from cls_jax.data.datasets import LOADERS, HoldOut, Loader, hold_out_validation, load_dataset
from cls_jax.data.resize import (
    CENTER_CROP,
    DecodeOptions,
    ImageError,
    get_decode_options,
    get_image_shape,
)
from cls_jax.data.sampling import take_evenly, take_rows
from cls_jax.data.types import NO_IMAGES, Dataset, Selection, Split
from cls_jax.errors import UserError
from cls_jax.io import make_printable, write_count
from cls_jax.parallel.distributed import check_same_data, compute_in_main_process, is_main_process
from cls_jax.photos.folder.catalog import PARTS, Layout, Rows, read_catalog
from cls_jax.photos.folder.kinds import ONE_CLASS, Classes, split_tags
from cls_jax.photos.folder.label_table import LABELS_CSV
from cls_jax.photos.folder.names import fold_case, group_pairs
from cls_jax.photos.folder.options import (
    AUTOMATIC,
    FolderOptions,
    find_folder,
    get_folder_options,
)
from cls_jax.photos.folder.reading import NO_CLASS_NAME
from cls_jax.photos.folder.remedies import (
    describe_skipped,
    find_example,
    refuse_unreadable,
)
from cls_jax.photos.folder.sources import Sources
from cls_jax.photos.images.cache import load_decoded
from cls_jax.photos.images.decode import (
    describe_unread,
    find_bit_depth,
    open_file,
    read_header,
)
from cls_jax.photos.images.files import (
    ImageFiles,
    SkippedFile,
    is_left_by_system,
    list_images,
    read_ahead,
)
from cls_jax.photos.images.store import hash_content

NO_CLASS = -1
COPY_OF = "the same image as"  # Reason for skipping a copy.
_MIN_PHOTO = 32  # Pixels on the short side.
_NUM_COMPARED = 32  # Files that all processes compare.
_NUM_SAMPLED = 200  # Files sampled for their headers and bit depth.


def open_dataset(
    config: ConfigDict, layout: Layout | None = None, hold_out: HoldOut = hold_out_validation
) -> Dataset:
    """The dataset of a configuration, which may be a folder, by its `layout` if that is known.

    `hold_out` is that of `load_dataset`. Raises the same as `load_dataset` and `load_folder`.
    """
    of_folder: Loader = functools.partial(load_folder, layout=layout)
    return load_dataset(config, {**LOADERS, "folder": of_folder}, hold_out)


def load_folder(data_config: ConfigDict, layout: Layout | None = None) -> Dataset:
    """Reads the folder `data_config.data_dir`, by its `layout` if that is known.

    Training images are ordered by name, labeled before unlabeled (label -1). Raises a UserError if
    there is nothing to train on, or a class has no image.
    """
    root = find_folder(
        data_config.data_dir or "The path after the colon",
        "a folder of images, as in --config configs/folder.py:/path/to/images",
    )
    layout = layout or list_layout(root, get_folder_options(data_config))
    options, kind = get_decode_options(data_config), get_folder_options(data_config).kind
    shape = get_image_shape(data_config)
    parts = layout.train, layout.validation, layout.test
    files: Any = Selection(layout.train.files, np.concatenate([part.places for part in parts]))
    labels = np.concatenate([part.labels for part in parts])
    sources = None
    if layout.sources is not None:
        sources = np.full(len(labels), -1, np.int32)
        sources[: len(layout.train)] = layout.sources.numbers
    names = [file.name for part in parts for file, _ in part]
    decoded = load_decoded(
        root,
        files,
        shape,
        options,
        max_gigabytes=data_config.cache_gigabytes,
        is_silent=not is_main_process(),
    )
    skipped = layout.skipped + [(names[i], why) for i, why in decoded.failures.items()]
    ends = np.cumsum([len(layout.train), len(layout.validation)])
    train, validation, test = np.split(decoded.rows, np.searchsorted(decoded.rows, ends))
    _check_classes(layout, labels[train], skipped, kind)
    labels, class_names = _join_repeats(train, labels, decoded.digests, layout.class_names, kind)
    copies, repeats = _find_repeats((train, validation, test), labels, decoded.digests, names)
    skipped += [(names[i], f"{COPY_OF} {names[j]}") for i, j in copies.items()]
    train = np.setdiff1d(train, list(copies))
    warnings = list(layout.warnings)
    if skipped:
        were = write_count(len(skipped), "file was", "files were")
        example, reason, _ = find_example(skipped)
        warnings.append(
            f"{were} skipped, such as {example!r:.100} ({reason}): see skipped_files.csv."
        )
    warnings += repeats
    if not len(test) and layout.test:
        warnings.append("No test image could be read, so there will be no test accuracy.")
    warnings += _describe_bit_depth(
        [root / names[i] for i in take_rows(train, _NUM_SAMPLED)], options
    )

    def select(part: np.ndarray) -> Split:
        images = Selection(decoded.images, np.searchsorted(decoded.rows, part))
        of_part = None if sources is None else sources[part]
        return Split(images, labels[part], tuple(names[i] for i in part), of_part)

    return Dataset(
        name=make_printable(root.resolve().name),
        class_names=class_names,
        train=select(train),
        test=select(test),
        validation=select(validation),
        image_shape=shape,
        fingerprint=hash_names(layout, {name for name, _ in skipped})
        + hash_contents(layout, decoded.digests, {names[i] for i in decoded.failures}),
        warnings=tuple(warnings),
        skipped_files=tuple(sorted(skipped)),
    )


def _join_repeats(
    train: np.ndarray,
    labels: np.ndarray,
    digests: Sequence[bytes],
    class_names: tuple[str, ...],
    kind: Classes,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The labels and their names after `kind.join_repeats` for labeled training images."""
    places = group_pairs((digests[i], int(i)) for i in train[labels[train] != NO_CLASS])
    if not (groups := [group for group in places.values() if len(group) > 1]):
        return labels, class_names
    texts = [class_names[k] if k != NO_CLASS else NO_CLASS_NAME for k in labels]
    joined = kind.join_repeats(texts, groups)
    names = sorted({*joined} - {NO_CLASS_NAME})
    index = {name: k for k, name in enumerate(names)} | {NO_CLASS_NAME: NO_CLASS}
    return np.array([index[text] for text in joined], np.int32), tuple(names)


def _find_repeats(
    parts: tuple[np.ndarray, np.ndarray, np.ndarray],
    labels: np.ndarray,
    digests: Sequence[bytes],
    names: Sequence[str],
) -> tuple[dict[int, int], list[str]]:
    """Compares the bytes of the training, validation and test images, given by their indices.

    Returns unlabeled image → the first identical labeled one, and sentences about repeats.
    """
    train, *held_out = parts
    first = {digests[i]: i for i in train[::-1] if labels[i] != NO_CLASS}
    copies = {i: first[digests[i]] for i in train if labels[i] == NO_CLASS and digests[i] in first}
    warnings = []
    for i, j in list(copies.items())[:1]:
        warnings.append(
            f"{write_count(len(copies), 'unlabeled image is', 'unlabeled images are')} left out as "
            f"identical to a labeled one, such as {names[i]!r}, which is {names[j]!r}."
        )
    pairs = [(first[digests[i]], i) for i in train if labels[i] != NO_CLASS]
    for is_same, text in (
        (
            False,
            "in two classes, such as {!r} and {!r}: delete the wrong one of each, or pass --tags "
            "if images may have several",
        ),
        (True, "in one class twice, such as {!r} and {!r}: label other images instead"),
    ):
        found = [(i, j) for i, j in pairs if i != j and (labels[i] == labels[j]) == is_same]
        for i, j in found[:1]:
            warnings.append(
                f"{write_count(len(found), 'image is', 'images are')} "
                f"{text.format(names[i], names[j])}."
            )
    seen = {digests[i] for i in train}
    for part, what in zip(held_out, ("validation", "test"), strict=True):
        if again := [digests[i] for i in part if digests[i] in seen]:
            num_labeled = sum(digest in first for digest in again)
            are = "is" if len(again) == 1 else "are"
            warnings.append(
                f"{len(again):,} of {len(part):,} {what} images {are} identical to training images "
                f"({num_labeled:,} of them labeled): the {what} accuracy will be too high."
            )
    return copies, warnings


def _describe_bit_depth(paths: Sequence[pathlib.Path], options: DecodeOptions) -> list[str]:
    """A sentence about 16-bit images that use fewer bits."""
    if options.bit_depth < 16:
        return [
            f"16-bit images are scaled from 0 to {2**options.bit_depth - 1:,}, because "
            f"data.bit_depth is {options.bit_depth}."
        ]
    depth = find_bit_depth(paths)
    text = f"The 16-bit images use {depth} bits and will be dark: set --config.data.bit_depth="
    return [f"{text}{depth}."] if depth < 16 else []


def list_layout(root: pathlib.Path, options: FolderOptions = AUTOMATIC) -> Layout:
    """Lists a folder in process 0, for all, and sorts its files.

    Raises a UserError as `read_catalog` and `Catalog.train` do.
    """

    def read() -> Layout:
        return read_catalog(root, list_images(root), options).train()

    if jax.process_count() == 1:
        return read()
    layout = unpack_layout(compute_in_main_process(lambda: pack_layout(read())))
    check_same_data(_read_sample(root, layout))
    return layout


def pack_layout(layout: Layout) -> bytes:
    """A layout as bytes, for other processes: columns, and the rest as JSON."""
    buffer, files = io.BytesIO(), layout.train.files
    sources = layout.sources or Sources(np.zeros(0, np.int32), "")
    parts = zip(PARTS, (layout.train, layout.validation, layout.test), strict=True)
    columns: Any = {part: np.stack([rows.places, rows.labels]) for part, rows in parts}
    rest = layout.class_names, layout.skipped, layout.warnings, layout.table, sources.origin
    np.savez(
        buffer,
        text=np.frombuffer(files.text, np.uint8),
        numbers=np.frombuffer(files.numbers, np.int64),
        rest=np.array(json.dumps(rest)),
        sources=sources.numbers,
        **columns,
    )
    return buffer.getvalue()


def unpack_layout(content: bytes) -> Layout:
    """The layout that `pack_layout` has packed."""
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        names, skipped, warnings, table, origin = json.loads(str(stored["rest"]))
        files = ImageFiles((), stored["text"].tobytes(), stored["numbers"].tobytes())
        parts: Any = {
            part: Rows(files, stored[part][0], stored[part][1].astype(np.int32), tuple(names))
            for part in PARTS
        }
        sources = Sources(stored["sources"], origin) if origin else None
    return Layout(
        tuple(names),
        **parts,
        skipped=list(map(tuple, skipped)),
        warnings=warnings,
        table=table,
        sources=sources,
    )


def _read_sample(root: pathlib.Path, layout: Layout) -> Iterator[bytes]:
    """Data that must agree between processes: a few files, names beside them, and the labels."""
    paths = [root / file.name for file, _ in take_evenly(layout.train, _NUM_COMPARED)]
    for folder in sorted({path.parent for path in paths}):
        with contextlib.suppress(OSError):  # Packed files are not on disk.
            yield repr(
                sorted(name for name in os.listdir(folder) if not is_left_by_system(name))
            ).encode()
    for path in paths + [root / name for name in os.listdir(root) if fold_case(name) == LABELS_CSV]:
        try:
            with open_file(path) as file:
                yield hash_content(file.read())
        except ImageError as error:
            yield str(error).encode()


def hash_names(layout: Layout, left_out: Collection[str]) -> str:
    """The first half of a dataset's fingerprint, which needs no file's content.

    `left_out` are files that the dataset does not have.
    """
    train = layout.train
    labels = iter(layout.train.labels.tolist())
    return _hash_lines(
        f"{name}\0{size}\0{label}\0\n"
        for names, numbers in train.files.read(train.places)
        for name, size, label in zip(names, numbers[:, 0].tolist(), labels, strict=False)
        if name not in left_out
    )


def hash_contents(layout: Layout, digests: Sequence[bytes], unreadable: Collection[str]) -> str:
    """The second half: contents of all training files, which are readable, and the labels.

    `digests` are the hashes of the training images' files, followed by any others.
    """
    return _hash_lines(
        f"{file.name}\0{digest.hex()}\0{name}\0{file.name in unreadable}\0\n"
        for (file, name), digest in zip(layout.train, digests, strict=False)
    )


def _check_classes(
    layout: Layout, labels: np.ndarray, skipped: Sequence[tuple[str, str]], kind: Classes
) -> None:
    """Raises a UserError if a class or a tag has no image left."""
    before = kind.count(layout.train.labels, layout.class_names)
    counts = kind.count(labels, layout.class_names)
    if lost := [name for name, count in counts.items() if before[name] > count == 0]:
        name = lost[0]
        files = {file.name for file, label in layout.train if name in (label, *split_tags(label))}
        why = describe_skipped([row for row in skipped if row[0] in files])
        raise UserError(
            f"None of the labeled images of class {name!r} can be read{why}: add one or remove "
            "the class."
        )


def _hash_lines(lines: Iterator[str]) -> str:
    """A short hash, 32 hexadecimal digits."""
    digest = hashlib.sha256()
    for line in lines:  # Names may have any byte but zero, and need not be Unicode.
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:32]


class FolderSummary(NamedTuple):
    """A summary of a folder from its names and some headers, without decoding an image."""

    root: pathlib.Path
    layout: Layout
    class_counts: dict[str, int]  # Class or tag → labeled images that have it, sorted by name.
    num_labeled: int  # Training images with a label.
    num_unlabeled: int  # The others.
    # int64 [n, 2], width and height in pixels of up to 200 evenly spaced training images, without
    # unreadable ones.
    sizes: np.ndarray
    bit_depth: int = 16  # Bits used by 16-bit images among them. 16 if there are none.
    channels: int = 3  # 1 if all are gray, 3 if some have colors.
    unreadable: str = ""  # A sentence about those whose headers cannot be read, "" without any.
    unread: tuple[str, ...] = ()  # Sentences about what is not read of the others.
    kind: Classes = ONE_CLASS  # What a label can be.


def summarize_folder(
    folder: str | pathlib.Path, options: FolderOptions = AUTOMATIC
) -> FolderSummary:
    """Reads the names in a folder and a sample of the images' sizes.

    Raises a UserError if it is not a folder, its layout is not one of docs/own_images.md, or none
    of the sampled images can be read.
    """
    root = find_folder(folder, "a folder of images, some of them labeled")
    layout = list_layout(root, options)
    num_labeled = int((layout.train.labels != NO_CLASS).sum())
    paths = [root / file.name for file, _ in take_evenly(layout.train, _NUM_SAMPLED)]
    sizes, channels, failures = sample_headers(paths)
    if not len(sizes):
        raise refuse_unreadable(f"None of the sampled images in {root}", failures)
    unreadable = ""
    if failures:
        example, reason, _ = find_example(failures)
        unreadable = (
            f"{len(failures):,} of {len(paths):,} sampled images cannot be read, such as "
            f"{make_printable(os.path.relpath(example, root))!r:.100}: {reason}."
        )
    return FolderSummary(
        root=root,
        layout=layout,
        class_counts=options.kind.count(layout.train.labels, layout.class_names),
        num_labeled=num_labeled,
        num_unlabeled=len(layout.train) - num_labeled,
        sizes=sizes,
        bit_depth=find_bit_depth(paths),
        channels=channels,
        unreadable=unreadable,
        unread=tuple(describe_unread(paths)),
        kind=options.kind,
    )


def sample_headers(
    paths: Sequence[str | os.PathLike],
) -> tuple[np.ndarray, int, list[SkippedFile]]:
    """Width and height of up to 200 images in pixels, int64 [n, 2], and their channels, 1 or 3.

    Files are evenly spaced, and those without a readable header are left out: they are returned
    with the reasons. The channels are 3 if any image has colors.
    """
    headers = []
    failures = []
    for path in take_evenly(paths, _NUM_SAMPLED):
        try:
            headers.append(read_header(path))
        except ImageError as error:
            failures.append((os.fspath(path), str(error)))
    sizes, channels = np.split(np.asarray(headers, np.int64).reshape(-1, 3), [2], axis=1)
    return sizes, int(channels.max()) if len(channels) else 3, failures


def find_short_side(sizes: np.ndarray) -> float:
    """The median short side in pixels of widths and heights [n, 2]."""
    return float(np.median(sizes.min(axis=1)))


def are_photos(sizes: np.ndarray) -> bool:
    """Whether images of widths and heights [n, 2] are large enough for a pretrained network.

    Its features are better than pixels for CIFAR-10's photos of 32 pixels, and worse for
    digits of 8 pixels (experiments/results/suggest_photos.md).
    """
    return len(sizes) > 0 and find_short_side(sizes) >= _MIN_PHOTO


def load_sample(
    summary: FolderSummary,
    shape: tuple[int, int, int],
    limit: int,
    options: DecodeOptions = CENTER_CROP,
) -> Dataset:
    """The training images of a folder, of which only a sample is decoded.

    Up to `limit` labeled and as many other images are read, and repeated in place of all images, so
    that there are as many as in `load_folder` if all can be read and none is a copy. Raises a
    UserError if no labeled one can be read.
    """
    train = summary.layout.train
    places, rest = np.split(np.arange(len(train)), [summary.num_labeled])
    places = np.concatenate([take_rows(places, limit), take_rows(rest, limit)])
    files = [str(summary.root / train[i][0].name) for i in places]
    (batch,) = read_ahead(files, shape, len(files), options)
    errors = {i: error for i, error in enumerate(batch.errors) if error is not None}
    if not (np.delete(train.labels[places], list(errors)) >= 0).any():
        raise refuse_unreadable(
            f"None of the sampled labeled images in {summary.root}",
            [(files[i], error) for i, error in errors.items()],
        )
    rows = np.resize(np.arange(len(batch.images)), len(train))
    return Dataset(
        name=summary.root.resolve().name,
        class_names=summary.layout.class_names,
        train=Split(Selection(batch.images, rows), train.labels),
        test=NO_IMAGES,
        image_shape=shape,
    )
