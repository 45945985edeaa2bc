"""The page in a real browser, where there is one: whole sessions by keyboard and by mouse."""

import http.server
import json
import re
import signal
import subprocess
import sys
import threading
import zipfile

import numpy as np
import pytest
from PIL import Image

import cls_jax
from cls_jax.photos.features import network
from cls_jax.photos.labeling import classifier, photos, views
from cls_jax.photos.labeling.changes import describe_class, set_example
from cls_jax.photos.labeling.known import list_paths
from cls_jax.photos.labeling.training import FINE_TUNE, Training
from cls_jax.photos.shell import write_command
from tests.conftest import ROOT, one_of
from tests.photos.labeling.pages import (
    DESKTOP,
    PHONE,
    VIEWS,
    ZOOMED,
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
    create_features,
    create_photos,
    decide,
    describe_some,
    open_ready,
    serve,
)
from tests.processes import PATIENCE_S

# The elements of a selector whose text does not fit their box, or breaks within a word.
BROKEN_WORDS = """(selector) => [...document.querySelectorAll(selector)].filter((element) => {
  const range = document.createRange();
  const texts = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE);
  return texts.some((text) => [...text.data.matchAll(/\\S+/g)].some(({ index, 0: word }) => {
    range.setStart(text, index);
    range.setEnd(text, index + word.length);
    return new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1;
  }));
}).map((element) => element.textContent)"""
# The lowest contrast between the border of a control and what is behind it (WCAG 1.4.11).
LOWEST_CONTRAST = """() => {
  const measure = (color) => {
    const [r, g, b] = color.match(/[\\d.]+/g).map((value) => value / 255);
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  };
  const ground = measure(getComputedStyle(document.body).backgroundColor);
  const controls = [...document.querySelectorAll("main button, main input:not([type=file])")];
  const styles = controls.map((control) => getComputedStyle(control));
  const edges = styles.filter((style) => style.borderTopWidth !== "0px");
  return Math.min(21, ...edges.map((style) => {
    const [low, high] = [ground, measure(style.borderTopColor)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  }));
}"""
NUM_BROKEN = "[...document.images].filter((i) => i.complete && !i.naturalWidth).length"
HOSTILE = "<img src=x onerror=document.title=1>"

# `cls-jax label` with features that need no network.
SERVE = """
import sys
from cls_jax.photos.labeling import photos, start
from tests.photos.labeling.sessions import create_features, describe_some
def load(files, on_progress, backbones):
    return describe_some(range(len(files)), create_features([i % 3 for i in range(len(files))]))
photos.load_all = load
start.label_folder(sys.argv[1], opens_browser=False)
"""


def find_kind(name):
    return int(re.findall(r"\d+", name)[0]) % len(CLASSES)


def test_a_session_by_keyboard_from_no_label_to_a_table(open_page, folder):
    kinds = create_photos(folder, 24)
    with serve(open_ready(folder, kinds)) as port:
        page = open_page(port)
        # The field for the first class has the focus. A blank cannot begin a class.
        expected = [(press(page, "Space"), "", "skip")]
        for _ in range(4):  # A new class is typed, a known one has a number.
            name = read_name(page)
            label = CLASSES[find_kind(name)]
            known = page.locator(".class .name").all_inner_texts()
            keys = [str(known.index(label) + 1)] if label in known else [*label, "Enter"]
            press(page, *keys)
            expected.append((name, label, "label"))
        expected.append((press(page, "Space"), "", "skip"))
        expected.append((press(page, "0"), "", "none"))
        press(page, "Control+z")
        expected.append((expected[-1][0], "", "undo"))
        assert read_name(page) == expected[-1][0]
        assert "Undone" in page.locator("#status").inner_text()
        assert read_decisions(folder) == expected
        page.reload()
        read_name(page)
        page.wait_for_selector("#undo:enabled")
        page.keyboard.press("Control+z")
        page.wait_for_selector(".toast:has-text('Undone')")
        expected.append((expected[-3][0], "", "undo"))  # The skipped one.
        assert read_decisions(folder) == expected
        read_name(page)
        label = page.locator(".class.proposed .name").inner_text()
        name = press(page, "Enter")  # The proposal.
        assert read_decisions(folder)[-1] == (name, label, "label")
        assert page.locator("#count").inner_text() == "5 of 24 labeled"
        assert page.locator("#strip li").count() == 6
        assert page.url.endswith("/")  # Without the token.


