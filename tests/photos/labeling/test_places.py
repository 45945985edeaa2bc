"""What a hand aims at stays where it is: no photo, card or button moves there by itself."""

import pytest
from PIL import Image

from cls_jax.photos.labeling.changes import rename_class
from tests.photos.labeling.pages import (
    OPEN,
    PHONE,
    SELECTED,
    SETTLE_MS,
    choose,
    find_places,
    hear,
    hold,
    intercept,
    open_unsure,
    press,
    read_all,
    read_decisions,
    read_name,
    show,
    wait_for_count,
    wait_for_photos,
)
from tests.photos.labeling.sessions import CLASSES, decide

pytestmark = pytest.mark.slow  # Two seconds for each thing that a hand may do.

NEW = "These photos are new: look at them, then press again."
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
CLICK_WHEN_CHANGED = """() => {
  const list = document.querySelector(".classes");
  const watch = new MutationObserver(() => {
    watch.disconnect();
    const place = { detail: 1, bubbles: true, cancelable: true };
    list.querySelectorAll("button")[1].dispatchEvent(new PointerEvent("click", place));
  });
  watch.observe(list, { childList: true });
}"""


def list_rows(page):
    """The classes in "check", with the names of their photos."""
    return page.locator(".row").evaluate_all(
        "rows => rows.map((row) => [row.dataset.label,"
        " [...row.querySelectorAll('.tile')].map((tile) => tile.title)])"
    )


def open_check(page):
    show(page, "check")
    wait_for_photos(page)
    return list_rows(page)


def wait_for_row(page, label, names, is_same=False):
    """Waits until the row of a class no longer begins with one of these photos, or does again."""
    page.wait_for_function(
        "([label, names, isSame]) => isSame ==="
        " names.includes(document.querySelector(`[data-label=${label}] .tile`)?.title)",
        arg=[label, names, is_same],
    )


def test_a_photo_that_is_shown_stays_until_it_has_an_answer(page, begun, folder):
    """Whatever other windows and programs do, and also once its window comes back."""
    name = read_name(page)
    own = begun.known.index[name]
    for image in range(6, 60):
        if image != own and image % 3:
            decide(begun, image, CLASSES[image % 3], "other")
    begun.mark([i for i in range(60) if i != own and i % 3 == 0][4:], "dog")
    wait_for_count(page, "4")
    page.wait_for_timeout(100)
    assert read_name(page) == name
    with (folder / "labels.csv").open("a") as table:
        table.write("IMG_0030.png,cat,label,2099-01-01T00:00:00Z\n")
    page.wait_for_function("() => document.querySelector('#strip button').title === 'IMG_0030.png'")
    assert read_name(page) == name
    press(page, "3")
    assert (name, "owl", "label") in read_decisions(folder)


def test_a_photo_that_another_window_labels_goes_with_a_word_and_no_key_is_for_the_next_one(
    page, begun, folder
):
    name = read_name(page)
    page.evaluate(ANSWER_SWAP, name)
    decide(begun, begun.known.index[name], "dog", "other")
    hear(page, "look at it, then press again")
    assert page.evaluate("said") == f"{name} was labeled elsewhere. This is another photo."
    assert read_name(page) != name
    assert len(read_decisions(folder)) == 7
    press(page, "1")
    gone = read_name(page)
    (folder / gone).unlink()
    begun.leave_out_missing()
    hear(page, f"{gone} needs no answer anymore")
    assert len(read_decisions(folder)) == 8


def test_rows_keep_their_photos_until_they_are_confirmed(visit, folder):
    with visit(open_unsure(folder, 90)) as page:
        before, places = dict(open_check(page)), find_places(page, ".row")
        for i, label in enumerate(CLASSES):
            page.locator(".confirm").nth(i).click()
            wait_for_row(page, label, before[label])
            page.wait_for_timeout(SETTLE_MS)
            rows = dict(list_rows(page))
            assert all(rows[other] == before[other] for other in CLASSES[i + 1 :])
            assert find_places(page, ".row") == places
        answers = {(name, label) for name, label, _ in read_decisions(folder)[6:]}
        assert answers == {(name, label) for label in CLASSES for name in before[label]}


def test_a_row_whose_confirmation_is_undone_asks_about_its_photos_again(page):
    before = open_check(page)
    page.locator(".confirm").first.click()
    wait_for_row(page, CLASSES[0], before[0][1])
    wait_for_count(page, "6", "Control+z")
    wait_for_row(page, CLASSES[0], before[0][1], is_same=True)
    assert list_rows(page)[1:] == before[1:]


def test_a_row_is_not_confirmed_before_its_photos_are_shown(page, folder):
    names = dict(open_check(page))[CLASSES[0]]
    confirm = page.locator(".confirm").first
    with hold(page, "photos/**"):
        confirm.click()
        wait_for_count(page, "1")
        assert [row[0] for row in read_decisions(folder)[6:]] == names
        page.wait_for_selector(".confirm[aria-disabled=true]")
        page.wait_for_timeout(SETTLE_MS)
        confirm.click(force=True)
        hear(page, NEW)
    page.wait_for_selector(".confirm[aria-disabled=false]")
    assert len(read_decisions(folder)) == 14
    confirm.click()
    wait_for_count(page, "2")


