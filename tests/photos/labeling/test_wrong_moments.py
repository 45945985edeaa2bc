"""Keys at the wrong moment: none labels what was not meant, and none is dropped without a word."""

import pytest

from cls_jax.photos.labeling.changes import rename_class
from tests.photos.labeling.pages import (
    ENTER_AGAIN,
    NOTE_ENTER,
    OPEN,
    RING,
    SEARCH,
    SELECTED,
    SETTLE_MS,
    catch,
    choose,
    enter,
    hear,
    hold,
    intercept,
    press,
    read_all,
    read_decisions,
    read_name,
    see,
    show,
    wait_for_count,
    wait_for_decisions,
    wait_for_other,
    wait_for_photos,
    wait_until,
)
from tests.photos.labeling.sessions import CLASSES, create_photos, decide, list_classes, open_ready

pytestmark = pytest.mark.slow  # Two seconds for each thing that a hand may do.

TOO_EARLY = "the last step was still being saved. Look at what is shown, then"


def open_view(page, view):
    """Opens a view with one photo for its keys, whose name is returned."""
    show(page, view)
    if view == "next":
        return read_name(page)
    if view == "photos":
        return choose(page, 0)[0]
    wait_for_photos(page)
    return ""


def wait_for_value(page, value):
    """Waits until the search field has this value."""
    page.wait_for_function("([s, v]) => document.querySelector(s).value === v", arg=[SEARCH, value])


def lose_focus(page):
    page.evaluate("document.activeElement.blur()")
    assert not page.evaluate(f"document.activeElement.matches('{SEARCH}')")


def test_what_is_typed_keeps_the_keys_though_the_field_has_lost_the_focus(page, folder):
    expected = []
    for view, letter in (("next", "a"), ("photos", "b")):
        name = open_view(page, view)
        page.keyboard.type(f"{letter}x")
        for key, added in (("Backspace", ""), (" ", " "), ("0", " 0"), ("1", " 01")):
            lose_focus(page)
            page.keyboard.press(key)
            wait_for_value(page, letter + added)
        for key in ("+", "/", "B", "Control+z"):  # The last one is for the text, too.
            lose_focus(page)
            page.keyboard.press(key)
        wait_for_decisions(page, folder, 6 + len(expected))
        assert page.evaluate(f"document.activeElement.matches('{SEARCH}')")
        typed = page.locator(SEARCH).input_value()
        assert typed.startswith(letter)
        lose_focus(page)
        page.keyboard.press("Enter")
        expected.append((name, typed.strip(), "label"))
        wait_for_count(page, str(6 + len(expected)))
    assert read_decisions(folder)[6:] == expected


def test_a_digit_types_where_the_name_of_another_class_begins_with_it(visit, folder):
    classes, names = ["3", "3d print", "owl", "0 stars"], []
    with visit(open_ready(folder, create_photos(folder, 24), classes)) as page:
        for view in ("next", "photos"):
            names.append(open_view(page, view))
            assert page.locator(f"{SEARCH} + kbd").is_visible()
            for digit in "30":
                page.keyboard.press(digit)
                wait_for_value(page, digit)
                page.keyboard.press("Escape")
            enter(page, "3d print")
            wait_for_count(page, str(len(names)))
    assert read_decisions(folder) == [(name, "3d print", "label") for name in names]


def test_an_answer_that_comes_too_early_is_refused_in_sight(page, folder):
    def answer(view, way, place):
        if view == "check":
            confirm = page.locator(".confirm").nth(place)
            confirm.press("Enter") if way == "key" else confirm.click()
        elif way == "key":
            page.keyboard.press("1")
        else:
            page.locator(".class").nth(place).click()

    for view, way in (("next", "key"), ("next", "click"), ("check", "key"), ("check", "click")):
        open_view(page, view)
        before, count = len(read_decisions(folder)), page.locator("#count").inner_text()
        page.wait_for_timeout(SETTLE_MS)
        with hold(page, "api/decide*"):
            answer(view, way, 0)
            page.wait_for_timeout(50)
            answer(view, way, 1)
            hear(page, TOO_EARLY)
        page.wait_for_function(
            "count => document.querySelector('#count').textContent !== count", arg=count
        )
        hear(page, TOO_EARLY)  # What became of the first does not hide it.
        assert {row[1] for row in read_decisions(folder)[before:]} == {"cat"}, (view, way)