def test_all_of_the_page_and_all_classes_are_reached_by_keyboard_alone(visit, folder):
    classes = [f"class {i}" for i in range(30)]
    with visit(open_ready(folder, create_photos(folder, 12), classes)) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent").startswith("Skip to")
        for _ in range(11):  # Seven views, two buttons, the search field, the first class.
            page.keyboard.press("Tab")
        first = press(page, "Space")  # Presses the button that has the focus: does not skip.
        assert page.evaluate("document.activeElement.tagName") in ("BUTTON", "BODY")
        read_name(page)
        page.keyboard.press("c")  # Classes without a number are found by typing.
        page.keyboard.type("lass 2")
        assert page.locator(".class .name").all_inner_texts()[:2] == ["class 2", "class 20"]
        page.keyboard.type("7")
        second = press(page, "Enter")
        assert read_decisions(folder) == [
            (first, "class 0", "label"),
            (second, "class 27", "label"),
        ]


def test_enter_takes_what_the_page_says_and_half_a_name_only_chooses(open_page, folder):
    """`interpret` has more cases, and the chooser of the grid is the same."""
    classes = ["pikeperch", "perch", "foxglove", "fox"]
    session = open_ready(folder, create_photos(folder, 12), classes)
    cases = (  # What is typed, keys, what the page says then, and what the last key gives.
        ("FOX ", [], "Enter takes “fox”", "Enter", "fox"),
        ("pike", [], "Enter chooses pikeperch · Shift Enter: new class “pike”", "", ""),
        ("pike", ["Enter"], "Enter: pikeperch · Shift Enter: new", "Enter", "pikeperch"),
        ("fo", ["Enter"], "2 classes start with this: arrow keys choose one", "", ""),
        ("fo", ["ArrowDown", "ArrowDown"], "Enter: fox · Shift Enter: new", "Enter", "fox"),
        ("foxg", ["Tab"], "Enter takes “foxglove”", "Enter", "foxglove"),
        ("/", ["ArrowDown", "ArrowDown"], "Enter takes “perch”", "Enter", "perch"),
        ("pike", [], "Enter chooses pikeperch", "Shift+Enter", "pike"),
        ("trout", [], "Enter adds the new class “trout”", "Enter", "trout"),
    )
    with serve(session) as port:
        page = open_page(port)
        expected = []
        for typed, keys, sentence, last, label in cases:
            name = read_name(page)
            page.keyboard.type(typed)
            for key in keys:
                page.keyboard.press(key)
            assert sentence in page.locator("#enter").inner_text()
            page.wait_for_timeout(700)  # A second Enter means the same.
            assert page.locator("#count").inner_text().startswith(f"{len(expected)} of")
            if label:
                press(page, last)
                expected.append((name, label, "label"))
                page.wait_for_selector("#enter", state="hidden")
            page.keyboard.press("Escape")
    assert read_decisions(folder) == expected


def test_enter_in_an_empty_search_takes_nothing(visit, folder):
    with visit(open_labeled(folder, 12)) as page:
        for keys in (["/"], ["c", "Backspace"]):
            for key in (*keys, "Enter"):
                page.keyboard.press(key)
            page.keyboard.press("Escape")
        wait_for_decisions(page, folder, 6)
        # What the field says also holds once it has lost the focus.
        page.keyboard.type("new")
        page.locator(".photo").click()
        page.keyboard.press("Enter")
        wait_for_count(page, "7")
        assert read_decisions(folder)[-1][1] == "new"


