"""What the rows of a label table say of each file: the only fold of the log `labels.csv`.

Training, the labeling page, the accuracy and exports read the same marks. Rows about the same file
follow each other: the last one has its label, and what it says of the earlier ones is kept, such as
the guess that an answer has checked.

A check is an answer about a photo that was drawn at random. Its row has more in the cell of the
decision: the probability with which the photo was drawn and, if there was a classifier, its
confidence and its guess, as in "check 0.0102 0.8731 glass". Since the guess is from before the
answer, it tells how often the classifier is right, also after the answer has been learned.
"""

import functools
import itertools
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from cls_jax.photos.folder.kinds import ONE_CLASS, Classes, join_tags, split_tags
from cls_jax.photos.folder.names import HELD_OUT, clean, fold_class, group_pairs

LABEL, CHECK, NONE, SKIP, UNDO = "label", "check", "none", "skip", "undo"
# About a class: they label nothing.
NOTES = EXAMPLE, DESCRIBE, KEY = "example", "describe", "key"
NOTHING: Mapping[str, Any] = MappingProxyType({})


class LabelRow(NamedTuple):
    """A row of the table."""

    # The name of its file in the folder, "" if it names none, or could name several. In "describe"
    # the description, in "key" the key.
    file: str
    label: str  # Class, or "".
    # "label", "check" (of a random photo), "none" (the image belongs to no class), "skip", "undo"
    # (`label` is the one before) or one of `NOTES`. "" in rows of other programs.
    decision: str = ""
    time: str = ""  # UTC, ISO 8601 to the microsecond. "" if unknown.
    part: str = ""  # "train", "unlabeled", "test" or "validation", if another program says so.
    detail: str = ""  # What follows the decision in its cell, of a random photo.
    source: str = ""  # What the image comes from.
    rival: str = ""  # Of several people's classes, the one that comes second.
    cell: str = ""  # The name of the file as a table has it.


class Check(NamedTuple):
    """What was known of a random photo before the answer."""

    probability: float  # With which it was drawn from the photos without an answer.
    confidence: float | None = None  # Of the classifier in its guess. None without a classifier.
    guess: str = ""
    was_right: bool = False  # Whether the first answer was the guess.

    def write(self) -> str:
        """As in the label table, see `read_check`."""
        words = [f"{self.probability:.6g}"]
        if self.confidence is not None:
            words += [f"{self.confidence:.4f}", self.guess]
        return " ".join(words)


class Mark(NamedTuple):
    """What a log says of a file."""

    decision: str = ""  # "label", "none" (of these classes), "skip", or "" without one.
    # Its class, or its tags, and the same as the last row spells them.
    labels: tuple[str, ...] = ()
    spelled: tuple[str, ...] = ()
    revision: int = 0  # The number of rows so far. A page with an older one is out of date.
    is_confirmed: bool = False  # Whether the last two rows gave the same label.
    check: Check | None = None  # Of a random photo. It counts while there is an answer.
    part: str = ""  # See `LabelRow`.
    source: str = ""  # The same.
    rival: str = ""  # The same, until there is a decision about it.
    is_contradicted: bool = False  # Whether rows without a time give different labels.
    has_moved: bool = False  # Whether rows name different parts.

    @property
    def label(self) -> str:
        """The class or the tags in one text, see `kinds`, "" without a label."""
        return join_tags(self.labels) if self.decision == LABEL else ""

    @property
    def given(self) -> str | None:
        """The label, or None for a file of no class, or one that was skipped."""
        return None if self.decision in (NONE, SKIP) else self.label

    def drop_history(self) -> "Mark":
        """What a table says in the end. Only labels.csv counts answers, and checks of photos."""
        if self.revision < 2 and not self.check:
            return self
        return self._replace(revision=1, is_confirmed=False, check=None)

    @property
    def awaited(self) -> Check | None:
        """The check of a random photo whose answer was undone: its next one counts as the first."""
        return self.check if not self.decision and self.check and self.check.guess else None

    @property
    def guessed(self) -> Check | None:
        """The check if the answer tells whether its guess was right, and otherwise None."""
        is_answered = self.decision in (LABEL, NONE)
        has_guess = self.check is not None and self.check.confidence is not None
        return self.check if is_answered and has_guess else None


NO_MARK = Mark()


class FileMarks(NamedTuple):
    """The marks of a folder's files."""

    files: Mapping[str, Mark] = NOTHING  # In the order of their last rows.
    # Folded name → name of all classes that a file has had, in the order of their first rows.
    names: Mapping[str, str] = NOTHING
    kind: Classes = ONE_CLASS  # What a label can be.

    def get(self, file: str) -> Mark:
        """The mark of a file."""
        return self.files.get(file, NO_MARK)

    def find_used(self) -> set[str]:
        """The folded names of the classes that files have now."""
        spellings = {mark.spelled for mark in self.files.values()}
        return {fold_class(name) for spelled in spellings for name in self.kind.name(spelled)}

    def list_checked(self) -> list[str]:
        """The files with a check that has a guess, the newest last."""
        return [file for file, mark in self.files.items() if mark.guessed]


NO_MARKS = FileMarks()


class Checked(NamedTuple):
    """The checks of a folder that have a guess, M of them."""

    is_right: list[bool]
    confidences: list[float]


