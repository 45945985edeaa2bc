"""Random photos that a person has checked: what the classifier guessed before the answer.

An answer about such a photo is a label like any other. Its row in the label table has more in the
cell of the decision: the probability with which the photo was drawn and, if there was a classifier,
its confidence and its guess, as in "check 0.0102 0.8731 glass". Since the guess is from before the
answer, it tells how often the classifier is right, also after the answer has been learned.
"""

import pathlib
from collections.abc import Collection, Iterable
from typing import NamedTuple

from cls_jax.photos.folder.catalog import find_table, read_catalog
from cls_jax.photos.folder.label_table import (
    CHECK,
    NONE,
    SKIP,
    LabelTable,
    order_rows,
    read_content,
)
from cls_jax.photos.folder.names import fold_class
from cls_jax.photos.folder.options import FolderOptions
from cls_jax.photos.images.files import list_images


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


class Checked(NamedTuple):
    """The checks of a folder that have a guess, M of them."""

    is_right: list[bool]
    confidences: list[float]


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
    was_right = fold_class(guess) == fold_class(label)
    return Check(numbers[0], numbers[1], guess, was_right=was_right)


def follow_check(before: Check | None, decision: str, detail: str, label: str) -> Check | None:
    """The check of a photo after another row about it.

    A later label corrects the answer. Without an answer, there is no check.
    """
    if decision == SKIP or (decision != NONE and not label):
        return None
    found = read_check(detail, label) if decision in (CHECK, NONE) and detail else None
    if found is None and before is not None and fold_class(before.guess) == fold_class(label):
        return before._replace(was_right=True)
    return found or before


def compare_checks(
    checks: Iterable[tuple[Check | None, str]], class_names: Collection[str]
) -> Checked:
    """Whether guesses are right, from the check and the current label of each photo.

    If the guess is no class any more, it was renamed, and the first answer tells.
    """
    known = {fold_class(name) for name in class_names}
    is_right, confidences = [], []
    for check, label in checks:
        if check is None or check.confidence is None:
            continue
        guess = fold_class(check.guess)
        is_right.append(guess == fold_class(label) if guess in known else check.was_right)
        confidences.append(check.confidence)
    return Checked(is_right, confidences)


def collect_checks(table: LabelTable) -> Checked:
    """The checks in a label table."""
    checks = _follow_checks(table)
    return compare_checks(checks.values(), {label for _, label in checks.values() if label})


def list_checked(table: LabelTable) -> list[str]:
    """The files in a label table that have a check with a guess, the newest last."""
    checks = _follow_checks(table).items()
    return [name for name, (check, _) in checks if check and check.confidence is not None]


def read_checked_table(root: pathlib.Path, options: FolderOptions) -> LabelTable:
    """The label table of a folder, without rows if it has no checks.

    Raises a UserError if it cannot be read.
    """
    listing = list_images(root)
    name = find_table(listing)
    if name is None or CHECK.encode() not in read_content(root / name):
        return LabelTable([])
    return read_catalog(root, listing, options).table


def _follow_checks(table: LabelTable) -> dict[str, tuple[Check | None, str]]:
    """The check and the label of each file in a label table, in the order of the last rows."""
    checks: dict[str, tuple[Check | None, str]] = {}
    for row in order_rows(table.rows):
        if name := table.find(row):
            before, _ = checks.pop(name, (None, ""))
            check = follow_check(before, row.decision, row.detail, row.label)
            checks[name] = check, row.label
    return checks