def test_a_session_by_mouse(visit, folder):
    session = open_labeled(folder, 40)
    decide(session, 6, CLASSES[1], "other")  # A mistake.
    with visit(session) as page:
        name = read_name(page)
        page.locator(".class", has_text=CLASSES[find_kind(name)]).click()
        wait_for_count(page, "8")

        show(page, "check")
        row = page.locator(f".row[data-label={CLASSES[0]}]")
        wrong = row.locator(".tile").nth(1)
        marked = wrong.locator("img").get_attribute("alt")
        wrong.click()
        assert wrong.get_attribute("aria-pressed") == "true"
        row.locator(".confirm").click()
        wait_for_count(page, "1")
        confirmed = read_decisions(folder)[8:]
        assert [label for _, label, _ in confirmed] == [CLASSES[0]] * 7
        assert marked not in [file for file, _, _ in confirmed]

        show(page, "suspects")
        page.get_by_role("button", name=f"It is {CLASSES[0]}", exact=True).first.click()
        page.wait_for_selector(".hint:has-text('No suspect labels')")
        assert read_decisions(folder)[-1] == ("IMG_0006.png", CLASSES[0], "label")

        show(page, "result")
        command = write_command(["train", str(folder)])
        page.click("summary")
        page.wait_for_selector(f".command code:text-is('{command}')")
        assert page.locator("table.result tbody tr").count() == 3
        with page.expect_download() as download:
            page.click(".download:has-text('CSV')")
        assert len(download.value.path().read_text().splitlines()) == 41
        with page.expect_download() as download:
            page.click("#xlsx")
        assert download.value.suggested_filename == "sorted.xlsx"
        assert zipfile.is_zipfile(download.value.path())
        page.select_option("#format", label="COCO")
        with page.expect_download() as download:
            page.click("#labels")
        assert download.value.suggested_filename == "labels.coco.json"
        images = json.loads(download.value.path().read_text())["images"]
        labeled = {file for file, label, _ in read_decisions(folder) if label}
        assert {image["file_name"] for image in images} == labeled

        show(page, "next")
        assert read_name(page) == marked  # What was marked as wrong is asked first.
        page.click("#undo")
        page.wait_for_selector(".toast:has-text('Undone')")
        assert read_decisions(folder)[-1] == ("IMG_0006.png", CLASSES[1], "undo")
        page.locator("#strip button").last.click()  # An earlier answer is changed.
        page.wait_for_function(
            "() => document.querySelector('figcaption').textContent.includes('currently')"
        )


@pytest.mark.parametrize("viewport", one_of(PHONE, DESKTOP))
def test_hostile_and_long_names_are_text_and_fit_and_no_usual_word_is_broken(
    visit, folder, viewport
):
    names = [f"{HOSTILE.replace('/', '')}{i}.png" for i in range(6)]
    names += [f"{'w' * 200}{i}.png" for i in range(6)]
    kinds = create_photos(folder, len(names), names)
    usual = ["paperboard", "cardboard", "glass bottles", *(f"class {i}" for i in range(30))]
    session = open_ready(folder, kinds, [HOSTILE, "w" * 255, *usual])
    for image in range(6):
        decide(session, image, [HOSTILE, "w" * 255, *usual][image % 5])
    with visit(session, viewport) as page:
        for view in VIEWS:
            show(page, view)
            if view == "result":
                page.wait_for_selector(".result tbody tr")
            # Without its source, which arrives later, an image is complete, too.
            page.wait_for_function("() => [...document.images].every((i) => i.src && i.complete)")
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= viewport["width"], view
            broken = page.evaluate(BROKEN_WORDS, "#view :not(p, code)")
            assert [text for text in broken if not re.search("www|onerror", text)] == [], view
            assert page.evaluate(NUM_BROKEN) == 0
            assert page.title() == "photos: label photos"
        show(page, "result")
        assert HOSTILE in page.locator("table.result").inner_text()


def test_photos_that_are_deleted_meanwhile_are_left_out_and_labeling_goes_on(open_page, folder):
    session = open_ready(folder, create_photos(folder, 12), CLASSES)
    with serve(session) as port:
        page = open_page(port)
        show(page, "result")
        page.wait_for_selector("#save:disabled")  # Two classes must have labels.
        show(page, "next")
        gone = read_name(page)
        (folder / gone).unlink()
        page.keyboard.press("1")
        page.wait_for_selector(f".toast:has-text('{gone} is no longer in the folder')")
        page.wait_for_selector("#count:has-text('of 11')")
        names = [press(page, "1"), press(page, "2")]
        show(page, "result")
        page.wait_for_selector("#save:enabled")
        for path in folder.glob("*.png"):
            path.unlink()
        page.reload()  # The photos that it asks for are gone.
        page.wait_for_selector(".empty:visible")
    assert read_decisions(folder) == [(names[0], "cat", "label"), (names[1], "dog", "label")]


