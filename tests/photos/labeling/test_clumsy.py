"""Hands that are quick or clumsy: no answer is given twice, or for another photo than was meant."""

import unicodedata

import pytest

from cls_jax.photos.folder.names import fold_class
from cls_jax.photos.labeling import views
from cls_jax.photos.labeling.answers import RefusedError
from cls_jax.photos.labeling.changes import Change, rename_class
from cls_jax.photos.labeling.known import get_path
from tests.conftest import one_of
from tests.photos.labeling.pages import (
    COUNT_ENTERS,
    SEARCH,
    hold,
    open_labeled,
    press,
    read_decisions,
    read_name,
    show,
    wait_for_count,
    wait_for_decisions,
)
from tests.photos.labeling.sessions import (
    CLASSES,
    create_photos,
    decide,
    open_ready,
    read_states,
    serve,
)

pytestmark = pytest.mark.slow  # Two seconds for each thing that a hand may do.

SETTLE_MS = 900  # A second click means the same for 600.

# Clicks what is in a place now, as a finger or a mouse does, though the page has changed since.
CLICK_AT = """([x, y, detail]) => {
  window.clicks = [...(window.clicks ?? []), performance.now()];
  const place = { clientX: x, clientY: y, detail, bubbles: true, cancelable: true };
  document.elementFromPoint(x, y).dispatchEvent(new PointerEvent("click", place));
}"""
# A key that comes as soon as another photo does.
ANSWER_SWAP = """(name) => {
  const watch = new MutationObserver(() => {
    const shown = document.querySelector("figcaption").textContent;
    if (shown.startsWith(name)) return;
    watch.disconnect();
    const press = new KeyboardEvent("keydown", { key: "1", bubbles: true });
    setTimeout(() => {
      window.said = document.querySelector("#toast").textContent;
      document.body.dispatchEvent(press);
    }, 200);
  });
  watch.observe(document.querySelector("figcaption"), { childList: true, characterData: true });
}"""
# Presses a key again as soon as another photo is there.
PRESS_WHEN_SHOWN = """(key) => {
  const frame = document.querySelector(".frame");
  const watch = new MutationObserver(() => {
    watch.disconnect();
    const press = new KeyboardEvent("keydown", { key, bubbles: true });
    frame.firstChild.shown.then(() => setTimeout(() => document.body.dispatchEvent(press), 100));
  });
  watch.observe(frame, { childList: true });
}"""
# The same when the focus has moved to another photo of the grid.
PRESS_WHEN_MOVED = """(key) => {
  const press = new KeyboardEvent("keydown", { key, bubbles: true });
  const again = () => setTimeout(() => document.activeElement.dispatchEvent(press), 100);
  document.querySelector(".grid").addEventListener("focusin", again, { once: true });
}"""
COMPOSE = """([selector, key]) => {
  const event = { key, isComposing: true, bubbles: true, cancelable: true };
  document.querySelector(selector).dispatchEvent(new KeyboardEvent("keydown", event));
}"""


def click_twice(page, button):
    """Clicks a button, and its place again as soon as the page has followed."""
    box = button.bounding_box()
    place = [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2]
    before = page.locator("#count").inner_text(), page.locator("#strip").inner_html()
    page.evaluate(CLICK_AT, [*place, 1])
    page.wait_for_function(
        "([count, strip]) => document.querySelector('#count').textContent !== count"
        " || document.querySelector('#strip').innerHTML !== strip",
        arg=list(before),
    )
    page.wait_for_timeout(60)  # The next photo is shown.
    page.evaluate(CLICK_AT, [*place, 2])
    first, second = page.evaluate("window.clicks")
    if second - first > 550:
        pytest.skip("this machine is too slow for the second click")


def press_lost(page, key):
    """Presses a key again whose button is gone, until the page has said that it did nothing."""
    page.keyboard.press(key)  # As of a double press.
    page.wait_for_timeout(SETTLE_MS)
    if "Not taken" not in page.locator("#toast").inner_text():
        page.keyboard.press(key)
    page.wait_for_selector(".toast:has-text('Not taken: the button that you pressed is')")


