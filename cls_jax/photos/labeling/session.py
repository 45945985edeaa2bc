"""A labeling session: what it knows, what it asks, and what can be undone.

`known` is what it knows as a value, `changes` what a page may change, and `views` describes it.
"""

import contextlib
import dataclasses
import functools
import itertools
import pathlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from cls_jax.errors import UserError
from cls_jax.io import describe_error
from cls_jax.photos.features.accuracy import MIN_CHECKS
from cls_jax.photos.features.backbones import DEFAULT_BACKBONES, Backbones
from cls_jax.photos.features.coverage import Coverage
from cls_jax.photos.features.network import Progress
from cls_jax.photos.features.relations import LAST, Relations
from cls_jax.photos.folder.log import SKIP, FileMarks, LabelRow, Mark
from cls_jax.photos.folder.options import AUTOMATIC, FolderOptions
from cls_jax.photos.folder.remedies import refuse_unreadable
from cls_jax.photos.labeling.answers import Answers, RefusedError, get_key, write_answer
from cls_jax.photos.labeling.changes import (
    Change,
    ConflictError,
    Plan,
    add_named,
    check_changes,
    check_ready,
    describe_gone,
    find_check,
)
from cls_jax.photos.labeling.classes import (
    NO_CLASSES,
    Classes,
    add_class,
    find_unsaved_keys,
    follow_marks,
    remove_unused,
    restore,
    settle_keys,
)
from cls_jax.photos.labeling.known import (
    Features,
    Known,
    count_missing,
    find_awaited,
    find_checked,
    get_path,
    list_sources,
)
from cls_jax.photos.labeling.proposals import Classified, Spread, weigh_images
from cls_jax.photos.labeling.questions import Questions, draw_readable
from cls_jax.photos.labeling.undo import Changed, Step, Steps

JAX_THREAD = "jax"  # Threads of this name must end before the process does.
_NUM_EARLY = 3  # Photos to ask next before the features are known.
_NUM_RESERVED = 30  # The same while the graph is built, which takes seconds for large folders.
NUM_RECENT = 24  # Photos in the strip of earlier answers.


