"""What a hand aims at stays where it is: no photo, card or button moves there by itself."""

import pytest
from PIL import Image

from cls_jax.photos.labeling import views
from cls_jax.photos.labeling.changes import rename_class
from cls_jax.photos.labeling.known import get_path
from tests.photos.labeling.pages import (
    PHONE,
    hold,
    open_labeled,
    open_unsure,
    press,
    read_decisions,
    read_name,
    show,
    wait_for_count,
    wait_for_photos,
)
from tests.photos.labeling.sessions import CLASSES, decide, serve

pytestmark = pytest.mark.slow  # Two seconds for each thing that a hand may do.

SETTLE_MS = 700  # A second click in the same place means the same for 600.
NEW = ".toast:has-text('These photos are new: look at them, then press again.')"


def list_rows(page):
    """The classes in "check", with the names of their photos."""
    return page.locator(".row").evaluate_all(
        "rows => rows.map((row) => [row.dataset.label,"
        " [...row.querySelectorAll('.tile')].map((tile) => tile.title)])"
    )


def find_places(page, selector):
    """The upper left corners of elements."""
    return page.evaluate(
        """selector => [...document.querySelectorAll(selector)].map((one) => {
          const { x, y } = one.getBoundingClientRect();
          return [x, y];
        })""",
        selector,
    )


def open_check(open_page, port):
    page = open_page(port)
    read_name(page)
    show(page, "check")
    wait_for_photos(page)
    return page


def test_rows_keep_their_photos_until_they_are_confirmed(open_page, folder):
    with serve(open_unsure(folder, 90)) as port:
        page = open_check(open_page, port)
        before, places = dict(list_rows(page)), find_places(page, ".row")
        for i, label in enumerate(CLASSES):
            page.locator(".confirm").nth(i).click()
            page.wait_for_function(
                "([label, name]) => document.querySelector(`[data-label=${label}] .tile`)?.title"
                " !== name",
                arg=[label, before[label][0]],
            )
            page.wait_for_timeout(SETTLE_MS)
            rows = dict(list_rows(page))
            assert all(rows[other] == before[other] for other in CLASSES[i + 1 :])
            assert find_places(page, ".row") == places
    answers = {(name, label) for name, label, _ in read_decisions(folder)[6:]}
    assert answers == {(name, label) for label in CLASSES for name in before[label]}


def test_photos_that_have_just_come_are_not_confirmed(open_page, folder):
    with serve(open_labeled(folder, 90)) as port:
        page = open_check(open_page, port)
        confirm, release = page.locator(".confirm").first, hold(page, "**", "photos")
        confirm.click()
        wait_for_count(page, "1")
        page.wait_for_selector(".confirm[aria-disabled=true]")
        page.wait_for_timeout(SETTLE_MS)
        confirm.click(force=True)
        page.wait_for_selector(NEW)
        release()
        page.wait_for_selector(".confirm[aria-disabled=false]")
        assert len(read_decisions(folder)) == 14
        confirm.click()
        wait_for_count(page, "2")


def test_a_row_whose_confirmation_is_undone_asks_about_its_photos_again(open_page, folder):
    with serve(open_labeled(folder, 90)) as port:
        page = open_check(open_page, port)
        before = list_rows(page)
        page.locator(".confirm").first.click()
        wait_for_count(page, "1")
        page.wait_for_function(
            "name => document.querySelector('.tile').title !== name", arg=before[0][1][0]
        )
        page.keyboard.press("Control+z")
        wait_for_count(page, "6")
        page.wait_for_function(
            "names => names.includes(document.querySelector('.tile').title)", arg=before[0][1]
        )
        assert list_rows(page)[1:] == before[1:]


