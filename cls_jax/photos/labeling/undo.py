"""The steps that each window of a session can undo.

Nothing here is thread-safe: a session calls it under its lock.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cls_jax.photos.folder.label_table import NONE, SKIP, UNDO
from cls_jax.photos.folder.log import Mark
from cls_jax.photos.labeling.answers import Decision, Key
from cls_jax.photos.labeling.notes import Note, NoteText

_MAX_STEPS = 1000

Found = Callable[[Key], Mark | NoteText]  # The current one, see `Answers.find`.


class Changed(NamedTuple):
    """What a step changed about a file or a note."""

    key: Key
    before: Mark | NoteText
    revision: int  # After the step.

    def take_back(self) -> Decision:
        """The decision that brings back what was before."""
        key, before, _ = self
        if isinstance(before, NoteText):
            assert isinstance(key, Note), "only notes have a text"
            return Decision(key, key.kind, before.text)
        label = before.label
        if before.decision == NONE or (before.check and label):
            return Decision(key, before.decision, label, before.check)
        return Decision(key, SKIP if before.decision == SKIP else UNDO, label)


class Step(NamedTuple):
    """A step that can be undone."""

    changes: list[Changed]
    class_names: Sequence[str]  # All classes before, if the step changed these. Otherwise empty.
    added: Sequence[str]  # The classes that it added.

    def is_latest(self, find: Found) -> bool:
        """Whether nothing that it changed has been changed since."""
        return all(find(one.key).revision == one.revision for one in self.changes)


class Steps:
    """The steps of all windows, by the window."""

    def __init__(self) -> None:
        self._steps: dict[str, list[Step]] = {}

    def append(self, window: str, step: Step) -> None:
        """Remembers a step of a window, in place of its oldest one if it has many."""
        steps = self._steps.setdefault(window, [])
        steps.append(step)
        del steps[:-_MAX_STEPS]

    def get_last(self, window: str) -> Step | None:
        """The step that a window would undo."""
        steps = self._steps.get(window)
        return steps[-1] if steps else None

    def drop(self, window: str) -> None:
        """Forgets the last step of a window."""
        self._steps[window].pop()

    def renumber(self, undone: Step, find: Found) -> None:
        """Lets the steps before one that was undone be undone, too: their states are back."""
        now = {(one.key, one.before.revision): find(one.key).revision for one in undone.changes}
        for steps in self._steps.values():
            for step in steps:
                step.changes[:] = [
                    one._replace(revision=now.get((one.key, one.revision), one.revision))
                    for one in step.changes
                ]
