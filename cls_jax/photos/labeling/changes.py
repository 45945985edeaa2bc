"""What a page changes: each change is planned from what is known, and is then one step to undo.

All functions that return a plan raise a RefusedError if it makes no sense.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cls_jax.photos.folder.log import (
    DESCRIBE,
    EXAMPLE,
    KEY,
    LABEL,
    NONE,
    SKIP,
    UNDO,
    Check,
    LabelRow,
)
from cls_jax.photos.folder.names import fold_class
from cls_jax.photos.labeling.answers import RefusedError, get_note, write_answer
from cls_jax.photos.labeling.classes import (
    KEYS,
    LETTERS,
    NO_KEY,
    Classes,
    add_class,
    clean_name,
    find_keys,
    release_key,
)
from cls_jax.photos.labeling.known import Known, get_path

_LONGEST_DESCRIPTION = 500


class ConflictError(RefusedError):
    """The page is out of date: another window decided first, or the photo is gone."""


class Change(NamedTuple):
    """A decision that a page asks for."""

    image: int  # The index of the photo.
    decision: str  # "label", "none" or "skip".
    label: str  # The class, or "".
    revision: int  # The revision that the page has shown.


class Plan(NamedTuple):
    """A step that has not been saved."""

    rows: list[LabelRow]  # Of the table, without a time.
    classes: Classes  # With those that the rows add.
    added: Sequence[str] = ()  # These.
    names: Sequence[str] | None = None  # All classes afterward, if it does more than add some.
    message: str = ""  # Why it cannot be undone.


def rename_class(known: Known, name: str, new: str) -> Plan:
    """Renames or respells a class, merges it into another one, or deletes it if `new` is "".

    Its photos get the other class, or none. Its description and its example stay if the other class
    has none, and its key if it is no merger.
    """
    check_ready(known)
    _check_class(known, name)
    before, notes, rules = known.class_names, known.notes, known.rules
    wanted = rules.clean(new)
    classes, found = add_class(known.classes, wanted) if new else (known.classes, "")
    # Another spelling of the same class is its new name.
    new = clean_name(wanted) if found == name else found
    if new == name:
        raise RefusedError(f"The name of this class is {name} already.")
    rows = [
        write_answer(file, LABEL if new else UNDO, rules.rename(mark.label, {name: new}))
        for file, mark in known.marks.files.items()
        if name in known.split(mark.label)
    ]
    for kind in (DESCRIBE, EXAMPLE) if new else ():
        text = get_note(notes, kind, name).text
        if text and not get_note(notes, kind, new).text:
            rows.append(LabelRow(text, new, kind))
    names = [one for one in before if one != name]
    if is_new := bool(new) and new not in before:
        key = find_keys(known.classes, notes).get(fold_class(name), NO_KEY)
        rows += _move_key(known, name, new, key)
        classes = classes._replace(keys={**classes.keys, fold_class(new): key})
        names.insert(before.index(name), new)
    added = [new] if is_new and found == new else []  # And no other spelling.
    return Plan(rows, classes, added, names)


def describe_class(known: Known, name: str, text: str) -> Plan:
    """Saves the description of a class."""
    if len(text) > _LONGEST_DESCRIPTION or not text.isprintable():
        raise RefusedError(
            f"A description must be one line of at most {_LONGEST_DESCRIPTION} characters."
        )
    _check_class(known, name)
    return Plan([LabelRow(text, name, DESCRIBE)], known.classes)


def set_key(known: Known, name: str, key: str) -> Plan:
    """Gives a class another key. The class that has this key gets its former one."""
    if key not in list(KEYS + LETTERS):
        raise RefusedError("The key of a class must be a digit from 1 to 9 or a letter.")
    _check_class(known, name)
    keys = known.find_keys()
    others = [other for other, used in keys.items() if used == key and other != name]
    given = {name: key} | dict.fromkeys(others, keys.get(name, NO_KEY))
    rows = [LabelRow(used, one, KEY) for one, used in given.items()]
    return Plan(rows + release_key(known.classes, known.notes, key), known.classes)


def set_example(known: Known, image: int) -> Plan:
    """Makes a labeled photo the example of its class."""
    check_ready(known)
    get_path(known, image)
    if (label := known.get_state(image).label) not in known.class_names:
        raise RefusedError("An example needs a label first.")
    return Plan([LabelRow(known.files[image], label, EXAMPLE)], known.classes)


def take_back(known: Known, names: Sequence[str]) -> Plan:
    """Takes the decisions about some files back."""
    answered = [name for name in names if known.marks.get(name).decision]
    return Plan([write_answer(name, UNDO, "") for name in answered], known.classes)


def note_photo(known: Known, name: str) -> Plan:
    """Notes that a photo was saved in the folder, so that an undo is not for what was before.

    The step stays.
    """
    said = f"{name} stays in the folder: to take it back, delete the file."
    return Plan([], known.classes, message=said)


def _check_class(known: Known, name: str) -> None:
    if name not in known.class_names:
        raise RefusedError("There is no such class.")


def check_ready(known: Known) -> None:
    """Raises a RefusedError while the photos are being read."""
    if known.phase != "ready":
        raise RefusedError("The photos are still being read.")


def _move_key(known: Known, name: str, new: str, key: str) -> Iterator[LabelRow]:
    """The rows that let a class that is renamed keep its key, if one of the names has any."""
    old, found = (get_note(known.notes, KEY, one).text for one in (name, new))
    if old:
        yield LabelRow("", name, KEY)
    if old or found:
        yield LabelRow(key, new, KEY)


def add_named(known: Known, changes: Sequence[Change]) -> tuple[Classes, list[Change]]:
    """The classes with those that are named by changes, and the changes with these names.

    Raises a RefusedError as `add_class` does, and for another spelling of a class.
    """
    classes, names, rules = known.classes, dict[str, str](), known.rules
    for name in dict.fromkeys(name for change in changes for name in known.split(change.label)):
        classes, found = add_class(classes, name)
        if found != clean_name(name):
            raise RefusedError(f"There is already a class named {found}: choose it from the list.")
        names[name] = found
    return classes, [one._replace(label=rules.rename(one.label, names)) for one in changes]


def check_changes(known: Known, classes: Classes, changes: Sequence[Change]) -> list[int]:
    """The photos of changes whose files are gone.

    Raises a RefusedError if one makes no sense, and a ConflictError if a photo has another
    revision.
    """
    if len({change.image for change in changes}) < len(changes):
        raise RefusedError("A photo is listed twice.")
    gone = []
    for image, decision, label, revision in changes:
        path = get_path(known, image)
        if decision not in (LABEL, NONE, SKIP):
            raise RefusedError("Unknown decision.")
        is_known = set(known.split(label)) <= set(classes.names)
        if (decision == LABEL) != bool(label) or not is_known:
            raise RefusedError("There is no such class.")
        if not path.is_file():
            gone.append(image)
        elif known.get_state(image).revision != revision:
            none = f"None of the {len(changes):,} photos was labeled: "
            reason = f"{known.files[image]} was labeled in the meantime."
            raise ConflictError((none if len(changes) > 1 else "") + reason)
    return gone


def describe_gone(names: Sequence[str]) -> str:
    """A sentence about photos whose files are no longer there, by their names."""
    if len(names) == 1:
        return f"{names[0]} is no longer in the folder: left out."
    return f"{len(names):,} photos are no longer in the folder, such as {names[0]}: left out."


def find_check(known: Known, change: Change) -> Check | None:
    """What the classifier guesses of a random photo, before it gets its first answer.

    If that was undone, it is the same guess: a newer classifier may have learned the answer.
    """
    image, sample, mark = change.image, known.sample, known.get_state(change.image)
    if image not in sample or mark.decision:
        return None
    if mark.awaited and set(known.split(mark.awaited.guess)) <= set(known.class_names):
        return mark.awaited
    found = known.classified
    if found is None or image >= len(found.labels) or found.labels[image] >= 0:
        return Check(sample[image])
    said = known.rules.say(found.probabilities[[image]], found.class_names)
    return Check(sample[image], float(said.confidences[0]), said.labels[0])