def test_a_folder_that_is_unplugged_is_named_until_it_is_back(visit, folder):
    with visit(open_ready(folder, create_photos(folder, 12), CLASSES)) as page:
        names = [press(page, "1")]
        away = folder.rename(folder.with_name("away"))
        page.keyboard.press("2")
        page.wait_for_selector(".toast:has-text('photos is no longer there')")
        assert page.locator("#count").inner_text() == "1 of 12 labeled"
        page.reload()
        page.wait_for_selector(".wait:has-text('photos is no longer there')")
        away.rename(folder)
        names.append(press(page, "2"))
    answers = [(name, label, "label") for name, label in zip(names, CLASSES, strict=False)]
    assert read_decisions(folder) == answers


def test_two_windows_at_once(open_page, folder):
    with serve(open_ready(folder, create_photos(folder, 12), CLASSES)) as port:
        first, second = open_page(port), open_page(port)
        names = [read_name(first), read_name(second)]
        assert names[0] != names[1]
        press(first, "1")
        press(second, "2")
        answers = [row[:2] for row in read_decisions(folder)]
        assert answers == list(zip(names, CLASSES[:2], strict=True))
        for page in (first, second):
            wait_for_count(page, "2")
            assert page.locator("#strip li").count() == 2
            # Both change the same answer: the second one is told.
            page.locator(f"#strip button[title='{names[0]}']").click()
            page.wait_for_function(
                "name => document.querySelector('figcaption').textContent.startsWith(name)",
                arg=names[0],
            )
        press(first, "3")
        second.keyboard.press("2")
        second.wait_for_selector(".toast:has-text('in the meantime')")
        assert len(read_decisions(folder)) == 3


def test_the_token_stays_in_its_tab_and_no_other_port_gets_it(open_page, folder):
    seen = []

    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(str(self.headers))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    session = open_ready(folder, create_photos(folder, 12), CLASSES)
    with serve(session) as port, http.server.HTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        page = open_page(port, secret="code")
        read_name(page)
        page.reload()
        press(page, "1")
        again = page.context.new_page()  # Without the token, and with the code once more.
        for secret in ("", "#code"):
            again.goto(f"http://127.0.0.1:{port}/{secret}")
            again.wait_for_selector(".wait:has-text('contains your access token')")
        again.goto(f"http://127.0.0.1:{port}/#token")
        press(again, "2")
        assert len(read_decisions(folder)) == 2
        assert page.context.cookies() == []
        show(again, "result")  # A tab with access opens another one.
        with page.context.expect_page() as opened:
            again.click("#window")
        press(opened.value, "1")
        page.goto(f"http://127.0.0.1:{other.server_port}/")
        assert page.evaluate("sessionStorage.length + localStorage.length") == 0
        assert len(seen) >= 1
        assert not re.search(f"token|code|cookie|:{port}", "".join(seen).lower())
        page.go_back()
        press(page, "1")
        other.shutdown()


def test_no_key_answers_for_a_photo_that_nobody_has_seen(open_page, folder):
    with serve(open_labeled(folder, 24)) as port:
        page = open_page(port)
        for key in ("1", "Enter", " "):  # Held down.
            press(page, "1")
            before = len(read_decisions(folder))
            read_name(page)
            for _ in range(10):
                page.keyboard.down(key)
                page.wait_for_timeout(30)
            page.keyboard.up(key)
            read_name(page)
            assert len(read_decisions(folder)) == before + 1
        held = []
        page.route("**/photos/*/large", lambda route: held.append(route))
        page.reload()
        page.wait_for_selector("figure[aria-busy=true] img", state="attached")
        before = read_decisions(folder)
        for key in ("1", "0", " ", "Enter", "c", "Enter"):
            page.keyboard.press(key)
        page.locator(".class").first.click()
        assert read_decisions(folder) == before
        held[0].abort()  # It can only be skipped.
        page.wait_for_selector(".toast:has-text('cannot be read')")
        page.keyboard.press("Escape")
        page.keyboard.press("1")
        assert read_decisions(folder) == before
        name = page.locator("figcaption").inner_text()
        page.keyboard.press(" ")
        wait_for = "name => document.querySelector('figcaption').textContent !== name"
        page.wait_for_function(wait_for, arg=name)
        assert read_decisions(folder)[len(before) :] == [(name, "", "skip")]


