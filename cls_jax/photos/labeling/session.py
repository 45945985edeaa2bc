"""A labeling session: the photographs, their answers, and what the page shows of them."""

import collections
import pathlib
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cls_jax.errors import UserError
from cls_jax.io import describe_error, make_printable
from cls_jax.photos.features.coverage import Coverage
from cls_jax.photos.features.extract import FrozenFeatures, Progress
from cls_jax.photos.features.graph import build_graph, compute_weight
from cls_jax.photos.features.propagation import Propagation, find_confident, find_doubtful
from cls_jax.photos.folder.label_table import DESCRIBE, EXAMPLE, LABEL, NONE, NOTES, SKIP, UNDO
from cls_jax.photos.labeling.answers import Answers, Key, RefusedError, State
from cls_jax.runs.result import wilson_interval

_MAX_UNDO_STEPS = 1000
_NUM_NEXT = 8
_NUM_RECENT = 24
_CLAIM_SECONDS = 30.0
_NUM_PER_CLASS = 8
_NUM_DOUBTFUL = 12
_NUM_UNREADABLE = 100
_LONGEST_DESCRIPTION = 500
_NUM_PROPOSALS = 9  # Per photograph, one for each number key.
_CONFIDENT = 0.5  # Weight 1 - H/log K from which a proposal counts as confident.


class Features(NamedTuple):
    """The result of the feature pass over some files, of which B can be read."""

    readable: np.ndarray  # int [B], indices of the files that could be read.
    frozen: FrozenFeatures  # Of these B files.
    reasons: Mapping[int, str] = {}  # Index of each other file → why it cannot be read.


class Change(NamedTuple):
    """A decision that a page asks for."""

    image: int  # The index of the photograph.
    decision: str  # "label", "none" or "skip".
    label: str  # The class, or "".
    revision: int  # The revision that the page has shown.


class ConflictError(RefusedError):
    """Another window decided about the same photograph first."""