class Session:
    """The state behind the page. All methods may be called from any thread.

    Those that change an answer raise a ConflictError if another window has decided about the same
    photo or its file is gone, a RefusedError if what they get does not exist or makes no sense, and
    an OSError if labels.csv cannot be written. Nothing has changed then. They wait for other
    programs that write to it before they lock this session, which can be shown meanwhile.

    Attributes:
        steps: What each window can undo.
    """

    def __init__(
        self,
        root: pathlib.Path,
        files: Sequence[str],
        answers: Answers,
        options: FolderOptions = AUTOMATIC,
        backbones: Backbones = DEFAULT_BACKBONES,
        sources: Mapping[str, str] = MappingProxyType({}),
        classes: Classes = NO_CLASSES,
    ):
        """`files` may be labeled, by their names in `root`. `load` must follow.

        `backbones` are the networks that see the photos, `sources` what these come from, by their
        names, as far as anything says it, and `classes` are offered from the start.
        """
        self._answers = answers
        self._lock = threading.RLock()
        self._scanning = threading.Lock()
        self._questions = Questions()
        rows, base = answers.read_rows()
        self.steps = Steps(rows, base)
        drawable = [name for name in files if not answers.marks.get(name).decision]
        self._num_drawable = len(drawable)
        # What is shown until the photos are read.
        self._draws = draw_readable(root, drawable, np.random.default_rng())
        self._spread: Spread | None = None
        self._coverage: Coverage | None = None
        self._has_adopted = False  # Whether proposals are from an older classifier.
        self._is_cut_off = False  # Whether labels.csv could not be followed.
        self._known = Known(
            root, options, backbones, sources, tuple(files), (0, len(files)), classes=classes
        )
        self._refresh()

    @property
    def known(self) -> Known:
        """What the session knows. It stays as it is."""
        with self._lock:
            return self._known

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """What changes answers does so here, after what other programs wrote was read.

        The lock of the table is outside, and that of the session inside, as in all threads.
        """
        with self._answers.hold(), self._lock:
            self.follow_table()
            yield

    def load(self, load_features: Callable[[Progress], Features]) -> None:
        """Computes the features and the graph. The page shows the progress or the error.

        `load_features` is called with a function to report (images done, images in all).
        """

        def show(**changes: Any) -> None:
            with self._lock:
                version = self._known.version + 1
                self._known = dataclasses.replace(self._known, version=version, **changes)

        files = self._known.pending
        try:
            found = load_features(lambda *progress: show(progress=progress))
            reasons = {files[i]: why for i, why in found.reasons.items()}
            if not len(found.readable):
                raise refuse_unreadable("None of the photos", list(reasons.items()))
            with self._lock:
                if self._known.files:  # A window is open.
                    self._draw(_NUM_RESERVED)
                self._draws = iter(())
                known = self._known
                found, lost = _put_first(found, [files.index(name) for name in known.files])
                self._known = dataclasses.replace(known, unreadable=reasons, gone=known.gone | lost)
            self._take_over(files, found, [])
        except Exception as error:
            message = str(error) if isinstance(error, UserError) else describe_error(error)
            show(phase="failed", message=message)
            raise

    def _draw(self, count: int) -> None:
        """Draws random photos until `count` have no answer, while the features are unknown.

        Each has had the same chance, and none has been named by a classifier. Only files that can
        be read are drawn.
        """
        known, sample = self._known, self._questions.sample
        missing = max(0, count - int(known.find_open().sum()))
        files = (*known.files, *itertools.islice(self._draws, missing))
        for image in range(len(known.files), len(files)):
            sample[image] = (image + 1) / self._num_drawable
        index = {name: i for i, name in enumerate(files)}
        self._known = dataclasses.replace(known, files=files, index=index, sample=dict(sample))

    def _take_over(self, files: Sequence[str], found: Features, before: Sequence[str]) -> None:
        """Appends files with features to those `before`, whose indices stay."""
        known, new = self._known.relations, found.frozen
        relations = Relations(new) if known is None else known.extend(new)
        _ = relations.copies  # Takes seconds for large folders, and no other thread should wait.
        graph = relations.connect(0, LAST)
        spread, coverage = self._known.rules.start(graph), Coverage(graph)
        with self._lock:
            names = (*before, *(files[i] for i in found.readable))
            if self._known.pending:  # From here on, the better questions are asked.
                self._questions.forget_random()
            self._spread, self._coverage = spread, coverage
            self._refresh(
                files=names,
                index={name: i for i, name in enumerate(names)},
                pending=(),
                phase="ready",
                digests={**self._known.digests, **found.digests},
                relations=relations,
            )

    def extend(
        self,
        files: Sequence[str],
        names: Sequence[str],
        base: FileMarks,
        sources: Mapping[str, str],
        load_features: Callable[[Sequence[pathlib.Path]], Features],
        replaced: Sequence[str] = (),
    ) -> dict[str, int]:
        """Adds the new ones of all `files` that may be labeled.

        `names` and `base` are those of `Answers`, and `sources` those of the session. Files that
        could not be read are tried again, and photos whose files are gone or are back are left out
        or asked again. Those that were `replaced` by others are other photos, and asked soon.
        Returns how many are new, were replaced, how many of these cannot be read, and how many are
        gone since. If `load_features` raises an error, no file is added.
        """
        with self._scanning:
            with self._lock:
                check_ready(self._known)
                before = self._known
                replaced = [name for name in replaced if name in set(files)]
                new = [name for name in files if name not in before.index] + replaced
                current = before.index.keys() & set(files) - set(replaced)
                gone = set(range(len(before.files))) - {before.index[name] for name in current}
                unreadable = before.unreadable if new else {}
                self._known = dataclasses.replace(before, sources=sources, unreadable=unreadable)
                if gone != before.gone:
                    self._answers.index(names, base)
                    self._refresh(gone=frozenset(gone))
            num_gone = max(0, len(gone) - len(before.gone) - len(replaced))
            counts = {"new": 0, "replaced": len(replaced), "unreadable": 0, "gone": num_gone}
            if not new:
                return counts
            found = load_features([before.root / name for name in new])
            reasons = {new[i]: why for i, why in found.reasons.items()}
            num_new = len(found.readable)
            with self._lock:
                self._answers.index(names, base)
            if num_new:
                self._take_over(new, found, before.files)
            with self._lock:
                self._questions.mark([self._known.index[name] for name in replaced], "")
                self._refresh(unreadable=reasons, num_moved=self._known.num_moved + num_new)
            num_broken = len(reasons.keys() - before.unreadable.keys())
            num_new -= len(set(replaced) - reasons.keys())
            return counts | {"new": num_new, "unreadable": num_broken}

    def adopt(self, classified: Classified) -> None:
        """Takes over what the classifier says.

        Proposals and questions follow with the next answer, or `follow_classifier`, so that nothing
        changes before a user's eyes. The first one of a session guesses the random photos that an
        earlier session has left to check.
        """
        with self._lock:
            known = self._known
            if known.classified is None and len(find_checked(known).is_right) % MIN_CHECKS:
                _draw_round(self._questions, self._known)
            self._known = dataclasses.replace(known, classified=classified)
            self._has_adopted = True

    def follow_classifier(self) -> Known:
        """What the session knows, with proposals of the newest classifier."""
        with self._lock:
            if self._has_adopted:
                self._refresh()
            return self._known

    def leave_out_missing(self, images: Iterable[int] | None = None) -> None:
        """Leaves out those of some photos, by default of all, whose files are gone.

        Raises a UserError if the folder itself is gone.
        """
        with self._lock:
            self._answers.check_folder()
            known = self._known
            chosen = range(len(known.files)) if images is None else images
            gone = {i for i in chosen if not (known.root / known.files[i]).is_file()}
            if not gone <= known.gone:
                self._refresh(gone=known.gone | gone)

    def add_class(self, name: str, window: str = "") -> str:
        """Adds a class as `classes.add_class` does, as a step to undo in a window."""
        with self._lock:
            known = self._known
            classes, name = add_class(known.classes, known.rules.clean(name))
            if len(classes.names) == len(known.class_names):
                return name
            classes = settle_keys(classes, known.notes)
            self._known = dataclasses.replace(known, classes=classes, version=known.version + 1)
            if classes.names[-1] != name:
                self._refresh()  # It was inserted before others, whose columns move.
            if window:
                self.steps.append(window, Step([], [], added=[name]))
            return name

    def decide(self, changes: Sequence[Change], window: str, adds: bool = False) -> list[str]:
        """Records decisions about photos on the disk and here, as one step to undo.

        Photos whose files are gone are left out, and their names are returned. If there is no
        other one, a ConflictError is raised. Classes that are unknown are refused, or else added,
        if it `adds` them, as `classes.add_class` does, but not under another spelling of a class.
        """
        with self._changing():
            classes = self._known.classes
            if adds:
                classes, changes = add_named(self._known, changes)
            gone = check_changes(self._known, classes, changes)
            names = [self._known.files[image] for image in gone]
            self.leave_out_missing(gone)
            if gone and len(gone) == len(changes):
                raise ConflictError(describe_gone(names))
            known = self._known
            made = [(one, find_check(known, one)) for one in changes if one.image not in gone]
            rows = [
                write_answer(known.files[one.image], one.decision, one.label, check)
                for one, check in made
            ]
            added = [name for name in classes.names if name not in known.class_names]
            self._record(window, Plan(rows, classes, added))
            if any(one.decision == SKIP and check and check.guess for one, check in made):
                # They do not count. Others take their places.
                _draw_round(self._questions, self._known)
                self._refresh()
            return names

    def change(self, window: str, plan: Callable[..., Plan], *arguments: Any) -> None:
        """Changes classes, as one step to undo. `plan` is a function of `changes`."""
        with self._changing():
            self._record(window, plan(self._known, *arguments))

    def _record(self, window: str, plan: Plan) -> None:
        """Saves a plan as one step to undo."""
        log, before = self._answers, self._known.class_names
        found = [(key, log.find(key)) for key in map(get_key, plan.rows)]
        if plan.rows:
            log.append(plan.rows)
        classes = follow_marks(plan.classes, log.marks, log.notes)
        changes = [Changed(key, one, one.revision + 1) for key, one in found]
        step = Step(changes, (), plan.added, plan.message)
        if plan.names is not None:
            classes = classes._replace(names=tuple(plan.names))
            step = step._replace(class_names=before)
        self.steps.append(window, step)
        _save_keys(log, classes)
        self._refresh(classes=classes)

    def undo(self, window: str) -> dict[int, Mark]:
        """Undoes the last step of a window and returns its photos with the marks they had."""
        with self._changing():
            log, known, steps = self._answers, self._known, self.steps.get(window)
            if not steps:
                raise RefusedError("There is nothing to undo.")
            step = steps[-1]
            if not step.is_latest(log.find):
                steps.pop()
                raise ConflictError("Nothing was undone: the label was changed in the meantime.")
            former = {
                known.index[one.key]: log.marks.get(one.key)
                for one in step.changes
                if isinstance(one.key, str) and one.key in known.index
            }
            if step.message:
                steps.pop()
                raise RefusedError(step.message)
            if step.changes:
                log.append([one.take_back() for one in step.changes])
            classes = follow_marks(known.classes, log.marks, log.notes)
            if step.class_names:
                classes = restore(classes, step.class_names, log.marks)
            classes, released = remove_unused(classes, step.added, log.marks, log.notes)
            steps.pop()
            self.steps.renumber(step, log.find)
            _save_keys(log, classes, released)
            self._refresh(classes=classes)
            return former

    def draw_sample(self) -> int:
        """Draws photos without an answer, each with the same probability, to be asked next.

        Random photos without an answer stay, and others are added until a round of `MIN_CHECKS` can
        be completed. Returns how many there are. Raises a RefusedError while photos are being read,
        or if all have an answer.
        """
        with self._lock:
            check_ready(self._known)
            if not (drawn := _draw_round(self._questions, self._known)):
                raise RefusedError("All photos have an answer.")
            self._refresh()
            return drawn

    def mark(self, images: Sequence[int], label: str) -> None:
        """Shows photos next that are not of the class `label`, which is no longer proposed.

        Raises a RefusedError if one is missing.
        """
        with self._lock:
            for image in images:
                get_path(self._known, image)
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

    def _refresh(self, **changes: Any) -> None:
        """Takes over what has changed of `known` and what the log says now.

        Propagates its labels and chooses what to show next.
        """
        log, questions = self._answers, self._questions
        before = dataclasses.replace(self._known, **changes)
        classes = follow_marks(before.classes, log.marks, log.notes)
        known = dataclasses.replace(
            before,
            version=before.version + 1,
            marks=log.marks,
            notes=log.notes,
            classes=settle_keys(classes, log.notes),
        )
        if self._spread is None or self._coverage is None:
            questions.choose_first(known.find_open())
            self._known = known
            return
        labels, left_out = _find_labels(known, self._spread.index(known.class_names))
        former = np.full(len(labels), -1)
        former[: len(before.labels)] = before.labels
        is_open = known.find_open()
        exclude = functools.partial(questions.exclude_marked, is_open)
        p_BK = self._spread.follow(known.class_names, labels, known.classified, exclude)
        questions.sample |= find_awaited(known)
        self._has_adopted = False
        shares = weigh_images(known.classified, len(labels), known.rules.trust)
        questions.choose(is_open, self._coverage, shares, list_sources(known))
        self._known = dataclasses.replace(
            known,
            labels=labels,
            left_out=left_out,
            probabilities=p_BK,
            sample=dict(questions.sample),
            rejected=frozenset(questions.marked),
            labels_version=known.labels_version + int((labels != former).sum()),
            num_moved=known.num_moved + len(left_out ^ known.left_out),
        )

    def share_out(self, window: str, shown: int | None = None) -> list[int]:
        """Chooses what to show next in a window. Photos shown in other windows come last.

        The photo that is `shown` in this one comes first until it has an answer or is gone.
        """
        with self._lock:
            if self._known.phase == "reading":
                self._draw(_NUM_EARLY + self._questions.count_windows())
                self._questions.choose_first(self._known.find_open())
            if shown is not None:
                is_open = self._known.find_open()
                shown = shown if 0 <= shown < len(is_open) and is_open[shown] else None
            return self._questions.share_out(window, shown)


