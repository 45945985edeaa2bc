"""What a session knows at one moment, as a value: each change makes a new one.

Shape suffixes: B photos, K classes.
"""

import dataclasses
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import numpy as np

from cls_jax.io import write_count
from cls_jax.photos.features.accuracy import MIN_CHECKS
from cls_jax.photos.features.backbones import Backbones
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.features.relations import Relations
from cls_jax.photos.folder.kinds import ONE_CLASS, TAGS
from cls_jax.photos.folder.log import NO_MARKS, Checked, FileMarks, Mark, compare_checks
from cls_jax.photos.folder.options import FolderOptions
from cls_jax.photos.folder.sources import number_sources
from cls_jax.photos.labeling.answers import Notes, RefusedError
from cls_jax.photos.labeling.classes import NO_CLASSES, Classes, find_keys
from cls_jax.photos.labeling.proposals import CLASS_RULES, Classified, Rules
from cls_jax.photos.labeling.tag_proposals import TAG_RULES

_RULES = {ONE_CLASS: CLASS_RULES, TAGS: TAG_RULES}


class Features(NamedTuple):
    """The result of the feature pass over some files, of which B can be read."""

    readable: np.ndarray  # int [B], indices of the files that could be read.
    frozen: FrozenFeatures  # Of these B files.
    reasons: Mapping[int, str] = {}  # Index of each other file → why it cannot be read.
    digests: Mapping[pathlib.Path, bytes] = {}  # Of the contents of the files, as they were read.


class Counts(NamedTuple):
    """How many of a session's photos there are of some kinds."""

    classes: int  # Those with a label.
    labels: int
    checks: int  # Random photos with an answer, which a classifier had guessed before.
    open: int  # Without an answer.


