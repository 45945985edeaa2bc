"""A labeling session: the photos and their answers. `views` describes it for the page."""

import contextlib
import itertools
import pathlib
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from cls_jax.errors import UserError
from cls_jax.io import describe_error
from cls_jax.photos.features.accuracy import MIN_CHECKS
from cls_jax.photos.features.backbones import DEFAULT_BACKBONES, Backbones
from cls_jax.photos.features.coverage import Coverage
from cls_jax.photos.features.decide import decide
from cls_jax.photos.features.network import FrozenFeatures, Progress
from cls_jax.photos.features.propagation import Propagation
from cls_jax.photos.features.relations import Relations
from cls_jax.photos.folder.label_table import DESCRIBE, EXAMPLE, KEY, LABEL, NONE, SKIP, UNDO
from cls_jax.photos.folder.log import Check, Checked, FileMarks, Mark
from cls_jax.photos.folder.names import clean
from cls_jax.photos.folder.options import AUTOMATIC, FolderOptions
from cls_jax.photos.folder.skipped import refuse_unreadable
from cls_jax.photos.folder.sources import number_sources
from cls_jax.photos.labeling.answers import Answers, Decision, Key, RefusedError
from cls_jax.photos.labeling.keys import KEYS, NO_KEY
from cls_jax.photos.labeling.notes import Note, NoteText
from cls_jax.photos.labeling.proposals import Classified, take_over_probabilities, weigh_images
from cls_jax.photos.labeling.questions import Questions, draw_readable
from cls_jax.photos.labeling.reading import Reading

JAX_THREAD = "jax"  # Threads of this name must end before the process does.
NUM_ANSWERS = 10  # After so many, the next classifier is fitted while labeling goes on.
_MAX_UNDO_STEPS = 1000
_NUM_EARLY = 3  # Photos to ask next before the features are known.
_NUM_RESERVED = 30  # The same while the graph is built, which takes seconds for large folders.
NUM_RECENT = 24  # Photos in the strip of earlier answers.
_LONGEST_DESCRIPTION = 500


class Features(NamedTuple):
    """The result of the feature pass over some files, of which B can be read."""

    readable: np.ndarray  # int [B], indices of the files that could be read.
    frozen: FrozenFeatures  # Of these B files.
    reasons: Mapping[int, str] = {}  # Index of each other file → why it cannot be read.


class Answered(NamedTuple):
    """What a session has been told so far, for a classifier of its B photos."""

    version: int  # Increases with each answer.
    relations: Relations | None  # Of the photos. None before they are known.
    labels: np.ndarray  # int [B], -1 for photos without a label.
    class_names: list[str]  # All of them.
    # The photos that a run would be trained on now, in its order, int [M]: without those that are
    # skipped, of no class, or gone.
    rows: np.ndarray
    sources: np.ndarray | None  # What each photo comes from, see `Session.number_sources`.
    checked: Checked  # The random photos that were checked.


class Counts(NamedTuple):
    """How many of a session's photos there are of some kinds."""

    classes: int  # Those with a label.
    labels: int
    checks: int  # Random photos with an answer, which a classifier had guessed before.
    open: int  # Without an answer.


class Change(NamedTuple):
    """A decision that a page asks for."""

    image: int  # The index of the photo.
    decision: str  # "label", "none" or "skip".
    label: str  # The class, or "".
    revision: int  # The revision that the page has shown.


class ConflictError(RefusedError):
    """The page is out of date: another window decided first, or the photo is gone."""


def describe_gone(names: Sequence[str]) -> str:
    """A sentence about photos whose files are no longer there, by their names."""
    if len(names) == 1:
        return f"{names[0]} is no longer in the folder: left out."
    return f"{len(names):,} photos are no longer in the folder, such as {names[0]}: left out."


class _Changed(NamedTuple):
    """What a step changed about a file or a note."""

    key: Key
    before: Mark | NoteText
    revision: int  # After the step.


class _Step(NamedTuple):
    """A step that can be undone."""

    changes: list[_Changed]
    class_names: list[str]  # All classes before, if the step changed these. Otherwise empty.
    added: Sequence[str]  # The classes that it added.


