"""The parts of a folder that is trained on: their files and classes."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from cls_jax.photos.folder.reading import NO_CLASS_NAME
from cls_jax.photos.folder.sources import NUM_NAMES, Sources, propose_by_folders, propose_pattern
from cls_jax.photos.images.files import ImageFile, ImageFiles, SkippedFile

PARTS = ("train", "validation", "test")
Row = tuple[ImageFile, str]  # A file and its class.


@dataclasses.dataclass(frozen=True, eq=False)
class Rows(Sequence[Row]):
    """Some files of a folder with their classes, at 12 bytes per file."""

    files: ImageFiles
    places: np.ndarray  # int64 [n], their indices.
    labels: np.ndarray  # int32 [n], -1 for unlabeled ones.
    class_names: tuple[str, ...]

    @property
    def _names(self) -> tuple[str, ...]:
        return *self.class_names, NO_CLASS_NAME  # The last one for -1.

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: Any) -> Any:
        return self.files[self.places[index]], self._names[self.labels[index]]

    def __iter__(self) -> Iterator[Row]:
        return zip(
            self.files.take(self.places), map(self._names.__getitem__, self.labels), strict=True
        )


class Layout(NamedTuple):
    """The parts of a folder that is trained on."""

    class_names: tuple[str, ...]  # Sorted.
    train: Rows  # Labeled before unlabeled, sorted by name within each.
    validation: Rows  # All labeled.
    test: Rows  # All labeled.
    skipped: list[SkippedFile]  # All other files, with the reason.
    warnings: list[str]  # One sentence each.
    table: str = ""  # A sentence about the columns of labels.csv, "" without one.
    # What the training images come from. None where nothing says it.
    sources: Sources | None = None

    @property
    def proposal(self) -> str:
        """A sentence about unknown sources that folders or names of images may carry, or ""."""
        if self.sources is not None:
            return ""
        train = self.train
        is_labeled = train.labels >= 0
        of_labeled = [file.name for file in train.files.take(train.places[is_labeled])]
        first = [file.name for file, _ in itertools.islice(train, NUM_NAMES)]
        return (
            propose_by_folders(of_labeled, train.labels[is_labeled]) or propose_pattern(first) or ""
        )
