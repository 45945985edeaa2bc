"""All photos as a grid: what the server describes, and what a browser shows of it."""

import string

import pytest

from cls_jax.photos.features.neighbors import normalize_rows
from cls_jax.photos.folder.label_table import LABELS_CSV
from cls_jax.photos.labeling import views
from cls_jax.photos.labeling.next_step import find_doubtful
from tests.conftest import one_of
from tests.photos.labeling.pages import (
    DESKTOP,
    OPEN,
    PHONE,
    RING,
    SELECTED,
    SETTLE_MS,
    choose,
    hear,
    open_labeled,
    open_unsure,
    read_all,
    read_decisions,
    read_name,
    see,
    show,
    wait_for_count,
    wait_for_photo,
    wait_until,
)
from tests.photos.labeling.sessions import (
    CLASSES,
    create_features,
    create_photos,
    decide,
    decide_all,
    fit,
    open_ready,
)

FILTER = "#filter-kind"
# The heading, what is typed for a class, and whether its field has the focus.
READ_FIELD = """() => {
  const search = document.querySelector(".chooser .search");
  const title = document.querySelector("h2").innerText;
  return [title, search.value, search === document.activeElement];
}"""
FIT_THEIR_ROWS = "all => all.map((one) => one.offsetHeight <= one.parentElement.offsetHeight)"
KEYS = ("name", "decision", "label", "revision", "copies")


def read_chosen(page):
    """What the panel says of the photos that the keys are for."""
    return page.locator(".selected-count").inner_text()


def test_photos_are_described_with_answers_suggestions_and_near_copies(folder, kinds):
    features = create_features(kinds)
    features[9] = features[0]
    session = open_ready(folder, kinds, ["cat", "dog"], features)
    assert set(views.describe_photos(session)["label"]) == {-1}  # Nothing is suggested yet.
    decide(session, 0, "cat")
    decide(session, 1, "dog")
    decide(session, 2, "", decision="none")
    decide(session, 3, "", decision="skip")
    (folder / "IMG_0007.png").unlink()
    session.leave_out_missing()
    found = views.describe_photos(session)
    rows = {row[0]: row[1:] for row in zip(*(found[key] for key in ("image", *KEYS)), strict=True)}
    assert list(rows) == [i for i in range(30) if i != 7]
    assert [rows[i] for i in range(4)] == [
        ("IMG_0000.png", "label", 0, 1, 0),
        ("IMG_0001.png", "label", 1, 1, -1),
        ("IMG_0002.png", "none", -1, 1, -1),
        ("IMG_0003.png", "skip", -1, 1, -1),
    ]
    assert rows[9][-1] == 0
    for image, confidence in zip(found["image"], found["confidence"], strict=True):
        if image > 3:
            _, decision, label, revision, _ = rows[image]
            (proposal, *_) = views.describe_image(session.known, image)["proposals"]
            assert (decision, revision) == ("", 0)
            assert proposal == {"label": found["labels"][label], "probability": confidence}


def test_similar_photos_are_the_nearest_of_those_in_the_folder(session, folder, kinds):
    unit = normalize_rows(create_features(kinds))
    order = [i for i in (-(unit @ unit[4])).argsort(kind="stable").tolist() if i != 4]
    assert views.find_similar(session.known, 4)["images"] == order[:24]
    (folder / f"IMG_{order[0]:04}.png").unlink()
    session.leave_out_missing()
    assert views.find_similar(session.known, 4)["images"] == order[1:25]


def test_a_group_is_saved_without_a_photo_that_was_deleted_while_it_was_selected(page, folder):
    show(page, "photos")
    names = choose(page, 0, 1, 2)
    (folder / names[1]).unlink()
    hear(page, f"2 photos: dog. {names[1]} is no longer", "2")
    wait_for_count(page, "8")
    assert read_decisions(folder)[6:] == [(names[i], "dog", "label") for i in (0, 2)]


