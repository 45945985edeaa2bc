"""A folder of images at a glance: counts and sizes, and a few images to rehearse training on."""

import contextlib
import pathlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cls_jax.data.images.decode import (
    CENTER_CROP,
    DecodeOptions,
    ImageError,
    find_bit_depth,
    read_header,
)
from cls_jax.data.images.files import list_images, read_ahead
from cls_jax.data.sources.folder_layout import NO_CLASS_NAME, Layout, read_layout
from cls_jax.data.types import Dataset
from cls_jax.errors import UserError

# Files whose headers are read.
_NUM_SIZES = 200


class FolderSummary(NamedTuple):
    """What the names in a folder and the headers of some files tell, without decoding an image.

    Attributes:
        root: the folder.
        layout: its files by use.
        class_counts: class → labeled images, sorted by name.
        num_unlabeled: training images without a label.
        num_test: test images.
        sizes: int64 [n, 2], width and height in pixels of up to 200 training images, evenly spaced
            among the files. Those that cannot be read are left out.
        num_validation: validation images.
        bit_depth: bits that 16-bit images among them use. 16 if there are none.
        is_gray: whether all of these images are gray.
    """

    root: pathlib.Path
    layout: Layout
    class_counts: dict[str, int]
    num_unlabeled: int
    num_test: int
    sizes: np.ndarray
    num_validation: int = 0
    bit_depth: int = 16
    is_gray: bool = False

    @property
    def num_labeled(self) -> int:
        """Training images with a label."""
        return sum(self.class_counts.values())

    @property
    def imbalance(self) -> float:
        """Labeled images of the largest class over those of the smallest."""
        return max(self.class_counts.values()) / min(self.class_counts.values())


def summarize_folder(folder: str | pathlib.Path) -> FolderSummary:
    """Reads the names in a folder and a sample of the images' sizes.

    Raises:
        UserError: if it is not a folder, its layout is not one of docs/own_images.md, or none of
            the sampled images can be read.
    """
    root = pathlib.Path(folder).expanduser()
    if not root.is_dir():
        raise UserError(f"{folder} is not a folder: name one with images, some of them labeled.")
    layout = read_layout(root, list_images(root))
    counts = Counter(name for _, name in layout.train)
    paths = [root / file.name for file, _ in layout.train]
    sizes, is_gray = sample_headers(paths)
    if not len(sizes):
        raise UserError(
            f"None of the images in {root} that were tried can be read: convert them to JPEG or "
            "PNG."
        )
    return FolderSummary(
        root=root,
        layout=layout,
        class_counts={name: counts[name] for name in layout.class_names},
        num_unlabeled=counts[NO_CLASS_NAME],
        num_test=len(layout.test),
        sizes=sizes,
        num_validation=len(layout.validation),
        bit_depth=find_bit_depth(take_evenly(paths, _NUM_SIZES)),
        is_gray=is_gray,
    )


def take_evenly(rows: Sequence, limit: int) -> list:
    """At most `limit` of the rows, evenly spaced."""
    count = min(len(rows), limit)
    return [rows[i] for i in np.linspace(0, len(rows) - 1, count).astype(int)]


def sample_headers(paths: Sequence[pathlib.Path]) -> tuple[np.ndarray, bool]:
    """Width and height of up to 200 images in pixels, int64 [n, 2], and whether all are gray.

    They are evenly spaced. Those whose headers cannot be read are left out.
    """
    headers = []
    for path in take_evenly(paths, _NUM_SIZES):
        with contextlib.suppress(ImageError):  # Training lists it in skipped_files.csv.
            headers.append(read_header(path))
    rows = np.asarray(headers, np.int64).reshape(-1, 3)
    return rows[:, :2], bool(rows[:, 2].all())


def find_short_side(sizes: np.ndarray) -> float:
    """The median short side in pixels of widths and heights [n, 2]."""
    return float(np.median(sizes.min(axis=1)))


def load_sample(
    summary: FolderSummary,
    shape: tuple[int, int, int],
    limit: int,
    options: DecodeOptions = CENTER_CROP,
) -> Dataset:
    """Decodes some of a folder's training images into memory. Writes no cache.

    Args:
        summary: of the folder.
        shape: (H, W, C) to decode to.
        limit: the most labeled images to decode, and the most unlabeled ones.
        options: how an image becomes a square.

    Raises:
        UserError: if none of the chosen labeled images can be read.
    """
    train = summary.layout.train
    labeled = take_evenly(train[: summary.num_labeled], limit)
    unlabeled = take_evenly(train[summary.num_labeled :], limit)
    index = {name: k for k, name in enumerate(summary.class_counts)} | {NO_CLASS_NAME: -1}
    rows = [*labeled, *unlabeled]
    files = [str(summary.root / file.name) for file, _ in rows]
    (batch,) = read_ahead(files, shape, len(files), options)
    names = [name for (_, name), error in zip(rows, batch.errors, strict=True) if error is None]
    images, labels = batch.images, np.asarray([index[name] for name in names], np.int32)
    if not (labels >= 0).any():
        raise UserError(
            f"None of the labeled images in {summary.root} that were tried can be read: convert "
            "them to JPEG or PNG."
        )
    return Dataset(
        name=summary.root.resolve().name,
        class_names=tuple(summary.class_counts),
        train_images=images,
        train_labels=labels,
        test_images=images[:0],
        test_labels=labels[:0],
        image_shape=shape,
    )