def test_a_row_that_another_window_has_answered_is_refused_and_then_asks_anew(open_page, folder):
    session = open_labeled(folder, 90)
    with serve(session) as port:
        page = open_check(open_page, port)
        names = list_rows(page)[0][1]
        image = next(i for i in range(90) if get_path(session.known, i).name == names[3])
        decide(session, image, CLASSES[1], "other")
        wait_for_count(page, "7")
        page.wait_for_timeout(300)
        assert list_rows(page)[0][1] == names
        release = hold(page, "**", "photos")
        page.locator(".confirm").first.click()
        page.wait_for_selector(f".toast:has-text('{names[3]} was labeled in the meantime')")
        assert len(read_decisions(folder)) == 7
        page.wait_for_selector(f".tile[title='{names[3]}']", state="detached")
        page.wait_for_timeout(SETTLE_MS)
        page.locator(".confirm").first.click(force=True)
        page.wait_for_selector(NEW)
        release()
        session.change("other", rename_class, CLASSES[1], "")
        page.wait_for_selector(f".row:has-text('There is no class {CLASSES[1]} anymore.')")
        assert page.locator(".confirm:visible").count() == 2
    assert len(read_decisions(folder)) == 7 + 3  # The class's photos lost their label.


def open_suspects(open_page, port):
    page = open_page(port)
    read_name(page)
    show(page, "suspects")
    page.locator(".card").nth(1).wait_for()
    page.wait_for_function("() => !document.querySelector('.hint').textContent.includes('ing the')")
    wait_for_photos(page)
    return page


def label_with_mistakes(folder):
    session = open_labeled(folder, 60)
    mistakes = {12: 1, 15: 1, 19: 2}
    for image in range(6, 40):
        decide(session, image, CLASSES[mistakes.get(image, image % 3)], "other")
    return session


def test_suspects_keep_their_places_and_are_answered_once(open_page, folder):
    with serve(label_with_mistakes(folder)) as port:
        page = open_suspects(open_page, port)
        names = page.locator(".card").evaluate_all("all => all.map((one) => one.ariaLabel)")
        places, before = find_places(page, ".card"), len(read_decisions(folder))
        for i in range(2):
            button = page.locator(".card").nth(i).locator(".others button").first
            for _ in range(2):
                button.click(force=True)
                page.wait_for_timeout(SETTLE_MS)
        page.wait_for_timeout(2000)  # The classifier has learned from both.
        shown = page.locator(".card").evaluate_all("all => all.map((one) => one.ariaLabel)")
        assert shown[: len(names)] == names
        assert find_places(page, ".card")[: len(names)] == places
        assert len(read_decisions(folder)) == before + 2
        assert [row[0] for row in read_decisions(folder)[before:]] == names[:2]
        page.wait_for_selector(".card:first-child p:has-text('Labeled')")
        page.keyboard.press("Control+z")  # Both are asked about again.
        page.keyboard.press("Control+z")
        page.wait_for_function(
            "() => ![...document.querySelectorAll('.card p')].some((one) => one.textContent"
            ".endsWith('.'))"
        )
        page.locator(".card").first.locator(".others button").last.click()
        page.wait_for_selector(".card:first-child button[aria-disabled=true]")
        assert len(read_decisions(folder)) == before + 5


def test_a_suspect_that_another_window_has_answered_is_refused(open_page, folder):
    session = label_with_mistakes(folder)
    with serve(session) as port:
        page = open_suspects(open_page, port)
        name = page.locator(".card").first.get_attribute("aria-label")
        image = next(i for i in range(60) if get_path(session.known, i).name == name)
        decide(session, image, CLASSES[image % 3], "other")
        before = len(read_decisions(folder))
        page.wait_for_timeout(2500)
        assert page.locator(".card").first.get_attribute("aria-label") == name
        page.locator(".card").first.locator(".others button").first.click()
        page.wait_for_selector(f".toast:has-text('{name} was labeled in the meantime')")
        page.wait_for_selector(".card:first-child p:has-text('Labeled elsewhere.')")
    assert len(read_decisions(folder)) == before