@pytest.mark.parametrize(
    ("view", "selector"),
    one_of(
        ("next", ".class"),
        ("next", ".others button:has-text('None')"),
        ("next", ".others button:has-text('Skip')"),
        ("next", "#undo"),
        ("check", ".confirm"),
        ("suspects", ".card .others button"),
    ),
)
def test_a_double_click_answers_once(open_page, folder, view, selector):
    session = open_labeled(folder, 60)
    for image in range(6, 20) if view == "suspects" else ():
        mistakes = {12: 1, 15: 1}
        decide(session, image, CLASSES[mistakes.get(image, image % 3)], "other")
    with serve(session) as port:
        page = open_page(port)
        if view == "next":
            for _ in range(2):
                press(page, "1")
        show(page, view)
        button = page.locator(selector).first
        button.wait_for()
        page.wait_for_timeout(SETTLE_MS)
        before = read_decisions(folder)
        number = 8 if view == "check" else 1
        click_twice(page, button)
        wait_for_decisions(page, folder, len(before) + number)
        if view == "next":
            read_name(page)
            page.wait_for_timeout(SETTLE_MS)
            button.click()
            wait_for_decisions(page, folder, len(before) + 2)


def test_clicks_in_different_places_are_all_answers(open_page, folder):
    with serve(open_labeled(folder, 24)) as port:
        page = open_page(port)
        for place, count in ((0, "7"), (1, "8"), (2, "9")):
            read_name(page)
            page.locator(".class").nth(place).click()
            wait_for_count(page, count)


def test_enter_confirms_a_row_once_though_it_is_pressed_twice(visit, folder):
    with visit(open_labeled(folder, 60)) as page:
        show(page, "check")
        page.locator(".confirm").first.focus()
        page.wait_for_function(
            "() => [...document.querySelectorAll('.row img')].every((i) => i.complete)"
        )
        page.wait_for_timeout(200)
        page.evaluate(COUNT_ENTERS)
        page.keyboard.press("Enter")
        wait_for_count(page, "1")
        page.wait_for_timeout(200)  # The next photos are shown.
        page.keyboard.press("Enter")
        first, second = page.evaluate("window.enters")
        if second - first > 550:
            pytest.skip("this machine is too slow for the second key")
        wait_for_decisions(page, folder, 14)


@pytest.mark.parametrize("key", one_of("Enter", "ArrowDown", "Escape"))
def test_keys_of_an_input_method_do_nothing_in_the_chooser(visit, folder, key):
    with visit(open_labeled(folder, 12)) as page:
        for view in ("next", "photos"):
            show(page, view)
            if view == "photos":
                page.locator(".cell[data-decision='']").first.click()
            page.keyboard.type("o")
            said = page.locator("#enter").inner_text()
            page.evaluate(COMPOSE, [SEARCH, key])
            page.wait_for_timeout(200)
            assert page.locator(SEARCH).input_value() == "o"
            assert page.locator("#enter").inner_text() == said
    assert len(read_decisions(folder)) == 6


def test_keys_of_an_input_method_do_nothing_in_classes(visit, folder):
    session = open_labeled(folder, 12)
    with visit(session) as page:
        show(page, "classes")
        page.locator("#new-class").fill("ko")
        page.evaluate(COMPOSE, ["#new-class", "Enter"])
        name = page.get_by_label("Name of cat")
        name.press("End")
        name.press_sequentially("x")
        page.evaluate(COMPOSE, ["[aria-label='Name of cat']", "Enter"])
        page.evaluate(COMPOSE, ["[aria-label='Name of cat']", "Escape"])
        page.wait_for_timeout(200)
        assert name.input_value() == "catx"
        assert name.evaluate("field => field === document.activeElement")
        assert [row["name"] for row in views.describe(session)["classes"]] == list(CLASSES)


@pytest.mark.parametrize("starts", ["selected", "focused"])
def test_what_is_selected_while_photos_are_saved_stays_selected(visit, folder, starts):
    with visit(open_labeled(folder, 24)) as page:
        show(page, "photos")
        cells = page.locator(".cell[data-decision='']")
        names = [cells.nth(i).get_attribute("title") for i in range(4)]
        cells.nth(0).click()
        if starts == "focused":
            page.keyboard.press("Escape")
            page.keyboard.press("ArrowRight")  # Its ring comes.
        release = hold(page, "decide")
        page.keyboard.press("1")
        page.locator(f".cell[title='{names[3]}']").click()
        release()
        page.wait_for_selector(f".toast:has-text('{names[0]}: cat.')")
        assert page.locator(".cell[aria-selected=true]").get_attribute("title") == names[3]
        page.keyboard.press("2")
        wait_for_count(page, "8")
    assert [row[:2] for row in read_decisions(folder)[6:]] == [(names[0], "cat"), (names[3], "dog")]