def fold(rows: Iterable[LabelRow], before: FileMarks = NO_MARKS) -> FileMarks:
    """The marks after some rows, which may be in any order.

    Rows that name no file say nothing, and neither do those about classes.
    """
    files, names = dict(before.files), dict(before.names)
    for row in order_rows(rows):
        if row.decision in NOTES or not row.file:
            continue
        mark = files[row.file] = _follow(
            files.pop(row.file, NO_MARK),
            row.label,
            row.decision,
            row.detail,
            row.part,
            row.source,
            row.rival,
            has_time=bool(row.time),
            label_kind=before.kind,
        )
        for name in before.kind.name(mark.spelled):
            names.setdefault(fold_class(name), name)
    kept, others = dict[tuple[str, ...], None](), dict[tuple[str, ...], None]()
    kind = before.kind
    for mark in files.values():  # How held-out files spell a class does not count.
        (others if mark.part in HELD_OUT else kept)[mark.spelled] = None
    for spellings in (others, kept):
        names |= choose_spellings(name for spelled in spellings for name in kind.name(spelled))
    shown = {spelled: kind.respell(spelled, names) for spelled in others | kept}
    for file, mark in files.items():
        if mark.labels != (labels := shown[mark.spelled]):
            files[file] = mark._replace(labels=labels)
    return before._replace(files=files, names=names)


def start_log(files: Mapping[str, Mark], kind: Classes) -> FileMarks:
    """The marks before the first row, by what other origins say of files, spelled as by `fold`."""
    names = dict[str, str]()
    for spelled in dict.fromkeys(mark.spelled for mark in files.values()):
        for name in kind.name(spelled):
            names.setdefault(fold_class(name), name)
    return fold((), FileMarks(files, names, kind))


def mark_labels(labels: Mapping[str, str], kind: Classes) -> dict[str, Mark]:
    """File → its mark, by its label, "" for none. One of invisible characters is none, too."""
    # A row for each label, in the place of all of its files.
    rows = [LabelRow(label, label) for label in dict.fromkeys(labels.values()) if clean(label)]
    marks = fold(rows, FileMarks(kind=kind))
    return {file: marks.get(label) for file, label in labels.items()}


def order_rows(rows: Iterable[LabelRow]) -> list[LabelRow]:
    """The rows of a table by `time`. One without a time comes after all rows above it."""
    rows = list(rows)
    latest = itertools.accumulate((row.time for row in rows), max)
    keys = [row.time or so_far for row, so_far in zip(rows, latest, strict=True)]
    return [rows[place] for place in sorted(range(len(rows)), key=keys.__getitem__)]


def choose_spellings(names: Iterable[str]) -> dict[str, str]:
    """Folded name → name of some classes: of several spellings, the first one in order."""
    found = group_pairs((fold_class(name), clean(name)) for name in names)
    return {folded: min(spellings) for folded, spellings in found.items()}


def fold_label(label: str) -> str:
    """What equal labels have in common, see `fold_class`."""
    return join_tags(map(fold_class, split_tags(label))) if label else ""


@functools.lru_cache(2**14)  # Tables have millions of rows that say the same.
def _follow(
    before: Mark,
    label: str,
    kind: str,
    detail: str,
    part: str,
    source: str,
    rival: str,
    *,
    has_time: bool,
    label_kind: Classes,
) -> Mark:
    """The mark of a file after another row about it, whose decision is of a `kind`."""
    decision = kind if kind in (NONE, SKIP) else LABEL if label else ""
    if kind == NONE and label_kind.none:  # That is a label, too.
        decision, label = LABEL, label_kind.none
    spelled = label_kind.split(label) if decision == LABEL else ()
    is_same = fold_label(before.label) == fold_label(label)
    return Mark(
        decision=decision,
        labels=spelled,
        spelled=spelled,
        revision=before.revision + 1,
        is_confirmed=decision == LABEL and is_same and kind not in (UNDO, CHECK),
        check=_follow_check(before, label, kind, detail, decision),
        # What one row holds out is never trained on.
        part=before.part if before.part in HELD_OUT else part,
        source=source or before.source,
        rival=rival,
        is_contradicted=before.is_contradicted
        or (decision == before.decision == LABEL and not is_same and not has_time),
        has_moved=before.has_moved or bool(before.part and part and before.part != part),
    )


def _follow_check(before: Mark, label: str, kind: str, detail: str, decision: str) -> Check | None:
    """The check of a file after another row about it.

    A later label corrects the answer. Without an answer, the check waits for a row that repeats it,
    as that of an undo does.
    """
    check = before.check
    if kind in (CHECK, NONE, SKIP) and (found := read_check(detail, label)):
        return check if check and check.write() == found.write() else found
    if decision not in (LABEL, NONE):
        return check
    if check is None or before.decision not in (LABEL, NONE):
        return None
    is_guess = decision == LABEL and fold_label(check.guess) == fold_label(label)
    return check._replace(was_right=True) if is_guess else check


def read_check(detail: str, label: str) -> Check | None:
    """The check of an answer `label` from the table's cell, or None if there is none."""
    words = detail.split(" ", 2)
    try:
        numbers = [float(word) for word in words[:2]]
    except ValueError:
        return None
    if not all(0 <= number <= 1 for number in numbers):
        return None
    if len(words) < 3:
        return Check(numbers[0])
    guess = words[2]
    return Check(numbers[0], numbers[1], guess, was_right=fold_label(guess) == fold_label(label))


def compare_checks(marks: FileMarks, left_out: Collection[str] = ()) -> Checked:
    """Whether guesses are right, by the check and the label of each file but those `left_out`.

    If no file has the class that was guessed any more, it was renamed, and the first answer tells.
    """
    marks = marks._replace(files={k: v for k, v in marks.files.items() if k not in left_out})
    used = marks.find_used()
    checks = [(check, mark.label) for mark in marks.files.values() if (check := mark.guessed)]
    is_right = [
        fold_label(check.guess) == fold_label(label)
        if used.issuperset(map(fold_class, marks.kind.split(check.guess)))
        else check.was_right
        for check, label in checks
    ]
    return Checked(is_right, [check.confidence or 0.0 for check, _ in checks])
