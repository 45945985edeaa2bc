"""The log of answers about photos, and the state that follows from it."""

import contextlib
import os
import pathlib
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from cls_jax.errors import UserError
from cls_jax.io import hold_lock, make_printable
from cls_jax.photos.folder import label_table
from cls_jax.photos.folder.checks import Check, Checked, compare_checks, follow_check
from cls_jax.photos.folder.index import FileIndex
from cls_jax.photos.folder.label_table import (
    CHECK,
    KEY,
    LABEL,
    NONE,
    NOTES,
    SKIP,
    UNDO,
    LabelRow,
    LabelTable,
    order_rows,
)
from cls_jax.photos.folder.names import clean, fold_class, means_unlabeled
from cls_jax.photos.folder.options import AUTOMATIC, FolderOptions
from cls_jax.photos.labeling.keys import NO_KEY, assign_keys

MAX_CLASSES = 1000
_LOCK_SECONDS = 3.0  # Others append within milliseconds.


class RefusedError(Exception):
    """A request that cannot be met. The page shows the message."""


class Note(NamedTuple):
    """Something that is noted about a class, however its name is spelled."""

    kind: str  # One of `NOTES`.
    class_name: str


Key = str | Note  # A file by its name, or a note.


class Decision(NamedTuple):
    """What is decided about a file, or noted about a class."""

    key: Key
    kind: str  # One of the table's decisions.
    # The class of a file. For a note, the description, the file of the example, or the key.
    text: str
    check: Check | None = None  # Of a random photo.


class State(NamedTuple):
    """The current state of a photo, or of a note about a class."""

    # "label", "none" (of these classes), "skip", "" without a decision, or the kind of the note.
    decision: str = ""
    label: str = ""  # The class, or "".
    revision: int = 0  # The number of decisions so far. A page with an older one is out of date.
    is_confirmed: bool = False  # Whether the last two decisions gave the same label.
    text: str = ""  # The description of a class, the file of its example, or its key.
    spelling: str = ""  # The class as the last row spells it.
    check: Check | None = None  # Of a random photo with an answer.


