"""Random photos in a real browser: before the others are read, and to measure the accuracy."""

import dataclasses

from cls_jax.photos.labeling.photos import open_session
from tests.photos.labeling.pages import press, read_decisions, read_name, show
from tests.photos.labeling.sessions import create_features, decide, describe_some, open_ready, serve


def test_labeling_starts_while_photos_are_read_and_goes_on_with_the_same_one(visit, folder, kinds):
    session = open_session(folder)
    session._known = dataclasses.replace(session.known, progress=(3, 30))
    with visit(session) as page:
        names = [press(page, "x", "Enter"), press(page, "1")]
        assert page.locator("#count").inner_text() == "2 of 30 labeled · reading the photos: 10%"
        assert "random photo" in page.locator(".panel .hint").inner_text()
        shown = read_name(page)
        session.load(lambda report: describe_some(range(30), create_features(kinds)))
        page.wait_for_selector("#count:text-matches('labeled$')")
        assert read_name(page) == shown
        names.append(press(page, "1"))
    assert [row[:2] for row in read_decisions(folder)] == [(name, "x") for name in names]


def test_twenty_random_photos_are_asked_without_a_guess_in_sight(open_page, folder, kinds):
    session = open_ready(folder, kinds)
    for image in range(6):
        decide(session, image, "abc"[kinds[image]])
    with serve(session) as port:
        page = open_page(port)
        show(page, "result")
        page.locator("button:text-is('Check 20 random photos'):enabled").press("Enter")
        page.wait_for_selector(".panel .hint:has-text('20 random photos left to check')")
        assert page.locator(".class.proposed").count() == 0
        read_name(page)
        page.keyboard.press("Escape")  # Otherwise Enter would be for the button, which is gone.
        page.keyboard.press("Enter")
        page.wait_for_selector(".toast:has-text('No class is proposed')")
        press(page, "1")
        page.wait_for_selector(".panel .hint:has-text('19 random photos left')")


def test_next_and_result_say_the_same_of_the_same_answers(open_page, folder, kinds):
    """Though the classifier is newer than the last answer."""
    session = open_ready(folder, kinds)
    for image in (0, 1):
        decide(session, image, "abc"[kinds[image]])
    with serve(session) as port:
        page = open_page(port)
        show(page, "result")
        page.wait_for_selector(".accuracy:has-text('Too early to say')")
        show(page, "next")
        page.wait_for_selector(".live:has-text('Too early to say')")
        for image in range(2, 8):  # Fewer than the ten after which it learns by itself.
            decide(session, image, "abc"[kinds[image]])
        page.wait_for_selector("#count:has-text('8 of')")
        assert page.locator(".live").inner_text().startswith("Too early to say")
        show(page, "result")
        page.wait_for_selector(".accuracy:text-matches('^About [0-9]+%')")
        about = page.locator(".accuracy").inner_text().split("%")[0]
        show(page, "next")
        said = f"{about}% of photos of these 3 classes are named right, after 8 answers"
        page.wait_for_selector(f".live:text-is('{said}')", timeout=1000)


def test_the_accuracy_is_in_a_line_beside_the_photo(open_page, folder, kinds):
    session = open_ready(folder, kinds)
    with serve(session) as port:
        page = open_page(port)
        for image in range(10):
            decide(session, image, "abc"[kinds[image]])
        said = "^About [0-9]+% of the other photos are named right, after 10 answers$"
        page.wait_for_selector(f".live:text-matches('{said}')")
