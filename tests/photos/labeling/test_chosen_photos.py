"""What the keys will do is seen before: the ring, the panel and its count say for which photos."""

from cls_jax.photos.labeling import views
from tests.photos.labeling.pages import (
    open_labeled,
    press,
    read_decisions,
    read_name,
    show,
    wait_for_count,
)
from tests.photos.labeling.sessions import decide

RING = ".cell[aria-current=true]"


def read_count(page):
    return page.locator(".selected-count").inner_text()


def test_no_key_is_for_a_photo_that_nothing_shows_as_chosen(visit, folder):
    with visit(open_labeled(folder, 60)) as page:
        show(page, "photos")
        cells = page.locator(".cell")
        for _ in range(2):  # A mouse selects, and takes out again.
            cells.nth(2).click()
            page.wait_for_timeout(700)
        assert (read_count(page), page.locator(RING).count()) == ("No photo chosen", 0)
        page.keyboard.press("1")
        page.wait_for_selector(".toast:has-text('Choose photos first.')")
        page.keyboard.press("ArrowRight")  # First, the ring is where the keyboard is.
        name = cells.nth(2).get_attribute("title")
        assert (read_count(page), page.locator(RING).get_attribute("title")) == (name, name)
        page.locator("#view h2").click()  # The focus is elsewhere, and the ring stays.
        assert page.evaluate("!document.activeElement.closest('.cell')")
        page.keyboard.press("1")
        wait_for_count(page, "7")
        assert read_decisions(folder)[6:] == [(name, "cat", "label")]
        page.keyboard.press("Escape")  # Then no key is for any photo.
        assert (read_count(page), page.locator(RING).count()) == ("No photo chosen", 0)


def test_a_photo_that_was_opened_leads_back_to_where_it_was(visit, folder):
    with visit(open_labeled(folder, 240)) as page:
        question = read_name(page)
        show(page, "photos")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("End")
        page.wait_for_selector(".cell:focus img")
        cell = page.locator(".cell:focus")
        name, label = cell.get_attribute("aria-label").split(", ")[:2]
        page.keyboard.press(" ")
        top = cell.bounding_box()["y"]
        assert page.evaluate("scrollY") > 1000
        for key in ("Escape", "1"):  # Back, and an answer, which leads back, too.
            page.locator("button:text-is('Open')").click()
            assert read_name(page) == name
            assert page.locator("#view h2").inner_text() == f"Your answer: {label}"
            page.keyboard.press(key)
            page.wait_for_selector(f".cell[title='{name}'][aria-selected=true]")
            cell = page.locator(f".cell[title='{name}']")
            assert abs(cell.bounding_box()["y"] - top) < 60  # "Sort again" may have come.
            page.wait_for_timeout(700)  # A second click means the same.
        show(page, "classes")
        show(page, "photos")
        assert page.evaluate("scrollY") == 0
        show(page, "next")
        assert read_name(page) == question
    assert read_decisions(folder)[6:] == [(name, "cat", "label")]


def test_after_the_last_random_photo_the_result_says_what_came_of_it(visit, folder):
    session = open_labeled(folder, 28)
    with visit(session) as page:
        show(page, "result")
        page.locator("button:text-is('Check 20 random photos'):enabled").click()
        page.wait_for_selector(".panel .hint:has-text('20 random photos left to check')")
        first = read_name(page)
        images = [image for image in session.known.sample if f"{image:04}" not in first]
        for image in images:
            decide(session, image, "cat", "other")
        page.wait_for_selector(".panel .hint:has-text('1 random photo left')")
        page.keyboard.press("1")
        page.wait_for_selector("h2:text-is('Result')")
        measured = ".about:text-matches('When you checked them, [0-9]+ of 20 were')"
        page.wait_for_selector(measured)
        said = page.locator(".about").inner_text()
        show(page, "classes")  # They are there still when a class is deleted and comes back.
        page.get_by_label("Delete cat").press("Enter")
        page.wait_for_selector(".toast:has-text('cat deleted')")
        page.keyboard.press("Control+z")
        page.get_by_label("Name of cat").wait_for()
        keys = [row["key"] for row in views.describe(session)["classes"]]
        assert keys == ["1", "2", "3"]
        show(page, "result")
        page.wait_for_selector(measured)
        assert page.locator(".about").inner_text() == said
        answers = [row for row in read_decisions(folder) if row[0] == first]
    (file, label, decision) = answers[0]
    assert (file, label, decision.split()[0]) == (first, "cat", "check")


def test_a_photo_is_enlarged_moved_and_shown_whole_again(visit, folder):
    with visit(open_labeled(folder, 24)) as page:
        name = read_name(page)
        page.locator(".frame").hover()
        page.mouse.wheel(0, -300)
        page.wait_for_selector(".frame.zoomed")
        page.keyboard.press("+")
        before = page.locator(".frame img").evaluate("one => one.style.transform")
        page.keyboard.press("ArrowRight")  # Moves the photo, and does not leave it.
        assert page.locator(".frame img").evaluate("one => one.style.transform") != before
        assert read_name(page) == name
        page.keyboard.press("Escape")
        assert page.locator(".frame.zoomed").count() == 0
        press(page, "1")
        assert read_decisions(folder)[6:] == [(name, "cat", "label")]