def test_a_row_that_another_window_has_answered_is_refused_and_then_asks_anew(page, begun, folder):
    names = open_check(page)[0][1]
    decide(begun, begun.known.index[names[3]], CLASSES[1], "other")
    wait_for_count(page, "7")
    page.wait_for_timeout(300)
    assert list_rows(page)[0][1] == names
    with hold(page, "photos/**"):
        page.locator(".confirm").first.click()
        hear(page, f"{names[3]} was labeled in the meantime")
        assert len(read_decisions(folder)) == 7
        page.wait_for_selector(f".tile[title='{names[3]}']", state="detached")
        page.wait_for_timeout(SETTLE_MS)
        page.locator(".confirm").first.click(force=True)
        hear(page, NEW)
    begun.change("other", rename_class, CLASSES[1], "")
    page.wait_for_selector(f".row:has-text('There is no class {CLASSES[1]} anymore.')")
    assert page.locator(".confirm:visible").count() == 2
    assert len(read_decisions(folder)) == 7 + 3  # The class's photos lost their label.


def test_suspects_keep_their_places_and_are_answered_once(page, begun, folder):
    mistakes = {12: 1, 15: 1, 19: 2}
    for image in range(6, 40):
        decide(begun, image, CLASSES[mistakes.get(image, image % 3)], "other")
    show(page, "suspects")
    cards = page.locator(".card")
    cards.nth(2).wait_for()
    page.wait_for_function("() => !document.querySelector('.hint').textContent.includes('ing the')")
    wait_for_photos(page)
    names, places = read_all(page, ".card", "ariaLabel"), find_places(page, ".card")
    other = begun.known.index[names[2]]
    decide(begun, other, CLASSES[other % 3], "other")
    before = len(read_decisions(folder))
    for i in range(2):
        for _ in range(2):
            cards.nth(i).locator(".others button").first.click(force=True)
            page.wait_for_timeout(SETTLE_MS)
    page.wait_for_timeout(2000)  # The classifier has learned from all.
    assert read_all(page, ".card", "ariaLabel")[: len(names)] == names
    assert find_places(page, ".card")[: len(names)] == places
    assert [row[0] for row in read_decisions(folder)[before:]] == names[:2]
    cards.nth(2).locator(".others button").first.click()
    hear(page, f"{names[2]} was labeled in the meantime")
    page.wait_for_selector(".card:nth-child(3) p:has-text('Labeled elsewhere.')")
    page.wait_for_selector(".card:first-child p:has-text('Labeled')")
    assert len(read_decisions(folder)) == before + 2
    page.keyboard.press("Control+z")  # Both are asked about again.
    page.keyboard.press("Control+z")
    page.wait_for_selector(".card:nth-child(-n+2) p:text-matches('[.]$')", state="detached")
    cards.first.locator(".others button").last.click()
    page.wait_for_selector(".card:first-child button[aria-disabled=true]")
    assert len(read_decisions(folder)) == before + 5


def test_on_a_phone_no_class_comes_between_a_finger_and_a_photo(visit, begun, folder):
    with visit(begun, PHONE) as page:
        show(page, "photos")
        names = read_all(page, OPEN)[:6]
        page.locator(OPEN).first.scroll_into_view_if_needed()
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


def test_no_class_moves_when_a_line_comes_or_goes_or_under_a_pointer(page, begun, folder):
    press(page, "1")
    places = find_places(page, ".class")
    begun.draw_sample()
    for _ in range(4):
        press(page, "2")
    page.locator(".hint:has-text('random photos left')").wait_for()
    assert find_places(page, ".class") == places
    show(page, "photos")
    places = find_places(page, ".class")
    choose(page, 0, 1, 2)
    assert find_places(page, ".class") == places
    show(page, "next")
    read_name(page)
    page.evaluate(CLICK_WHEN_CHANGED)
    begun.change("other", rename_class, "cat", "")
    hear(page, "The classes have changed: look at them")
    before = len(read_decisions(folder))
    page.wait_for_timeout(SETTLE_MS)
    page.locator(".class").nth(1).click()
    wait_for_count(page, "9")
    assert read_decisions(folder)[before:][0][1] == "owl"


def test_what_was_marked_or_dropped_is_there_when_its_view_is_shown_again(page, folder):
    path = folder.parent / "photo.png"
    Image.new("RGB", (40, 30), "teal").save(path)
    open_check(page)
    page.locator(".tile").nth(2).click()
    show(page, "photos")
    choose(page, 0, 1)
    show(page, "try")
    intercept(page, "**/api/try", lambda route: None)
    page.set_input_files("#files", path)
    page.wait_for_selector(".card:has-text('Waiting')")
    show(page, "photos")
    assert page.locator(SELECTED).count() == 2
    show(page, "check")
    assert page.locator(".tile[aria-pressed=true]").count() == 1
    assert page.locator(".confirm").first.inner_text() == "Confirm 7"
    show(page, "try")
    assert page.locator(".card:has-text('photo.png')").count() == 1


def test_a_reload_asks_before_it_loses_what_is_typed_or_marked(page):
    asked = []
    page.on("dialog", lambda dialog: asked.append(dialog.type) or dialog.accept())
    name = read_name(page)
    page.reload()
    assert asked == []
    assert read_name(page) == name
    page.keyboard.type("fo")
    page.reload()
    assert asked == ["beforeunload"]
    read_name(page)
    show(page, "check")
    page.locator(".tile").first.click()
    page.reload()
    assert asked == ["beforeunload"] * 2
    read_name(page)
    show(page, "classes")
    page.get_by_label("Description of cat").press_sequentially("x")
    page.reload()
    assert asked == ["beforeunload"] * 3