def _find_labels(known: Known, index: dict[str, int]) -> tuple[np.ndarray, frozenset[int]]:
    """The label of each photo, int [B], -1 for none, and the photos that no run is trained on.

    `index` numbers labels, and gets those that are new.
    """
    labels = np.full(len(known.files), -1)
    left_out = set(known.gone)
    for image, mark in known.list_answered():
        if mark.label:
            labels[image] = index.setdefault(mark.label, len(index))
        else:
            left_out.add(image)
    return labels, frozenset(left_out)


def _put_first(found: Features, asked: Sequence[int]) -> tuple[Features, set[int]]:
    """The features with those of some photos first, which keep their places.

    Also those that could not be read in the end: they have the features of another photo. Returns
    the places of these, too.
    """
    rows = {int(i): row for row, i in enumerate(found.readable)}
    order = [*asked, *(i for i in rows if i not in set(asked))]
    lost = {place for place, i in enumerate(asked) if i not in rows}
    chosen = np.array([rows.get(i, 0) for i in order])
    frozen = found.frozen.convert(lambda columns: columns[chosen])
    return found._replace(readable=np.array(order), frozen=frozen), lost


def _save_keys(log: Answers, classes: Classes, released: Sequence[LabelRow] = ()) -> None:
    """Writes the keys of the classes if the next session would give other ones."""
    with contextlib.suppress(OSError, UserError):  # The next answer tries again.
        if released:  # What is unsaved depends on these.
            log.append(released)
        if not log.has_decisions:
            return
        if unsaved := find_unsaved_keys(classes, log.marks, log.notes):
            log.append(unsaved)


def _draw_round(questions: Questions, known: Known) -> int:
    """Completes the round of random photos. Returns how many have no answer."""
    missing = count_missing(len(find_checked(known).is_right))
    return questions.draw(known.find_open(), missing, known.files)