def _take_back(changed: _Changed) -> Decision:
    """The decision that brings back what was before."""
    key, before, _ = changed
    if isinstance(before, NoteText):
        assert isinstance(key, Note), "only notes have a text"
        return Decision(key, key.kind, before.text)
    label = before.label
    if before.decision == NONE or (before.check and label):
        return Decision(key, before.decision, label, before.check)
    return Decision(key, SKIP if before.decision == SKIP else UNDO, label)


class Session:
    """The state behind the page. All methods may be called from any thread.

    Those that change an answer raise a ConflictError if another window has decided about the same
    photo or its file is gone, a RefusedError if what they get does not exist or makes no sense, and
    an OSError if labels.csv cannot be written. Nothing has changed then. They wait for other
    programs that write to it before they lock this session, which can be shown meanwhile.
    """

    def __init__(
        self,
        root: pathlib.Path,
        files: Sequence[str],
        answers: Answers,
        options: FolderOptions = AUTOMATIC,
        backbones: Backbones = DEFAULT_BACKBONES,
        sources: Mapping[str, str] = MappingProxyType({}),
    ):
        """`files` may be labeled, by their names in `root`. `load` must follow.

        `backbones` are the networks that see the photos. `sources` are what these come from, by
        their names, as far as anything says it.
        """
        self.root = root
        self.options = options
        self.backbones = backbones
        self.sources = sources
        self._answers = answers
        self._lock = threading.RLock()
        self._scanning = threading.Lock()
        self._phase = "reading"
        self._message = ""
        self._progress = (0, len(files))
        self._version = 0
        self._pending = list(files)  # Before the features are known.
        self._pending_names = frozenset(files)
        self._set_files([])
        self._draws: Iterator[str] | None = None  # Those without an answer, in random order.
        self._is_drawing = True
        self._undo: dict[str, list[_Step]] = {}  # By window.
        self._questions = Questions()
        self._random = np.random.default_rng()
        self._relations: Relations | None = None
        self._propagation: Propagation | None = None
        self._unreadable: dict[str, str] = {}  # File → reason.
        self._gone: set[int] = set()
        self._is_cut_off = False  # Whether labels.csv could not be followed.
        self.labels_version = 0  # The number of changes of labels so far.
        self._num_moved = 0  # The number of photos left out so far, taken back, or added.
        self._left_out: frozenset[int] = frozenset()  # See `Answered.rows`.
        self._classified: Classified | None = None
        self._has_adopted = False  # Whether proposals are from an older one.
        self._coverage: Coverage | None = None
        self._probabilities = np.zeros((0, 0), np.float32)

    def _set_files(self, files: Sequence[str]) -> None:
        self._files = list(files)
        self._index = {name: i for i, name in enumerate(files)}

    @contextlib.contextmanager
    def reading(self) -> Iterator[Reading]:
        """What the session knows. Nothing changes in this context."""
        with self._lock:
            yield self._read()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """What changes answers does so here, after what other programs wrote was read.

        The lock of the table is outside, and that of the session inside, as in all threads.
        """
        with self._answers.hold(), self._lock:
            self.follow_table()
            yield

    def _read(self) -> Reading:
        return Reading(
            version=self._version,
            phase=self._phase,
            message=self._message,
            progress=self._progress,
            pending=self._pending_names,
            root=self.root,
            options=self.options,
            backbones=self.backbones,
            files=self._files,
            index=self._index,
            unreadable=self._unreadable,
            gone=self._gone,
            answers=self._answers,
            relations=self._relations,
            propagation=self._propagation,
            probabilities=self._probabilities,
            sample=self._questions.sample,
            classified=self._classified,
        )

    def load(self, load_features: Callable[[Progress], Features]) -> None:
        """Computes the features and the graph. The page shows the progress or the error.

        `load_features` is called with a function to report (images done, images in all).
        """
        try:
            found = load_features(self._report_progress)
            files = self._pending
            if not len(found.readable):
                failures = [(files[i], why) for i, why in found.reasons.items()]
                raise refuse_unreadable("None of the photos", failures)
            self._unreadable = {files[i]: why for i, why in found.reasons.items()}
            found, lost = self._put_asked_first(found)
            self._gone |= lost
            self._take_over(files, found, [])
        except Exception as error:
            message = str(error) if isinstance(error, UserError) else describe_error(error)
            with self._lock:
                self._phase = "failed"
                self._message = message
                self._version += 1
            raise

    def _put_asked_first(self, found: Features) -> tuple[Features, set[int]]:
        """The features with those of the photos that were asked meanwhile first.

        These keep their indices, also those that could not be read in the end. Returns the indices
        of the latter, which have the features of another photo. From now on, no more are drawn.
        """
        with self._lock:
            if self._draws is not None:  # A window is open.
                self._draw(_NUM_RESERVED)
            self._is_drawing = False
            places = {name: i for i, name in enumerate(self._pending)}
            asked = [places[name] for name in self._files]
        rows = {int(i): row for row, i in enumerate(found.readable)}
        order = [*asked, *(i for i in rows if i not in set(asked))]
        lost = {k for k, i in enumerate(asked) if i not in rows}
        chosen = np.array([rows.get(i, 0) for i in order])
        frozen = found.frozen.convert(lambda columns: columns[chosen])
        return Features(np.array(order), frozen, found.reasons), lost

    def _draw(self, count: int) -> None:
        """Draws random photos until `count` have no answer, while the features are unknown.

        Each has had the same chance, and none has been named by a classifier. Only files that can
        be read are drawn.
        """
        if self._draws is None:
            rest = [name for name in self._pending if not self._answers.get(name).decision]
            self._draws = draw_readable(self.root, rest, self._random)
            self._num_drawable = len(rest)
        missing = max(0, count - int(self._read().find_open().sum()))
        for name in itertools.islice(self._draws, missing):
            self._questions.sample[len(self._files)] = (len(self._files) + 1) / self._num_drawable
            self._set_files([*self._files, name])

    def _take_over(self, files: Sequence[str], found: Features, before: Sequence[str]) -> None:
        """Appends files with features to those `before`, whose indices stay."""
        known, new = self._relations, found.frozen
        relations = Relations(new) if known is None else known.extend(new)
        relations.group()  # Takes seconds for large folders, and no other thread should wait.
        propagation, coverage = Propagation(relations.graph), Coverage(relations.graph)
        with self._lock:
            self._set_files([*before, *(files[i] for i in found.readable)])
            if self._pending:  # From here on, the better questions are asked.
                self._questions.forget_random()
                self._pending, self._pending_names, self._draws = [], frozenset(), None
            self._relations = relations
            self._propagation = propagation
            self._coverage = coverage
            self._phase = "ready"
            self._refresh()

    def extend(
        self,
        files: Sequence[str],
        names: Sequence[str],
        base: FileMarks,
        load_features: Callable[[Sequence[pathlib.Path]], Features],
    ) -> dict[str, int]:
        """Adds the new ones of all `files` that may be labeled.

        `names` and `base` are those of `Answers`. Files that could not be read are tried
        again, and photos whose files are gone or are back are left out or asked again. Returns how
        many are new, how many of the new ones cannot be read, and how many are gone since. If
        `load_features` raises an error, no file is added.
        """
        with self._scanning:
            with self._lock:
                self._check_ready()
                before = list(self._files)
                unreadable = self._unreadable
                new = [name for name in files if name not in self._index]
                num_gone = len(self._gone)
                present = set(files)
                gone = {i for i, name in enumerate(before) if name not in present}
                if gone != self._gone:
                    self._gone = gone
                    self._answers.index(names, base)
                    self._refresh()
            counts = {"new": 0, "unreadable": 0, "gone": max(0, len(gone) - num_gone)}
            if not new:
                self._unreadable = {}
                return counts
            found = load_features([self.root / name for name in new])
            with self._lock:
                self._answers.index(names, base)
                self._unreadable = {new[i]: why for i, why in found.reasons.items()}
                self._version += 1
            if len(found.readable):
                self._take_over(new, found, before)
                with self._lock:
                    self._num_moved += len(found.readable)
            num_broken = len(self._unreadable.keys() - unreadable.keys())
            return counts | {"new": len(found.readable), "unreadable": num_broken}

    def take_labels(self) -> Answered:
        """What has been answered so far."""
        with self._lock:
            labels = self._propagation.labels.copy() if self._propagation else np.zeros(0, int)
            left = [image for image in range(len(labels)) if image not in self._left_out]
            return Answered(
                version=self.answers_version,
                relations=self._relations,
                labels=labels,
                class_names=list(self._answers.class_names),
                rows=np.array(sorted(left, key=lambda i: (labels[i] < 0, self._files[i])), int),
                sources=self.number_sources(),
                checked=self.compare_checks(),
            )

    @property
    def answers_version(self) -> int:
        """The number of changes so far of labels, and of the photos to fit a classifier to."""
        return self.labels_version + self._num_moved

    def number_sources(self) -> np.ndarray | None:
        """What each photo comes from, int32 [B], -1 where unknown. None if nothing is known."""
        with self._lock:
            return number_sources(self._files, self.sources) if self.sources else None

    def count(self) -> Counts:
        """How many photos there are of some kinds."""
        with self._lock:
            labels = self.take_labels().labels
            known = labels[labels >= 0]
            num_open = int(self._read().find_open().sum())
            num_checks = len(self.compare_checks().is_right)
            return Counts(len(np.unique(known)), len(known), num_checks, num_open)

    def adopt(self, classified: Classified) -> None:
        """Takes over what the classifier says.

        Proposals and questions follow with the next answer, or `follow_classifier`, so that nothing
        changes before a user's eyes.
        """
        with self._lock:
            self._classified = classified
            self._has_adopted = True

    def follow_classifier(self) -> None:
        """Updates the proposals if there is a newer classifier."""
        with self._lock:
            if self._has_adopted:
                self._refresh()

    def _report_progress(self, done: int, total: int) -> None:
        with self._lock:
            self._progress = (done, total)
            self._version += 1

    def get_path(self, image: int) -> pathlib.Path:
        """The file of a photo. Raises a RefusedError if there is none."""
        with self._lock:
            if not 0 <= image < len(self._files):
                raise RefusedError("There is no such photo.")
            return self.root / self._files[image]

    def leave_out_missing(self, images: Iterable[int] | None = None) -> None:
        """Leaves out those of some photos, by default of all, whose files are gone.

        Raises a UserError if the folder itself is gone.
        """
        with self._lock:
            self._answers.check_folder()
            chosen = range(len(self._files)) if images is None else images
            gone = {i for i in chosen if not (self.root / self._files[i]).is_file()}
            if not gone <= self._gone:
                self._gone |= gone
                self._refresh()

    def list_paths(self) -> list[pathlib.Path]:
        """The files of all photos."""
        with self._lock:
            return [self.root / name for name in self._pending or self._files]

    def add_class(self, name: str, window: str = "") -> str:
        """Adds a class as `Answers.add_class` does, as a step to undo in a window."""
        with self._lock:
            num_classes = len(self._answers.class_names)
            name = self._answers.add_class(name)
            is_new = len(self._answers.class_names) > num_classes
            self._version += is_new
            if self._answers.class_names[num_classes:] not in ([], [name]):
                self._refresh()  # It was inserted before others, whose columns move.
            if is_new and window:
                self._remember(window, _Step([], [], added=[name]))
            return name

    def decide(self, changes: Sequence[Change], window: str, adds: bool = False) -> list[str]:
        """Records decisions about photos on the disk and here, as one step to undo.

        Photos whose files are gone are left out, and their names are returned. If there is no
        other one, a ConflictError is raised. Classes that are unknown are refused, or else added,
        if it `adds` them, as `Answers.add_class` does, but not under another spelling of a class.
        """
        with self._changing(), self._adding() as added:
            if adds:
                labels = dict.fromkeys(change.label for change in changes if change.label)
                names = {label: self._add_as_spelled(label) for label in labels}
                changes = [c._replace(label=names.get(c.label, "")) for c in changes]
            gone = self._check(changes)
            decisions = [
                Decision(self._files[c.image], c.decision, c.label, self._get_check(c))
                for c in changes
                if c.image not in gone
            ]
            skipped = sum(one.kind == SKIP and self._is_to_check(one.key) for one in decisions)
            self._record(decisions, window, added=added())
            if skipped:  # They do not count. Others take their places.
                num_left = sum(map(self._is_to_check, self._files))
                is_open = self._read().find_open()
                self._questions.draw(is_open, num_left + skipped, self._random)
                self._refresh()
            return [self._files[image] for image in gone]

    def _add_as_spelled(self, name: str) -> str:
        """Adds a class, unless there is one whose name is spelled otherwise."""
        found = self._answers.add_class(name)
        if found != clean(unicodedata.normalize("NFC", name)):
            raise RefusedError(f"There is a class {found} already: choose it from the list.")
        return found

    @contextlib.contextmanager
    def _adding(self) -> Iterator[Callable[[], list[str]]]:
        """Takes back the classes that are added here if there is an error.

        Gives a function that lists those so far.
        """
        before = list(self._answers.class_names)
        try:
            yield lambda: [name for name in self._answers.class_names if name not in before]
        except (RefusedError, OSError, UserError):
            self._answers.class_names[:] = before
            raise

    def _is_to_check(self, key: Key) -> bool:
        """Whether a file is a random photo without an answer, drawn to measure the accuracy."""
        is_drawn = self._phase == "ready" and self._index.get(str(key)) in self._questions.sample
        return is_drawn and not self._answers.get(str(key)).decision

    def _get_check(self, change: Change) -> Check | None:
        """What the classifier guesses of a random photo, before it gets its first answer."""
        image = change.image
        sample = self._questions.sample
        if image not in sample or change.decision == SKIP or self._get_state(image).decision:
            return None
        found = self._classified
        if found is None or image >= len(found.labels) or found.labels[image] >= 0:
            return Check(sample[image])
        best, confidence, _ = decide(found.probabilities[image])
        return Check(sample[image], float(confidence), found.class_names[best])

    def _get_state(self, image: int) -> Mark:
        return self._answers.get(self._files[image])

    def draw_sample(self, count: int = MIN_CHECKS) -> int:
        """Draws photos without an answer, each with the same probability, to be asked next.

        Random photos without an answer stay, and others are added until there are `count`. Returns
        how many there are. Raises a RefusedError if the photos are being read, or all have an
        answer.
        """
        with self._lock:
            self._check_ready()
            drawn = self._questions.draw(self._read().find_open(), count, self._random)
            if not drawn:
                raise RefusedError("All photos have an answer.")
            self._refresh()
            return drawn

    def compare_checks(self) -> Checked:
        """The random photos in the folder that were checked, and what had been guessed of them."""
        with self._lock:
            return self._answers.compare_checks({self._files[image] for image in self._gone})

    def list_checked(self) -> dict[int, str]:
        """The same photos, and the class of each, "" for none of the classes."""
        with self._lock:
            marks = self._answers.marks
            return {
                self._index[name]: marks.files[name].label
                for name in marks.list_checked()
                if name in self._index
            }

    def _record(
        self,
        decisions: Sequence[Decision],
        window: str,
        classes_before: Sequence[str] = (),
        classes_after: Sequence[str] = (),
        added: Sequence[str] = (),
    ) -> None:
        """Records decisions as one step to undo.

        A change of classes names all before and after. `added` are those that the decisions added.
        """
        before = [(decision.key, self._answers.find(decision.key)) for decision in decisions]
        if decisions:
            self._answers.append(decisions)
        if classes_before:
            self._answers.class_names[:] = classes_after
        changes = [_Changed(key, one, one.revision + 1) for key, one in before]
        self._remember(window, _Step(changes, list(classes_before), added))
        self._save_keys()
        self._refresh()

    def _remember(self, window: str, step: _Step) -> None:
        steps = self._undo.setdefault(window, [])
        steps.append(step)
        del steps[:-_MAX_UNDO_STEPS]

    def _save_keys(self, released: Sequence[Decision] = ()) -> None:
        """Writes the keys of the classes if the next session would give other ones."""
        with contextlib.suppress(OSError, UserError):  # The next answer tries again.
            if released:  # What is unsaved depends on these.
                self._answers.append(released)
            if unsaved := self._answers.find_unsaved_keys():
                self._answers.append(unsaved)

    def rename_class(self, window: str, name: str, new: str) -> int:
        """Renames or respells a class, merges it into another one, or deletes it if `new` is "".

        Its photos get the other class, or none. Its description and its example stay if the
        other class has none, and its key if it is no merger. Returns the number of photos.
        """
        with self._changing():
            self._check_ready()
            answers = self._answers
            before = list(answers.class_names)
            keys = answers.find_keys()  # The other classes keep theirs.
            if name not in before:
                raise RefusedError("There is no such class.")
            found = answers.add_class(new) if new else ""
            # Another spelling of the same class is its new name.
            new = clean(unicodedata.normalize("NFC", new)) if found == name else found
            if new == name:
                raise RefusedError(f"The name of this class is {name} already.")
            decisions = [
                Decision(file, LABEL if new else UNDO, new)
                for file, mark in answers.marks.files.items()
                if mark.label == name
            ]
            num_images = sum(decision.key in self._index for decision in decisions)
            for kind in (DESCRIBE, EXAMPLE) if new else ():
                text = answers.get_note(kind, name).text
                if text and not answers.get_note(kind, new).text:
                    decisions.append(Decision(Note(kind, new), kind, text))
            after = [known for known in before if known != name]
            if is_new := new and new not in before:
                decisions += answers.move_key(name, new, keys.get(name, NO_KEY))
                after.insert(before.index(name), new)
            added = [new] if is_new and found == new else []  # And no other spelling.
            try:
                self._record(decisions, window, before, after, added)
            except (OSError, UserError):
                answers.class_names[:] = before
                raise
            return num_images

    def describe_class(self, window: str, name: str, text: str) -> None:
        """Saves the description of a class. Raises the same as `rename_class`."""
        if len(text) > _LONGEST_DESCRIPTION or not text.isprintable():
            raise RefusedError(
                f"A description must be one line of at most {_LONGEST_DESCRIPTION} characters."
            )
        with self._changing():
            if name not in self._answers.class_names:
                raise RefusedError("There is no such class.")
            self._record([Decision(Note(DESCRIBE, name), DESCRIBE, text)], window)

    def set_key(self, window: str, name: str, key: str) -> None:
        """Gives a class another number key. The class that has this key gets its former one."""
        if key not in list(KEYS):
            raise RefusedError(f"The key of a class must be a digit from {KEYS[0]} to {KEYS[-1]}.")
        with self._changing():
            if name not in self._answers.class_names:
                raise RefusedError("There is no such class.")
            keys = self._answers.find_keys()
            decisions = [Decision(Note(KEY, name), KEY, key)]
            others = [other for other, used in keys.items() if used == key and other != name]
            decisions += [
                Decision(Note(KEY, other), KEY, keys.get(name, NO_KEY)) for other in others
            ]
            decisions += self._answers.release_key(key)
            self._record(decisions, window)

    def set_example(self, window: str, image: int) -> None:
        """Makes a labeled photo the example of its class."""
        with self._changing():
            self._check_ready()
            self.get_path(image)
            if not (label := self._read().get_state(image).label):
                raise RefusedError("An example needs a label first.")
            self._record([Decision(Note(EXAMPLE, label), EXAMPLE, self._files[image])], window)

    def _check_ready(self) -> None:
        if self._phase != "ready":
            raise RefusedError("The photos are still being read.")

    def _check(self, changes: Sequence[Change]) -> list[int]:
        """Checks changes. Returns the photos whose files are gone."""
        if len({change.image for change in changes}) < len(changes):
            raise RefusedError("A photo is listed twice.")
        gone = []
        for image, decision, label, revision in changes:
            path = self.get_path(image)
            if decision not in (LABEL, NONE, SKIP):
                raise RefusedError("Unknown decision.")
            if (decision == LABEL) != bool(label) or (
                label and label not in self._answers.class_names
            ):
                raise RefusedError("There is no such class.")
            if not path.is_file():
                gone.append(image)
            elif self._get_state(image).revision != revision:
                none = f"None of the {len(changes):,} photos was labeled: "
                reason = f"{self._files[image]} was labeled in the meantime."
                raise ConflictError((none if len(changes) > 1 else "") + reason)
        if gone:
            self.leave_out_missing(gone)
        if gone and len(gone) == len(changes):
            raise ConflictError(describe_gone([self._files[image] for image in gone]))
        return gone

    def undo(self, window: str) -> dict[int, Mark]:
        """Undoes the last step of a window and returns its photos with the marks they had."""
        with self._changing():
            if not self._undo.get(window):
                raise RefusedError("There is nothing to undo.")
            step = self._undo[window][-1]
            if any(self._answers.find(one.key).revision != one.revision for one in step.changes):
                self._undo[window].pop()
                raise ConflictError("Nothing was undone: the label was changed in the meantime.")
            former = {
                self._index[one.key]: self._answers.get(one.key)
                for one in step.changes
                if isinstance(one.key, str) and one.key in self._index
            }
            decisions = [_take_back(one) for one in step.changes]
            if decisions:
                self._answers.append(decisions)
            if step.class_names:
                self._answers.restore_classes(step.class_names)
            released = self._answers.remove_unused(step.added)
            self._undo[window].pop()
            self._renumber(step)
            self._save_keys(released)
            self._refresh()
            return former

    def _renumber(self, undone: _Step) -> None:
        """Lets the steps before one that was undone be undone, too: their states are back."""
        now = {
            (one.key, one.before.revision): self._answers.find(one.key).revision
            for one in undone.changes
        }
        for steps in self._undo.values():
            for step in steps:
                step.changes[:] = [
                    one._replace(revision=now.get((one.key, one.revision), one.revision))
                    for one in step.changes
                ]

    def can_undo(self, window: str) -> bool:
        """Whether a window has a step to undo."""
        with self._lock:
            return bool(self._undo.get(window))

    def mark(self, images: Sequence[int], label: str) -> None:
        """Shows photos next that are not of the class `label`, which is no longer proposed.

        Raises a RefusedError if one is missing.
        """
        with self._lock:
            if any(not 0 <= image < len(self._files) for image in images):
                raise RefusedError("There is no such photo.")
            self._questions.mark(images, label)
            self._refresh()

    def follow_table(self) -> None:
        """Reads labels.csv again if another program has changed it.

        Raises a UserError if it cannot be read or the folder is gone.
        """
        with self._lock:
            was_cut_off, self._is_cut_off = self._is_cut_off, True
            has_changed = self._answers.follow()
            self._is_cut_off = False
            if has_changed or was_cut_off:  # The page then loads its photos again.
                self._refresh()

    def _refresh(self) -> None:
        """Propagates changed labels and chooses what to show next."""
        self._version += 1
        if self._propagation is None or self._coverage is None:
            self._questions.choose_first(self._read().find_open())
            return
        index = {name: k for k, name in enumerate(self._answers.class_names)}
        labels = np.full(len(self._files), -1)
        known = self._read()
        left_out = set(self._gone)
        for image, state in known.list_answered():
            if state.label:
                labels[image] = index[state.label]
            else:
                left_out.add(image)
        self._num_moved += len(left_out ^ self._left_out)
        self._left_out = frozenset(left_out)
        if self._probabilities.shape[1] > len(index):  # Classes were removed.
            self._propagation = Propagation(self._propagation.graph)
        self._propagation.add_classes(len(index))
        changed = np.flatnonzero(labels != self._propagation.labels)
        self.labels_version += len(changed)
        self._propagation.update({int(i): int(labels[i]) for i in changed})
        self._probabilities = self._propagation.compute_probabilities()
        if self._classified is not None:
            take_over_probabilities(self._classified, index, labels, self._probabilities)
        is_open = known.find_open()
        self._questions.exclude_marked(is_open, index, self._probabilities)
        self._has_adopted = False
        shares = weigh_images(self._classified, len(labels))
        self._questions.choose(is_open, self._coverage, shares, self.number_sources())

    def share_out(self, window: str, shown: int | None = None) -> list[int]:
        """Chooses what to show next in a window. Photos shown in other windows come last.

        The photo that is `shown` in this one comes first until it has an answer or is gone.
        """
        with self._lock:
            if self._phase == "reading" and self._is_drawing:
                self._draw(_NUM_EARLY + self._questions.count_windows())
                self._questions.choose_first(self._read().find_open())
            if shown is not None and not self._is_open(shown):
                shown = None
            return self._questions.share_out(window, shown)

    def _is_open(self, image: int) -> bool:
        """Whether a photo is in the folder and has no answer."""
        is_present = 0 <= image < len(self._files) and image not in self._gone
        return is_present and not self._get_state(image).decision

    def list_states(self) -> list[tuple[int, str, Mark]]:
        """All photos in the folder: index, name and mark."""
        with self._lock:
            return [
                (image, name, self._answers.get(name))
                for image, name in enumerate(self._files)
                if image not in self._gone
            ]