class Answers:
    """The rows of labels.csv, on top of the labels from class folders. Not thread-safe.

    Attributes:
        path: The table.
        states: The state of each file and note, in the order of the last decisions.
        class_names: All classes that a file has or that were added since. A class that loses its
            last label stays until the session ends.
    """

    def __init__(
        self,
        path: pathlib.Path,
        names: Sequence[str],
        folder_labels: Mapping[str, str] | None = None,
        class_names: Sequence[str] = (),
        options: FolderOptions = AUTOMATIC,
    ):
        """Reads the answers so far. The table need not exist.

        `names` are all images of the folder, `folder_labels` the classes of those in class folders.
        `class_names` are offered from the start, in this order. Raises a UserError if a class has
        an unusable name or the table cannot be read.
        """
        self.path = path
        self._options = options
        self._table = LabelTable([])  # As read last.
        self.states: dict[Key, State] = {}
        self.class_names: list[str] = []
        # Class → its first key, or `NO_KEY`, at the end of classes that are gone. These names are
        # those of `fold_class`, as are all that the folder and the table have ever had, in order.
        self._keys: dict[str, str] = {}
        self._seen: dict[str, None] = {}
        self._order: dict[str, int] = {}  # Class → its place among all that the table has ever had.
        self._stamp: tuple[int, ...] | None = None
        self._last_time = ""
        try:
            for name in class_names:
                self.add_class(name)
        except RefusedError as error:
            raise UserError(f"--classes: {error}") from error
        self.index(names, folder_labels or {})

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
        names = self.class_names
        count = len(names)
        name = _find_class({fold_class(other): other for other in names}, names, name)
        if len(names) > count and name in self._order:  # Between the classes where it once was.
            later = [k for k in names if self._order.get(k, MAX_CLASSES) > self._order[name]]
            names.insert(names.index(later[0]) if later else count, names.pop())
        return name

    def restore_classes(self, names: Sequence[str]) -> None:
        """Restores former classes, and keeps those that have received labels since."""
        labels = {state.label for state in self.states.values()}
        others = [name for name in self.class_names if name not in names and name in labels]
        self.class_names[:] = [*names, *others]

    def remove_unused(self, names: Sequence[str]) -> list[Decision]:
        """Removes those classes that no photo has and about which nothing is noted.

        Returns the rows that take their saved keys from them.
        """
        used = {state.label for state in self.states.values()}
        for name in names:
            first = self._keys.get(fold_class(name))  # As `find_unsaved_keys` may have saved it.
            notes = {kind: self.get(Note(kind, name)).text for kind in NOTES}
            if any(text and (kind != KEY or text != first) for kind, text in notes.items()):
                used.add(name)
        self.class_names[:] = [k for k in self.class_names if k in used or k not in names]
        removed = [Note(KEY, name) for name in names if name not in used]
        return [Decision(note, KEY, "") for note in removed if self.get(note).text]

    def index(self, names: Sequence[str], folder_labels: Mapping[str, str]) -> None:
        """Replaces the images of the folder, and reads the table again."""
        self._names = names
        self._files = FileIndex(names, self.path.parent)
        self._folder_labels = dict(folder_labels)
        self._content = b""  # The part of the table that has been read.
        self._replay()

    def get(self, key: Key) -> State:
        """The state of a file or note."""
        return self.states.get(_fold(key), State())

    def find_keys(self) -> dict[str, str]:
        """The number keys of the classes that have one, as a person has chosen them.

        The others keep the one that they got first, or none: the key of a class that is deleted is
        for classes that are new, unless it has been saved.
        """
        names = {fold_class(name): name for name in self.class_names}
        chosen = self.find_chosen_keys()
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
        labels = {state.label for state in self.states.values()}
        names = [name for name in self.class_names if name in labels]
        keys, folded = self.find_keys(), [fold_class(name) for name in names]
        again = assign_keys(folded, self.find_chosen_keys(), self._read_keys())
        if [again.get(name) for name in folded] == [keys.get(name) for name in names]:
            return []
        notes = {Note(KEY, name): keys.get(name, NO_KEY) for name in names}
        return [Decision(k, KEY, text) for k, text in notes.items() if self.get(k).text != text]

    def find_chosen_keys(self) -> dict[str, str]:
        """The keys that are saved, also of classes that are gone, by names of `fold_class`."""
        found = self.states.items()
        notes = [(k, one.text) for k, one in found if isinstance(k, Note) and k.kind == KEY]
        return {note.class_name: text for note, text in notes if text}

    def _read_keys(self) -> dict[str, str]:
        """The first keys of the classes of the table, as the next session gives them."""
        keys = assign_keys([*self._seen], self.find_chosen_keys(), {})
        return {name: keys.get(name, NO_KEY) for name in self._seen}

    def move_key(self, name: str, new: str, key: str) -> list[Decision]:
        """Lets a class that is about to be renamed keep its key. Returns the rows for that."""
        self._keys[fold_class(new)] = key
        old, found = (self.get(Note(KEY, one)).text for one in (name, new))
        rows = {Note(KEY, name): "", Note(KEY, new): key} if old else {Note(KEY, new): key}
        return [Decision(k, KEY, text) for k, text in rows.items()] if old or found else []

    def release_key(self, key: str) -> list[Decision]:
        """The rows that take a key from former classes for which it is saved."""
        present = {fold_class(name) for name in self.class_names}
        saved = self.find_chosen_keys()
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

    def compare_checks(self, left_out: Collection[Key] = ()) -> Checked:
        """The random photos that were checked, but those `left_out`."""
        found = (
            (state.check, state.label) for key, state in self.states.items() if key not in left_out
        )
        return compare_checks(found, self.class_names)

    def append(self, decisions: Sequence[Decision]) -> None:
        """Records decisions on the disk and here.

        Raises the same as `append_rows`. Nothing has changed then.
        """
        moment = label_table.find_next_time(self._last_time)
        rows = [_write_row(decision, moment) for decision in decisions]
        start, added = label_table.append_rows(
            self.path, rows, self._table, self._files, self._options
        )
        stamp = self._stat()
        # Rows that another program has appended at the same moment must still be read.
        is_alone = stamp and (start, stamp[0]) == (len(self._content), start + len(added))
        self._content = self._content + added if is_alone else b""
        self._stamp = stamp if is_alone else None
        self._last_time = moment
        known = {fold_class(name): name for name in self.class_names}
        for decision, row in zip(decisions, rows, strict=True):
            _apply(self.states, known, self.class_names, self._seen, key=decision.key, row=row)
        self.class_names[:] = _respell(self.states, self.class_names)

    def _replay(self) -> None:
        """Reads the table, or only its end if it has grown."""
        stamp = self._stat()
        content = label_table.read_content(self.path)
        states = dict(self.states)
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
        names = list(self.class_names)
        known = {fold_class(name): name for name in names}
        try:
            seen = dict(self._seen) if start else {}
            if not start:
                states = {}
                for name, label in self._folder_labels.items():
                    row = LabelRow(name, label, LABEL)
                    _apply(states, known, names, seen, key=name, row=row)
            for row in order_rows(table.rows):
                is_note = row.decision in NOTES
                key = Note(row.decision, row.label.strip()) if is_note else table.find(row)
                if key:
                    _apply(states, known, names, seen, key=key, row=row)
        except RefusedError as error:
            raise UserError(
                f"{self.path} has more than {MAX_CLASSES:,} classes: check its columns."
            ) from error
        names = _respell(states, names)
        labels = {state.label for state in states.values()}
        for name in names:
            self._order.setdefault(name, len(self._order))
        self.class_names = [k for k in names if k in self.class_names or k in labels]
        self.states = states
        self._seen = seen
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


