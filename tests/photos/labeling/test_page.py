"""The page in a real browser, where there is one: whole sessions by keyboard and by mouse."""

import codecs
import http.server
import json
import re
import signal
import threading

import numpy as np
import pytest
from PIL import Image

import cls_jax
from cls_jax.photos.features import network
from cls_jax.photos.labeling import classifier, photos
from cls_jax.photos.labeling.changes import describe_class, set_example
from cls_jax.photos.labeling.known import list_paths
from cls_jax.photos.labeling.training import FINE_TUNE, Training
from cls_jax.photos.shell import write_command
from tests.conftest import one_of
from tests.photos.labeling.pages import (
    BROKEN_WORDS,
    DESKTOP,
    NUM_BROKEN,
    PHONE,
    SETTLE_MS,
    VIEWS,
    ZOOMED,
    catch,
    check_views,
    enter,
    find_violations,
    hear,
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
)
from tests.photos.labeling.sessions import (
    CLASSES,
    create_features,
    create_photos,
    decide,
    decide_all,
    describe_some,
    open_ready,
    serve,
)
from tests.processes import PATIENCE_S

HOSTILE = "<img src=x onerror=document.title=1>"


def find_kind(name):
    return int(re.findall(r"\d+", name)[0]) % len(CLASSES)


def test_a_session_by_keyboard_from_no_label_to_a_table(visit, folder):
    with visit(open_ready(folder, create_photos(folder, 24))) as page:
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
        expected.append((read_name(page), "", "none"))
        for _ in range(10):  # Is held down, and answers once.
            page.keyboard.down("0")
            page.wait_for_timeout(30)
        page.keyboard.up("0")
        wait_for_other(page, expected[-1][0])
        press(page, "Control+z")
        expected.append((expected[-1][0], "", "undo"))
        assert read_name(page) == expected[-1][0]
        assert "Undone" in page.locator("#status").inner_text()
        assert read_decisions(folder) == expected
        page.reload()
        read_name(page)
        page.wait_for_selector("#undo:enabled")
        hear(page, "Undone", "Control+z")
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


def test_enter_takes_what_the_page_says_and_half_a_name_only_chooses(visit, folder):
    """`interpret` has more cases, and the chooser of the grid is the same."""
    classes = ["pikeperch", "perch", "foxglove", "fox"]
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
    expected = []
    with visit(open_ready(folder, create_photos(folder, 12), classes)) as page:
        for typed, keys, sentence, last, label in cases:
            name = read_name(page)
            page.keyboard.type(typed)
            for key in keys:
                page.keyboard.press(key)
            assert sentence in page.locator("#enter").inner_text()
            page.wait_for_timeout(SETTLE_MS)
            assert page.locator("#count").inner_text().startswith(f"{len(expected)} of")
            if label:
                press(page, last)
                expected.append((name, label, "label"))
                page.wait_for_selector("#enter", state="hidden")
            page.keyboard.press("Escape")
        for key in ("/", "Enter", "Escape", "c", "Backspace", "Enter"):  # Nothing is typed.
            page.keyboard.press(key)
        wait_for_decisions(page, folder, len(expected))
    assert read_decisions(folder) == expected


def test_a_session_by_mouse(page, folder):
    name = read_name(page)
    page.locator(".class", has_text=CLASSES[find_kind(name)]).click()
    wait_for_count(page, "7")

    show(page, "check")
    wait_for_photos(page)
    row = page.locator(f".row[data-label={CLASSES[0]}]")
    tiles = row.locator(".tile")
    names = read_all(page, f".row[data-label={CLASSES[0]}] .tile")
    marked = names.pop(1)
    tiles.nth(1).click()
    assert tiles.nth(1).get_attribute("aria-pressed") == "true"
    row.locator(".confirm").click()
    wait_for_decisions(page, folder, 7 + len(names))
    confirmed = read_decisions(folder)[7:]
    assert sorted(confirmed) == sorted((name, CLASSES[0], "label") for name in names)
    wait_for_count(page, str(7 + len(names))[0])  # Downloads wait until the page has followed.

    show(page, "result")
    command = write_command(["train", str(folder)])
    page.click("summary")
    page.wait_for_selector(f".command code:text-is('{command}')")
    assert page.locator("table.result tbody tr").count() == 3
    page.select_option("#format", label="COCO")
    for button, name, start in (
        (".download:has-text('CSV')", "sorted.csv", "file,label"),
        ("#xlsx", "sorted.xlsx", "PK"),
        ("#labels", "labels.coco.json", "{"),
    ):
        with page.expect_download() as download:
            page.click(button)
        assert download.value.suggested_filename == name
        content = download.value.path().read_bytes()
        assert content.removeprefix(codecs.BOM_UTF8).startswith(start.encode()), name

    show(page, "next")
    assert read_name(page) == marked  # What was marked as wrong is asked first.


