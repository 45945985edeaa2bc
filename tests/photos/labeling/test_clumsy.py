"""Hands that are quick or clumsy: no answer is given twice, or for another photo than was meant."""

import pytest

from tests.photos.labeling.pages import (
    CLICK_AGAIN,
    OPEN,
    SETTLE_MS,
    choose,
    hear,
    press,
    read_decisions,
    read_name,
    show,
    wait_for_count,
    wait_for_decisions,
    wait_for_other,
    wait_for_photos,
)
from tests.photos.labeling.sessions import (
    CLASSES,
    create_photos,
    decide,
    open_ready,
)

LOST = "Not taken: the button that you pressed is"
NEXT = "This is the next photo: look at it, then press"
WITH_OTHERS = [
    *(
        f"{modifier}+{key}"
        for modifier in ("Shift", "Control", "Alt", "Meta")
        for key in ("Backspace", "Space", "Enter")
    ),
    *("Control+Shift+z", "Control+Alt+z", "Control+1", "Alt+1", "Meta+0"),
]

# Presses a key again as soon as another photo is painted, however slow this machine is.
PRESS_WHEN_SHOWN = """(key) => {
  const frame = document.querySelector(".frame");
  const watch = new MutationObserver(async () => {
    watch.disconnect();
    await frame.firstChild.shown;
    for (const wait of [requestAnimationFrame, requestAnimationFrame, setTimeout]) {
      await new Promise((resolve) => wait(resolve));
    }
    document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  });
  watch.observe(frame, { childList: true });
}"""
# The same when the focus has moved to another photo of the grid.
PRESS_WHEN_MOVED = """(key) => {
  const press = new KeyboardEvent("keydown", { key, bubbles: true });
  const again = () => setTimeout(() => document.activeElement.dispatchEvent(press));
  document.querySelector(".grid").addEventListener("focusin", again, { once: true });
}"""


def test_a_double_click_answers_once_and_clicks_in_different_places_each(visit, begun, folder):
    for image, label in {12: CLASSES[1], 15: CLASSES[1], 18: CLASSES[0]}.items():  # Mistakes.
        decide(begun, image, label, "other")
    with visit(begun) as page:
        for place in range(3):
            name = read_name(page)
            page.locator(".class").nth(place).click()
            wait_for_other(page, name)
        assert len(read_decisions(folder)) == 12
        for view, selector, number in (
            ("next", ".class", 1),
            ("next", ".others button:has-text('None')", 1),
            ("next", ".others button:has-text('Skip')", 1),
            ("next", "#undo", 1),
            ("check", ".confirm", 8),
            ("suspects", ".card .others button", 1),
        ):
            show(page, view)
            button = page.locator(selector).first
            button.wait_for()
            wait_for_photos(page)
            page.wait_for_timeout(SETTLE_MS)
            before = len(read_decisions(folder))
            button.evaluate(CLICK_AGAIN)
            wait_for_decisions(page, folder, before + number, selector)
            if view == "next":
                read_name(page)
                page.wait_for_timeout(SETTLE_MS)
                button.click()
                wait_for_decisions(page, folder, before + 2, selector)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_a_key_that_pressed_a_button_does_nothing_else(page, folder, key):
    labels = ["owl", "owl", "fox"]
    page.locator(".class", has_text="owl").focus()
    wait_for_count(page, "7", key)
    page.keyboard.press(key)  # At once.
    page.wait_for_timeout(SETTLE_MS)
    wait_for_count(page, "8", key)
    read_name(page)
    page.wait_for_timeout(400)  # It is looked at.
    page.keyboard.type("fox")
    page.locator(".class", has_text="New class “fox”").focus()
    wait_for_count(page, "9", key)  # Its button is gone.
    page.keyboard.press(key)  # As of a double press.
    page.wait_for_timeout(SETTLE_MS)
    if LOST not in page.locator("#toast").inner_text():
        page.keyboard.press(key)
    hear(page, LOST)
    assert [row[1] for row in read_decisions(folder)[6:]] == labels
    press(page, "1")  # Other keys mean what they always do.
    assert read_decisions(folder)[-1][1] == "cat"


@pytest.mark.slow
def test_no_key_is_shown_while_the_field_takes_it_and_classes_without_one_come_last(visit, folder):
    with visit(open_ready(folder, create_photos(folder, 12), ["0", "3", "8", "cat"])) as page:
        assert page.locator(".class .name").all_inner_texts() == ["cat", "3", "8", "0"]
        assert page.locator(".panel kbd:visible").count() >= 4
        page.keyboard.type("cat")  # Only Enter, which takes this class, is no letter.
        assert page.locator("kbd:visible").all_inner_texts() == ["↵"]
        for _ in "cat":
            page.keyboard.press("Backspace")
        assert page.locator("kbd:visible").count() == 0
        page.keyboard.press("Escape")
        assert page.locator(".panel kbd:visible").count() >= 4


@pytest.mark.slow
def test_keys_that_are_pressed_with_others_neither_answer_nor_undo(page, folder):
    press(page, "1")
    for view in ("next", "photos"):
        show(page, view)
        if view == "photos":
            choose(page, 0)
        for keys in WITH_OTHERS:
            page.keyboard.press(keys)
        wait_for_decisions(page, folder, 7)
    wait_for_count(page, "6", "Control+z")


@pytest.mark.slow
def test_a_button_that_a_mouse_has_pressed_does_not_keep_the_keys(page, folder):
    """Enter would press it again instead of what the page says."""
    for way in ("double", "away"):
        box = page.locator(".class:not(.proposed)").first.bounding_box()
        place = box["x"] + 20, box["y"] + 10
        if way == "double":
            page.mouse.dblclick(*place, delay=20)
            wait_for_count(page, "7")
        else:  # Pressed, and released elsewhere.
            page.mouse.move(*place)
            page.mouse.down()
            page.mouse.move(5, 300)
            page.mouse.up()
        read_name(page)
        page.wait_for_timeout(SETTLE_MS)
        assert not page.evaluate("document.activeElement.matches('button')"), way
        proposed = page.locator(".class.proposed .name").inner_text()
        before = len(read_decisions(folder))
        press(page, "Enter")
        assert [row[1] for row in read_decisions(folder)[before:]] == [proposed], way


@pytest.mark.slow
def test_a_key_that_is_pressed_twice_answers_once(page, folder):
    for number, key in enumerate(("1", "Enter", "Space")):
        read_name(page)
        page.wait_for_timeout(800)  # A person looks at the photo.
        page.evaluate(PRESS_WHEN_SHOWN, key.replace("Space", " "))
        hear(page, NEXT, key)
        wait_for_decisions(page, folder, 7 + 2 * number, key)
        press(page, key)
        assert len(read_decisions(folder)) == 8 + 2 * number, key
    show(page, "photos")
    page.locator(OPEN).first.focus()
    for number, key in enumerate(("Enter", "1", "0")):
        page.wait_for_timeout(800)
        page.evaluate(PRESS_WHEN_MOVED, key)
        hear(page, NEXT, key)
        wait_for_decisions(page, folder, 13 + 2 * number, key)
        photo = page.query_selector(".cell:focus")
        page.keyboard.press(key)
        page.wait_for_function("photo => photo !== document.activeElement", arg=photo)
        wait_for_decisions(page, folder, 14 + 2 * number, key)
