"""The type of a dataset."""

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
        return self.source[self.indices[rows]]

    @property
    def digests(self) -> list[bytes] | None:
        """Digests of the images' files. None if they are not from files."""
        digests: list[bytes] | None = getattr(self.source, "digests", None)
        return None if digests is None else [digests[i] for i in self.indices]


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Images and labels for training and testing. All sets except for training may be empty."""

    name: str  # As in the configuration, or the name of the folder of images.
    class_names: tuple[str, ...]  # K names, in the order of their labels.
    train_images: ImageSource  # n images, labeled or not.
    # int32 [n], -1 where unknown. Only monitors use those outside the label budget.
    train_labels: np.ndarray
    test_images: ImageSource  # m images that training never sees.
    test_labels: np.ndarray  # int32 [m].
    image_shape: tuple[int, int, int]  # (H, W, C).
    mean: tuple[float, ...] = ()  # Of C channels, on the scale from 0 to 1.
    std: tuple[float, ...] = ()
    # Hashes of the training images' files and labels, or "".
    fingerprint: str = ""
    warnings: tuple[str, ...] = ()  # One sentence each, for users.
    skipped_files: tuple[tuple[str, str], ...] = ()  # Name and reason.
    # The images' files, relative to the folder. None if images are not files.
    train_files: tuple[str, ...] = ()
    test_files: tuple[str, ...] = ()
    validation_files: tuple[str, ...] = ()
    # v images that training never sees, for decisions about the run, and labels int32 [v].
    validation_images: ImageSource = dataclasses.field(
        default_factory=lambda: np.zeros((0, 1, 1, 1), np.uint8)
    )
    validation_labels: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int32))

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
        """The sizes that determine the shapes of a run."""
        return DatasetSpec(self.image_shape, self.num_classes, len(self.train_images))
