"""What a session knows at one moment, for those who describe it."""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np

from cls_jax.photos.features.backbones import Backbones
from cls_jax.photos.features.propagation import Propagation
from cls_jax.photos.features.relations import Relations
from cls_jax.photos.folder.log import Mark
from cls_jax.photos.folder.options import FolderOptions
from cls_jax.photos.labeling.answers import Answers
from cls_jax.photos.labeling.proposals import Classified


@dataclasses.dataclass(frozen=True)
class Reading:
    """What a session knows, see `Session.reading`."""

    version: int  # Increases with each change.
    phase: str  # "reading" before the features are known, "ready", or "failed".
    message: str  # Why it failed.
    progress: tuple[int, int]  # Images read, and images in all.
    pending: AbstractSet[str]  # All files that may be labeled, before the features are known.
    root: pathlib.Path
    options: FolderOptions  # How to read it.
    backbones: Backbones  # See `Session`.
    # The names of the B photos, by their indices, which never change. Before the features are
    # known, these are the random photos that have been asked so far.
    files: Sequence[str]
    index: Mapping[str, int]  # Their indices, by their names.
    unreadable: Mapping[str, str]  # The name of each other file → why it cannot be read.
    gone: AbstractSet[int]  # The photos whose files are no longer in the folder.
    answers: Answers
    relations: Relations | None  # None before the features are known.
    propagation: Propagation | None  # The same.
    probabilities: np.ndarray  # The proposals, floating [B, K].
    sample: Mapping[int, float]  # Random photos to check → the probability of each to be drawn.
    classified: Classified | None  # The newest, None before the first.

    def get_state(self, image: int) -> Mark:
        """What is said of a photo."""
        return self.answers.get(self.files[image])

    def list_answered(self) -> Iterator[tuple[int, Mark]]:
        """The photos in the folder with a decision, the last decision first."""
        for name, mark in reversed(list(self.answers.marks.files.items())):
            image = self.index.get(name)
            if mark.decision and image is not None and image not in self.gone:
                yield image, mark

    def has_suggestions(self) -> bool:
        """Whether labels of two classes are known: before, all photos would get the same class."""
        if self.propagation is None:
            return False
        labels = self.propagation.labels
        return len(np.unique(labels[labels >= 0])) > 1

    def find_open(self) -> np.ndarray:
        """Which photos are in the folder and have no answer, bool [B]."""
        is_open = np.ones(len(self.files), bool)
        is_open[list(self.gone)] = False
        is_open[[image for image, _ in self.list_answered()]] = False
        return is_open


def show_name(name: str) -> str:
    """A name for JSON, with "?" for bytes that are not Unicode."""
    return name.encode("utf-8", "replace").decode()