def test_delete_in_the_same_place_deletes_one_class(visit, folder):
    session = open_labeled(folder, 12)
    with visit(session) as page:
        show(page, "classes")
        x, y = find_places(page, "[aria-label='Delete dog']")[0]
        for _ in range(2):
            page.mouse.click(x + 5, y + 5)
            page.wait_for_timeout(SETTLE_MS)
        assert [row["name"] for row in views.describe(session)["classes"]] == ["cat", "owl"]
        page.locator("#view p:has-text('dog deleted. Now unlabeled: 2 photos.')").wait_for()
        page.get_by_label("Delete cat").click()
        page.locator("#view p:has-text('cat deleted.')").wait_for()
        assert page.locator(".rows > *").evaluate_all("all => all.map((one) => one.tagName)") == [
            "P",
            "P",
            "SECTION",
        ]
        for name in ("cat", "dog"):
            page.keyboard.press("Control+z")
            page.get_by_label(f"Delete {name}").wait_for()
        assert page.locator(".class-row").count() == 3
        assert page.locator(".rows > p").count() == 0


def test_on_a_phone_no_class_comes_between_a_finger_and_a_photo(visit, folder):
    with visit(open_labeled(folder, 60), PHONE) as page:
        show(page, "photos")
        cells = page.locator(".cell[data-decision='']")
        names = [cells.nth(i).get_attribute("title") for i in range(6)]
        cells.first.scroll_into_view_if_needed()
        places = find_places(page, ".cell")
        for i, name in enumerate(names):
            page.locator(f".cell[title='{name}']").click()
            assert page.locator(".panel .class:visible").count() == 0
            assert page.locator(".panel").inner_text().startswith(f"{i + 1} selected")
        toggle = page.locator(".toggle")
        place = toggle.bounding_box()
        toggle.click()
        page.locator(".panel .class").first.wait_for()
        again = toggle.bounding_box()  # A second tap in the same place closes them.
        assert again["y"] == place["y"]
        assert again["x"] + again["width"] == place["x"] + place["width"]
        assert find_places(page, ".cell")[0][0] == places[0][0]
        classes = find_places(page, ".panel .class")
        page.locator(".panel .class", has_text="owl").click()
        wait_for_count(page, "1")
        assert page.locator(".panel .class:visible").count() == 3  # As it was left.
        assert find_places(page, ".panel .class") == classes
    assert read_decisions(folder)[6:] == [(name, "owl", "label") for name in names]


@pytest.mark.parametrize("view", ["next", "photos"])
def test_no_class_moves_when_a_line_comes_or_goes(visit, folder, view):
    session = open_labeled(folder, 60)
    with visit(session) as page:
        press(page, "1")
        show(page, view)
        page.wait_for_selector(".class")
        places = find_places(page, ".class")
        if view == "photos":
            for i in range(3):
                page.locator(".cell").nth(i).click()
        else:
            session.draw_sample()
            for _ in range(4):
                press(page, "2")
            page.locator(".hint:has-text('random photos left')").wait_for()
        assert find_places(page, ".class") == places


def test_nothing_is_answered_while_a_row_is_being_saved(open_page, folder):
    with serve(open_labeled(folder, 90)) as port:
        page = open_check(open_page, port)
        names = list_rows(page)[0][1]
        release = hold(page, "decide")
        page.locator(".confirm").first.click()
        page.wait_for_timeout(SETTLE_MS)
        page.locator(".confirm").first.click()
        page.wait_for_selector(".toast:has-text('press again')")
        release()
        wait_for_count(page, "1")
    assert [row[0] for row in read_decisions(folder)[6:]] == names