def test_a_view_has_its_heading_before_its_content_arrives(visit, folder):
    with visit(open_labeled(folder, 12)) as page:
        page.route("**/api/**", lambda route: None)  # Never answered.
        for view in VIEWS[1:]:
            page.click(f"nav button[data-view={view}]")
            headings = page.locator("#view").locator("h1, h2, h3")
            levels = headings.evaluate_all("all => all.map((one) => one.tagName)")
            assert levels == ["H2", *["H3"] * (len(levels) - 1)], view
            is_busy = page.locator("#view").get_attribute("aria-busy") == "true"
            assert is_busy == (view not in ("classes", "try")), view


@pytest.mark.parametrize("viewport", one_of(PHONE, DESKTOP, ZOOMED))
def test_axe_finds_nothing_and_nothing_is_cut_off(visit, folder, axe, viewport):
    session = open_labeled(folder, 24)
    decide(session, 6, CLASSES[1], "other")
    session.change("other", describe_class, CLASSES[0], "has whiskers")
    session.change("other", set_example, 0)
    with visit(session, viewport) as page:
        page.evaluate(axe)
        for button in page.locator(".class").all():  # Above the fold.
            box = button.bounding_box()
            assert box["y"] + box["height"] <= viewport["height"]
        for view in VIEWS:
            show(page, view)
            if view == "photos":  # With all of its buttons.
                page.locator(".cell").first.click()
                page.wait_for_selector(".selected-count:has-text('1 selected')")
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                found = page.evaluate("axe.run()")["violations"]
                found = [(one["id"], one["nodes"][0]["html"]) for one in found]
                assert found == [], (view, scheme)
                assert page.evaluate(LOWEST_CONTRAST) >= 3, (view, scheme)
            assert page.evaluate(BROKEN_WORDS, "button, label, thead th") == [], view
            assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], view


def test_a_class_without_photos_is_deleted_while_its_name_is_changed(visit, folder):
    with visit(open_labeled(folder, 12)) as page:
        show(page, "classes")
        page.fill("#new-class", "oops")
        page.keyboard.press("Enter")
        page.get_by_label("Name of oops").fill("oop")
        page.get_by_label("Delete oops").click(delay=200)
        page.wait_for_selector(".toast:text-is('oops deleted. Undo brings oops back.')")
        page.wait_for_function("document.querySelectorAll('.class-row').length === 3")
        assert page.locator(".class-row .search[aria-label^=Name]").evaluate_all(
            "all => all.map((one) => one.value)"
        ) == list(CLASSES)


def test_the_page_says_what_became_of_a_class_and_its_photos(visit, folder):
    session = open_labeled(folder, 12)
    session.add_class("gla")
    with visit(session) as page:
        show(page, "classes")
        for name, new, said in (
            ("gla", "Dog", "gla merged into Dog: no photo moved."),
            ("cat", "lynx", "cat is now lynx (2 photos)."),
            ("lynx", "dog", "lynx merged into dog: 2 photos moved."),
            ("owl", "", "owl deleted. Now unlabeled: 2 photos."),
            ("dog", "", "dog deleted. Now unlabeled: 4 photos."),  # At once after the other.
        ):
            if new:
                page.get_by_label(f"Name of {name}").fill(new)
                page.keyboard.press("Enter")
            else:
                page.get_by_label(f"Delete {name}").click()
            page.wait_for_selector(f".toast:text-is('{said} Undo brings {name} back.')")


def test_a_slow_change_says_so_until_it_is_saved_or_refused(visit, folder):
    session = open_labeled(folder, 12)
    with visit(session) as page:
        held = []
        page.route("**/api/decide", lambda route: held.append(route))
        for way in ("saved", "refused"):
            read_name(page)
            page.keyboard.press("1")
            page.wait_for_selector(".toast:text-is('Saving…')")
            if way == "saved":
                held.pop().continue_()
                wait_for_count(page, "7")
                page.wait_for_selector(".toast", state="hidden")
            else:
                held.pop().fulfill(status=422, json={"message": "The disk is full."})
                page.wait_for_selector(".toast:text-is('The disk is full.')")
            assert "Saving" not in page.locator("#status").inner_text()


