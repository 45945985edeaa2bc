"""What the page may ask to change or to compute: a verb is a row of `VERBS`.

Each has a function for its arguments, which raises a ValueError if they are not what the page
sends, and one that acts, which may raise a RefusedError, a UserError, an ImageError or an OSError.
"""

import base64
import functools
import pathlib
import secrets
from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import IO, Any, BinaryIO, NamedTuple

from cls_jax.io import make_printable, parse_json
from cls_jax.photos.folder.log import Mark
from cls_jax.photos.labeling import views
from cls_jax.photos.labeling.answers import RefusedError
from cls_jax.photos.labeling.changes import (
    Change,
    Plan,
    describe_class,
    describe_gone,
    note_photo,
    rename_class,
    set_example,
    set_key,
)
from cls_jax.photos.labeling.classifier import SessionClassifier
from cls_jax.photos.labeling.known import Known, count
from cls_jax.photos.labeling.next_step import ask
from cls_jax.photos.labeling.photos import add_photo, encode_file, find_new
from cls_jax.photos.labeling.session import Session
from cls_jax.photos.labeling.trained import TrainedNetworks
from cls_jax.photos.labeling.training import Training

MAX_CHANGES = 50_000  # In one request, which is one step to undo.
_MAX_MARKED = 200  # The same.
_KILOBYTES, _MEGABYTES = 2**10, 2**20

Answer = dict[str, Any]
PlanOf = Callable[[Known], Plan]  # What a change of what is known would do.


class Parts:
    """What the page shows and changes."""

    def __init__(self, session: Session, training: Training):
        """Photos are named by what is trained on the session's labels."""
        self.session, self.training = session, training
        self.trained = TrainedNetworks(session, training.find_used_run)
        self.classifier = SessionClassifier(session, self.trained)
        self.reports: dict[str, pathlib.Path] = {}  # Those that may be opened, by code.
        # Percentage → the photos that were asked to be looked at for it.
        self.asked: dict[int, list[int]] = {}


class Verb(NamedTuple):
    """A request of the page."""

    parse: Callable[[Any], Any]  # From the content of the body to the arguments.
    run: Callable[[Parts, Any, str], Answer | None]  # With these and the window that asks.
    limit: int = 64 * _KILOBYTES  # Of the body, in bytes.
    waits: bool = False  # It takes long: one at once, and others wait.
    is_photo: bool = False  # The body is a file. Otherwise it is JSON.
    shows_state: bool = True  # Whether the new state is in the answer: not if nothing changes.

    def read(self, body: IO[bytes], name: str) -> Any:
        """The arguments of a request. Raises a ValueError if they are invalid.

        For a photo, these are the file and its `name`.
        """
        if self.is_photo:
            return body, name
        try:
            content = parse_json(body.read().decode("utf-8"))
        except ValueError as error:
            raise ValueError("The request is not JSON.") from error
        return self.parse(content)

    def describe_limit(self) -> str:
        """A sentence about a body that is too large."""
        what, mega = "photo" if self.is_photo else "request", self.limit // _MEGABYTES
        size = f"{mega} MB" if mega else f"{self.limit // _KILOBYTES} KB"
        return f"The {what} is larger than {size}."


def _take(values: Any, key: str, *kinds: type) -> Any:
    value = values.get(key) if isinstance(values, dict) else None
    if type(value) not in kinds:  # For isinstance, JSON's true is an int.
        raise ValueError(f"{key} is missing or has the wrong type.")
    return value


def parse_percent(text: str) -> float:
    """A number from 0 to 100. Raises a ValueError if it is anything else."""
    percent = float(text)
    if not 0 <= percent <= 100:  # As it is for NaN.
        raise ValueError("The percentage must be from 0 to 100.")
    return percent


def _take_minutes(content: Any) -> float:
    return float(_take(content, "minutes", int, float))


def _take_nothing(content: Any) -> None:
    """Whatever the content is."""


def _take_name(content: Any) -> str:
    return str(_take(content, "name", str))


def _take_text(plan: Callable[[Known, str, str], Plan]) -> Callable[[Any], PlanOf]:
    """Parses a change of a class by a text: its new name, its description or its key."""

    def parse(content: Any) -> PlanOf:
        name, text = _take(content, "name", str), _take(content, "text", str)
        return lambda known: plan(known, name, text)

    return parse


def _take_answers(content: Any) -> tuple[list[Change], bool]:
    """Decisions from [image, revision, decision, label], and whether unknown classes are added."""
    rows = _take(content, "changes", list)
    if not 0 < len(rows) <= MAX_CHANGES:
        raise ValueError(f"changes must be 1 to {MAX_CHANGES:,} lists.")
    # For isinstance, JSON's true is an int.
    if not all(isinstance(row, list) and [*map(type, row)] == [int, int, str, str] for row in rows):
        raise ValueError("Each change must be two integers and two texts.")
    changes = [Change(image, decision, label, n) for image, n, decision, label in rows]
    return changes, content.get("adds") is True


def _take_mark(content: Any) -> tuple[list[int], str]:
    """Photos, and the class that they are not."""
    images = _take(content, "images", list)
    if len(images) > _MAX_MARKED or not all(type(image) is int for image in images):
        raise ValueError(f"images must be at most {_MAX_MARKED} integers.")
    return images, _take(content, "label", str)


