"""The log of answers about photos and notes about classes, and the state that follows from it.

Notes are a class's description, example and number key: rows of the label table that say nothing of
a photo, with their text in the column of files.
"""

import collections
import contextlib
import itertools
import os
import pathlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import filelock

from cls_jax.errors import UserError
from cls_jax.photos.folder import label_table
from cls_jax.photos.folder.class_names import ClassNames
from cls_jax.photos.folder.index import FileIndex
from cls_jax.photos.folder.label_table import LabelTable
from cls_jax.photos.folder.log import (
    CHECK,
    KEY,
    LABEL,
    NO_MARKS,
    NOTES,
    UNDO,
    Check,
    FileMarks,
    LabelRow,
    Mark,
    fold,
    order_rows,
)
from cls_jax.photos.folder.names import fold_class
from cls_jax.photos.folder.options import AUTOMATIC, FolderOptions

MAX_CLASSES = 1000
_LOCK_SECONDS = 3.0  # Others append within milliseconds.


class RefusedError(Exception):
    """A request that cannot be met. The page shows the message."""


class Note(NamedTuple):
    """Something that is noted about a class."""

    kind: str  # One of `NOTES`.
    class_name: str  # However it is spelled.

    @property
    def folded(self) -> "Note":
        """The same for all spellings."""
        return self._replace(class_name=fold_class(self.class_name))


class NoteText(NamedTuple):
    """What a note says."""

    text: str = ""  # The description, the file of the example, or the key.
    revision: int = 0  # The number of rows about it so far.


Notes = Mapping[Note, NoteText]  # By `Note.folded`.


Key = str | Note  # A file by its name, or a note.


def get_key(row: LabelRow) -> Key:
    """What a row is about."""
    return Note(row.decision, row.label) if row.decision in NOTES else row.file


def write_answer(file: str, decision: str, label: str, check: Check | None = None) -> LabelRow:
    """The row of a decision about a file, and of what it checks if that is a random photo."""
    kind = CHECK if check and decision == LABEL else decision
    return LabelRow(file, label, kind, detail=check.write() if check else "")


