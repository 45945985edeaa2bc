"""One way to read the labels of a folder, as a value, and which of several ways counts.

What lies in a folder can be read in several ways: class folders, tables of other programs, files
about an image each, names of files. The functions in `propose` yield a reading for each, `judge`
weighs them by their evidence, and `catalog` uses the best one or asks: one reading is read, two are
asked about, none is refused with a remedy. Only what a user names, a file or a pattern, is refused
by `propose` itself.
"""

import os
import pathlib
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from cls_jax.io import write_count
from cls_jax.photos.folder.index import FileIndex
from cls_jax.photos.folder.kinds import join_tags
from cls_jax.photos.folder.log import LABEL, NOTHING, Mark
from cls_jax.photos.folder.names import (
    HELD_OUT,
    find_part,
    fold_case,
    fold_class,
    group_pairs,
    list_words,
)
from cls_jax.photos.folder.options import FolderOptions
from cls_jax.photos.images.files import Listing, SkippedFile

NO_CLASS_NAME = ""  # Of unlabeled images.
_MAX_DESCRIBED = 3  # Tables with a sentence each.

# What makes a table unreadable: nothing in it is a class, several columns may have the classes or
# need not have any, or it is damaged or contradicts itself.
NO_CLASSES, UNCLEAR, WRONG = "no classes", "unclear", "wrong"
# Kinds of evidence, see `judge`.
SORTED, SEVERAL = "class folders", "several classes"
ONE_CLASS, MEASURES, UNREADABLE = "one class for all", "measures", "unreadable"

# Evidence → its weight, and the reason.
WEIGHTS = {
    SORTED: 30,  # Somebody has sorted the images, which is more work than any table.
    SEVERAL: 10,  # A column names images, and another one divides them.
    MEASURES: -3,  # An age or a size divides images, too.
    UNREADABLE: 6,  # More than an example of a submission, less than a table that can be read.
    ONE_CLASS: 5,  # Such as an example of a submission, whose class means nothing.
}
_MARGIN = 2  # Readings whose weights differ by less are equally good.
_CLEAR = 8  # A reading of this weight is not contradicted without a word.


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
    marks: Mapping[str, Mark] = NOTHING  # Image → its class, part and source, if it is named.
    splits: Mapping[str, str] = NOTHING  # Folder at the top → its part, as `find_part` names it.
    source_origin: str = ""  # The column that says what images come from.
    arguments: tuple[str, ...] = ()  # Options of a command with which a user chooses it.
    evidence: Collection[str] = ()
    files: Collection[str] = ()  # That were read.
    skipped: Sequence[SkippedFile] = ()  # Rows without an image, by their cells.
    warnings: Sequence[str] = ()
    sentence: str = ""  # Of a plan: which columns were read.
    meaning: str = ""  # What folders stand for, the end of a sentence.
    fault: Fault | None = None  # Why it cannot be read, or a better one.

    def list_labels(self) -> dict[str, str]:
        """Image → class, as it is spelled there, of the images that have one."""
        labeled = ((image, mark) for image, mark in self.marks.items() if mark.decision == LABEL)
        return {image: join_tags(mark.spelled) for image, mark in labeled}


def _join(readings: Sequence[Reading]) -> Reading:
    """The reading of several origins together. The last one counts."""
    sentences = [one.sentence for one in readings[:_MAX_DESCRIBED]]
    if len(readings) > _MAX_DESCRIBED:
        sentences.append(f"{len(readings) - _MAX_DESCRIBED:,} more tables like these were read.")
    return readings[0]._replace(
        marks={image: mark for one in readings for image, mark in one.marks.items()},
        source_origin=next((one.source_origin for one in readings if one.source_origin), ""),
        files=frozenset().union(*(one.files for one in readings)),
        skipped=[row for one in readings for row in one.skipped],
        warnings=[warning for one in readings for warning in one.warnings],
        sentence=" ".join(filter(None, sentences)),
    )


def find_evidence(labels: Iterable[str]) -> str:
    """What the labels of a table say about it."""
    return SEVERAL if len(set(map(fold_class, labels))) > 1 else ONE_CLASS