def _find_class(known: dict[str, str], names: list[str], name: str) -> str:
    """The class of this name, ignoring case. It is added if there is none."""
    folded = fold_class(name)
    if folded not in known:
        if len(names) >= MAX_CLASSES:
            raise RefusedError(f"There are {MAX_CLASSES:,} classes already.")
        known[folded] = name
        names.append(name)
    return known[folded]


def _write_row(decision: Decision, moment: str) -> LabelRow:
    """The row of the table that records a decision. A note has its text in the column of files."""
    if isinstance(decision.key, Note):
        return LabelRow(decision.text, decision.key.class_name, decision.kind, moment)
    check = decision.check
    kind = CHECK if check and decision.kind == LABEL else decision.kind
    detail = check.write() if check else ""
    return LabelRow(decision.key, decision.text, kind, moment, detail=detail)


def _apply(
    states: dict[Key, State],
    known: dict[str, str],
    class_names: list[str],
    seen: dict[str, None],
    key: Key,
    row: LabelRow,
) -> None:
    """Applies a row to the state of a file or note."""
    key = _fold(key)
    before = states.pop(key, State())
    label = row.label.strip()
    if isinstance(key, Note):
        states[key] = State(row.decision, "", before.revision + 1, text=row.file)
        return
    spelling = label
    if label:
        seen.setdefault(fold_class(label))
        label = _find_class(known, class_names, label)
    decision = row.decision if row.decision in (NONE, SKIP) else LABEL if label else ""
    is_label = decision == LABEL
    states[key] = State(
        decision,
        label if is_label else "",
        before.revision + 1,
        is_confirmed=is_label and label == before.label and row.decision != UNDO,
        spelling=spelling,
        check=follow_check(before.check, row.decision, row.detail, label),
    )


def _fold(key: Key) -> Key:
    """A key of which there is one for all spellings of a class."""
    return key._replace(class_name=fold_class(key.class_name)) if isinstance(key, Note) else key


def _respell(states: dict[Key, State], class_names: Sequence[str]) -> list[str]:
    """Spells classes as all of their files do now, as training does. Returns their names."""
    found: dict[str, set[str]] = {}
    for state in states.values():
        if state.label:
            found.setdefault(state.label, set()).add(state.spelling)
    new = {name: min(spellings) for name, spellings in found.items() if name not in spellings}
    if new:
        for key, state in states.items():
            if state.label in new:
                states[key] = state._replace(label=new[state.label])
    return [new.get(name, name) for name in class_names]


def check_writable(path: pathlib.Path) -> None:
    """Raises a UserError if a table, which need not exist, cannot be written."""
    existing = path if path.exists() else path.parent
    if not os.access(existing, os.W_OK):
        raise UserError(
            f"Labels cannot be saved because {existing} is not writable: change its "
            "permissions, or copy the photos to another folder."
        )