def test_after_a_double_click_on_add_the_next_name_is_another_class(visit, folder):
    session = open_labeled(folder, 12)
    with visit(session) as page:
        show(page, "classes")
        for name in ("fox", "yak"):
            page.wait_for_timeout(SETTLE_MS)
            page.keyboard.type(name)
            box = page.get_by_role("button", name="Add", exact=True).bounding_box()
            page.mouse.dblclick(box["x"] + 5, box["y"] + 5, delay=20)
            page.wait_for_selector(f".toast:has-text('{name} added: it is kept once a photo has')")
        assert [row["name"] for row in views.describe(session)["classes"]][3:] == ["fox", "yak"]
        for name in ("yak", "fox"):
            page.wait_for_timeout(SETTLE_MS)
            page.locator("#undo").click()
            page.wait_for_selector(f".toast:text-is('Undone: {name} is no longer a class.')")
        assert [row["name"] for row in views.describe(session)["classes"]] == list(CLASSES)


def test_what_was_marked_or_dropped_is_there_when_its_view_is_shown_again(open_page, folder):
    path = folder.parent / "photo.png"
    Image.new("RGB", (40, 30), "teal").save(path)
    with serve(open_labeled(folder, 60)) as port:
        page = open_check(open_page, port)
        page.locator(".tile").nth(2).click()
        show(page, "photos")
        for place in range(2):
            page.locator(".cell").nth(place).click()
        show(page, "try")
        page.route("**/api/try", lambda route: None)
        page.set_input_files("#files", path)
        page.wait_for_selector(".card:has-text('Waiting')")
        show(page, "photos")
        assert page.locator(".cell[aria-selected=true]").count() == 2
        show(page, "check")
        assert page.locator(".tile[aria-pressed=true]").count() == 1
        assert page.locator(".confirm").first.inner_text() == "Confirm 7"
        show(page, "try")
        assert page.locator(".card:has-text('photo.png')").count() == 1


def test_a_reload_asks_before_it_loses_what_is_typed_or_marked(open_page, folder):
    asked = []
    with serve(open_labeled(folder, 12)) as port:
        page = open_page(port)
        page.on("dialog", lambda dialog: asked.append(dialog.type) or dialog.accept())
        name = read_name(page)
        page.reload()
        assert asked == []
        assert read_name(page) == name
        page.keyboard.type("fo")
        page.reload()
        assert asked == ["beforeunload"]
        assert read_name(page)
        show(page, "check")
        page.locator(".tile").first.click()
        page.reload()
        assert asked == ["beforeunload"] * 2
        read_name(page)
        show(page, "classes")
        page.get_by_label("Description of cat").press_sequentially("x")
        page.reload()
        assert asked == ["beforeunload"] * 3


def test_a_photo_is_opened_by_two_clicks_on_it_alone(visit, folder):
    with visit(open_labeled(folder, 24)) as page:
        show(page, "photos")
        cell = page.locator(".cell").nth(2)
        name = cell.get_attribute("title")
        cell.evaluate(
            "cell => cell.dispatchEvent(new MouseEvent('dblclick', { bubbles: true, detail: 2 }))"
        )
        page.wait_for_timeout(300)
        assert page.locator("h2").first.inner_text() == "Photos"
        cell.dblclick()
        page.wait_for_selector(f"figcaption:has-text('{name}')")


CLICK_WHEN_CHANGED = """() => {
  const list = document.querySelector(".classes");
  const watch = new MutationObserver(() => {
    watch.disconnect();
    const place = { detail: 1, bubbles: true, cancelable: true };
    list.querySelectorAll("button")[1].dispatchEvent(new PointerEvent("click", place));
  });
  watch.observe(list, { childList: true });
}"""


def test_a_class_that_comes_under_the_pointer_by_another_window_is_not_taken(visit, folder):
    session = open_labeled(folder, 24)
    with visit(session) as page:
        page.evaluate(CLICK_WHEN_CHANGED)
        session.change("other", rename_class, "cat", "")
        page.wait_for_selector(".toast:has-text('The classes have changed: look at them')")
        before = len(read_decisions(folder))
        page.wait_for_timeout(700)
        page.locator(".class").nth(1).click()
        page.wait_for_function("() => !document.querySelector('#undo').disabled")
        assert read_decisions(folder)[before:][0][1] == "owl"