class Question(NamedTuple):
    """Two readings between which the user must choose."""

    first: Reading
    second: Reading
    image: str = ""  # That has another class by the second one, "" if that makes no difference.

    def write(self, root: pathlib.Path) -> str:
        """The question in one sentence, with what to type for each reading."""
        first, second = self.first, self.second
        if second.meaning:
            return (
                f"The folder can be read in two ways: {first.meaning}, or {second.meaning}: pass "
                f"{' '.join(first.arguments)} or {' '.join(second.arguments)}."
            )
        if not self.image:
            ways = " or ".join(describe_choice(root, one.origin) for one in (first, second))
            return (
                f"Both {first.origin!r} and {second.origin!r} name images of the folder and have "
                f"classes: {ways}."
            )
        way = f"or for the table {describe_choice(root, second.origin)}"
        if "*" in second.origin:
            way = "or for these files move all images into one folder"
        own, other = (one.list_labels()[self.image] for one in (first, second))
        return (
            f"{self.image!r} has the class {own!r} by its folder and {other!r} in "
            f"{second.origin}: pass --layout classes for the folders, {way}."
        )


def judge(reading: Reading) -> float:
    """How likely it is that a reading is what a person means. More is better."""
    return sum(map(WEIGHTS.__getitem__, reading.evidence))


def choose(readings: Sequence[Reading]) -> Reading | Question:
    """The best of at least one reading, or a question if another one is as good."""
    first, *others = sorted(readings, key=judge, reverse=True)
    if others and judge(first) - judge(others[0]) < _MARGIN:
        return Question(first, others[0])
    return first


def compare(first: Reading, second: Reading) -> Question | str:
    """A sentence about images with other classes by the second reading, or "".

    It is a question if these are most of the images. Files about an image each may have one class
    for all, such as that of a detector, or other names for the same classes.
    """
    labels = first.list_labels()
    pairs = {
        image: (fold_class(labels[image]), fold_class(label))
        for image, label in second.list_labels().items()
        if image in labels
    }
    different = [image for image, (own, other) in pairs.items() if own != other]
    owns, others = ({pair[place] for pair in pairs.values()} for place in (0, 1))
    is_renamed = len(others) < 2 or len(others) == len(set(pairs.values())) == len(owns)
    is_renamed = is_renamed and "*" in second.origin
    if not different or is_renamed or MEASURES in second.evidence:
        return ""
    if 2 * len(different) > len(pairs) and judge(second) >= _CLEAR:
        return Question(first, second, different[0])
    return (
        f"{write_count(len(different), 'image has', 'images have')} another class in "
        f"{second.origin} than by the folder, such as {different[0]!r}: the folders count."
    )


def join_alike(readings: Iterable[Reading]) -> list[Reading]:
    """Tables whose names differ in the part of the data, as train.csv and val.csv, as one reading.

    Those that label the same images stay as they are. One that cannot be read makes the others
    unreadable, too, unless it need not have classes.
    """
    found = list[Reading]()
    for alike in group_pairs((_split_name(one.origin)[0], one) for one in readings).values():
        good = [one for one in alike if not one.fault]
        wrong = [one for one in alike if one.fault and one.fault.kind != UNCLEAR]
        if len(good) > 1:
            joined = _join([_mark_part(one) for one in good])
            counts = Counter(image for one in good for image in one.marks)
            parts = [joined] if max(counts.values(), default=1) == 1 else good
            evidence = [find_evidence(joined.list_labels().values())]
            good = [one._replace(evidence=evidence) for one in parts]
        found += [one._replace(fault=wrong[0].fault) if wrong else one for one in good]
        found += [one for one in alike if one.fault and not (good and one in wrong)]
    return found


def describe_choice(root: pathlib.Path, name: str) -> str:
    """What makes a table count before all others, or removes one of many files."""
    if "*" in name:
        return f"move {name} out of the folder"
    return f"pass --labels {shlex.quote(str(root / name))}"


def _split_name(name: str) -> tuple[tuple[str, ...], str | None]:
    """The words of a table's name but the part of the data, and this part, if there is one."""
    words = list_words(fold_case(os.path.basename(name)))
    parts = [part for word in words if (part := find_part(word))]
    return tuple(word for word in words if not find_part(word)), parts[0] if parts else None


def _mark_part(reading: Reading) -> Reading:
    """The reading of one of several tables, whose name may say which part of the data it is about.

    Rows and folders that say so themselves count more.
    """
    _, part = _split_name(reading.origin)
    if part not in HELD_OUT or any(mark.part for mark in reading.marks.values()):
        return reading
    columns, _, rows = reading.sentence.rpartition("; ")
    sentence = f"{columns}, {part} images; {rows}"
    marks = {image: mark._replace(part=part) for image, mark in reading.marks.items()}
    return reading._replace(marks=marks, sentence=sentence)