@dataclasses.dataclass(frozen=True)
class Known:
    """What a session knows of B photos and K classes."""

    root: pathlib.Path
    options: FolderOptions  # How to read it.
    backbones: Backbones  # The networks that see the photos.
    sources: Mapping[str, str]  # What files come from, as far as anything says it.
    pending: tuple[str, ...]  # All files that may be labeled, before the features are known.
    progress: tuple[int, int]  # Images read, and images in all.
    version: int = 0  # Increases with each change.
    phase: str = "reading"  # Before the features are known; then "ready", or "failed".
    message: str = ""  # Why it failed.
    # The names of the photos, by their indices, which never change, and the indices by the names.
    # Before the features are known, these are the random photos that have been asked so far.
    files: tuple[str, ...] = ()
    index: Mapping[str, int] = dataclasses.field(default_factory=dict)
    # The name of each other file → why it cannot be read.
    unreadable: Mapping[str, str] = dataclasses.field(default_factory=dict)
    digests: Mapping[pathlib.Path, bytes] = dataclasses.field(default_factory=dict)
    gone: AbstractSet[int] = frozenset()  # The photos whose files are no longer in the folder.
    marks: FileMarks = NO_MARKS  # What labels.csv says of all files of the folder.
    notes: Notes = dataclasses.field(default_factory=dict)  # What it says of classes.
    classes: Classes = NO_CLASSES
    # Random photos to check → the probability of each to be drawn.
    sample: Mapping[int, float] = dataclasses.field(default_factory=dict)
    rejected: AbstractSet[int] = frozenset()  # Photos whose suggested label was marked as wrong.
    relations: Relations | None = None  # Nothing before the features are known, as the next two.
    # int [B], -1 for photos without a label.
    labels: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, int))
    # The proposals, floating [B, K].
    probabilities: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 0)))
    left_out: AbstractSet[int] = frozenset()  # The photos that no run is trained on.
    labels_version: int = 0  # The number of changes of labels so far.
    num_moved: int = 0  # The number of photos left out so far, taken back, or added.
    classified: Classified | None = None  # The newest, None before the first.

    @property
    def rules(self) -> Rules:
        """What depends on what a label can be."""
        return _RULES[self.options.kind]

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of all classes, in their order."""
        return self.classes.names

    @property
    def answers_version(self) -> int:
        """The number of changes so far of labels, and of the photos to fit a classifier to."""
        return self.labels_version + self.num_moved

    def split(self, label: str) -> list[str]:
        """The classes that a label names, also those that are open."""
        kind = self.options.kind
        return kind.name(kind.split(label)) if label else []

    def get_state(self, image: int) -> Mark:
        """The mark of a photo."""
        return self.marks.get(self.files[image])

    def list_answered(self) -> Iterator[tuple[int, Mark]]:
        """The photos in the folder with a decision, the last decision first."""
        for name, mark in reversed(list(self.marks.files.items())):
            image = self.index.get(name)
            if mark.decision and image is not None and image not in self.gone:
                yield image, mark

    def has_suggestions(self) -> bool:
        """Whether two labels are known: before, all photos would get the same one."""
        return len(np.unique(self.labels[self.labels >= 0])) > 1 and bool(self.probabilities.any())

    def find_open(self) -> np.ndarray:
        """Which photos are in the folder and have no answer, bool [B]."""
        is_open = np.ones(len(self.files), bool)
        is_open[list(self.gone)] = False
        is_open[[image for image, _ in self.list_answered()]] = False
        return is_open

    def find_keys(self) -> dict[str, str]:
        """Class → number key of those that have one."""
        names = self.classes.fold()
        return {names[k]: key for k, key in find_keys(self.classes, self.notes).items()}


def get_path(known: Known, image: int) -> pathlib.Path:
    """The file of a photo. Raises a RefusedError if there is none."""
    if not 0 <= image < len(known.files):
        raise RefusedError("There is no such photo.")
    return known.root / known.files[image]


def list_paths(known: Known) -> list[pathlib.Path]:
    """The files of all photos."""
    return [known.root / name for name in known.pending or known.files]


def list_states(known: Known) -> list[tuple[int, str, Mark]]:
    """All photos in the folder: index, name and mark."""
    photos = enumerate(known.files)
    return [
        (image, name, known.get_state(image)) for image, name in photos if image not in known.gone
    ]


def list_sources(known: Known, rows: Iterable[int] | None = None) -> np.ndarray | None:
    """What the photos `rows` come from, by default all, int32, -1 where unknown.

    None if nothing is known.
    """
    names = known.files if rows is None else [known.files[row] for row in rows]
    return number_sources(names, known.sources) if known.sources else None


def find_checked(known: Known) -> Checked:
    """The random photos in the folder that were checked, and what had been guessed of them."""
    return compare_checks(known.marks, {known.files[image] for image in known.gone})


def find_awaited(known: Known) -> dict[int, float]:
    """The random photos whose answers were undone → the probability of each to be drawn."""
    found = {known.index.get(name): mark.awaited for name, mark in known.marks.files.items()}
    return {i: check.probability for i, check in found.items() if i is not None and check}


def count_missing(num_checks: int) -> int:
    """The random photos that are missing from a round of `MIN_CHECKS`, or from the next one."""
    return MIN_CHECKS - num_checks % MIN_CHECKS


def write_missing(num_checks: int) -> str:
    """The same in words, as "20 random photos" or "1 more random photo"."""
    more = "more " if num_checks % MIN_CHECKS else ""
    return write_count(count_missing(num_checks), f"{more}random photo", f"{more}random photos")


def list_checked(known: Known) -> dict[int, str]:
    """The same photos, and the class of each, "" for none of the classes."""
    names = [name for name in known.marks.list_checked() if name in known.index]
    return {known.index[name]: known.marks.get(name).label for name in names}


def list_trainable(known: Known) -> np.ndarray:
    """The photos that a run would be trained on now, in its order, int [M].

    Those that are skipped, of no class, or gone are left out.
    """
    labels = known.labels
    left = [image for image in range(len(labels)) if image not in known.left_out]
    return np.array(sorted(left, key=lambda i: (labels[i] < 0, known.files[i])), int)


def count(known: Known) -> Counts:
    """How many photos there are of some kinds."""
    labels = known.labels[known.labels >= 0]
    num_checks, num_open = len(find_checked(known).is_right), int(known.find_open().sum())
    return Counts(len(np.unique(labels)), len(labels), num_checks, num_open)


def show_name(name: str) -> str:
    """A name for JSON, with "?" for bytes that are not Unicode."""
    return name.encode("utf-8", "replace").decode()
