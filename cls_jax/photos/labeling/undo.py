"""The steps that each window of a session can undo, and those of earlier sessions.

Nothing here is thread-safe: a session calls it under its lock.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from cls_jax.photos.folder.log import (
    KEY,
    LABEL,
    NONE,
    SKIP,
    UNDO,
    FileMarks,
    LabelRow,
    Mark,
    fold,
    order_rows,
)
from cls_jax.photos.labeling.answers import (
    Key,
    Note,
    NoteText,
    follow_notes,
    get_key,
    write_answer,
)

_MAX_STEPS = 1000
_MAX_EARLIER = 100  # Of earlier sessions.
_EARLIER = ""  # The window that stands for these.

Found = Callable[[Key], Mark | NoteText]  # The current one, see `Answers.find`.


class Changed(NamedTuple):
    """What a step changed about a file or a note."""

    key: Key
    before: Mark | NoteText
    revision: int  # After the step.

    def take_back(self) -> LabelRow:
        """The row that brings back what was before."""
        key, before, _ = self
        if isinstance(before, NoteText):
            assert isinstance(key, Note), "only notes have a text"
            return LabelRow(before.text, key.class_name, key.kind)
        assert isinstance(key, str), "a mark is of a file"
        label = before.label
        if before.decision == NONE or (before.check and label):
            return write_answer(key, before.decision, label, before.check)
        return write_answer(key, SKIP if before.decision == SKIP else UNDO, label)


class Step(NamedTuple):
    """A step that can be undone."""

    changes: list[Changed]
    class_names: Sequence[str]  # All classes before, if the step changed these. Otherwise empty.
    added: Sequence[str]  # The classes that it added.
    message: str = ""  # Why it cannot be undone.

    def is_latest(self, find: Found) -> bool:
        """Whether nothing that it changed has been changed since."""
        return all(find(one.key).revision == one.revision for one in self.changes)

    def is_undone(self, before: Mapping[Key, Mark | NoteText], find: Found) -> bool:
        """Whether a change of what was so `before` has taken it back, and nothing else."""
        changed = {one.key: (one.revision, _describe(one.before)) for one in self.changes}
        return changed == {k: (one.revision, _describe(find(k))) for k, one in before.items()}


def _describe(found: Mark | NoteText) -> tuple[object, ...]:
    """What is seen of a mark or a note."""
    return (found.text,) if isinstance(found, NoteText) else (found.decision, found.labels)


class Steps:
    """The steps of all windows, by the window."""

    def __init__(self, rows: Sequence[LabelRow], base: FileMarks):
        """With the steps of earlier sessions, which any window may undo after its own.

        `base` are the marks before the first of the `rows` of the table.
        """
        earlier: list[Step] = []
        self._steps = {_EARLIER: earlier}
        for step, may_undo, find in _follow(rows, base):
            before = {one.key: one.before for one in step.changes}
            undone = [one for one in earlier if may_undo and one.is_undone(before, find)]
            if undone:
                earlier.remove(undone[-1])
                self.renumber(undone[-1], find)
            else:
                earlier.append(step)

    def append(self, window: str, step: Step) -> None:
        """Remembers a step of a window, in place of its oldest one if it has many."""
        steps = self._steps.setdefault(window, [])
        steps.append(step)
        del steps[:-_MAX_STEPS]

    def get(self, window: str) -> list[Step]:
        """The steps that a window can undo: its own, or those of earlier sessions.

        Whoever undoes the last one takes it away.
        """
        return self._steps.get(window) or self._steps[_EARLIER]

    def renumber(self, undone: Step, find: Found) -> None:
        """Lets the steps before one that was undone be undone, too: their states are back."""
        now = {(one.key, one.before.revision): find(one.key).revision for one in undone.changes}
        for steps in self._steps.values():
            for step in steps:
                step.changes[:] = [
                    one._replace(revision=now.get((one.key, one.revision), one.revision))
                    for one in step.changes
                ]


def _follow(rows: Sequence[LabelRow], base: FileMarks) -> Iterator[tuple[Step, bool, Found]]:
    """The last steps of a table, whose rows have the same time.

    Each with whether it may undo an earlier one, which writes no labels, and what is found then.
    """
    if not any(row.time for row in rows):
        return  # Of other programs, which may have many.
    moments = [
        list(found) for _, found in itertools.groupby(order_rows(rows), lambda row: row.time)
    ]
    first = [*itertools.chain(*moments[:-_MAX_EARLIER])]
    marks, notes = fold(first, base), follow_notes(first, {})

    def find(key: Key) -> Mark | NoteText:
        return marks.get(key) if isinstance(key, str) else notes.get(key.folded, NoteText())

    for moment in moments[-_MAX_EARLIER:]:
        before, names = {key: find(key) for key in map(get_key, moment) if key}, marks.names
        marks, notes = fold(moment, marks), follow_notes(moment, notes)
        kinds = {row.decision for row in moment}
        if before and moment[0].time and kinds != {KEY}:  # Those follow from a step.
            changes = [Changed(key, one, find(key).revision) for key, one in before.items()]
            added = [name for folded, name in marks.names.items() if folded not in names]
            yield Step(changes, (), added), LABEL not in kinds, find