@pytest.mark.parametrize("key", one_of("Space", "Enter"))
@pytest.mark.parametrize("is_new", [False, True])
def test_a_key_that_pressed_the_button_of_a_class_does_nothing_else(visit, folder, key, is_new):
    with visit(open_labeled(folder, 24)) as page:
        if is_new:
            page.keyboard.type("fox")
            button = page.locator(".class", has_text="New class “fox”")
        else:
            button = page.locator(".class", has_text="owl")
        button.focus()
        page.keyboard.press(key)
        wait_for_count(page, "7")
        if is_new:
            press_lost(page, key)
            assert len(read_decisions(folder)) == 7
        else:
            page.keyboard.press(key)  # At once.
            page.wait_for_timeout(SETTLE_MS)
            page.keyboard.press(key)
            wait_for_count(page, "8")
        labels = [row[1] for row in read_decisions(folder)[6:]]
        assert labels == (["fox"] if is_new else ["owl", "owl"])
        read_name(page)
        page.keyboard.press("1")  # Other keys mean what they always do.
        page.wait_for_timeout(300)
        assert read_decisions(folder)[-1][1] == "cat"


@pytest.mark.parametrize("key", one_of("Enter", "Space"))
def test_a_key_that_pressed_a_button_of_a_group_does_nothing_else(visit, folder, key):
    with visit(open_labeled(folder, 24)) as page:
        show(page, "photos")
        for label in ("owl", "(2)"):
            cells = page.locator(".cell[data-decision='']")
            for place in range(2):
                cells.nth(place).click()
            before = len(read_decisions(folder))
            page.locator(".panel button", has_text=label).focus()
            page.keyboard.press(key)
            page.wait_for_selector(".toast:has-text('2 photos')")
            page.wait_for_timeout(SETTLE_MS)
            page.keyboard.press(key)
            wait_for_decisions(page, folder, before + 2)
            assert page.locator(".cell[aria-selected=true]").count() == 0


def test_a_photo_that_is_shown_stays_until_it_has_an_answer(visit, folder):
    """Whatever other windows and programs do, and also once its window comes back."""
    session = open_labeled(folder, 60)
    with visit(session) as page:
        name = read_name(page)
        own = next(i for i in range(60) if get_path(session.known, i).name == name)
        for image in range(6, 60):
            if image != own and image % 3:
                decide(session, image, CLASSES[image % 3], "other")
        session.mark([i for i in range(60) if i != own and i % 3 == 0][4:], "dog")
        wait_for_count(page, "4")
        page.wait_for_timeout(100)
        assert read_name(page) == name
        with (folder / "labels.csv").open("a") as table:
            table.write("IMG_0030.png,cat,label,2099-01-01T00:00:00Z\n")
        page.wait_for_function(
            "() => document.querySelector('#strip button').title === 'IMG_0030.png'"
        )
        assert read_name(page) == name
        press(page, "3")
    assert (name, "owl", "label") in read_decisions(folder)


def test_a_photo_that_another_window_labels_goes_with_a_word_and_no_key_is_for_the_next_one(
    visit, folder
):
    session = open_labeled(folder, 20)
    with visit(session) as page:
        name = read_name(page)
        image = next(i for i in range(20) if get_path(session.known, i).name == name)
        page.evaluate(ANSWER_SWAP, name)
        decide(session, image, "dog", "other")
        page.wait_for_selector(".toast:has-text('look at it, then press again')")
        said = page.evaluate("window.said")
        assert said == f"{name} was labeled elsewhere. This is another photo."
        assert read_name(page) != name
        assert len(read_decisions(folder)) == 7
        press(page, "1")
        (folder / read_name(page)).unlink()
        gone = read_name(page)
        session.leave_out_missing()
        page.wait_for_selector(f".toast:has-text('{gone} needs no answer anymore')")
    assert len(read_decisions(folder)) == 8


