"""The log of answers about photos, and the state that follows from it."""

import contextlib
import os
import pathlib
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from cls_jax.errors import UserError
from cls_jax.io import hold_lock, make_printable
from cls_jax.photos.folder import label_table
from cls_jax.photos.folder.class_names import ClassNames
from cls_jax.photos.folder.index import FileIndex
from cls_jax.photos.folder.label_table import CHECK, KEY, LABEL, NOTES, LabelRow, LabelTable
from cls_jax.photos.folder.log import (
    NO_MARKS,
    Check,
    Checked,
    FileMarks,
    Mark,
    compare_checks,
    fold,
)
from cls_jax.photos.folder.names import clean, fold_class, means_unlabeled
from cls_jax.photos.folder.options import AUTOMATIC, FolderOptions
from cls_jax.photos.labeling.keys import NO_KEY, assign_keys
from cls_jax.photos.labeling.notes import Note, Notes, NoteText, find_saved_keys, follow_notes

MAX_CLASSES = 1000
_LOCK_SECONDS = 3.0  # Others append within milliseconds.


class RefusedError(Exception):
    """A request that cannot be met. The page shows the message."""


Key = str | Note  # A file by its name, or a note.


class Decision(NamedTuple):
    """What is decided about a file, or noted about a class."""

    key: Key
    kind: str  # One of the table's decisions.
    # The class of a file. For a note, the description, the file of the example, or the key.
    text: str
    check: Check | None = None  # Of a random photo.


