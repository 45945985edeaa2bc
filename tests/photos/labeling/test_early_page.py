"""Random photos in a real browser: before the others are read, and to measure the accuracy."""

import dataclasses

from cls_jax.photos.labeling.photos import open_session
from tests.photos.labeling.pages import (
    enter,
    hear,
    open_labeled,
    press,
    read_decisions,
    read_name,
    see,
    show,
    wait_for_other,
)
from tests.photos.labeling.sessions import create_features, decide, describe_some


def test_labeling_starts_while_photos_are_read_and_goes_on_with_the_same_one(visit, folder, kinds):
    session = open_session(folder)
    session._known = dataclasses.replace(session.known, progress=(3, 30))
    with visit(session) as page:
        names = [read_name(page)]
        enter(page, "/rose/red")  # A slash before the first class is no part of its name.
        wait_for_other(page, names[0])
        names.append(press(page, "1"))
        assert page.locator("#count").inner_text() == "2 of 30 labeled · reading the photos: 10%"
        assert "random photo" in page.locator(".panel .hint").inner_text()
        shown = read_name(page)
        session.load(lambda report: describe_some(range(30), create_features(kinds)))
        page.wait_for_selector("#count:text-matches('labeled$')")
        assert read_name(page) == shown
        names.append(press(page, "1"))
    assert [row[:2] for row in read_decisions(folder)] == [(name, "rose/red") for name in names]


def test_random_photos_are_asked_without_a_guess_in_sight_and_the_result_says_what_came_of_it(
    visit, folder
):
    session = open_labeled(folder, 28)
    with visit(session) as page:
        show(page, "result")
        page.locator("button:text-is('Check 20 random photos'):enabled").press("Enter")
        page.wait_for_selector(".panel .hint:has-text('20 random photos left to check')")
        assert page.locator(".class.proposed").count() == 0
        first = read_name(page)
        page.keyboard.press("Escape")  # Otherwise Enter would be for the button, which is gone.
        hear(page, "No class is proposed", "Enter")
        for image in session.known.sample:
            if image != session.known.index[first]:
                decide(session, image, "cat", "other")
        page.wait_for_selector(".panel .hint:has-text('1 random photo left')")
        see(page, "h2:text-is('Result')", "1")
        page.wait_for_selector(".about:text-matches('When you checked them, [0-9]+ of 20 were')")
    answer, *_ = (row for row in read_decisions(folder) if row[0] == first)
    assert (answer[1], answer[2].split()[0]) == ("cat", "check")