def test_a_photo_that_is_not_shown_yet_gets_no_answer_in_any_view(page, begun, folder):
    decide(begun, 6, CLASSES[1], "other")  # A mistake.
    held = catch(page, "**/photos/**")
    page.reload()
    page.wait_for_selector("figure[aria-busy=true] img", state="attached")
    buttons = {"check": ".confirm", "suspects": ".card .others button"}
    for view in ("next", "photos", *buttons):
        page.click(f"nav button[data-view={view}]")
        if view == "photos":
            page.locator(OPEN).first.focus()
        page.evaluate("document.querySelector('#toast').textContent = ''")
        if view in buttons:
            page.locator(buttons[view]).first.click()
        else:
            page.keyboard.press("1")
        hear(page, "not shown yet: press again")
    held.clear()
    page.reload()
    page.wait_for_selector("figure[aria-busy=true] img", state="attached")
    for key in ("1", "0", " ", "Enter", "c", "Enter"):
        page.keyboard.press(key)
    page.locator(".class").first.click()
    next(route for route in held if "large" in route.request.url).abort()
    hear(page, "cannot be read")  # It can only be skipped.
    page.keyboard.press("Escape")
    page.keyboard.press("1")
    assert len(read_decisions(folder)) == 7
    name = page.locator("figcaption").inner_text().split(" · ")[0]
    page.keyboard.press(" ")
    wait_for_other(page, name)
    assert read_decisions(folder)[7:] == [(name, "", "skip")]


def test_a_state_that_was_asked_for_before_an_answer_swaps_no_photo(page):
    held = catch(page, "**/api/state")
    wait_until(page, lambda: held)
    press(page, "1")
    name = read_name(page)
    late = held[0].fetch().json()
    late["next"] = [one for one in late["next"] if one["name"] != name]
    held[0].fulfill(json=late | {"named_right": "by now, of another fit"})
    page.wait_for_timeout(200)
    assert page.locator("figcaption").inner_text().startswith(name)


def test_a_second_enter_does_not_label_the_next_photo(page, folder):
    expected = []
    for view in ("photos", "next"):
        name = open_view(page, view)
        if view == "photos":  # The one with the ring, which is then at the next.
            page.keyboard.press("Escape")
            page.keyboard.press("ArrowRight")
            name = page.locator(RING).get_attribute("title")
        page.keyboard.type("shirt")
        page.evaluate(NOTE_ENTER)
        page.keyboard.press("Enter")
        expected.append((name, "shirt", "label"))
        wait_for_count(page, str(6 + len(expected)))
        page.evaluate(ENTER_AGAIN)
        page.wait_for_timeout(SETTLE_MS)
        assert read_decisions(folder)[6:] == expected
    for _ in range(3):  # Proposals are taken as fast as photos are shown.
        press(page, "Enter")
    assert len(read_decisions(folder)) == 11


def test_a_group_is_refused_if_another_window_labels_one_while_its_class_is_typed(
    page, begun, folder
):
    show(page, "photos")
    name, _ = choose(page, 0, 1)
    page.keyboard.type("fox")
    decide(begun, begun.known.index[name], "dog", "other")
    page.wait_for_selector(f".cell[aria-label^='{name}, dog, your answer']")
    hear(page, "None of the 2 photos was labeled", "Enter")
    page.wait_for_timeout(SETTLE_MS)
    wait_for_count(page, "8", "2")  # By now, the answer is known.
    assert len(read_decisions(folder)) == 9


def test_a_class_that_another_window_has_deleted_is_not_added_again(page, begun):
    for view, key in (("next", "Enter"), ("photos", "1")):
        open_view(page, view)
        intercept(page, "**/api/state", lambda route: None)  # This window does not know it yet.
        proposed = page.locator(".class.proposed .name")
        shown = proposed.inner_text() if view == "next" else list_classes(begun)[0]
        begun.change("other", rename_class, shown, "")
        hear(page, "no such class", key)
        assert shown not in list_classes(begun), view
        page.unroute("**/api/state")
        page.reload()
        read_name(page)


def test_what_enter_takes_is_not_replaced_if_another_window_deletes_the_class(visit, folder):
    session = open_ready(folder, create_photos(folder, 12), ["paper", "glass"])
    with visit(session) as page:
        name = read_name(page)
        page.keyboard.type("p")
        see(page, "#enter:has-text('Enter: paper')", "ArrowDown")
        session.change("other", rename_class, "paper", "")
        page.wait_for_selector("#enter:has-text('There is no class “paper” anymore')")
        page.keyboard.press("Enter")
        page.wait_for_timeout(200)
        assert not (folder / "labels.csv").exists()
        enter(page, "en")
        wait_for_count(page, "1")
    assert read_decisions(folder) == [(name, "pen", "label")]


def test_a_photo_stays_while_its_class_is_typed_though_another_window_labels_it(
    page, begun, folder
):
    name = read_name(page)
    page.keyboard.type("fox")
    decide(begun, begun.known.index[name], "dog", "other")
    wait_for_count(page, "7")
    assert read_name(page) == name
    assert page.locator(SEARCH).input_value() == "fox"
    hear(page, f"{name} was labeled in the meantime", "Enter")
    wait_for_other(page, name)
    assert page.locator(SEARCH).input_value() == ""
    assert list_classes(begun) == list(CLASSES)
    press(page, "1")
    assert read_decisions(folder)[6] == (name, "dog", "label")
    assert len(read_decisions(folder)) == 8


