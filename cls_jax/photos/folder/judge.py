"""Which reading of a folder counts: the best one by its evidence, or the user is asked.

One reading is read, two are asked about, none is refused with a remedy.
"""

import os
import pathlib
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from cls_jax.errors import UserError
from cls_jax.io import write_count
from cls_jax.photos.folder.label_table import LABELS_CSV
from cls_jax.photos.folder.names import find_part, fold_case, fold_class
from cls_jax.photos.folder.options import CLASSES
from cls_jax.photos.folder.propose.folders import (
    find_splits,
    propose_folders,
    propose_labeled,
    read_pattern,
)
from cls_jax.photos.folder.propose.tables import propose_sidecars, propose_tables, read_chosen
from cls_jax.photos.folder.reading import (
    CHOSEN,
    HELD_OUT,
    MEASURES,
    NO_CLASS_NAME,
    ONE_CLASS,
    SEVERAL,
    SORTED,
    UNCLEAR,
    UNREADABLE,
    Folder,
    Reading,
    find_evidence,
    join_readings,
)

# Evidence → its weight, and the reason.
WEIGHTS = {
    CHOSEN: 100,  # A person says so.
    SORTED: 30,  # Somebody has sorted the images, which is more work than any table.
    SEVERAL: 10,  # A column names images, and another one divides them.
    MEASURES: -3,  # An age or a size divides images, too.
    UNREADABLE: 6,  # More than an example of a submission, less than a table that can be read.
    ONE_CLASS: 5,  # Such as an example of a submission, whose class means nothing.
}
_MARGIN = 2  # Readings whose weights differ by less are equally good.
_CLEAR = 8  # A reading of this weight is not contradicted without a word.
_MAX_COMPARED = 1_000  # Files about an image each that are compared with its folder.


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
        own, other = first.labels[self.image], second.labels[self.image]
        return (
            f"{self.image!r} has the class {own!r} by its folder and {other!r} in "
            f"{second.origin}: pass --layout classes for the folders, {way}."
        )


def choose_base(folder: Folder, table: str | None, is_begun: bool) -> Reading:
    """What a folder says without labels.csv, if there is such a `table`.

    What the user chooses counts before class folders and all other tables, and a table that was not
    begun by `cls-jax label` before all but labeled/<class>/. Raises a UserError with the question
    if two readings are as good, or if what the user chooses cannot be read.
    """
    listing, options = folder.listing, folder.options
    if options.label_pattern or options.labels not in ("", table):
        return _read_chosen(folder, "" if is_begun or table is None else table)
    if not is_begun:
        return propose_labeled(listing, options)
    folders, *others = propose_folders(listing, options)
    found: Reading | Question = folders
    if others:
        found = Question(folders, others[0])
    elif SORTED not in folders.evidence and not options.labels:
        found = _choose_table(folders, folder, is_alone=table is None)
    elif table is None and options.layout != CLASSES:
        found = _compare_others(folders, folder)
    if isinstance(found, Question):
        raise UserError(found.write(folder.root))
    return found


def _choose_table(folders: Reading, folder: Folder, is_alone: bool) -> Reading | Question:
    """The best reading by tables, or that by folders, or a question.

    If no labels.csv adds to it, it has the fault of a better one, which training must not miss.
    """
    tables = join_alike([*propose_tables(folder), *propose_sidecars(folder)])
    found = choose([folders, *(one for one in tables if one.labels or not one.fault)])
    best = max([*tables, folders], key=judge)
    if isinstance(found, Question):
        return found
    return found._replace(fault=best.fault if is_alone else None)


def _read_chosen(folder: Folder, table: str) -> Reading:
    """The labels that the user chooses with a file or a pattern, and those in labeled/<class>/.

    Raises a UserError if they contradict each other, or a `table` of another program that is called
    labels.csv.
    """
    options, listing = folder.options, folder.listing
    option = "--label-pattern" if options.label_pattern else f"--labels {options.labels}"
    if options.labels and options.label_pattern:
        raise UserError("--labels and --label-pattern both say where the classes are: remove one.")
    if table:
        raise UserError(
            f"{table} has labels, too: rename it, for example to old_{LABELS_CSV}, to use {option}."
        )
    if options.label_pattern:
        splits = find_splits(listing, options)
        return read_pattern(listing.files.names(), options.label_pattern, splits)
    found = read_chosen(folder)
    labels = dict[str, str | None](propose_labeled(listing, options).list_labels())
    for image, label in found.labels.items():
        labels[image] = labels.get(image, label) if label == NO_CLASS_NAME else label
    return found._replace(
        labels=labels, warnings=[*found.warnings, *count_unused(found.origin, labels, folder)]
    )