@pytest.mark.parametrize(
    ("known", "typed"),
    one_of(
        ("Maße", "Masse"), ("STRASSE", "Straße"), ("fish", "ﬁsh"), ("glass", "GLAß"), ("ＡＢ", "ab")
    ),
)
def test_another_spelling_of_a_class_takes_it_and_the_page_says_so(visit, folder, known, typed):
    session = open_ready(folder, create_photos(folder, 12), ["cat", known])
    with visit(session) as page:
        name = read_name(page)
        page.keyboard.press("/")
        page.keyboard.insert_text(typed)
        page.wait_for_selector(f"#enter:has-text('takes “{known}”')")
        page.keyboard.press("Enter")
        wait_for_count(page, "1")
    assert read_decisions(folder) == [(name, known, "label")]


def test_the_page_compares_names_of_classes_as_the_server_does(call_module):
    letters = [chr(i) for i in range(0x30000) if unicodedata.category(chr(i)) not in ("Cn", "Cs")]
    changed = [a for a in letters if a.strip() and fold_class(a) != a]
    names = [
        *changed,
        "Ünï Çodé",
        "a\u0308",
        "0.0",
        "-12.00",
        "1.5",
        "a  b",
        "ς",
        "ΟΔΟΣ",
        "ＡＢ　Ｃ",
    ]
    fold = "({ fold }, names) => names.map(fold)"
    found = call_module("names.js", fold, names)
    folded = call_module("names.js", fold, [fold_class(name) for name in names])
    assert [n for n, a, b in zip(names, found, folded, strict=True) if a != b] == []
    assert len(set(found)) == len({fold_class(name) for name in names})


def test_a_class_is_not_added_under_another_spelling(session):
    with pytest.raises(RefusedError, match="There is already a class named dog"):
        session.decide([Change(0, "label", "DOG", 0)], "w", True)
    session.decide([Change(0, "label", "dog ", 0)], "w", True)
    assert read_states(session)["IMG_0000.png"] == ("label", "dog")


def test_the_page_names_what_it_undoes_and_a_single_photo(visit, folder):
    with visit(open_labeled(folder, 24)) as page:
        name = press(page, "3")
        page.keyboard.press("Control+z")
        page.wait_for_selector(f".toast:text-is('Undone: {name} is no longer owl.')")
        show(page, "photos")
        for number in (1, 2):
            cells = page.locator(".cell[data-decision='']")
            for place in range(number):
                cells.nth(place).click()
            what = cells.first.get_attribute("title") if number == 1 else "2 photos"
            page.keyboard.press("1")
            page.wait_for_selector(f".toast:text-is('{what}: cat.')")
        page.keyboard.press("Control+z")
        page.wait_for_selector(".toast:text-is('Undone: 2 photos are no longer cat.')")


def test_what_enter_takes_is_not_replaced_if_another_window_deletes_the_class(visit, folder):
    session = open_ready(folder, create_photos(folder, 12), ["paper", "glass"])
    with visit(session) as page:
        name = read_name(page)
        page.keyboard.type("p")
        page.keyboard.press("ArrowDown")
        page.wait_for_selector("#enter:has-text('Enter: paper')")
        session.change("other", rename_class, "paper", "")
        page.wait_for_selector("#enter:has-text('There is no class “paper” anymore')")
        page.keyboard.press("Enter")
        page.wait_for_timeout(200)
        assert not (folder / "labels.csv").exists()
        page.keyboard.type("en")
        page.keyboard.press("Enter")
        wait_for_count(page, "1")
    assert read_decisions(folder) == [(name, "pen", "label")]


def test_no_key_is_shown_while_the_field_takes_it_and_classes_without_one_come_last(visit, folder):
    session = open_ready(folder, create_photos(folder, 12), ["0", "3", "8", "cat"])
    with visit(session) as page:
        assert page.locator(".class .name").all_inner_texts() == ["cat", "3", "8", "0"]
        assert page.locator(".panel kbd:visible").count() >= 4
        page.keyboard.type("cat")  # Only Enter, which takes this class, is no letter.
        assert page.locator("kbd:visible").all_inner_texts() == ["↵"]
        for _ in "cat":
            page.keyboard.press("Backspace")
        assert page.locator("kbd:visible").count() == 0
        page.keyboard.press("Escape")
        assert page.locator(".panel kbd:visible").count() >= 4


