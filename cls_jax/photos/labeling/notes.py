"""What is noted about classes: a description, an example and a number key.

Notes are rows of the label table that say nothing of a photo. They have their text in the column of
files.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cls_jax.photos.folder.label_table import KEY, NOTES, LabelRow
from cls_jax.photos.folder.log import order_rows
from cls_jax.photos.folder.names import fold_class


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