def test_keys_do_nothing_else_while_a_control_has_the_focus(visit, folder):
    session = open_ready(folder, create_photos(folder, 12), CLASSES)
    with visit(session) as page:
        press(page, "1")
        press(page, "2")
        for view, selector in (
            ("classes", "select"),
            ("classes", ".class-row button"),
            ("photos", "#filter-kind"),
            ("result", "#target"),
            ("result", "#train"),
        ):
            show(page, view)
            page.locator(selector).first.focus()
            page.keyboard.press("Backspace")
            if selector != ".class-row button":
                page.keyboard.press("1")
        page.wait_for_timeout(200)
        assert [row[2] for row in read_decisions(folder)] == ["label"] * 2
        page.locator("#target").focus()
        page.keyboard.press("Control+z")
        page.wait_for_selector(".toast:text-matches('^Undone: IMG.* is no longer dog.$')")
        show(page, "next")
        read_name(page)
        page.keyboard.press("Backspace")
        wait_for_count(page, "0")


def test_pictures_that_arrive_move_nothing(visit, folder):
    with visit(open_labeled(folder, 24)) as page:
        page.evaluate(
            """() => {
              window.moved = [];
              const note = (list) => list.getEntries().forEach((entry) => {
                if (!entry.hadRecentInput) window.moved.push(entry.value);
              });
              new PerformanceObserver(note).observe({ type: "layout-shift", buffered: false });
            }"""
        )
        press(page, "1")
        press(page, "2")
        page.wait_for_timeout(600)
        assert sum(page.evaluate("window.moved")) < 0.01


def test_classes_are_changed_by_keyboard_and_every_change_is_undone(visit, folder):
    session = open_labeled(folder, 12)
    with visit(session) as page:
        show(page, "classes")
        page.get_by_label("Description of cat").fill("has whiskers")
        page.keyboard.press("Enter")
        page.wait_for_function("() => !document.querySelector('#undo').disabled")
        for typed, toast, names in (
            ("kitten", "cat is now kitten (2 photos)", ["kitten", "dog", "owl"]),
            ("dog", "cat merged into dog: 2 photos moved", ["dog", "owl"]),
            ("Cat", "cat is now Cat (2 photos)", ["Cat", "dog", "owl"]),
        ):
            page.get_by_label("Name of cat").fill(typed)
            page.keyboard.press("Enter")
            page.wait_for_selector(f".toast:has-text('{toast}')")
            assert [row["name"] for row in views.describe(session)["classes"]] == names
            page.keyboard.press("Control+z")
            page.wait_for_selector("input[aria-label='Name of cat']")
            assert page.get_by_label("Key of cat").input_value() == "1"
        for typed, toast in (("fox", "fox added"), ("Dog", "There is already a class named dog")):
            page.get_by_label("Name of a new class").fill(typed)
            page.keyboard.press("Enter")
            page.wait_for_selector(f".toast:has-text('{toast}')")
        assert views.describe(session)["classes"][-1]["name"] == "fox"
        page.get_by_label("Delete cat").press("Enter")
        page.wait_for_selector(".toast:has-text('cat deleted. Now unlabeled: 2 photos')")
        page.keyboard.press("Control+z")
        page.wait_for_selector("input[aria-label='Name of cat']")
        for said in ("fox is no longer a class", "the description of cat"):
            page.keyboard.press("Control+z")
            page.wait_for_selector(f".toast:text-is('Undone: {said}.')")
        page.wait_for_function(
            "() => !document.querySelector('input[aria-label=\"Description of cat\"]').value"
        )
        page.locator("#strip button[title='IMG_0005.png']").click()
        page.get_by_role("button", name="Example of owl").click()
        page.wait_for_selector(".class .name img")
        assert views.describe(session)["classes"][2]["example"] == 5
        page.wait_for_function("() => document.querySelector('.class .name img').naturalWidth")
        page.keyboard.press("o")
        page.keyboard.press("Escape")  # It is there in every list.
        page.wait_for_timeout(300)
        assert page.evaluate(NUM_BROKEN) == 0


