"""The type of a dataset."""

import dataclasses
from typing import Protocol

import numpy as np

from cls_jax.batch import DatasetSpec


class ImageSource(Protocol):
    """Images read by index: a NumPy array, a memory map, or a reader of files."""

    def __len__(self) -> int: ...

    def __getitem__(self, indices: np.ndarray | slice) -> np.ndarray:
        """Returns uint8 [len(indices), H, W, C] for int indices [n] or a slice."""


@dataclasses.dataclass(frozen=True, eq=False)
class Selection:
    """The images of a source at `indices`, int64 [n], read when they are needed."""

    source: ImageSource
    indices: np.ndarray

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
        return self.source[self.indices[rows]]

    @property
    def digests(self) -> list[bytes] | None:
        """Digests of the images' files. None if they are not from files."""
        digests: list[bytes] | None = getattr(self.source, "digests", None)
        return None if digests is None else [digests[i] for i in self.indices]


@dataclasses.dataclass(frozen=True)
class Split:
    """A part of a dataset: n images with their labels."""

    images: ImageSource
    labels: np.ndarray  # int32 [n], -1 where unknown.
    # The images' files, relative to the folder of images. Empty if images are not files.
    files: tuple[str, ...] = ()
    # What each image comes from, such as a patient or a camera, as a number, int32 [n], -1 where
    # unknown. None where nothing is known of sources.
    sources: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: np.ndarray) -> "Split":
        """The images at some rows, int [m], read when they are needed."""
        files = tuple(self.files[row] for row in rows) if self.files else ()
        sources = None if self.sources is None else self.sources[rows]
        return Split(Selection(self.images, rows), self.labels[rows], files, sources)


NO_IMAGES = Split(np.zeros((0, 1, 1, 1), np.uint8), np.zeros(0, np.int32))


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Images and labels for training and testing. All splits except for training may be empty."""

    name: str  # As in the configuration, or the name of the folder of images.
    class_names: tuple[str, ...]  # K names, in the order of their labels.
    train: Split  # Labeled or not. Only monitors use labels outside the label budget.
    test: Split  # Images that training never sees.
    image_shape: tuple[int, int, int]  # (H, W, C).
    validation: Split = NO_IMAGES  # Images that training never sees, for decisions about the run.
    mean: tuple[float, ...] = ()  # Of C channels, on the scale from 0 to 1.
    std: tuple[float, ...] = ()
    # Hashes of the training images' files and labels, or "".
    fingerprint: str = ""
    warnings: tuple[str, ...] = ()  # One sentence each, for users.
    skipped_files: tuple[tuple[str, str], ...] = ()  # Name and reason.
    # Sorted numbers of the training images that `hold_out` has taken away, in the dataset as it was
    # loaded.
    moved: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def num_classes(self) -> int:
        """The number of classes, K."""
        return len(self.class_names)

    @property
    def held_out(self) -> dict[str, Split]:
        """The splits that training never sees, by name. Either may be empty."""
        return {"validation": self.validation, "test": self.test}

    @property
    def numbers(self) -> np.ndarray:
        """The number of each training image in the dataset as it was loaded, int64 [n], sorted.

        People list images by these numbers, whatever share of them a run holds out.
        """
        return np.setdiff1d(np.arange(len(self.train) + len(self.moved)), self.moved)

    def hold_out(self, rows: np.ndarray) -> "Dataset":
        """Moves some of the training images, int [m], to the validation images, so far none.

        Those without a label are only left out: their source is held out. The fingerprint still
        covers all training images, so it can be computed without decoding.
        """
        assert not len(self.validation), "validation images would be replaced"
        moved = np.unique(rows).astype(np.int64)
        kept = np.setdiff1d(np.arange(len(self.train)), moved)
        known = moved[self.train.labels[moved] >= 0]
        return dataclasses.replace(
            self, train=self.train.take(kept), validation=self.train.take(known), moved=moved
        )

    @property
    def shape(self) -> DatasetSpec:
        """The sizes that determine the shapes of a run."""
        return DatasetSpec(self.image_shape, self.num_classes, len(self.train))