class Answers:
    """The rows of labels.csv, on top of the labels from class folders. Not thread-safe.

    Attributes:
        path: The table.
        marks: What it says of each file.
        notes: What it says of classes.
    """

    def __init__(
        self,
        path: pathlib.Path,
        names: Sequence[str],
        base: FileMarks = NO_MARKS,
        options: FolderOptions = AUTOMATIC,
        numbered: ClassNames | None = None,
    ):
        """Reads the answers so far. The table need not exist.

        `names` are all images of the folder, and `base` has their marks without the table.
        `numbered` classes have numbers in the table. Raises a UserError if it cannot be read.
        """
        self.path = path
        self._options = options
        self._table = LabelTable([])  # As read last.
        self._numbered = numbered or ClassNames()
        self.marks = NO_MARKS
        self.notes: Notes = {}
        self._stamp: tuple[int, ...] | None = None
        self._last_time = ""
        self.index(names, base)

    def read_rows(self) -> tuple[list[LabelRow], FileMarks]:
        """The rows of the table as it was read, and the marks before them."""
        return self._numbered.name_rows(self._table.rows), self._base

    def index(self, names: Sequence[str], base: FileMarks) -> None:
        """Replaces the images of the folder, and reads the table again."""
        self._names = names
        self._files = FileIndex(names, self.path.parent)
        self._base = base
        self._content = b""  # The part of the table that has been read.
        self._replay()

    def find(self, key: Key) -> Mark | NoteText:
        """The mark of a file, or the text of a note."""
        if isinstance(key, str):
            return self.marks.get(key)
        return self.notes.get(key.folded, NoteText())

    @property
    def has_decisions(self) -> bool:
        """Whether the table has a column for them: rows of other tables would get more cells."""
        return self._table.has_decisions

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keeps other sessions from appending. Call `follow` next.

        Raises a UserError if another one holds the lock for seconds, or the folder is gone: a lock
        must not create it.
        """
        self.check_folder()
        lock = filelock.FileLock(
            self.path.with_name(f".{self.path.name}.lock"), timeout=_LOCK_SECONDS
        )
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(lock.acquire(poll_interval=0.01))
            except filelock.Timeout as error:
                raise UserError(
                    f"Nothing was saved, because another program is writing to {self.path.name}: "
                    "try again, or end the other program."
                ) from error
            except (OSError, NotImplementedError):
                pass  # Some network file systems have none, and a folder may be read-only.
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

    def append(self, rows: Sequence[LabelRow]) -> None:
        """Records rows on the disk and here, as of this moment.

        Raises the same as `append_rows`. Nothing has changed then.
        """
        moment = label_table.find_next_time(self._last_time)
        rows = [row._replace(time=moment) for row in rows]
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
        self.marks = _fold(rows, self.marks)
        self.notes = follow_notes(rows, self.notes)

    def _replay(self) -> None:
        """Reads the table, or only its end if it has grown."""
        stamp = self._stat()
        content = label_table.read_content(self.path)
        # Whether the part that is known ends with a complete row, by a quick check.
        is_whole = self._content.endswith((b"\n", b"\n\0")) and not self._content.count(b'"') % 2
        start = len(self._content) if is_whole and content.startswith(self._content) else 0
        table = self._read_table(content, start)
        # Rows of other programs depend on each other, and earlier times come earlier.
        if start and any(not row.decision or row.time < self._last_time for row in table.rows):
            start = 0
            table = self._read_table(content, start)
        marks, notes = (self.marks, self.notes) if start else (self._base, {})
        rows = self._numbered.name_rows(table.rows)
        marks = _fold(rows, marks)
        if len(marks.names) > MAX_CLASSES:
            raise UserError(
                f"{self.path} has more than {MAX_CLASSES:,} classes: check its columns."
            )
        self.marks, self.notes = marks, follow_notes(rows, notes)
        self._stamp = stamp
        self._content = content
        self._table = table
        times = [row.time for row in table.rows]
        self._last_time = max([self._last_time if start else "", *times])

    def _read_table(self, content: bytes, start: int) -> LabelTable:
        if start:
            return label_table.read_more_rows(self.path, self._files, self._table, content, start)
        return label_table.read_label_table(self.path, self._files, self._options, content)

    def _stat(self) -> tuple[int, ...] | None:
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_size, stat.st_mtime_ns, stat.st_ino


def follow_notes(rows: Iterable[LabelRow], before: Notes) -> Notes:
    """The notes after some rows of a table, of which others are about photos."""
    notes = dict(before)
    for row in order_rows(rows):
        if row.decision in NOTES:
            note = Note(row.decision, row.label).folded
            notes[note] = NoteText(row.file, notes.get(note, NoteText()).revision + 1)
    return notes


def get_note(notes: Notes, kind: str, class_name: str) -> NoteText:
    """What is noted about a class."""
    return notes.get(Note(kind, class_name).folded, NoteText())


def find_saved_keys(notes: Notes) -> dict[str, str]:
    """Folded name → number key that the notes give a class, also one that is gone."""
    return {
        note.class_name: found.text
        for note, found in notes.items()
        if note.kind == KEY and found.text
    }


def _fold(rows: Sequence[LabelRow], before: FileMarks) -> FileMarks:
    """As `log.fold`, with the files in the order of their last answers."""
    marks = fold(rows, before)
    if len(rows) < 2:
        return marks
    labels = {file: mark.label for file, mark in before.files.items()}
    num_left = collections.Counter(labels.values())
    order = dict.fromkeys(labels)
    # Rows without a time, of other programs, are of no common moment.
    for _, moment in itertools.groupby(order_rows(rows), lambda row: row.time or id(row)):
        found = {row.file: row for row in moment if row.file and row.decision not in NOTES}
        former = {labels.get(file, "") for file in found}
        num_left.subtract(labels.get(file, "") for file in found)
        labels |= {file: row.label for file, row in found.items()}
        num_left.update(row.label for row in found.values())
        if _are_answers(found.values(), former, num_left):
            for file in found:
                order.pop(file, None)
        order |= dict.fromkeys(found)
    return marks._replace(files={file: marks.files[file] for file in order})


def _are_answers(
    rows: Collection[LabelRow], former: Collection[str], num_left: Mapping[str, int]
) -> bool:
    """Whether rows of one moment are answers about their files, which had `former` labels.

    If all photos of a class, two or more, get another class at once, it was renamed, and that is no
    answer about them: there are no others `num_left` with its label. Neither is an undo of several.
    """
    is_renamed = len(former) == 1 and any(former) and not num_left[min(former)]
    is_undo = all(row.decision == UNDO for row in rows)
    return len(rows) == 1 or not (is_renamed or is_undo)


def check_writable(path: pathlib.Path) -> None:
    """Raises a UserError if a table, which need not exist, cannot be written."""
    existing = path if path.exists() else path.parent
    if not os.access(existing, os.W_OK):
        raise UserError(
            f"Labels cannot be saved because {existing} is not writable: change its "
            "permissions, or copy the photos to another folder."
        )