def count_unused(table: str, named: Collection[str | None], folder: Folder) -> Iterator[str]:
    """A warning about images in class folders that a table does not name, if there are any."""
    folders, *others = propose_folders(folder.listing, folder.options)
    splits = find_splits(folder.listing, folder.options)
    held_out = {top for top, kind in splits.items() if kind in HELD_OUT}
    new = [image for image in folders.list_labels() if image not in named]
    unused = [image for image in new if image.partition("/")[0] not in held_out]
    if SORTED in folders.evidence and unused and not others:
        are = write_count(len(unused), "image in a folder is", "images in folders are")
        yield (
            f"{are} unlabeled, such as {min(unused)!r:.200}, since {table} does not name "
            f"{'it' if len(unused) == 1 else 'them'}: if the folders are classes, move them into "
            "labeled/."
        )


def _compare_others(folders: Reading, folder: Folder) -> Reading | Question:
    """Class folders with warnings about images with other classes in tables, or a question.

    The same for files about an image each. What cannot be read contradicts nothing.
    """
    warnings = list[str]()
    for kind in propose_tables(folder), propose_sidecars(folder, most=_MAX_COMPARED):
        readable = [one for one in join_alike(kind) if one.labels]
        other = choose(readable) if readable else None
        if isinstance(other, Reading):
            found = compare(folders, other)
            if isinstance(found, Question):
                return found
            warnings += filter(None, [found])
            new = [image for image in other.list_labels() if not folders.labels.get(image)]
            if new and "*" not in other.origin:
                warnings.append(
                    f"{other.origin} has classes of "
                    f"{write_count(len(new), 'unlabeled image', 'unlabeled images')}, such as "
                    f"{min(new)!r:.200}, and is not read: to use it, "
                    f"{describe_choice(folder.root, other.origin)}."
                )
    return folders._replace(warnings=warnings)


def judge(reading: Reading) -> float:
    """How likely it is that a reading is what a person means. More is better."""
    return sum(WEIGHTS[kind] for kind in reading.evidence)


def choose(readings: Sequence[Reading]) -> Reading | Question:
    """The best of at least one reading, or a question if another one is as good."""
    first, *others = sorted(readings, key=judge, reverse=True)
    if others and judge(first) - judge(others[0]) < _MARGIN:
        return Question(first, others[0])
    return first


def compare(first: Reading, second: Reading) -> Question | str:
    """A sentence about images with other classes by the second reading, "" without a word to say.

    It is a question if these are most of the images. Files about an image each may have one class
    for all, such as that of a detector, or other names for the same classes.
    """
    pairs = {
        image: (fold_class(own), fold_class(label))
        for image, label in second.list_labels().items()
        if (own := first.labels.get(image))
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


def join_alike(readings: Sequence[Reading]) -> list[Reading]:
    """Tables whose names differ in the part of the data, as train.csv and val.csv, as one reading.

    Those that label the same images stay as they are.
    """
    kinds: dict[tuple[str, ...], list[Reading]] = {}
    for one in readings:
        kinds.setdefault(_split_name(one.origin)[0], []).append(one)
    return [one for alike in kinds.values() for one in (_join(alike) if len(alike) > 1 else alike)]


def _join(alike: Sequence[Reading]) -> list[Reading]:
    """The same of tables of one kind. One that cannot be read makes the others unreadable, too.

    That is not so if it need not have classes.
    """
    good = [one for one in alike if not one.fault]
    wrong = [one for one in alike if one.fault and one.fault.kind != UNCLEAR]
    if len(good) > 1:
        joined = join_readings([_mark_part(one) for one in good])
        counts = Counter(image for one in good for image in one.labels)
        parts = [joined] if max(counts.values(), default=1) == 1 else good
        good = [one._replace(evidence=[find_evidence(joined.labels)]) for one in parts]
    rest = [one for one in alike if one.fault and not (good and one in wrong)]
    return [*(one._replace(fault=wrong[0].fault) if wrong else one for one in good), *rest]


def describe_choice(root: pathlib.Path, name: str) -> str:
    """What makes a table count before all others, or removes one of many files."""
    if "*" in name:
        return f"move {name} out of the folder"
    return f"pass --labels {shlex.quote(str(root / name))}"


def _split_name(name: str) -> tuple[tuple[str, ...], str | None]:
    """The words of a table's name but the part of the data, and this part, if there is one."""
    words = re.findall(r"[^\W\d_]+", fold_case(os.path.basename(name)))
    parts = [part for word in words if (part := find_part(word))]
    return tuple(word for word in words if not find_part(word)), parts[0] if parts else None


def _mark_part(reading: Reading) -> Reading:
    """The reading of one of several tables, whose name may say which part of the data it is about.

    Rows and folders that say so themselves count more.
    """
    _, part = _split_name(reading.origin)
    if part not in HELD_OUT or reading.parts:
        return reading
    columns, _, rows = reading.sentence.rpartition("; ")
    sentence = f"{columns}, {part} images; {rows}"
    return reading._replace(parts=dict.fromkeys(reading.labels, part), sentence=sentence)