@pytest.mark.parametrize("viewport", one_of(PHONE, DESKTOP))
def test_hostile_and_long_names_are_text_and_fit_and_no_usual_word_is_broken(
    visit, folder, viewport
):
    names = [f"{odd}{i}.png" for odd in (HOSTILE.replace("/", ""), "w" * 200) for i in range(6)]
    kinds = create_photos(folder, len(names), names)
    usual = ["paperboard", "cardboard", "glass bottles", *(f"class {i}" for i in range(30))]
    session = open_ready(folder, kinds, [HOSTILE, "w" * 255, *usual])
    decide_all(session, [HOSTILE, "w" * 255, *usual[:3], HOSTILE])
    with visit(session, viewport) as page:
        for view in VIEWS:
            show(page, view)
            if view == "result":
                page.locator("table.result", has_text=HOSTILE).wait_for()
            # Without its source, which arrives later, an image is complete, too.
            page.wait_for_function("() => [...document.images].every((i) => i.src && i.complete)")
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= viewport["width"], view
            broken = page.evaluate(BROKEN_WORDS, "#view :not(p, code)")
            assert [text for text in broken if not re.search("www|onerror", text)] == [], view
            assert page.evaluate(NUM_BROKEN) == 0
            assert page.title() == "photos: label photos"


def test_photos_and_folders_that_are_gone_are_named_and_labeling_goes_on(visit, folder):
    with visit(open_ready(folder, create_photos(folder, 12), CLASSES)) as page:
        show(page, "result")
        page.wait_for_selector("#save:disabled")  # Two classes must have labels.
        show(page, "next")
        gone = read_name(page)
        (folder / gone).unlink()
        hear(page, f"{gone} is no longer in the folder", "1")
        page.wait_for_selector("#count:has-text('of 11')")
        names = [press(page, "1")]
        away = folder.rename(folder.with_name("away"))
        hear(page, "photos is no longer there", "2")
        assert page.locator("#count").inner_text() == "1 of 11 labeled"
        page.reload()
        page.wait_for_selector(".wait:has-text('photos is no longer there')")
        away.rename(folder)  # It is plugged in again.
        names.append(press(page, "2"))
        show(page, "result")
        page.wait_for_selector("#save:enabled")
        answers = [(name, label, "label") for name, label in zip(names, CLASSES, strict=False)]
        assert read_decisions(folder) == answers
        for path in folder.glob("*.png"):
            path.unlink()
        page.reload()  # The photos that it asks for are gone.
        page.wait_for_selector(".empty:visible")


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
        assert read_name(again) != read_name(page)  # Each window asks about a photo of its own.
        press(again, "2")
        wait_for_count(page, "2")
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


def test_a_view_has_its_heading_before_its_content_arrives(page):
    intercept(page, "**/api/**", lambda route: None)  # Never answered.
    for view in VIEWS[1:]:
        page.click(f"nav button[data-view={view}]")
        levels = read_all(page, "#view :is(h1, h2, h3)", "tagName")
        assert levels == ["H2", *["H3"] * (len(levels) - 1)], view
        is_busy = page.locator("#view").get_attribute("aria-busy") == "true"
        assert is_busy == (view not in ("classes", "try")), view


@pytest.mark.parametrize("viewport", one_of(PHONE, DESKTOP, ZOOMED))
def test_axe_finds_nothing_and_nothing_is_cut_off(visit, begun, axe, viewport):
    decide(begun, 6, CLASSES[1], "other")
    begun.change("other", describe_class, CLASSES[0], "has whiskers")
    begun.change("other", set_example, 0)
    with visit(begun, viewport) as page:
        check_views(page, axe, viewport)


def test_a_slow_change_says_so_until_it_is_saved_or_refused(page):
    held = catch(page, "**/api/decide")
    for way in ("saved", "refused"):
        read_name(page)
        see(page, ".toast:text-is('Saving…')", "1")
        if way == "saved":
            held.pop().continue_()
            wait_for_count(page, "7")
            page.wait_for_selector(".toast", state="hidden")
        else:
            held.pop().fulfill(status=422, json={"message": "The disk is full."})
            page.wait_for_selector(".toast:text-is('The disk is full.')")
        assert "Saving" not in page.locator("#status").inner_text()


def test_keys_do_nothing_else_while_a_control_has_the_focus(visit, folder):
    with visit(open_ready(folder, create_photos(folder, 12), CLASSES)) as page:
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
        see(page, ".toast:text-matches('^Undone: IMG.* is no longer dog.$')", "Control+z")
        show(page, "next")
        read_name(page)
        wait_for_count(page, "0", "Backspace")


