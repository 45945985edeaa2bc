"""The view of classes in a browser: they are renamed, merged, deleted and described."""

import pytest

from cls_jax.photos.labeling import views
from tests.photos.labeling.pages import (
    COMPOSE,
    NUM_BROKEN,
    SETTLE_MS,
    find_places,
    hear,
    intercept,
    press,
    read_all,
    read_decisions,
    read_name,
    see,
    show,
)
from tests.photos.labeling.sessions import CLASSES, list_classes


@pytest.fixture
def page(page):
    show(page, "classes")
    return page


def rename(page, name, new):
    page.get_by_label(f"Name of {name}").fill(new)
    page.keyboard.press("Enter")


def test_every_change_says_what_became_of_a_class_and_is_undone(page, begun):
    page.get_by_label("Description of cat").fill("has whiskers")
    see(page, "#undo:enabled", "Enter")
    for new, said, names in (
        ("kitten", "cat is now kitten (2 photos).", ["kitten", "dog", "owl"]),
        ("dog", "cat merged into dog: 2 photos moved.", ["dog", "owl"]),
        ("Cat", "cat is now Cat (2 photos).", ["Cat", "dog", "owl"]),
        ("", "cat deleted. Now unlabeled: 2 photos.", ["dog", "owl"]),
    ):
        if new:
            rename(page, "cat", new)
        else:
            page.get_by_label("Delete cat").press("Enter")
        page.wait_for_selector(f".toast:text-is('{said} Undo brings cat back.')")
        assert list_classes(begun) == names
        see(page, "input[aria-label='Name of cat']", "Control+z")
        assert page.get_by_label("Key of cat").input_value() == "1"
    for typed, said in (("fox", "fox added"), ("Dog", "There is already a class named dog")):
        page.get_by_label("Name of a new class").fill(typed)
        hear(page, said, "Enter")
    assert list_classes(begun)[-1] == "fox"
    rename(page, "fox", "Dog")
    hear(page, "fox merged into Dog: no photo moved. Undo brings fox back.")
    page.keyboard.press("Control+z")
    page.get_by_label("Name of fox").fill("fo")  # Is not entered.
    page.get_by_label("Delete fox").click(delay=200)
    page.wait_for_selector(".toast:text-is('fox deleted. Undo brings fox back.')")
    page.wait_for_function("document.querySelectorAll('.class-row').length === 3")
    assert read_all(page, ".class-row .search[aria-label^=Name]", "value") == list(CLASSES)
    for said in ("fox is a class again", "fox is no longer a class", "the description of cat"):
        see(page, f".toast:text-is('Undone: {said}.')", "Control+z")
    page.wait_for_function(
        "() => !document.querySelector('input[aria-label=\"Description of cat\"]').value"
    )


def test_a_photo_becomes_the_example_of_its_class_in_every_list(page, begun):
    page.locator("#strip button[title='IMG_0005.png']").click()
    page.get_by_role("button", name="Example of owl").click()
    page.wait_for_selector(".class .name img")
    assert views.describe(begun)["classes"][2]["example"] == 5
    page.wait_for_function("() => document.querySelector('.class .name img').naturalWidth")
    page.keyboard.press("o")
    page.keyboard.press("Escape")
    page.wait_for_timeout(300)
    assert page.evaluate(NUM_BROKEN) == 0


@pytest.mark.slow
def test_half_a_name_is_kept_in_its_field_and_neither_taken_nor_undone(page, begun, folder):
    show(page, "next")
    press(page, "1")  # Which Ctrl Z and Backspace could undo.
    before = read_decisions(folder)
    show(page, "classes")
    name, new = page.get_by_label("Name of cat"), page.locator("#new-class")
    new.fill("ko")
    page.evaluate(COMPOSE, ["#new-class", "Enter"])  # Keys of an input method do nothing.
    name.press("End")
    name.press_sequentially("x")
    for key in ("Enter", "Escape"):
        page.evaluate(COMPOSE, ["[aria-label='Name of cat']", key])
    page.wait_for_timeout(200)
    assert name.input_value() == "catx"
    assert name.evaluate("field => field === document.activeElement")
    name.press("Escape")
    assert name.input_value() == "cat"
    new.fill("")
    for key in ("f", "Backspace", "Control+z"):  # Brings the letter back.
        new.press(key)
    show(page, "next")
    read_name(page)
    show(page, "classes")
    assert new.input_value() == "f"
    for key in ("o", "Backspace", "x", "Control+z"):
        page.locator("#view h2").click()  # The keys are for the text all the same.
        page.keyboard.press(key)
    page.wait_for_timeout(100)
    assert new.input_value().startswith("f")
    name.fill("dog")  # On the way to "doghouse".
    page.locator("#view h2").click()
    hear(page, "Press Enter in the name field to rename cat.")
    assert name.input_value() == "dog"
    assert list_classes(begun) == list(CLASSES)
    assert read_decisions(folder) == before
    name.press("End")
    name.press_sequentially("house")
    name.press("Enter")
    hear(page, "cat is now doghouse")
    assert list_classes(begun) == ["doghouse", "dog", "owl"]


@pytest.mark.slow
def test_a_second_click_in_the_same_place_changes_no_other_class(page, begun):
    x, y = find_places(page, "[aria-label='Delete dog']")[0]
    for _ in range(2):
        page.mouse.click(x + 5, y + 5)
        page.wait_for_timeout(SETTLE_MS)
    assert list_classes(begun) == ["cat", "owl"]
    page.locator("#view p:has-text('dog deleted. Now unlabeled: 2 photos.')").wait_for()
    page.get_by_label("Delete cat").click()
    page.locator("#view p:has-text('cat deleted.')").wait_for()
    assert read_all(page, ".rows > *", "tagName") == ["P", "P", "SECTION"]
    for name in ("cat", "dog"):
        page.keyboard.press("Control+z")
        page.get_by_label(f"Delete {name}").wait_for()
    assert page.locator(".class-row").count() == 3
    assert page.locator(".rows > p").count() == 0


@pytest.mark.slow
def test_enter_saves_again_what_a_break_of_the_connection_has_not(page, begun):
    note, name, keys = map(page.get_by_label, ("Description of dog", "Name of cat", "Key of owl"))
    lost = []

    def cut(route):
        """From what is entered on: before, the page would keep the text from the field."""
        if route.request.method == "POST":
            lost.append(route)
        (route.abort if lost else route.continue_)()

    for field, text in ((note, "barks"), (name, "lynx")):
        lost.clear()
        intercept(page, "**/api/**", cut)
        field.fill(text)
        see(page, "#stopped:visible", "Enter")
        keys.select_option("1")
        page.wait_for_function(
            "() => document.querySelector('[aria-label=\"Key of owl\"]').value === '3'"
        )
        page.unroute("**/api/**")
        page.wait_for_selector("#stopped", state="hidden")  # As soon as it is back.
        field.focus()
        see(page, "#undo:enabled", "Enter")
    hear(page, "cat is now lynx")
    assert views.describe(begun)["classes"][1]["description"] == "barks"
    assert list_classes(begun) == ["lynx", "dog", "owl"]