def test_a_photo_to_try_is_shown_and_labeled_when_it_is_added(visit, folder, monkeypatch):
    def load(paths, report=None, backbones=None):
        return describe_some(range(len(paths)), create_features([0] * len(paths)))

    monkeypatch.setattr(photos, "load_all", load)
    monkeypatch.setattr(classifier, "read_photo", lambda file, backbones: load([file]).frozen)
    path = folder.parent / "photo.tif"  # Browsers do not show it.
    Image.new("RGB", (40, 30), "teal").save(path)
    with visit(open_labeled(folder, 24)) as page:
        show(page, "try")
        page.set_input_files("#files", path)
        page.wait_for_selector(".verdict")
        page.wait_for_function("() => document.querySelector('.card > img').naturalWidth === 40")
        page.get_by_label("Add photo.tif to the folder").press("Enter")
        page.wait_for_selector("figcaption:has-text('photo.tif')")  # It is asked about.
        read_name(page)
        page.keyboard.type("newt")
        page.keyboard.press("Enter")
        page.wait_for_selector(".card button:text-is('Added as photo.tif')")
        wait_for_count(page, "7")
        page.keyboard.press("Control+z")  # The label first, and no answer before it.
        page.wait_for_selector(".toast:has-text('photo.tif is no longer newt')")
        page.keyboard.press("Control+z")
        page.wait_for_selector(".toast:has-text('photo.tif stays in the folder')")
    assert read_decisions(folder)[-2:] == [
        ("photo.tif", "newt", "label"),
        ("photo.tif", "", "undo"),
    ]


def offer_training(training, offer):
    training._state |= {"phase": "planned", "kind": FINE_TUNE, "message": "", "curve": []}
    training._state |= {"minutes": 10, "step": 0, "steps": 0, "offer": offer}


def wait_for_phase(page, text):
    page.wait_for_selector(f".training p:has-text('{text}')")


@pytest.mark.slow
def test_from_the_first_photo_to_a_report(open_page, tmp_path, monkeypatch):
    """Drawings, EfficientNet's own features, and three drawings from elsewhere.

    Small where the size is no property: few drawings, one device, a forward pass of four images,
    and of EfficientNet only the last stage and the head are trained.
    """
    from docs.draw_images import KINDS, draw_picture  # Needs Playwright.

    folder, rng = tmp_path / "photos", np.random.default_rng(3)
    names = list(KINDS)[:3]
    folder.mkdir()
    for i in range(40):
        draw_picture(names[i % 3], rng).save(folder / f"IMG_{i:04}.jpg")
    others = [tmp_path / f"{name}.png" for name in names]
    for path in others:
        draw_picture(path.stem, rng).save(path)
    (tmp_path / "notes.txt").write_text("no photo")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")  # For the trainings.
    monkeypatch.setattr(network, "_BATCH_SIZE", 1)
    sizes = {"num_steps": 300, "data.image_size": 32, "batch_size": 4, "mu": 1}
    sizes |= {"data.randaugment_ops": 0, "optimizer.frozen_stages": 6, "data.pipeline": "device"}
    session = photos.open_session(folder)
    session.load(lambda report: photos.load_all(list_paths(session.known), report))
    training = Training(folder, [f"--config.{key}={value}" for key, value in sizes.items()])
    # Nothing is planned where the number of steps is given.
    offer = {"sentence": "300 steps", "minutes": 10, "is_possible": True}
    monkeypatch.setattr(training, "plan", lambda *_: offer_training(training, offer))
    with serve(session, training) as port:
        page = open_page(port)
        for _ in range(30):
            label = names[int(read_name(page)[4:8]) % 3]
            known = page.locator(".class .name").all_inner_texts()
            press(page, *([str(known.index(label) + 1)] if label in known else [*label, "Enter"]))
        page.locator("nav button[data-view=result]").press("Enter")
        page.set_default_timeout(1000 * PATIENCE_S)
        page.wait_for_selector(".about:has-text('Learned from 30 labels of 3 classes')")
        page.locator("#save").press("Enter")
        wait_for_phase(page, "Finished: runs/photos-instant")
        saved = cls_jax.load(tmp_path / "runs/photos-instant")
        assert saved.predict(list(map(str, others))).label.tolist() == names

        page.locator("nav button[data-view=try]").press("Enter")
        page.set_input_files("#files", [*others, tmp_path / "notes.txt"])
        page.wait_for_selector(".card:nth-child(4) .wrong")
        assert page.locator(".verdict").all_inner_texts() == names
        assert page.locator(".card .nearest .share").all_inner_texts()[:3] == [names[0]] * 3
        assert "cannot be read" in page.locator(".wrong").inner_text()
        page.get_by_label("Add boat.png to the folder").press("Enter")
        page.wait_for_selector(".toast:has-text('1 new photo')")
        assert views.describe(session)["counts"]["images"] == 41

        page.locator("nav button[data-view=result]").press("Enter")
        page.locator("#train").press("Enter")
        page.locator("#accept:visible").press("Enter")
        metrics = tmp_path / "runs/photos-trained/metrics.jsonl"
        while not (metrics.exists() and re.search('"step": [1-9]', metrics.read_text())):
            page.wait_for_timeout(10)
            state = training.describe()
            assert state["phase"] in ("planned", "running"), state["message"]
        training._process.send_signal(signal.SIGSTOP)  # Not to end before the page says so.
        page.wait_for_selector(".training p:text-matches('Step [1-9]')")  # There is one to keep.
        page.reload()  # The training continues, and is shown again.
        read_name(page)
        page.locator("nav button[data-view=result]").press("Enter")
        page.locator("#stop:visible").press("Enter")  # While hidden, it gets no key.
        wait_for_phase(page, "Ending here")
        training._process.send_signal(signal.SIGCONT)
        wait_for_phase(page, "Finished: runs/photos-trained")
        result = json.loads((tmp_path / "runs/photos-trained/result.json").read_text())
        assert (0 < result["step"] < 300, result["num_labels"]) == (True, 30)
        with page.context.expect_page() as opened:
            page.locator("#report").press("Enter")
        assert "photos" in opened.value.title()
        assert opened.value.locator("h1, h2").count() > 1