def _decide(parts: Parts, answers: tuple[list[Change], bool], window: str) -> Answer:
    """Records decisions. Returns what to say of photos that are gone."""
    changes, adds = answers
    gone = parts.session.decide(changes, window, adds)
    return {"left_out": make_printable(describe_gone(gone)) if gone else "", "gone": len(gone)}


def _look(parts: Parts, percent: int, _: str) -> Answer:
    """The photos to look at for some percentage of right ones."""
    asked = parts.asked.setdefault(percent, [])
    return {"images": ask(parts.session, percent, parts.classifier.estimate(), asked)}


def _undo(parts: Parts, _: None, window: str) -> Answer:
    """Undoes a step. Returns its photo if it is only one, and what became of its answers.

    "changes" are as those of "decide", with the revisions that the photos have now: the next answer
    may come before they are asked for.
    """
    former, known = parts.session.undo(window), parts.session.known
    now = {image: known.get_state(image) for image in former}
    return {
        "changes": [[image, one.revision, one.decision, one.label] for image, one in now.items()],
        "images": [views.describe_image(known, image) for image in former if len(former) == 1],
        "undone": {
            "count": len(former),
            "was": _find_common(former.values()),
            "now": _find_common(now.values()),
        },
    }


def _find_common(marks: Iterable[Mark]) -> Answer | None:
    """The answer that all photos have. None if they differ."""
    answers = {(mark.decision, mark.label) for mark in marks}
    return dict(zip(("decision", "label"), *answers, strict=True)) if len(answers) == 1 else None


def _change(parts: Parts, plan: PlanOf, window: str) -> None:
    parts.session.change(window, plan)


def _try(parts: Parts, photo: tuple[BinaryIO, str], _: str) -> Answer:
    """Classifies a photo. The preview is for formats that browsers do not show, as TIFF."""
    file, _ = photo
    found = parts.classifier.classify(file)
    return found | {"preview": base64.b64encode(encode_file(file, "small")).decode()}


def _add(parts: Parts, photo: tuple[BinaryIO, str], window: str) -> Answer:
    """Saves a photo in the folder, which must still be there. Returns its name."""
    parts.session.follow_table()
    file, wanted = photo
    name = add_photo(parts.session.known.root, file, wanted)
    parts.session.change(window, note_photo, name)
    return {"name": name}


def _train(parts: Parts, wanted: tuple[str, float], _: str) -> None:
    kind, minutes = wanted
    known = parts.session.known
    run = parts.training.start(kind, count(known), minutes)
    parts.trained.expect(run, known.labels_version)


def _open_report(parts: Parts, name: str, _: str) -> Answer:
    """A code for the report of a run, by default of the last one."""
    if (path := parts.training.find_report(name)) is None:
        raise RefusedError("This run has no report: write one with cls-jax report.")
    code = secrets.token_urlsafe(24)
    parts.reports[code] = path
    return {"report": f"/report/{code}"}


VERBS = MappingProxyType(
    {
        "decide": Verb(_take_answers, _decide, limit=4 * _MEGABYTES),
        "undo": Verb(_take_nothing, _undo),
        "classes": Verb(
            _take_name,
            lambda parts, name, window: {"label": parts.session.add_class(name, window)},
        ),
        "rename": Verb(_take_text(rename_class), _change),
        "describe": Verb(_take_text(describe_class), _change),
        "key": Verb(_take_text(set_key), _change),
        "example": Verb(
            lambda content: functools.partial(set_example, image=_take(content, "image", int)),
            _change,
        ),
        "mark": Verb(_take_mark, lambda parts, mark, _: parts.session.mark(mark[0], mark[1])),
        "sample": Verb(_take_nothing, lambda parts, *_: {"sample": parts.session.draw_sample()}),
        "look": Verb(
            lambda content: int(parse_percent(str(_take(content, "percent", int)))), _look
        ),
        "scan": Verb(
            _take_nothing, lambda parts, _, window: find_new(parts.session, window), waits=True
        ),
        "find": Verb(
            _take_name,
            lambda parts, name, _: views.find_image(parts.session.known, name),
            shows_state=False,
        ),
        "try": Verb(
            _take_nothing,
            _try,
            limit=64 * _MEGABYTES,
            waits=True,
            is_photo=True,
            shows_state=False,
        ),
        "add": Verb(_take_nothing, _add, limit=64 * _MEGABYTES, is_photo=True),
        "copies": Verb(
            lambda content: parse_percent(str(_take(content, "unsure_below", int, float))),
            lambda parts, percent, _: parts.classifier.copy_by_class(percent / 100),
            waits=True,
        ),
        "plan": Verb(
            _take_minutes,
            lambda parts, minutes, _: parts.training.plan(count(parts.session.known), minutes),
        ),
        "train": Verb(
            lambda content: (_take(content, "kind", str), _take_minutes(content)), _train
        ),
        "stop": Verb(_take_nothing, lambda parts, *_: parts.training.stop()),
        "report": Verb(lambda content: "" if content == {} else _take_name(content), _open_report),
        "use": Verb(_take_name, lambda parts, name, _: parts.training.use(name)),
        "delete": Verb(_take_name, lambda parts, name, _: parts.training.delete(name)),
    }
)
PHOTO_VERBS = tuple(name for name, verb in VERBS.items() if verb.is_photo)
