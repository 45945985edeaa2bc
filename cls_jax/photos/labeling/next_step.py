"""What a person does next, as *Result* says: answer, check, look at photos, or use what there is.

A list of photos to look at is a promise: newer answers do not make it longer.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cls_jax.io import write_count
from cls_jax.photos.features.accuracy import MIN_CHECKS, Estimate, choose_to_check
from cls_jax.photos.labeling.known import count, find_checked, write_missing
from cls_jax.photos.labeling.session import Session


class Situation(NamedTuple):
    """What is known about the photos of a session."""

    early: str  # Why nothing can be said yet, "" otherwise.
    images: int  # With a class or without an answer.
    open: int  # Without an answer.
    percent: int  # Of the photos that must be right.
    accuracy: float | None  # Of the other photos, in percent.
    random: int  # Random photos that are left to check.
    checks: int  # Those with an answer.
    listed: int  # Photos to look at for the target, by the newest classifier.
    asked: int = 0  # The length of the list that was asked last, 0 for none.
    left: int = 0  # How many of them have no answer yet.


class Step(NamedTuple):
    """One of the four steps, and why it is the next one."""

    kind: str  # "answer", "check", "look" or "use".
    sentence: str


def choose_step(known: Situation) -> Step:
    """The next step."""
    if known.random:
        left = write_count(known.random, "random photo", "random photos")
        return Step("answer", f"{left} left to check.")
    if known.left:
        return Step("look", f"{known.left:,} of the {known.asked:,} photos are left to look at.")
    if not known.open:
        return Step("use", f"Done: all {known.images:,} photos have your answer.")
    if known.asked:
        return Step("use", f"Done: {_describe_all(known)}.")
    if known.early:
        return Step("answer", known.early)
    if known.checks < MIN_CHECKS <= known.checks + known.open:
        sentence = f"This is an estimate: check {write_missing(known.checks)} to measure it."
        return Step("check", sentence)
    if known.listed:
        these = "this one" if known.listed == 1 else f"these {known.listed:,}"
        sentence = f"To get {known.percent}% of all {known.images:,} photos right, look at {these}."
        return Step("look", sentence)
    return Step("use", f"Done: {_describe_all(known)}.")


def _describe_all(known: Situation) -> str:
    """How many of all photos are right if those with an answer are."""
    if known.accuracy is None:
        return f"the {known.asked:,} photos have your answer"
    right = known.images - known.open * (1 - known.accuracy / 100)
    return f"about {100 * right / known.images:.0f}% of all {known.images:,} photos are named right"


def find_doubtful(
    session: Session, percent: int, estimate: Estimate | None = None
) -> tuple[list[int], str]:
    """The fewest photos to look at so that `percent` of all are right, the least certain first.

    `estimate` is of what names the photos, see `SessionClassifier.estimate`. Also returns why it is
    too early to say, "" if it is not.
    """
    known = session.follow_classifier()
    plural = known.options.kind.word
    if known.classified is None or not known.has_suggestions():
        return [], f"Label photos of two {plural} first."
    if known.classified.is_early:
        return [], f"Too early to say: many {plural} have only one answer."
    if estimate is None or estimate.accuracy is None:
        return [], f"Not known yet: check {write_missing(count(known).checks)} first."
    images = np.flatnonzero(known.find_open())
    confidences = known.rules.say(known.probabilities[images], known.class_names).confidences
    num_right = sum(bool(state.label) for _, state in known.list_answered())
    chosen = choose_to_check(confidences, num_right, percent / 100, estimate)
    return images[chosen].tolist(), ""


def describe_step(
    session: Session, percent: int, estimate: Estimate | None, asked: Sequence[int]
) -> dict[str, Any]:
    """The next step for some percentage of right photos. `asked` were asked last for it.

    "look" is how many there are to look at, "missing" which random photos to check, "open" how many
    photos have no answer, and "checked" a sentence about random photos.
    """
    listed, early = find_doubtful(session, percent, estimate)
    known = session.known
    checked = find_checked(known).is_right
    is_open = known.find_open()
    num_labels = sum(bool(state.label) for _, state in known.list_answered())
    situation = Situation(
        early=early,
        images=int(is_open.sum()) + num_labels,
        open=int(is_open.sum()),
        percent=percent,
        accuracy=estimate.accuracy if estimate else None,
        random=int(is_open[list(known.sample)].sum()) if known.phase == "ready" else 0,
        checks=len(checked),
        listed=len(listed),
        asked=len(asked),
        left=int(is_open[list(asked)].sum()),
    )
    step = choose_step(situation)
    measured = f"When you checked them, {sum(checked):,} of {len(checked):,} were named right."
    return {
        **step._asdict(),
        "look": situation.left or (situation.listed if step.kind != "use" else 0),
        "missing": write_missing(situation.checks),
        "open": situation.open,
        "checked": measured if checked else "",
    }


def ask(session: Session, percent: int, estimate: Estimate | None, asked: list[int]) -> list[int]:
    """The photos to look at: those left of the list that was `asked`, or else of a new one.

    A new list replaces what is in `asked`.
    """
    is_open = session.known.find_open()
    left = [image for image in asked if is_open[image]]
    if not left:
        left, _ = find_doubtful(session, percent, estimate)
        asked[:] = left
    return left
