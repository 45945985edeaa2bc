"""The classes of a session: their names in order, and which number key each has."""

import string
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from cls_jax.io import make_printable
from cls_jax.photos.folder.log import KEY, NOTES, FileMarks, LabelRow
from cls_jax.photos.folder.names import LONGEST_CLASS, clean, fold_class, means_unlabeled
from cls_jax.photos.labeling.answers import (
    MAX_CLASSES,
    Notes,
    RefusedError,
    find_saved_keys,
    get_note,
)

KEYS = "123456789"
LETTERS = string.ascii_lowercase  # Only those that a person chooses.
NO_KEY = "-"  # Of a class that came when all keys were given.
_LAST = sys.maxsize


class Classes(NamedTuple):
    """All classes that a photo has or that were added since.

    A class that loses its last photo stays until the session ends.
    """

    names: tuple[str, ...] = ()
    # By folded names: the place of a class among all that there have ever been, and its first key,
    # or `NO_KEY`, at the end of those that are gone.
    places: Mapping[str, int] = MappingProxyType({})
    keys: Mapping[str, str] = MappingProxyType({})

    def fold(self) -> dict[str, str]:
        """Folded name → name."""
        return {fold_class(name): name for name in self.names}


NO_CLASSES = Classes()


def clean_name(name: str) -> str:
    """The name of a class as it is saved."""
    return clean(unicodedata.normalize("NFC", name))


def add_class(classes: Classes, name: str) -> tuple[Classes, str]:
    """Adds a class without photos. Also returns its name, as spelled first.

    Raises a RefusedError if the name is empty, too long, says that there is no label, or contains
    characters that control a terminal or the direction of writing.
    """
    name = clean_name(name)
    if not name or len(name) > LONGEST_CLASS:
        raise RefusedError(f"The name of a class must have 1 to {LONGEST_CLASS} characters.")
    if make_printable(name) != name:
        raise RefusedError("The name of a class cannot contain control characters.")
    if means_unlabeled(name):
        raise RefusedError(f"{name} means no label: skip the photo, or choose another name.")
    folded, known = fold_class(name), classes.fold()
    if folded in known:
        return classes, known[folded]
    if len(known) >= MAX_CLASSES:
        raise RefusedError(f"There are {MAX_CLASSES:,} classes already.")
    place = classes.places.get(folded, _LAST)  # Between the classes where it once was.
    later = [classes.places.get(one, _LAST) > place for one in known]
    first = later.index(True) if any(later) else len(known)
    names = (*classes.names[:first], name, *classes.names[first:])
    return classes._replace(names=names), name


def follow_marks(classes: Classes, marks: FileMarks, notes: Notes) -> Classes:
    """The classes after the log has changed: with those that photos have now, as these are spelled.

    The first log also gives the keys of an earlier session.
    """
    known, used = classes.fold(), marks.find_used()
    names = known | {k: v for k, v in marks.names.items() if k in used or k not in known}
    new = [folded for folded in names if folded not in classes.places]
    places = {folded: len(classes.places) + i for i, folded in enumerate(new)}
    return Classes(
        tuple(name for k, name in names.items() if k in known or k in used),
        dict(classes.places) | places,
        classes.keys or read_keys(marks, notes),
    )


def restore(classes: Classes, names: Sequence[str], marks: FileMarks) -> Classes:
    """The classes with former names, and those that have got photos since."""
    used = marks.find_used()
    others = [k for k in classes.names if k not in names and fold_class(k) in used]
    return classes._replace(names=(*names, *others))