def test_answers_for_other_photos_wait_while_one_is_being_saved(page, folder):
    """Otherwise a photo whose answer was refused would get the next one's, too."""
    show(page, "photos")
    expected = []
    for starts in ("selected", "focused"):
        page.keyboard.press("Escape")
        names = read_all(page, OPEN)[:4]
        choose(page, 0)
        if starts == "focused":
            page.keyboard.press("Escape")
            page.keyboard.press("ArrowRight")  # Its ring comes.
            assert page.locator(RING).get_attribute("title") == names[0]
        with hold(page, "api/decide"):
            page.keyboard.press("1")
            for name, key in zip([*names[1:3], names[1]], "231", strict=True):
                page.locator(f".cell[title='{name}']").click()
                page.keyboard.press(key)
            hear(page, TOO_EARLY)  # The last one's answer is being saved.
            page.locator(f".cell[title='{names[3]}']").click()
        expected += zip(names, CLASSES, strict=False)
        wait_for_decisions(page, folder, 6 + len(expected))
        page.wait_for_selector(f".cell[title='{names[2]}']:not([data-decision=''])")
        assert read_all(page, SELECTED) == [names[1], names[3]], starts  # What was meanwhile.
    assert [row[:2] for row in read_decisions(folder)[6:]] == expected
    held = catch(page, "**/api/decide")
    page.keyboard.press("Escape")
    for place in range(2):
        choose(page, place)
        page.keyboard.press("1")
    wait_until(page, lambda: held)
    held.pop().fulfill(status=422, json={"message": "The disk is full."})
    hear(page, "is full. Nothing that came after it was saved.")
    assert read_all(page, SELECTED) == []  # Nor is selected again what was left since.
    assert not held
    assert len(read_decisions(folder)) == 12


def test_what_was_typed_and_not_entered_is_said_not_to_be_saved(page, folder):
    name = read_name(page)
    page.keyboard.type("fo")
    show(page, "result")
    hear(page, f"“fo” was typed for {name} and was not saved.")
    show(page, "next")
    assert read_name(page) == name
    for leave in (
        lambda: page.get_by_role("button", name="Skip").click(),
        lambda: page.keyboard.press("ArrowLeft"),
        lambda: page.locator("#strip button").last.click(),
    ):
        name = read_name(page)
        page.keyboard.type("ya")
        lose_focus(page)
        leave()
        wait_for_other(page, name)
        assert page.locator(SEARCH).input_value() == ""  # Nor is it for the photo that is shown.
    hear(page, f"“ya” was typed for {name} and was not saved.")
    show(page, "photos")
    choose(page, 0, 1)
    page.keyboard.type("ya")
    show(page, "next")
    hear(page, "“ya” was typed for 2 photos and was not saved.")
    assert len(read_decisions(folder)) == 7  # The skip.


def test_what_was_said_or_typed_for_one_answer_is_gone_with_the_next(page, folder):
    names = [press(page, "1")]
    hear(page, "Undone", "Control+z")
    names.append(press(page, "2"))
    page.wait_for_selector(".toast", state="hidden")
    names.append(read_name(page))
    with hold(page, "api/decide"):
        enter(page, "pike")
        enter(page, "uhr")
        hear(page, TOO_EARLY)
    wait_for_count(page, "8")
    hear(page, TOO_EARLY)
    assert page.locator("#toast").inner_text().count("saved") == 1
    names.append(read_name(page))
    assert page.locator(SEARCH).input_value() == "uhr"
    enter(page, "shirt")  # Replaces what was too early.
    wait_for_count(page, "9")
    page.wait_for_selector(".toast", state="hidden")
    answers = [("cat", "label"), ("", "undo"), ("dog", "label"), ("pike", "label")]
    rows = zip([names[0], *names], [*answers, ("shirt", "label")], strict=True)
    assert read_decisions(folder)[6:] == [(name, *answer) for name, answer in rows]


def test_enter_tries_again_what_was_typed_and_could_not_be_saved(page, folder):
    expected = []
    for view, label in (("next", "fox"), ("photos", "yak")):
        expected.append((open_view(page, view), label, "label"))
        intercept(page, "**/api/decide*", lambda route: route.abort())
        enter(page, label)
        page.wait_for_selector("#stopped:visible")
        page.unroute("**/api/decide*")
        page.wait_for_timeout(SETTLE_MS)
        wait_for_count(page, str(6 + len(expected)), "Enter")
        page.wait_for_selector("#stopped", state="hidden")
    assert read_decisions(folder)[6:] == expected