class Answers:
    """The rows of labels.csv, on top of the labels from class folders. Not thread-safe.

    Attributes:
        path: The table.
        marks: What it says of each file.
        notes: What it says of classes.
        class_names: All classes that a file has or that were added since. A class that loses its
            last label stays until the session ends.
    """

    def __init__(
        self,
        path: pathlib.Path,
        names: Sequence[str],
        base: FileMarks = NO_MARKS,
        class_names: Sequence[str] = (),
        options: FolderOptions = AUTOMATIC,
        numbered: ClassNames | None = None,
    ):
        """Reads the answers so far. The table need not exist.

        `names` are all images of the folder, and `base` has their marks without the table.
        `class_names` are offered from the start, in this order, and `numbered` classes have numbers
        in the table. Raises a UserError if a class has an unusable name or the table cannot be
        read.
        """
        self.path = path
        self._options = options
        self._table = LabelTable([])  # As read last.
        self._numbered = numbered or ClassNames()
        self.marks = NO_MARKS
        self.notes: Notes = {}
        self.class_names: list[str] = []
        # By folded names: class → its first key, or `NO_KEY`, at the end of classes that are gone,
        # and its place among all that there have ever been.
        self._keys: dict[str, str] = {}
        self._order: dict[str, int] = {}
        self._stamp: tuple[int, ...] | None = None
        self._last_time = ""
        try:
            for name in class_names:
                self.add_class(name)
        except RefusedError as error:
            raise UserError(f"--classes: {error}") from error
        self.index(names, base)

    def add_class(self, name: str) -> str:
        """Adds a class without labels and returns its name, as spelled first.

        Raises a RefusedError if the name is empty, too long, says that there is no label, or
        contains characters that control a terminal or the direction of writing.
        """
        name = clean(unicodedata.normalize("NFC", name))
        if not name or len(name) > label_table.LONGEST_CLASS:
            raise RefusedError(
                f"The name of a class must have 1 to {label_table.LONGEST_CLASS} characters."
            )
        if make_printable(name) != name:
            raise RefusedError("The name of a class cannot contain control characters.")
        if means_unlabeled(name):
            raise RefusedError(f"{name} means no label: skip the photo, or choose another name.")
        folded, names = fold_class(name), self.class_names
        for known in names:
            if fold_class(known) == folded:
                return known
        if len(names) >= MAX_CLASSES:
            raise RefusedError(f"There are {MAX_CLASSES:,} classes already.")
        places = [self._order.get(fold_class(known), MAX_CLASSES) for known in names]
        place = self._order.get(folded, MAX_CLASSES)  # Between the classes where it once was.
        names.insert(next((i for i, k in enumerate(places) if k > place), len(names)), name)
        return name

    def restore_classes(self, names: Sequence[str]) -> None:
        """Restores former classes, and keeps those that have received labels since."""
        used = self.marks.find_used()
        others = [k for k in self.class_names if k not in names and fold_class(k) in used]
        self.class_names[:] = [*names, *others]

    def remove_unused(self, names: Sequence[str]) -> list[Decision]:
        """Removes those classes that no photo has and about which nothing is noted.

        Returns the rows that take their saved keys from them.
        """
        used = self.marks.find_used()
        for name in names:
            first = self._keys.get(fold_class(name))  # As `find_unsaved_keys` may have saved it.
            notes = {kind: self.get_note(kind, name).text for kind in NOTES}
            if any(text and (kind != KEY or text != first) for kind, text in notes.items()):
                used.add(fold_class(name))
        unused = [name for name in names if fold_class(name) not in used]
        self.class_names[:] = [name for name in self.class_names if name not in unused]
        saved = [name for name in unused if self.get_note(KEY, name).text]
        return [Decision(Note(KEY, name), KEY, "") for name in saved]

    def index(self, names: Sequence[str], base: FileMarks) -> None:
        """Replaces the images of the folder, and reads the table again."""
        self._names = names
        self._files = FileIndex(names, self.path.parent)
        self._base = base
        self._content = b""  # The part of the table that has been read.
        self._replay()

    def get(self, file: str) -> Mark:
        """What is said of a file."""
        return self.marks.files.get(file, Mark())

    def get_note(self, kind: str, class_name: str) -> NoteText:
        """What is noted about a class."""
        return self.notes.get(Note(kind, class_name).folded, NoteText())

    def find(self, key: Key) -> Mark | NoteText:
        """What is said of a file, or what a note says."""
        return self.get(key) if isinstance(key, str) else self.get_note(key.kind, key.class_name)

    def find_keys(self) -> dict[str, str]:
        """The number keys of the classes that have one, as a person has chosen them.

        The others keep the one that they got first, or none: the key of a class that is deleted is
        for classes that are new, unless it has been saved.
        """
        names = {fold_class(name): name for name in self.class_names}
        chosen = find_saved_keys(self.notes)
        keys = assign_keys([*{**names, **chosen}], chosen, self._keys)
        first = {
            # One that was chosen may be undone.
            name: (self._keys.get(name) if name in chosen else None) or keys.get(name, NO_KEY)
            for name in names
        }
        self._keys = first | {k: v for k, v in self._keys.items() if k not in names}
        return {names[name]: key for name, key in keys.items() if name in names}

    def find_unsaved_keys(self) -> list[Decision]:
        """The keys of all classes that have photos, if the table alone does not give them these.

        None in a table of another program, whose rows would get more cells than it has columns.
        """
        if not self._table.format.has_decisions:
            return []
        used = self.marks.find_used()
        names = [name for name in self.class_names if fold_class(name) in used]
        keys, folded = self.find_keys(), [fold_class(name) for name in names]
        again = assign_keys(folded, find_saved_keys(self.notes), self._read_keys())
        if [again.get(name) for name in folded] == [keys.get(name) for name in names]:
            return []
        found = {name: keys.get(name, NO_KEY) for name in names}
        return [
            Decision(Note(KEY, name), KEY, key)
            for name, key in found.items()
            if self.get_note(KEY, name).text != key
        ]

    def _read_keys(self) -> dict[str, str]:
        """The first keys of the classes of the table, as the next session gives them."""
        keys = assign_keys([*self.marks.names], find_saved_keys(self.notes), {})
        return {name: keys.get(name, NO_KEY) for name in self.marks.names}

    def move_key(self, name: str, new: str, key: str) -> list[Decision]:
        """Lets a class that is about to be renamed keep its key. Returns the rows for that."""
        self._keys[fold_class(new)] = key
        old, found = (self.get_note(KEY, one).text for one in (name, new))
        rows = {Note(KEY, name): "", Note(KEY, new): key} if old else {Note(KEY, new): key}
        return [Decision(k, KEY, text) for k, text in rows.items()] if old or found else []

    def release_key(self, key: str) -> list[Decision]:
        """The rows that take a key from former classes for which it is saved."""
        present = {fold_class(name) for name in self.class_names}
        saved = find_saved_keys(self.notes)
        former = [name for name, used in saved.items() if used == key and name not in present]
        return [Decision(Note(KEY, name), KEY, "") for name in former]

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keeps other sessions from appending. Call `follow` next.

        Raises a UserError if another one holds the lock for seconds, or the folder is gone: a lock
        must not create it.
        """
        self.check_folder()
        lock = self.path.with_name(f".{self.path.name}.lock")
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(hold_lock(lock, _LOCK_SECONDS))
            except OSError as error:
                raise UserError(
                    f"Nothing was saved, because another program is writing to {self.path.name}: "
                    "try again, or end the other program."
                ) from error
            yield

    def check_folder(self) -> None:
        """Raises a UserError if the folder is gone, or empty as a drive's is that was unplugged.

        Otherwise, its answers would seem to be lost, and new ones would go to another place.
        """
        folder = self.path.parent
        if self.path.exists() or any((folder / name).exists() for name in self._names):
            return
        raise UserError(
            f"{folder.resolve()} is no longer there: move it back, or connect its drive again. "
            "Your answers are saved in it, and labeling then goes on."
        )

    def follow(self) -> bool:
        """Reads the table again if another program has changed it. Returns whether it has.

        Raises a UserError if it cannot be read or the folder is gone. Nothing changes then.
        """
        self.check_folder()
        has_changed = self._stamp != self._stat()
        if has_changed:
            self._replay()
        return has_changed

    def compare_checks(self, left_out: Collection[str] = ()) -> Checked:
        """The random photos that were checked, but those `left_out`."""
        return compare_checks(self.marks, left_out)

    def append(self, decisions: Sequence[Decision]) -> None:
        """Records decisions on the disk and here.

        Raises the same as `append_rows`. Nothing has changed then.
        """
        moment = label_table.find_next_time(self._last_time)
        rows = [_write_row(decision, moment) for decision in decisions]
        start, added = label_table.append_rows(
            self.path,
            rows,
            self._table,
            self._files,
            self._options,
            bool(self._numbered.names),
        )
        stamp = self._stat()
        # Rows that another program has appended at the same moment must still be read.
        is_alone = stamp and (start, stamp[0]) == (len(self._content), start + len(added))
        self._content = self._content + added if is_alone else b""
        self._stamp = stamp if is_alone else None
        self._last_time = moment
        self._adopt(fold(rows, self.marks), follow_notes(rows, self.notes))

    def _adopt(self, marks: FileMarks, notes: Notes) -> None:
        """Takes over what the table says now."""
        known = {fold_class(name): name for name in self.class_names}
        used = marks.find_used()
        names = known | {k: v for k, v in marks.names.items() if k in used or k not in known}
        for folded in names:
            self._order.setdefault(folded, len(self._order))
        self.class_names[:] = [name for k, name in names.items() if k in known or k in used]
        self.marks, self.notes = marks, notes

    def _replay(self) -> None:
        """Reads the table, or only its end if it has grown."""
        stamp = self._stat()
        content = label_table.read_content(self.path)
        start = len(self._content)
        # Whether the part that is known ends with a complete row, by a quick check.
        is_whole = self._content.endswith((b"\n", b"\n\0")) and not self._content.count(b'"') % 2
        if not content.startswith(self._content) or not is_whole:
            start = 0
        table = self._read_table(content, start)
        # Rows of other programs depend on each other, and earlier times come earlier.
        if start and any(not row.decision or row.time < self._last_time for row in table.rows):
            start = 0
            table = self._read_table(content, start)
        marks, notes = (self.marks, self.notes) if start else (self._base, {})
        rows = self._numbered.name_rows(table.rows)
        marks = fold(rows, marks, table.find)
        if len(marks.names.keys() | set(map(fold_class, self.class_names))) > MAX_CLASSES:
            raise UserError(
                f"{self.path} has more than {MAX_CLASSES:,} classes: check its columns."
            )
        self._adopt(marks, follow_notes(rows, notes))
        if not self._keys:  # Those of an earlier session.
            self._keys = self._read_keys()
        self._stamp = stamp
        self._content = content
        self._table = table
        times = [row.time for row in table.rows]
        self._last_time = max([self._last_time if start else "", *times])

    def _read_table(self, content: bytes, start: int) -> LabelTable:
        if start:
            known = self._table.format
            return label_table.read_more_rows(self.path, self._files, known, content, start)
        return label_table.read_label_table(self.path, self._files, self._options, content)

    def _stat(self) -> tuple[int, ...] | None:
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_size, stat.st_mtime_ns, stat.st_ino


def _write_row(decision: Decision, moment: str) -> LabelRow:
    """The row of the table that records a decision. A note has its text in the column of files."""
    if isinstance(decision.key, Note):
        return LabelRow(decision.text, decision.key.class_name, decision.kind, moment)
    check = decision.check
    kind = CHECK if check and decision.kind == LABEL else decision.kind
    detail = check.write() if check else ""
    return LabelRow(decision.key, decision.text, kind, moment, detail=detail)


def check_writable(path: pathlib.Path) -> None:
    """Raises a UserError if a table, which need not exist, cannot be written."""
    existing = path if path.exists() else path.parent
    if not os.access(existing, os.W_OK):
        raise UserError(
            f"Labels cannot be saved because {existing} is not writable: change its "
            "permissions, or copy the photos to another folder."
        )