def test_a_kill_in_the_middle_loses_no_answer(open_page, folder):
    create_photos(folder, 12)
    command = [sys.executable, "-c", SERVE, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            ((port, secret),) = re.findall(r":(\d+)/#(\S+)", process.stdout.readline())
            page = open_page(port, secret=secret)
            page.wait_for_selector(".frame img")
            answers = [press(page, "x", "Enter"), press(page, "1"), press(page, "1")]
        finally:
            process.kill()
        process.wait()
        page.keyboard.press("1")
        page.wait_for_selector("#stopped:visible")
    assert [row[:2] for row in read_decisions(folder)] == [(name, "x") for name in answers]


CLICK_TWICE = """([first, second]) => [first, second].forEach((name) => {
  const place = { clientX: 500, clientY: 300, detail: 1, bubbles: true, cancelable: true };
  document.querySelector(`[aria-label="${name}"]`).dispatchEvent(new MouseEvent("click", place));
})"""


def test_a_second_click_is_not_for_the_button_that_moved_there(visit, folder):
    session = open_labeled(folder, 12)
    with visit(session) as page:
        show(page, "classes")
        page.get_by_label("Delete cat").wait_for()
        page.evaluate(CLICK_TWICE, ["Delete cat", "Delete dog"])
        page.wait_for_selector(".toast:has-text('cat deleted')")
        assert [row["name"] for row in views.describe(session)["classes"]] == ["dog", "owl"]


def test_escape_leaves_a_class_as_it_is_and_undo_in_a_field_is_for_its_text(visit, folder):
    session = open_labeled(folder, 12)
    with visit(session) as page:
        press(page, "1")  # Which Ctrl Z could undo.
        before = read_decisions(folder)
        show(page, "classes")
        name = page.get_by_label("Name of cat")
        name.press("End")
        name.press_sequentially("x")
        name.press("Escape")
        assert name.input_value() == "cat"
        new = page.get_by_label("Name of a new class")
        new.press_sequentially("f")
        new.press("Backspace")
        new.press("Control+z")  # Brings the letter back, and no answer is undone.
        show(page, "next")
        read_name(page)
        show(page, "classes")
        assert new.input_value() == "f"  # Half a name is kept.
    assert read_decisions(folder) == before
    assert [row["name"] for row in views.describe(session)["classes"]] == ["cat", "dog", "owl"]