class Session:
    """The state behind the page. All methods may be called from any thread.

    Those that change an answer raise a ConflictError if another window has decided about the same
    photograph, a RefusedError if what they get does not exist or makes no sense, and an OSError if
    labels.csv cannot be written. Nothing has changed then.
    """

    def __init__(self, root: pathlib.Path, files: Sequence[str], answers: Answers):
        """`files` may be labeled, by their names in `root`. `load` must follow."""
        self.root = root
        self._answers = answers
        self._lock, self._scanning = threading.RLock(), threading.Lock()
        self._phase, self._message = "reading", ""
        self._progress = (0, len(files))
        self._version = 0
        self._set_files(files)
        # Window → its steps. Each has (key, state before, revision after) of what changed, and the
        # classes before if the step changed these.
        self._undo: dict[str, list[tuple[list[tuple[Key, State, int]], list[str]]]] = {}
        self._marked: list[int] = []
        # Window → the photograph that it shows, and the time of its last request.
        self._claims: dict[str, tuple[int, float]] = {}
        self._frozen: FrozenFeatures | None = None
        self._propagation: Propagation | None = None
        self._unreadable: dict[str, str] = {}  # File → reason.
        self.labels_version = 0  # Increases with each change of labels.
        self._coverage: Coverage | None = None
        self._probabilities = np.zeros((0, 0), np.float32)
        self._next: list[int] = []

    def _set_files(self, files: Sequence[str]) -> None:
        self._files, self._index = list(files), {name: i for i, name in enumerate(files)}

    def load(self, load_features: Callable[[Progress], Features]) -> None:
        """Computes the features and the graph. The page shows the progress or the error.

        `load_features` is called with a function to report (images done, images in all).
        """
        try:
            found = load_features(self._report_progress)
            if not len(found.readable):
                raise UserError("None of the images can be read: convert them to JPEG or PNG.")
            self._unreadable = {self._files[i]: why for i, why in found.reasons.items()}
            self._take_over(self._files, found, [])
        except Exception as error:
            message = str(error) if isinstance(error, UserError) else describe_error(error)
            with self._lock:
                self._phase, self._message = "failed", message
                self._version += 1
            raise

    def _take_over(self, files: Sequence[str], found: Features, before: Sequence[str]) -> None:
        """Appends files with features to those `before`, whose indices stay."""
        frozen = found.frozen
        if self._frozen is not None:
            frozen = FrozenFeatures(*map(np.concatenate, zip(self._frozen, frozen, strict=True)))
        graph = build_graph(frozen.descriptors)
        propagation, coverage = Propagation(graph), Coverage(graph)
        with self._lock:
            self._set_files([*before, *(files[i] for i in found.readable)])
            self._frozen, self._propagation, self._coverage = frozen, propagation, coverage
            self._phase = "ready"
            self._refresh()

    def extend(
        self,
        files: Sequence[str],
        names: Sequence[str],
        folder_labels: Mapping[str, str],
        load_features: Callable[[Sequence[pathlib.Path]], Features],
    ) -> dict[str, int]:
        """Adds the new ones of all `files` that may be labeled.

        `names` and `folder_labels` are those of `Answers`. Files that could not be read are tried
        again. Returns how many are new, and how many of the new ones cannot be read. If
        `load_features` raises an error, the session is unchanged.
        """
        with self._scanning:
            with self._lock:
                self._check_ready()
                before, unreadable = list(self._files), self._unreadable
                new = [name for name in files if name not in self._index]
            if not new:
                self._unreadable = {}
                return {"new": 0, "unreadable": 0}
            found = load_features([self.root / name for name in new])
            with self._lock:
                self._answers.index(names, folder_labels)
                self._unreadable = {new[i]: why for i, why in found.reasons.items()}
                self._version += 1
            if len(found.readable):
                self._take_over(new, found, before)
            num_broken = len(self._unreadable.keys() - unreadable.keys())
            return {"new": len(found.readable), "unreadable": num_broken}

    def take_labels(self) -> tuple[int, FrozenFeatures | None, np.ndarray, list[str]]:
        """The version of the labels, the features, labels int [B] and the names of all classes."""
        with self._lock:
            labels = self._propagation.labels.copy() if self._propagation else np.zeros(0, int)
            return self.labels_version, self._frozen, labels, list(self._answers.class_names)

    def _report_progress(self, done: int, total: int) -> None:
        with self._lock:
            self._progress = (done, total)
            self._version += 1

    def get_path(self, image: int) -> pathlib.Path:
        """The file of a photograph. Raises a RefusedError if there is none."""
        with self._lock:
            if self._phase != "ready" or not 0 <= image < len(self._files):
                raise RefusedError("There is no such photo.")
            return self.root / self._files[image]

    def list_paths(self) -> list[pathlib.Path]:
        """The files of all photographs."""
        with self._lock:
            return [self.root / name for name in self._files]

    def add_class(self, name: str) -> str:
        """Adds a class as `Answers.add_class` does."""
        with self._lock:
            num_classes = len(self._answers.class_names)
            name = self._answers.add_class(name)
            self._version += len(self._answers.class_names) > num_classes
            if self._answers.class_names[num_classes:] not in ([], [name]):
                self._refresh()  # It was inserted before others, whose columns move.
            return name

    def decide(self, changes: Sequence[Change], window: str) -> None:
        """Records decisions about photographs on the disk and here, as one step to undo."""
        with self._lock, self._answers.hold():
            self.follow_table()
            self._check(changes)
            rows = [(self._files[c.image], c.decision, c.label) for c in changes]
            self._record(rows, window)

    def _record(
        self,
        rows: Sequence[tuple[Key, str, str]],
        window: str,
        classes: tuple[list[str], list[str]] = ([], []),
    ) -> None:
        """Appends rows as one step to undo. A change of classes names those before and after."""
        before = [(key, self._answers.get(key)) for key, _, _ in rows]
        if rows:
            self._answers.append(rows)
        if classes[0]:
            self._answers.class_names[:] = classes[1]
        step = [(key, state, state.revision + 1) for key, state in before]
        steps = self._undo.setdefault(window, [])
        steps.append((step, classes[0]))
        del steps[:-_MAX_UNDO_STEPS]
        self._refresh()

    def rename_class(self, window: str, name: str, new: str) -> int:
        """Renames a class, merges it into another one, or deletes it if the new name is "".

        Its photographs get the other class, or none. Its description and its example stay if the
        other class has none. Returns the number of photographs.
        """
        with self._lock, self._answers.hold():
            self._check_ready()
            self.follow_table()
            answers, before = self._answers, list(self._answers.class_names)
            if name not in before:
                raise RefusedError("There is no such class.")
            new = answers.add_class(new) if new else ""
            if new == name:
                raise RefusedError("These are two spellings of the same class.")
            decision = LABEL if new else UNDO
            rows: list[tuple[Key, str, str]] = [
                (key, decision, new) for key, state in answers.states.items() if state.label == name
            ]
            num_images = sum(key in self._index for key, _, _ in rows)
            for kind in NOTES:
                if (text := answers.get((kind, name)).text) and not answers.get((kind, new)).text:
                    rows += [((kind, new), kind, text)] if new else []
            after = [known for known in before if known != name]
            if new and new not in before:
                after.insert(before.index(name), new)
            try:
                self._record(rows, window, (before, after))
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
        with self._lock, self._answers.hold():
            self.follow_table()
            if name not in self._answers.class_names:
                raise RefusedError("There is no such class.")
            self._record([((DESCRIBE, name), DESCRIBE, text)], window)

    def set_example(self, window: str, image: int) -> None:
        """Makes a labeled photograph the example of its class."""
        with self._lock, self._answers.hold():
            self.follow_table()
            self.get_path(image)
            if not (label := self._get_state(image).label):
                raise RefusedError("An example needs a label first.")
            self._record([((EXAMPLE, label), EXAMPLE, self._files[image])], window)

    def _check_ready(self) -> None:
        if self._phase != "ready":
            raise RefusedError("The photos are still being read.")

    def _check(self, changes: Sequence[Change]) -> None:
        self._check_ready()
        if len({change.image for change in changes}) < len(changes):
            raise RefusedError("A photo is listed twice.")
        for image, decision, label, revision in changes:
            path = self.get_path(image)
            if decision not in (LABEL, NONE, SKIP):
                raise RefusedError("Unknown decision.")
            if (decision == LABEL) != bool(label) or (
                label and label not in self._answers.class_names
            ):
                raise RefusedError("There is no such class.")
            if not path.is_file():
                raise RefusedError(f"{self._files[image]} is no longer in the folder.")
            if self._get_state(image).revision != revision:
                raise ConflictError(f"{self._files[image]} was just labeled in another window.")

    def undo(self, window: str) -> list[dict[str, Any]]:
        """Undoes the last step of a window and returns its first photographs as `describe` does."""
        with self._lock, self._answers.hold():
            self.follow_table()
            if not self._undo.get(window):
                raise RefusedError("There is nothing to undo.")
            step, classes = self._undo[window][-1]
            if any(self._answers.get(key).revision != revision for key, _, revision in step):
                self._undo[window].pop()
                raise ConflictError("This label has since been changed in another window.")
            rows = []
            for key, state, _ in step:
                kept = key[0] if isinstance(key, tuple) else state.decision
                decision = kept if kept in (NONE, SKIP, *NOTES) else UNDO
                rows.append((key, decision, state.label or state.text))
            if rows:
                self._answers.append(rows)
            if classes:
                self._answers.restore_classes(classes)
            self._undo[window].pop()
            self._refresh()
            files = [key for key, _, _ in step[:_NUM_RECENT] if key in self._index]
            return [self.describe_image(self._index[key]) for key in files]

    def mark(self, images: Sequence[int]) -> None:
        """Shows photographs with wrong proposals next. Raises a RefusedError if one is missing."""
        with self._lock:
            if any(not 0 <= image < len(self._files) for image in images):
                raise RefusedError("There is no such photo.")
            self._marked = [*images, *(i for i in self._marked if i not in images)]
            self._refresh()

    def follow_table(self) -> None:
        """Reads labels.csv again if another program has changed it."""
        with self._lock:
            if self._answers.follow():
                self._refresh()

    def _get_state(self, image: int) -> State:
        return self._answers.get(self._files[image])

    def _list_states(self) -> Iterator[tuple[int, State]]:
        """The photographs with a decision, the last decision first."""
        for name, state in reversed(self._answers.states.items()):
            if state.decision and name in self._index:
                yield self._index[name], state

    def _refresh(self) -> None:
        """Propagates changed labels and chooses what to show next."""
        self._version += 1
        if self._propagation is None or self._coverage is None:
            return
        index = {name: k for k, name in enumerate(self._answers.class_names)}
        labels = np.full(len(self._files), -1)
        for image, state in self._list_states():
            if state.label:
                labels[image] = index[state.label]
        if self._probabilities.shape[1] > len(index):  # Classes were removed.
            self._propagation = Propagation(self._propagation.graph)
        self._propagation.add_classes(len(index))
        changed = np.flatnonzero(labels != self._propagation.labels)
        self.labels_version += len(changed) > 0
        self._propagation.update({int(i): int(labels[i]) for i in changed})
        self._probabilities = self._propagation.compute_probabilities()
        is_open = self._find_open()
        self._marked = [image for image in self._marked if is_open[image]]
        chosen, _ = self._coverage.choose(is_open, _NUM_NEXT)
        others = (int(image) for image in chosen if image not in self._marked)
        self._next = [*self._marked, *others][:_NUM_NEXT]

    def _find_open(self) -> np.ndarray:
        """Which photographs have no answer, bool [B]."""
        is_open = np.ones(len(self._files), bool)
        is_open[[image for image, _ in self._list_states()]] = False
        return is_open

    def describe(self, window: str = "") -> dict[str, Any]:
        """The state that every view shows."""
        with self._lock:
            states = list(self._list_states())
            counts = collections.Counter(state.decision for _, state in states)
            num_labels = collections.Counter(state.label for _, state in states)
            # Before that, unreadable photographs still have indices.
            recent = states[:_NUM_RECENT] if self._phase == "ready" else []
            return {
                "version": self._version,
                "phase": self._phase,
                "message": self._message,
                "progress": self._progress,
                "folder": show_name(self.root.resolve().name),
                "command": show_name(f"cls-jax train {shlex.quote(str(self.root))}"),
                "classes": [
                    {"name": name, "count": num_labels[name], **self._describe_notes(name)}
                    for name in self._answers.class_names
                ],
                "counts": {
                    "images": len(self._files),
                    "labeled": counts[LABEL],
                    "none": counts[NONE],
                    "skipped": counts[SKIP],
                },
                "next": [self.describe_image(image) for image in self._share_out(window)],
                "recent": [self.describe_image(image) for image, _ in recent],
                "can_undo": bool(self._undo.get(window)),
            }

    def _describe_notes(self, name: str) -> dict[str, Any]:
        """The description of a class and its example, which must still have this class."""
        example = self._answers.get((EXAMPLE, name)).text
        has_class = self._phase == "ready" and self._answers.get(example).label == name
        return {
            "description": self._answers.get((DESCRIBE, name)).text,
            "example": self._index.get(example) if has_class else None,
        }

    def _share_out(self, window: str) -> list[int]:
        """Chooses what to show next in a window. Photographs shown in other windows come last."""
        now = time.monotonic()
        recent = [row for row in self._claims.items() if now - row[1][1] < _CLAIM_SECONDS]
        self._claims = dict(recent)
        own = self._claims.pop(window, (-1, 0))[0]
        taken = {image for image, _ in self._claims.values()}
        # Sorting is stable.
        order = sorted(self._next, key=lambda i: (i in taken, i not in self._marked, i != own))
        if order:
            self._claims[window] = (order[0], now)
        return order

    def describe_image(self, image: int) -> dict[str, Any]:
        """One photograph as the page shows it."""
        state = self._get_state(image)
        return {
            "image": image,
            "name": show_name(self._files[image]),
            "decision": state.decision,
            "label": state.label,
            "revision": state.revision,
            "proposals": self._describe_proposals(self._probabilities, image),
        }

    def _describe_proposals(self, p_BK: np.ndarray, row: int) -> list[dict[str, Any]]:
        if not self._propagation or not (self._propagation.labels >= 0).any():
            return []
        order = np.argsort(-p_BK[row], kind="stable")[:_NUM_PROPOSALS]
        names = self._answers.class_names
        return [{"label": names[k], "probability": round(float(p_BK[row, k]), 4)} for k in order]

    def describe_check(self) -> dict[str, Any]:
        """The most confident proposals of each class."""
        with self._lock:
            is_open, rows = self._find_open(), []
            # Before `load` there are no columns, and a class just added has none yet.
            for k, name in enumerate(self._answers.class_names[: self._probabilities.shape[1]]):
                chosen = find_confident(self._probabilities, is_open, k, _NUM_PER_CLASS)
                images = [self.describe_image(int(image)) for image in chosen]
                rows.append({"label": name, "images": images})
            return {"version": self._version, "rows": rows}

    def describe_doubtful(self) -> dict[str, Any]:
        """Labels that the other labels contradict."""
        with self._lock:
            images = []
            if self._propagation is not None:
                labeled, probabilities = self._propagation.leave_one_out()
                own = self._propagation.labels[labeled]
                is_open = np.array([not self._get_state(i).is_confirmed for i in labeled], bool)
                for row in find_doubtful(probabilities, own, is_open, _NUM_DOUBTFUL):
                    proposals = self._describe_proposals(probabilities, row)
                    images.append(self.describe_image(int(labeled[row])) | {"proposals": proposals})
            return {"version": self._version, "images": images}

    def describe_result(self) -> dict[str, Any]:
        """Counts, the estimated accuracy and the number of confident proposals."""
        with self._lock:
            num_classes = len(self._answers.class_names)
            proposed = np.zeros(num_classes, int)
            num_confident = num_right = num_tried = 0
            propagation = self._propagation
            if propagation is not None and (propagation.labels >= 0).any():
                p_open = self._probabilities[self._find_open()]
                proposed = np.bincount(p_open.argmax(axis=1), minlength=num_classes)
                if p_open.shape[1] > 1:
                    num_confident = int((compute_weight(p_open) >= _CONFIDENT).sum())
                labeled, p_others = propagation.leave_one_out()
                own = propagation.labels[labeled]
                # The only photograph of a class cannot be recognized without its label.
                is_tried = np.bincount(own)[own] > 1
                num_tried = int(is_tried.sum())
                num_right = int((p_others.argmax(axis=1) == own)[is_tried].sum())
            return {
                "version": self._version,
                "proposed": proposed.tolist(),
                "confident": num_confident,
                "right": num_right,
                "tried": num_tried,
                "interval": wilson_interval(num_right, num_tried),
                "unreadable": [
                    {"name": show_name(name), "reason": make_printable(reason)}
                    for name, reason in sorted(self._unreadable.items())[:_NUM_UNREADABLE]
                ],
                "num_unreadable": len(self._unreadable),
            }

    def list_states(self) -> list[tuple[str, State]]:
        """All photographs with their states."""
        with self._lock:
            return [(name, self._answers.get(name)) for name in self._files]


def show_name(name: str) -> str:
    """A name for JSON, with "?" for bytes that are not Unicode."""
    return name.encode("utf-8", "replace").decode()
