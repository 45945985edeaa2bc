"""What every dataset is to the rest of the program."""

import dataclasses
from typing import Any, Protocol

import numpy as np

from cls_jax.batch import DatasetSpec


class ImageSource(Protocol):
    """Images read by index: a NumPy array, a memory map, or a reader of files."""

    def __len__(self) -> int: ...

    def __getitem__(self, indices: Any) -> np.ndarray:
        """Returns uint8 [len(indices), H, W, C] for int indices [n] or a slice."""


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Images and labels to train on and to be tested on.

    Attributes:
        name: as in the configuration.
        class_names: of the K classes, in the order of their labels.
        train_images: all training images, labelled or not.
        train_labels: int32 [n], their classes, -1 where unknown; what the label budget leaves out
            is only looked at by monitors.
        test_images: images that training never sees; there may be none.
        test_labels: int32 [m].
        image_shape: (H, W, C).
        mean: of every channel on the scale from 0 to 1, as configured or computed.
        std: likewise.
        fingerprint: a hash that other training images do not have, or "" where there is none.
        warnings: a sentence for everything a user should know of the data.
        skipped_files: name and reason of every file that could not be used.
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

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.class_names)

    @property
    def shape(self) -> DatasetSpec:
        """The sizes that decide the shapes of a run."""
        return DatasetSpec(self.image_shape, self.num_classes, len(self.train_images))