@pytest.mark.parametrize("key", one_of("Enter", "Space"))
def test_after_a_button_that_is_gone_the_page_says_so_once_and_then_takes_the_key(
    visit, folder, key
):
    with visit(open_labeled(folder, 24)) as page:
        press(page, "1")
        page.locator("#strip button").first.focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("figcaption:has-text('currently')")
        read_name(page)
        page.wait_for_timeout(SETTLE_MS)
        page.evaluate("document.activeElement.blur()")  # The strip was replaced.
        press_lost(page, key)
        assert len(read_decisions(folder)) == 7
        press(page, key)
    assert len(read_decisions(folder)) == 8


def test_keys_that_are_pressed_with_others_neither_answer_nor_undo(visit, folder):
    with visit(open_labeled(folder, 24)) as page:
        press(page, "1")
        for view in ("next", "photos"):
            show(page, view)
            if view == "photos":
                page.locator(".cell[data-decision='']").first.click()
            for key in ("Backspace", "Space", "Enter"):
                for modifier in ("Shift", "Control", "Alt", "Meta"):
                    page.keyboard.press(f"{modifier}+{key}")
            for keys in ("Control+Shift+z", "Control+Alt+z", "Control+1", "Alt+1", "Meta+0"):
                page.keyboard.press(keys)
            wait_for_decisions(page, folder, 7)
        page.keyboard.press("Control+z")
        wait_for_count(page, "6")


@pytest.mark.parametrize("way", one_of("double", "away"))
def test_a_button_that_a_mouse_has_pressed_does_not_keep_the_keys(visit, folder, way):
    """Enter would press it again instead of what the page says."""
    with visit(open_labeled(folder, 40)) as page:
        button = page.locator(".class:not(.proposed)").first
        page.wait_for_timeout(SETTLE_MS)
        box = button.bounding_box()
        place = box["x"] + 20, box["y"] + 10
        if way == "double":
            page.mouse.dblclick(*place, delay=20)
            wait_for_count(page, "7")
        else:  # Pressed, and released elsewhere.
            page.mouse.move(*place)
            page.mouse.down()
            page.mouse.move(5, 300)
            page.mouse.up()
        before = len(read_decisions(folder))
        read_name(page)
        page.wait_for_timeout(SETTLE_MS)
        assert not page.evaluate("document.activeElement.matches('button')")
        proposed = page.locator(".class.proposed .name").inner_text()
        press(page, "Enter")
    assert [row[1] for row in read_decisions(folder)[before:]] == [proposed]


@pytest.mark.parametrize("key", one_of("1", "Enter", "Space"))
def test_a_key_that_is_pressed_twice_answers_once(visit, folder, key):
    with visit(open_labeled(folder, 40)) as page:
        page.wait_for_timeout(800)  # A person looks at the photo.
        page.evaluate(PRESS_WHEN_SHOWN, key.replace("Space", " "))
        page.keyboard.press(key)
        page.wait_for_selector(".toast:has-text('This is the next photo: look at it, then press')")
        wait_for_decisions(page, folder, 7)
        press(page, key)
        assert len(read_decisions(folder)) == 8


def test_a_slash_before_the_first_class_is_no_part_of_its_name(visit, folder):
    with visit(open_ready(folder, create_photos(folder, 6))) as page:
        page.keyboard.type("/rose/red")
        page.keyboard.press("Enter")
        wait_for_count(page, "1")
    assert [row[1] for row in read_decisions(folder)] == ["rose/red"]


def open_cells(open_page, port):
    """Opens the grid, with the focus on a photo without an answer."""
    page = open_page(port)
    read_name(page)
    show(page, "photos")
    page.locator(".cell[data-decision='']").first.focus()
    return page


@pytest.mark.parametrize("key", one_of("Enter", "1", "0"))
def test_a_key_that_is_pressed_twice_in_the_grid_answers_once(open_page, folder, key):
    with serve(open_labeled(folder, 40)) as port:
        page = open_cells(open_page, port)
        page.wait_for_timeout(800)  # A person looks at the photo.
        page.evaluate(PRESS_WHEN_MOVED, key)
        page.keyboard.press(key)
        page.wait_for_selector(".toast:has-text('This is the next photo: look at it, then press')")
        wait_for_decisions(page, folder, 7)
        page.keyboard.press(key)
        wait_for_decisions(page, folder, 8)
