"""One way to read the labels of a folder, as a value.

What lies in a folder can be read in several ways: class folders, tables of other programs, files
about an image each, names of files. The modules in `propose` yield a reading for each and raise
nothing, `judge` weighs them by their evidence, and `catalog` uses the best one or asks.
"""

import pathlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from cls_jax.photos.folder.index import FileIndex
from cls_jax.photos.folder.names import fold_class
from cls_jax.photos.folder.options import FolderOptions
from cls_jax.photos.images.files import Listing, SkippedFile

NO_CLASS_NAME = ""  # Of unlabeled images.
HELD_OUT = ("test", "validation")
NOTHING: Mapping[str, Any] = MappingProxyType({})
_MAX_DESCRIBED = 3  # Tables with a sentence each.

# What makes a table unreadable: nothing in it is a class, several columns may have the classes or
# need not have any, or it is damaged or contradicts itself.
NO_CLASSES, UNCLEAR, WRONG = "no classes", "unclear", "wrong"
# Kinds of evidence, see `judge`.
CHOSEN, SORTED, SEVERAL = "chosen by the user", "class folders", "several classes"
ONE_CLASS, MEASURES, UNREADABLE = "one class for all", "measures", "unreadable"


class Folder(NamedTuple):
    """What proposers look at."""

    root: pathlib.Path
    listing: Listing
    files: FileIndex  # Of the images in the listing.
    options: FolderOptions


class Fault(NamedTuple):
    """Why something cannot be read as it is: a sentence that names the remedy."""

    sentence: str
    kind: str = WRONG


class Reading(NamedTuple):
    """What one origin says about the images of a folder."""

    origin: str = ""  # The name of a table, with a star for files about an image each, or "".
    # Image → its class, NO_CLASS_NAME, or None for one of no class, or that a person has skipped.
    labels: Mapping[str, str | None] = NOTHING
    parts: Mapping[str, str] = NOTHING  # "train", "unlabeled", "test" or "validation", of images.
    splits: Mapping[str, str] = NOTHING  # The same of folders at the top.
    sources: Mapping[str, str] = NOTHING  # What images come from, as far as it says that.
    source_origin: str = ""  # The column that says it.
    rivals: Mapping[str, str] = NOTHING  # The class that comes second, where people differ.
    arguments: tuple[str, ...] = ()  # Options of a command with which a user chooses it.
    evidence: Collection[str] = ()
    files: Collection[str] = ()  # That were read.
    skipped: Sequence[SkippedFile] = ()  # Rows without an image, by their cells.
    warnings: Sequence[str] = ()
    sentence: str = ""  # Of a plan: which columns were read.
    meaning: str = ""  # What folders stand for, the end of a sentence.
    fault: Fault | None = None  # Why it cannot be read, or a better one.

    def list_labels(self) -> dict[str, str]:
        """Image → class, of the images that have one."""
        return {image: label for image, label in self.labels.items() if label}


def join_readings(readings: Sequence[Reading]) -> Reading:
    """The reading of several origins together. The last one counts."""
    sentences = [one.sentence for one in readings[:_MAX_DESCRIBED]]
    if len(readings) > _MAX_DESCRIBED:
        sentences.append(f"{len(readings) - _MAX_DESCRIBED:,} more tables like these were read.")
    return readings[0]._replace(
        labels=_merge(one.labels for one in readings),
        parts=_merge(one.parts for one in readings),
        sources=_merge(one.sources for one in readings),
        source_origin=next((one.source_origin for one in readings if one.source_origin), ""),
        rivals=_merge(one.rivals for one in readings),
        files=frozenset().union(*(one.files for one in readings)),
        skipped=[row for one in readings for row in one.skipped],
        warnings=[warning for one in readings for warning in one.warnings],
        sentence=" ".join(filter(None, sentences)),
    )


def find_evidence(labels: Mapping[str, str | None]) -> str:
    """What the labels of a table say about it."""
    return SEVERAL if len(set(map(fold_class, filter(None, labels.values())))) > 1 else ONE_CLASS


def _merge(maps: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: value for one in maps for key, value in one.items()}