def test_pictures_that_arrive_move_nothing(page):
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


def test_a_photo_to_try_is_shown_and_labeled_when_it_is_added(monkeypatch, page, folder):
    def load(paths, report=None, backbones=None):
        return describe_some(range(len(paths)), create_features([0] * len(paths)))

    monkeypatch.setattr(photos, "load_all", load)
    monkeypatch.setattr(classifier, "read_photo", lambda file, backbones: load([file]).frozen)
    path = folder.parent / "photo.tif"  # Browsers do not show it.
    Image.new("RGB", (40, 30), "teal").save(path)
    show(page, "try")
    page.set_input_files("#files", path)
    page.wait_for_selector(".verdict")
    page.wait_for_function("() => document.querySelector('.card > img').naturalWidth === 40")
    page.get_by_label("Add photo.tif to the folder").press("Enter")
    page.wait_for_selector("figcaption:has-text('photo.tif')")  # It is asked about.
    read_name(page)
    enter(page, "newt")
    page.wait_for_selector(".card button:text-is('Added as photo.tif')")
    wait_for_count(page, "7")
    hear(page, "photo.tif is no longer newt", "Control+z")  # The label first,
    hear(page, "photo.tif stays in the folder", "Control+z")  # and no answer before it.
    assert read_decisions(folder)[-2:] == [
        ("photo.tif", "newt", "label"),
        ("photo.tif", "", "undo"),
    ]


def wait_for_phase(page, text):
    page.wait_for_selector(f".training p:has-text('{text}')")


@pytest.mark.slow
def test_from_a_few_labels_to_a_report(visit, tmp_path, monkeypatch):
    """Drawings, EfficientNet's own features, and three drawings from elsewhere.

    Small where the size is no property: few drawings, one device, a forward pass of four images,
    and a tiny network that is trained.
    """
    from docs.draw_images import KINDS, draw_picture  # Needs Playwright.

    folder, rng = tmp_path / "photos", np.random.default_rng(3)
    names = list(KINDS)[:3]
    folder.mkdir()
    for i in range(24):
        draw_picture(names[i % 3], rng).save(folder / f"IMG_{i:04}.jpg")
    others = [tmp_path / f"{name}.png" for name in names]
    for path in others:
        draw_picture(path.stem, rng).save(path)
    (tmp_path / "notes.txt").write_text("no photo")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")  # For the trainings.
    monkeypatch.setattr(network, "_BATCH_SIZE", 1)
    sizes = {
        "num_steps": 9999,
        "log_every": 1,
        "data.image_size": 32,
        "batch_size": 4,
        "mu": 1,
        "data.randaugment_ops": 0,
        "data.pipeline": "device",
        "model.init": "",
        "model.depth": 10,
        "model.width": 1,
    }
    session = photos.open_session(folder)
    session.load(lambda report: photos.load_all(list_paths(session.known), report))
    training = Training(folder, [f"--config.{key}={value}" for key, value in sizes.items()])
    # Nothing is planned where the number of steps is given.
    state = {
        "phase": "planned",
        "kind": FINE_TUNE,
        "message": "",
        "curve": [],
        "minutes": 10,
        "offer": {"sentence": "9999 steps", "minutes": 10, "is_possible": True},
        "step": 0,
        "steps": 0,
    }
    monkeypatch.setattr(training, "plan", lambda *_: training._state.update(state))
    with visit(decide_all(session, (names * 6)[:-1]), training=training) as page:
        press(page, str(1 + find_kind(read_name(page))))
        page.locator("nav button[data-view=result]").press("Enter")
        page.set_default_timeout(1000 * PATIENCE_S)
        page.wait_for_selector(".about:has-text('Learned from 18 labels of 3 classes')")
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

        page.locator("nav button[data-view=result]").press("Enter")
        page.locator("#train").press("Enter")
        page.locator("#accept:visible").press("Enter")
        metrics = tmp_path / "runs/photos-trained/metrics.jsonl"
        while not (metrics.exists() and re.search('"step": [1-9]', metrics.read_text())):
            page.wait_for_timeout(200)
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
        assert (0 < result["step"] < 9999, result["num_labels"]) == (True, 18)
        with page.context.expect_page() as opened:
            page.locator("#report").press("Enter")
        assert "photos" in opened.value.title()
        assert opened.value.locator("h1, h2").count() > 1


def test_a_page_whose_program_has_ended_says_so(open_page, begun, axe):
    with serve(begun) as port:
        page = open_page(port)
        read_name(page)
    page.evaluate(axe)
    see(page, "#stopped:visible", "1")
    assert find_violations(page) == []


def test_a_photo_is_enlarged_moved_and_shown_whole_again(page, folder):
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