def remove_unused(
    classes: Classes, names: Iterable[str], marks: FileMarks, notes: Notes
) -> tuple[Classes, list[LabelRow]]:
    """The classes without those of some `names` that no photo has and nothing is noted about.

    Also returns the rows that take their saved keys from them.
    """
    used = marks.find_used()
    unused = []
    for name in names:
        first = classes.keys.get(fold_class(name))  # As `find_unsaved_keys` may have saved it.
        noted = {kind: get_note(notes, kind, name).text for kind in NOTES}
        is_noted = any(text and (kind != KEY or text != first) for kind, text in noted.items())
        if fold_class(name) not in used and not is_noted:
            unused.append(name)
    rest = tuple(name for name in classes.names if name not in unused)
    saved = [name for name in unused if get_note(notes, KEY, name).text]
    return classes._replace(names=rest), [LabelRow("", name, KEY) for name in saved]


def assign_keys(
    class_names: Sequence[str], chosen: Mapping[str, str], former: Mapping[str, str]
) -> dict[str, str]:
    """The keys of those classes that have one, of which there are nine.

    A class has the key that a person has `chosen` for it, else its `former` one, which may be
    `NO_KEY`. Otherwise it gets the first that is free, but a class whose name is a digit gets only
    this one. If two classes claim the same key, the first class has it, by its place in `former`.
    """
    keys: dict[str, str] = {}
    places = {name: place for place, name in enumerate(former)}
    order = sorted(class_names, key=lambda name: places.get(name, len(places)))
    for wanted in (chosen, former, {key: key for key in KEYS}):
        for name in order:
            key = wanted.get(name)
            if key and (key == NO_KEY or key not in keys.values()):
                keys.setdefault(name, key)
    free = [key for key in KEYS if key not in keys.values()]
    rest = [name for name in class_names if name not in keys and name not in f"0{KEYS}"]
    keys |= dict(zip(rest, free, strict=False))
    return {name: key for name, key in keys.items() if key != NO_KEY}


def find_keys(classes: Classes, notes: Notes) -> dict[str, str]:
    """Folded name → number key of the classes that have one, as a person has chosen them.

    The others keep the one that they got first, or none: the key of a class that is deleted is for
    classes that are new, unless it has been saved.
    """
    names, chosen = classes.fold(), find_saved_keys(notes)
    keys = assign_keys([*{**names, **chosen}], chosen, classes.keys)
    return {name: key for name, key in keys.items() if name in names}


def settle_keys(classes: Classes, notes: Notes) -> Classes:
    """The classes with the keys that they have now as their first ones."""
    names, chosen, keys = classes.fold(), find_saved_keys(notes), find_keys(classes, notes)
    first = {
        # One that was chosen may be undone.
        name: (classes.keys.get(name) if name in chosen else None) or keys.get(name, NO_KEY)
        for name in names
    }
    gone = {name: key for name, key in classes.keys.items() if name not in names}
    return classes._replace(keys=first | gone)


def read_keys(marks: FileMarks, notes: Notes) -> dict[str, str]:
    """The first keys of all classes of a log, as the next session gives them."""
    keys = assign_keys([*marks.names], find_saved_keys(notes), {})
    return {name: keys.get(name, NO_KEY) for name in marks.names}


def find_unsaved_keys(classes: Classes, marks: FileMarks, notes: Notes) -> list[LabelRow]:
    """The keys of all classes that have photos, if the log alone does not give them these."""
    used = marks.find_used()
    names = {folded: name for folded, name in classes.fold().items() if folded in used}
    keys = find_keys(classes, notes)
    again = assign_keys([*names], find_saved_keys(notes), read_keys(marks, notes))
    if [again.get(name) for name in names] == [keys.get(name) for name in names]:
        return []
    found = {name: keys.get(folded, NO_KEY) for folded, name in names.items()}
    return [
        LabelRow(key, name, KEY)
        for name, key in found.items()
        if get_note(notes, KEY, name).text != key
    ]


def release_key(classes: Classes, notes: Notes, key: str) -> list[LabelRow]:
    """The rows that take a key from former classes for which it is saved."""
    present, saved = classes.fold(), find_saved_keys(notes)
    former = [name for name, used in saved.items() if used == key and name not in present]
    return [LabelRow("", name, KEY) for name in former]
