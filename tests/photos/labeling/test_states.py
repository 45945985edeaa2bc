"""Every view in states that few people see: before the first answers, and after the last ones.

And what *Result* says on top: at every moment, one next step.
"""

import pytest

from cls_jax.photos.labeling import views
from cls_jax.photos.labeling.next_step import Situation, choose_step, find_doubtful
from cls_jax.photos.labeling.photos import open_session
from tests.photos.labeling.pages import VIEWS, find_violations
from tests.photos.labeling.sessions import (
    CLASSES,
    create_photos,
    decide_all,
    fit,
    list_check,
    open_ready,
    serve,
)

NUM_IMAGES = 24
# The labels of the first photos in each state.
STATES = {
    "no class": [],
    "one class": ["cat"] * 5,
    "two classes": ["dog", "owl"],
    "all labeled": [CLASSES[i % 3] for i in range(NUM_IMAGES)],
    "all of one class": ["cat"] * NUM_IMAGES,
    "all undone": CLASSES * 2,
    "loading": [],
}

_QUICK = ("no class", "two classes")  # In which `make test` opens every view.


def open_in(state, folder):
    """A session in one of `STATES`."""
    kinds = create_photos(folder, NUM_IMAGES)
    if state == "loading":
        return open_session(folder, CLASSES)
    session = open_ready(folder, kinds, () if state == "no class" else CLASSES)
    decide_all(session, STATES[state])
    if state == "all undone":
        fit(session)
        for _ in STATES[state]:
            session.undo("w")
    return session


@pytest.mark.parametrize("state", STATES)
def test_nothing_is_suggested_before_two_classes_have_labels(folder, state):
    session = open_in(state, folder)
    has_suggestions = state in ("two classes", "all labeled")
    described = views.describe(session)
    proposals = [item["proposals"] for item in described["next"]]
    assert all(bool(one) == has_suggestions for one in proposals)
    photos, result = views.describe_photos(session), views.describe_result(session)
    answers = zip(photos["label"], photos["decision"], strict=True)
    suggested = [label for label, decision in answers if label >= 0 and not decision]
    num_open = NUM_IMAGES - described["counts"]["labeled"] if state != "loading" else 0
    expected = num_open if has_suggestions else 0
    assert len(suggested) == sum(result["proposed"]) == expected
    rows = {label for label, images in list_check(session).items() if images}
    assert rows == ({*STATES[state]} if expected else set())
    assert has_suggestions or not any(photos["confidence"])
    assert not result["mixed"] or has_suggestions
    assert views.describe_suspects(session.known)["images"] == []
    classifier = fit(session)
    _, early = find_doubtful(session, 95, classifier.estimate())
    assert ("two classes" in early) == (not has_suggestions)
    fitted = classifier.get()
    assert bool(fitted and fitted.accuracy_in_short) == bool(expected)


@pytest.mark.parametrize(
    "state",
    [pytest.param(state, marks=[] if state in _QUICK else pytest.mark.slow) for state in STATES],
)
def test_every_view_works_in_every_state(open_page, folder, axe, state):
    """No window may log an error, which `open_page` asserts."""
    has_suggestions = state in ("two classes", "all labeled")
    with serve(open_in(state, folder)) as port:
        page = open_page(port)
        page.wait_for_selector("#count:has-text('of 24')")
        page.evaluate(axe)
        for view in VIEWS:
            page.click(f"nav button[data-view={view}]")  # Which may have no photo to wait for.
            page.wait_for_selector("#view:not([aria-busy])")
            page.wait_for_timeout(100)
            assert page.locator("#view h2").count(), view
            if not has_suggestions:
                assert page.locator(".confirm, .class.proposed").count() == 0, view
                shares = page.locator(".share, .cell .caption").all_inner_texts()
                assert not any("%" in share for share in shares), view
            if view == "check" and state == "two classes":
                assert page.locator(".confirm").count() == 2
            if state == "loading" and view != "next":
                assert page.locator("progress").count() == 1
            for key in ("Enter", "ArrowRight", "Escape"):
                page.keyboard.press(key)
            assert find_violations(page, within="#view") == [], view


GUESSED = Situation(
    early="", images=496, open=410, percent=95, accuracy=90.0, random=0, checks=0, listed=36
)
MEASURED = GUESSED._replace(checks=20)


@pytest.mark.parametrize(
    ("known", "kind", "said"),
    [
        (GUESSED._replace(early="Label photos of two classes first."), "answer", "two classes"),
        (GUESSED, "check", "This is an estimate: check 20 random photos to measure it."),
        (GUESSED._replace(checks=19), "check", "check 1 more random photo to measure it."),
        (GUESSED._replace(random=7), "answer", "7 random photos left to check."),
        (GUESSED._replace(open=19), "look", "look at these 36."),
        (MEASURED, "look", "To get 95% of all 496 photos right, look at these 36."),
        (MEASURED._replace(listed=1), "look", "right, look at this one."),
        (MEASURED._replace(listed=0), "use", "Done: about 92% of all 496 photos are named right."),
        # The list that was asked is a promise: newer answers make it no longer.
        (MEASURED._replace(asked=36, left=12, listed=75), "look", "12 of the 36 photos are left"),
        (MEASURED._replace(asked=36, left=0, listed=75), "use", "Done: about 92% of all 496"),
        (GUESSED._replace(asked=36, left=0, listed=0), "use", "Done: about 92% of all 496"),
        (MEASURED._replace(asked=9, accuracy=None), "use", "Done: the 9 photos have your answer."),
        (MEASURED._replace(open=0, listed=0), "use", "Done: all 496 photos have your answer."),
    ],
)
def test_there_is_one_next_step_in_every_situation(known, kind, said):
    step = choose_step(known)
    assert step.kind == kind
    assert said in step.sentence
