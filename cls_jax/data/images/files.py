"""Finds image files and decodes them in threads, ahead of their use."""

import collections
import concurrent.futures
import functools
import glob
import os
from collections.abc import Generator, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cls_jax.data.images.decode import SUFFIXES, ImageError, read_image
from cls_jax.errors import UserError
from cls_jax.parallel.cpus import available_cpus


class ImageBatch(NamedTuple):
    """A decoded batch of files.

    Attributes:
        files: their names, as given.
        errors: for each file None, or why it could not be read.
        images: uint8 [n, H, W, C], the images that could be read, in order.
    """

    files: list[str]
    errors: list[str | None]
    images: np.ndarray


def find_images(pattern: str) -> list[str]:
    """Lists the image files that a folder, a glob or a file's name stands for, sorted by name.

    Of a folder and all folders in it these are the files whose names end as an image's; a folder
    that cannot be read is listed itself, so that it is not skipped in silence. A glob or a name
    takes files with any ending; `**` in a glob goes into folders.

    Raises:
        UserError: if there is no such file or the folder has no image.
    """
    expanded = os.path.expanduser(pattern)
    if os.path.isdir(expanded):
        files = _walk(expanded)
        if not files:
            raise UserError(
                f"There is no image in {pattern}: name a folder with files that end in "
                f"{', '.join(SUFFIXES)}."
            )
    elif os.path.exists(expanded):
        files = [expanded]
    else:
        files = _expand(expanded)
        if not files:
            raise UserError(
                f"There is no file {pattern}: name a folder, a file or a quoted pattern "
                "such as 'photos/**/*.jpg'."
            )
    return sorted(files)


def _walk(folder: str) -> list[str]:
    closed = []
    # Links to folders are not followed: they may lead anywhere, also back.
    walk = os.walk(folder, onerror=lambda error: closed.append(error.filename))
    return closed + [
        os.path.join(parent, name)
        for parent, _, names in walk
        for name in names
        if name.lower().endswith(SUFFIXES)
    ]


def _expand(pattern: str) -> list[str]:
    """The files that match a pattern, in each folder under its shortest name only."""
    files = [file for file in glob.glob(pattern, recursive=True) if os.path.isfile(file)]
    # `**` follows links to folders, some of which lead back: the same files again and again.
    names: dict[str, str] = {}
    for parent in sorted({os.path.dirname(file) for file in files}, key=lambda x: (len(x), x)):
        names.setdefault(os.path.realpath(parent), parent)
    known = set(names.values())
    return [file for file in files if os.path.dirname(file) in known]


def read_ahead(
    files: Sequence[str], image_shape: tuple[int, int, int], batch_size: int
) -> Generator[ImageBatch, None, None]:
    """Decodes files batch by batch, one batch ahead, on all cores.

    Args:
        files: to decode.
        image_shape: (H, W, C).
        batch_size: files per batch; the last may be smaller.
    """
    read = functools.partial(_try_to_read, image_shape=image_shape)
    executor = concurrent.futures.ThreadPoolExecutor(available_cpus())
    pending: collections.deque[Any] = collections.deque()
    try:
        for start in range(0, len(files), batch_size):
            part = list(files[start : start + batch_size])
            pending.append((part, executor.map(read, part)))  # Starts at once.
            if len(pending) == 2:
                part, results = pending.popleft()
                yield _collect(part, results, image_shape)
        while pending:
            part, results = pending.popleft()
            yield _collect(part, results, image_shape)
    finally:
        executor.shutdown(cancel_futures=True)


def _try_to_read(file: str, image_shape: tuple[int, int, int]) -> np.ndarray | ImageError:
    try:
        return read_image(file, image_shape)
    except ImageError as error:
        return error


def _collect(
    files: list[str],
    results: Iterable[np.ndarray | ImageError],
    image_shape: tuple[int, int, int],
) -> ImageBatch:
    results = list(results)
    images = [result for result in results if isinstance(result, np.ndarray)]
    errors = [str(result) if isinstance(result, ImageError) else None for result in results]
    return ImageBatch(
        files, errors, np.stack(images) if images else np.zeros((0, *image_shape), np.uint8)
    )