def test_several_photos_get_a_class_by_mouse_and_by_keyboard(page, folder):
    show(page, "photos")
    assert page.locator(".head").first.inner_text().startswith(f"{CLASSES[0]} · ")
    names = read_all(page, ".cell")
    cells = page.locator(".cell")
    # By clicks: the second click on a photo takes it out again.
    cells.nth(0).click()
    cells.nth(3).click(modifiers=["Shift"])
    cells.nth(1).click()
    assert read_all(page, SELECTED) == [names[0], names[2], names[3]]
    wait_for_count(page, "9", "2")
    assert read_decisions(folder)[6:] == [(names[i], "dog", "label") for i in (0, 2, 3)]
    assert read_all(page, ".cell")[:4] == names[:4]  # Nothing moves until it is sorted again.
    assert read_all(page, SELECTED) == []
    wait_for_count(page, "6", "Control+z")  # The whole group.
    assert {row[2] for row in read_decisions(folder)[9:]} == {"undo"}
    assert read_all(page, SELECTED) == [names[0], names[2], names[3]]  # For the next key.
    page.keyboard.press("Escape")
    # By a rectangle, from the middle of a photo to the one below the next.
    boxes = [cells.nth(i).bounding_box() for i in (0, 6)]
    ends = [(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes]
    page.mouse.move(*ends[0])
    page.mouse.down()
    page.mouse.move(*ends[1], steps=4)
    page.mouse.up()
    assert read_all(page, SELECTED) == [names[i] for i in (0, 1, 5, 6)]
    page.keyboard.press("Escape")
    # By keys alone.
    cells.nth(0).focus()
    for key in ("ArrowRight", "Shift+ArrowRight", "Shift+ArrowDown", "Shift+ArrowLeft"):
        page.keyboard.press(key)
    assert read_all(page, SELECTED) == names[1:7]
    page.keyboard.press(" ")  # Takes out the photo with the focus.
    assert read_all(page, SELECTED) == names[1:6]
    hear(page, "5 photos: none of these", "0")
    assert [row[1:] for row in read_decisions(folder)[12:]] == [("", "none")] * 5
    again = page.get_by_role("button", name="Sort again")

    def sort():
        if again.is_visible():
            again.click()
        return again.is_hidden() and names[1] not in read_all(page, ".cell")[:6]

    wait_until(page, sort)  # Once more where the answers are loaded after the first time.
    assert sort()


@pytest.mark.parametrize("viewport", one_of(DESKTOP, PHONE))
def test_more_like_this_selects_those_that_the_page_names_alike(visit, begun, folder, viewport):
    with visit(begun, viewport) as page:
        show(page, "photos")
        page.locator(".cell").nth(0).focus()
        source = read_all(page, ".cell")[0]
        see(page, f"h2:has-text('More like {source}')", "+")
        found = views.describe_photos(begun)
        known = {
            name: (decision, found["labels"][label])
            for name, decision, label in zip(
                found["name"], found["decision"], found["label"], strict=True
            )
        }
        similar = views.find_similar(begun.known, int(source[4:8]))["images"]
        shown = [source, *(f"IMG_{i:04}.png" for i in similar)]
        agreeing = [name for name in shown if known[name] == ("", "cat")]
        others = [name for name in shown if known[name] != ("", "cat")]
        assert 3 < len(agreeing) < 24  # Others are named otherwise, or have an answer.
        assert {label for _, label in map(known.get, others)} > {"cat"}
        page.wait_for_selector(f".head:has-text('Suggested as cat · {len(agreeing)}')")
        assert page.locator(f".selected-count:text-is('{len(agreeing)} selected')").count()
        assert read_all(page, SELECTED) == [
            name for name in read_all(page, ".cell") if name in agreeing
        ]
        assert read_all(page, ".cell")[:4] == agreeing[:4]
        out = agreeing[1]
        page.locator(f".cell[aria-label^='{out}']").click()
        see(page, "h2:text-is('Photos')", "Enter")
        expected = [name for name in agreeing if name != out]
        assert read_decisions(folder)[6:] == [(name, "cat", "label") for name in expected]


def test_more_like_a_photo_without_a_suggestion_selects_nothing(visit, folder, kinds):
    with visit(open_ready(folder, kinds, CLASSES)) as page:
        show(page, "photos")
        page.locator(".cell").first.focus()
        see(page, "h2:has-text('More like')", "+")
        page.wait_for_selector(".cell:focus img")
        assert read_all(page, SELECTED) == []
        hear(page, "Nothing is suggested", "Enter")
    assert not (folder / LABELS_CSV).exists()


def test_no_letter_is_a_command(page, folder):
    """Whatever a class is called, its letters search and nothing else happens."""
    for view, letters in (("next", string.ascii_letters), ("photos", string.ascii_lowercase)):
        show(page, view)
        if view == "photos":
            choose(page, 0)
        title = page.locator("h2").first.inner_text()
        for letter in letters:
            page.keyboard.press(letter)
            assert page.evaluate(READ_FIELD) == [title, letter, True], view
            page.keyboard.press("Escape")
    assert len(read_decisions(folder)) == 6


def test_enter_gives_what_was_typed_though_another_photo_was_clicked_since(page, folder):
    """The search and the button with what is suggested never both claim the key."""
    show(page, "photos")
    cells = page.locator(OPEN)
    search, key = page.locator(".chooser .search"), page.locator(".answers > button kbd")
    cells.nth(0).click()
    assert key.first.is_visible()
    page.keyboard.type("fox")
    assert not key.first.is_visible()
    cells.nth(1).click()
    page.keyboard.press("2")  # Goes on with the name: no class shows a digit now.
    assert search.input_value() == "fox2"
    page.locator(".cell").first.focus()
    page.keyboard.press("Escape")  # First what was typed, then the selection.
    assert search.input_value() == ""
    assert page.locator(SELECTED).count() == 2
    page.keyboard.type("fox")
    names = read_all(page, OPEN)[:3]
    cells.nth(2).click()
    hear(page, "3 photos: fox", "Enter")
    assert search.input_value() == ""
    assert sorted(read_decisions(folder)[6:]) == sorted((name, "fox", "label") for name in names)


def test_filters_choose_and_only_what_is_in_view_is_in_the_page(visit, folder):
    kinds = create_photos(folder, 2000)
    features = create_features(kinds)
    features[1500] = features[3]
    session = open_ready(folder, kinds, CLASSES, features)
    with visit(decide_all(session, CLASSES, "other")) as page:
        show(page, "photos")
        total = page.evaluate("document.documentElement.scrollHeight")
        assert total > 50 * DESKTOP["height"]
        page.keyboard.press("ArrowDown")  # The first key only goes into the grid.
        page.keyboard.press("End")
        page.wait_for_function(f"() => scrollY > {total / 2}")
        assert page.locator(".cell").count() < 100
        assert page.get_attribute(".cell:focus", "aria-label").endswith("your answer")
        assert int(page.locator(".grid").get_attribute("aria-rowcount")) > 300
        page.fill("#filter-file", "img_004")
        page.wait_for_function("() => document.querySelectorAll('.cell').length === 10")
        assert sorted(read_all(page, ".cell")) == [f"IMG_{i:04}.png" for i in range(40, 50)]
        page.keyboard.press("Enter")
        page.keyboard.press("2")  # Goes on with the name, and no photo is chosen.
        assert page.locator("#filter-file").input_value() == "img_0042"
        see(page, ".cell:focus img", "ArrowDown")  # Goes to the first one, and says so.
        assert page.locator(RING).get_attribute("title") == read_chosen(page) == "IMG_0042.png"
        wait_for_count(page, "4", "2")
        assert read_decisions(folder)[-1] == ("IMG_0042.png", "dog", "label")
        page.fill("#filter-file", "nowhere")
        page.wait_for_selector(".hint:has-text('No photo matches')")
        page.focus("#filter-file")
        page.keyboard.press("Escape")
        page.wait_for_function("() => document.querySelectorAll('.cell').length > 3")
        page.select_option("#filter-kind", label="Look-alikes")
        page.wait_for_selector(".head:has-text('Look-alikes · 2')")
        assert read_all(page, ".cell") == ["IMG_0003.png", "IMG_1500.png"]
        page.select_option("#filter-kind", label="With an answer")
        page.select_option("#filter-label", label="dog")
        page.wait_for_selector(".head:has-text('dog · 2')")
        assert read_all(page, ".cell") == ["IMG_0001.png", "IMG_0042.png"]
        page.wait_for_selector(".cell .thumb img")
        # This one is three times as high as it is wide.
        assert all(page.locator(".cell").evaluate_all(FIT_THEIR_ROWS))
        page.select_option("#filter-below", label="Below 50%")
        page.wait_for_selector(".hint:has-text('No photo matches')")


def test_the_photos_to_look_at_are_shown_in_order_and_the_rest_is_sorted(visit, folder):
    session = open_unsure(folder, 60)
    with visit(session) as page:
        show(page, "result")
        page.select_option("#target", "98")
        page.wait_for_selector(".step:has-text('This is an estimate')")
        images, _ = find_doubtful(session, 98, fit(session).estimate())
        show(page, "photos")
        page.select_option(FILTER, "answered")
        show(page, "result")
        page.get_by_role("button", name=f"Look at these {len(images)}").click()
        names = [f"IMG_{image:04}.png" for image in images]
        page.wait_for_selector(f".cell[title='{names[0]}']:focus img")
        assert read_all(page, ".cell") == names[: len(read_all(page, ".cell"))]
        # What a key will do is seen: the ring and the panel say for which photo it is.
        assert page.locator(RING).get_attribute("title") == names[0]
        assert read_chosen(page) == names[0]
        assert page.locator("[data-part=confirm]").is_enabled()
        wait_for_count(page, "7", "Enter")  # As suggested, and on to the next one.
        page.wait_for_selector(f".cell[aria-label^='{names[1]}']:focus")
        # The corrected key is for the photo that has the ring.
        see(page, f".cell[title='{names[0]}'][aria-current=true]:focus", "Control+z")
        page.wait_for_timeout(SETTLE_MS)
        see(page, f".cell[aria-label^='{names[1]}']:focus", "Enter")
        back, clear = "[data-part=back] kbd", "[data-part=clear] kbd"
        assert (page.is_visible(back), page.is_visible(clear)) == (True, False)
        page.keyboard.press(" ")  # Selects it: Esc first takes that back.
        assert (page.is_visible(back), page.is_visible(clear)) == (False, True)
        page.keyboard.press("Escape")
        assert page.locator("h2").first.inner_text() == "Photos to look at"
        assert read_all(page, SELECTED) == []
        see(page, "h2:text-is('Photos')", "Escape")
        assert page.locator(FILTER).input_value() == ""  # "All photos", as the button said.
        show(page, "result")  # A list that was asked for is a promise.
        page.wait_for_selector(f".step:has-text('{len(images) - 1} of the {len(images)} photos')")
        page.fill("#unsure", "100")
        page.get_by_role("button", name="Copy into class folders").click()
        page.wait_for_selector("#view p:has-text('are in unsure')")
        assert len(list((folder.with_name("photos-classes") / "unsure").iterdir())) == 53
        button = page.locator(".mixed").first
        assert button.inner_text().endswith("could be either")  # Whichever is suggested.
        for viewport, num_lines in ((PHONE, 2), (DESKTOP, 1)):
            page.set_viewport_size(viewport)
            for one in ("[data-view=result]", "[data-view=try]"):
                box = page.locator(one).bounding_box()
                assert box["x"] + box["width"] <= viewport["width"]
            assert button.bounding_box()["height"] < 20 + 24 * num_lines
            other = button.locator("[data-part=could]")
            name = other.inner_text()
            cut = other.evaluate(
                """(element, name) => {
                  element.textContent = name.replace(/^[^:]*/, "glass bottle");
                  const { scrollWidth, clientWidth } = element.parentElement;
                  const cut = scrollWidth > clientWidth;
                  element.textContent = name;
                  return cut;
                }""",
                name,
            )
            assert not cut  # The other class is all that the button says.
        count = button.inner_text().split(" ")[1]
        button.click()
        page.wait_for_selector("h2:has-text(' or ')")
        assert 0 < page.locator(".cell").count() <= int(count)  # Those in view.
        show(page, "result")
        page.get_by_role("button", name=f"Look at these {len(images) - 1}").click()
        page.wait_for_selector("h2:has-text('Photos to look at')")
        page.wait_for_selector(".cell img")
        page.keyboard.press("Control+a")
        before = page.locator("#count").inner_text()
        hear(page, "Press the same key again to label all", "Enter")  # It asks first.
        page.wait_for_timeout(SETTLE_MS)
        assert page.locator("#count").inner_text() == before
        page.keyboard.press("Enter")
        page.wait_for_selector(".step:text-matches('^Done: .* all 60 photos')")  # At its end.
        assert page.locator("button:text-is('Look at some')").is_disabled()  # It says one thing.


def test_no_key_is_for_a_photo_that_nothing_shows_as_chosen(page, folder):
    show(page, "photos")
    cells = page.locator(".cell")
    for _ in range(2):  # A mouse selects, and takes out again.
        cells.nth(2).click()
        page.wait_for_timeout(SETTLE_MS)
    assert (read_chosen(page), page.locator(RING).count()) == ("No photo chosen", 0)
    hear(page, "Choose photos first.", "1")
    page.keyboard.press("ArrowRight")  # First, the ring is where the keyboard is.
    name = cells.nth(2).get_attribute("title")
    assert (read_chosen(page), page.locator(RING).get_attribute("title")) == (name, name)
    page.locator("#view h2").click()  # The focus is elsewhere, and the ring stays.
    assert page.evaluate("!document.activeElement.closest('.cell')")
    wait_for_count(page, "7", "1")
    assert read_decisions(folder)[6:] == [(name, "cat", "label")]
    page.keyboard.press("Escape")  # Then no key is for any photo.
    assert (read_chosen(page), page.locator(RING).count()) == ("No photo chosen", 0)


def test_a_photo_is_opened_by_two_clicks_on_it_and_leads_back_to_where_it_was(visit, folder):
    with visit(open_labeled(folder, 240)) as page:
        question = read_name(page)
        show(page, "photos")
        cell = page.locator(".cell").nth(2)
        name = cell.get_attribute("title")
        cell.click()  # The first of two clicks was on what has shown it.
        cell.evaluate(
            "cell => cell.dispatchEvent(new MouseEvent('dblclick', { bubbles: true, detail: 2 }))"
        )
        page.wait_for_timeout(300)
        assert page.locator("h2").first.inner_text() == "Photos"
        cell.dblclick()
        wait_for_photo(page, name)
        see(page, f".cell[title='{name}']", "Escape")
        see(page, ".cell:focus img", "Escape", "ArrowDown", "End")
        cell = page.locator(".cell:focus")
        name, label = cell.get_attribute("aria-label").split(", ")[:2]
        page.keyboard.press(" ")
        top = cell.bounding_box()["y"]
        assert page.evaluate("scrollY") > 1000
        for key in ("Escape", "1"):  # Back, and an answer, which leads back, too.
            page.locator("button:text-is('Open')").click()
            assert read_name(page) == name
            assert page.locator("#view h2").inner_text() == f"Your answer: {label}"
            see(page, f".cell[title='{name}'][aria-selected=true]", key)
            cell = page.locator(f".cell[title='{name}']")
            assert abs(cell.bounding_box()["y"] - top) < 60  # "Sort again" may have come.
            page.wait_for_timeout(SETTLE_MS)
        show(page, "classes")
        show(page, "photos")
        assert page.evaluate("scrollY") == 0
        show(page, "next")
        assert read_name(page) == question
    assert read_decisions(folder)[6:] == [(name, "cat", "label")]
