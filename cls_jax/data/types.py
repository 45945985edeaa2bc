"""A dataset as the rest of the program sees it."""

import dataclasses
from typing import Any, Protocol

import numpy as np

from cls_jax.batch import DatasetSpec


class ImageSource(Protocol):
    """Images read by index: a NumPy array, a memory map, or a reader of files."""

    def __len__(self) -> int: ...

    def __getitem__(self, indices: Any) -> np.ndarray:
        """Returns uint8 [len(indices), H, W, C] for int indices [n] or a slice."""


@dataclasses.dataclass(frozen=True, eq=False)
class Selection:
    """The images of a source at `indices`, int64 [n], read when they are needed."""

    source: ImageSource
    indices: np.ndarray

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Those at `rows` of the selection."""
        return self.source[self.indices[rows]]


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Images and labels for training and testing.

    Attributes:
        name: the dataset's name in the configuration, or the name of the folder of images.
        class_names: K names, in the order of their labels.
        train_images: all training images, labeled or not.
        train_labels: int32 [n], their classes, -1 where unknown. Only monitors look at those
            outside the label budget.
        test_images: images that training never sees. There may be none.
        test_labels: int32 [m].
        image_shape: (H, W, C).
        mean: C means on the scale from 0 to 1, as configured or computed.
        std: C standard deviations, likewise.
        fingerprint: hash of the names, sizes and labels (not the pixels) of the training images'
            files, or "" where there are none.
        warnings: one sentence for each thing that users should know about the data.
        skipped_files: name and reason of every file that could not be used.
        validation_images: images that training never sees, for decisions about the run. There may
            be none.
        validation_labels: int32 [v].
        train_files: the training images' files, relative to the folder, or none where images are
            not files.
        test_files: the test images' files, likewise.
        validation_files: the validation images' files, likewise.
    """

    name: str
    class_names: tuple[str, ...]
    train_images: ImageSource
    train_labels: np.ndarray
    test_images: ImageSource
    test_labels: np.ndarray
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    fingerprint: str = ""
    warnings: tuple[str, ...] = ()
    skipped_files: tuple[tuple[str, str], ...] = ()
    train_files: tuple[str, ...] = ()
    test_files: tuple[str, ...] = ()
    validation_images: ImageSource = dataclasses.field(
        default_factory=lambda: np.zeros((0, 1, 1, 1), np.uint8)
    )
    validation_labels: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int32))
    validation_files: tuple[str, ...] = ()

    @property
    def num_classes(self) -> int:
        """The number of classes, K."""
        return len(self.class_names)

    @property
    def held_out(self) -> tuple[tuple[str, ImageSource, np.ndarray], ...]:
        """The sets that training never sees: name, images and labels. Either may be empty."""
        return (
            ("validation", self.validation_images, self.validation_labels),
            ("test", self.test_images, self.test_labels),
        )

    @property
    def shape(self) -> DatasetSpec:
        """The sizes that decide the shapes of a run."""
        return DatasetSpec(self.image_shape, self.num_classes, len(self.train_images))
