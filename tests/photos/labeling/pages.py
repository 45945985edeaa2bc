"""What the tests of the page in a browser share."""

import contextlib
import re

import numpy as np

from cls_jax.photos.folder.label_table import LABELS_CSV
from cls_jax.photos.folder.log import KEY
from tests.outcomes import read_table
from tests.photos.labeling.sessions import (
    CLASSES,
    create_features,
    create_photos,
    decide_all,
    open_ready,
)

VIEWS = ("next", "check", "suspects", "classes", "photos", "result", "try")
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
SEARCH = ".chooser .search"
OPEN, SELECTED = ".cell[data-decision='']", ".cell[aria-selected=true]"
RING = ".cell[aria-current=true]"
SETTLE_MS = 700  # A second key or click in the same place means the same for 600.
ZOOMED = {"width": 640, "height": 400}  # What 200% zoom leaves of the desktop.
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
# Clicks a button, and its place again as soon as the page has followed: for the page 300 ms later,
# however slow this machine is.
CLICK_AGAIN = """(button) => new Promise((resolve) => {
  const { x, y, width, height } = button.getBoundingClientRect();
  const [clientX, clientY] = [x + width / 2, y + height / 2];
  const click = (detail, timeStamp) => {
    const place = { clientX, clientY, bubbles: true, cancelable: true };
    const event = new PointerEvent("click", { ...place, detail });
    Object.defineProperty(event, "timeStamp", { value: timeStamp });
    document.elementFromPoint(clientX, clientY).dispatchEvent(event);
  };
  const first = performance.now();
  const watch = new MutationObserver(() => {
    watch.disconnect();
    setTimeout(() => resolve(click(2, first + 300)), 60);
  });
  watch.observe(document.querySelector("#strip"), { childList: true });
  click(1, first);
})"""
# Presses Enter again, 300 ms for the page after the first time, which `NOTE_ENTER` notes.
ENTER_AGAIN = """() => {
  const event = new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true });
  Object.defineProperty(event, "timeStamp", { value: window.entered + 300 });
  document.activeElement.dispatchEvent(event);
}"""
CAUGHT = re.compile(r"/page/api\.js\?caught$")
SEND_CAUGHT = "fetch('/page/api.js?caught', { cache: 'no-store' }).then((found) => found.text())"
NUM_BROKEN = "[...document.images].filter((i) => i.complete && !i.naturalWidth).length"
# A key of an input method in a field.
COMPOSE = """([selector, key]) => {
  const event = { key, isComposing: true, bubbles: true, cancelable: true };
  document.querySelector(selector).dispatchEvent(new KeyboardEvent("keydown", event));
}"""
NOTE_ENTER = """() => addEventListener("keydown", ({ key, timeStamp }) => {
  if (key === "Enter") window.entered = timeStamp;
}, { capture: true, once: true })"""


def read_name(page):
    """The name of the photo that is shown, once it is there."""
    page.wait_for_selector("figure[aria-busy=false] img")
    return page.locator("figcaption").inner_text().split(" · ")[0]


def press(page, *keys):
    """Presses keys and waits for the next photo."""
    name = read_name(page)
    for key in keys:
        page.keyboard.press(key)
    wait_for_other(page, name)
    return name


def enter(page, text):
    """Types a text, and Enter."""
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def see(page, selector, *keys):
    """Presses keys and waits until an element is there."""
    for key in keys:
        page.keyboard.press(key)
    page.wait_for_selector(selector)


def hear(page, said, *keys):
    """Presses keys and waits until the page says this."""
    see(page, f".toast:has-text('{said}')", *keys)


def wait_for_photo(page, name):
    """Waits until a photo is shown."""
    page.wait_for_selector(f"figcaption:has-text('{name}')")


def wait_for_other(page, name):
    """Waits until another photo is shown."""
    page.wait_for_function(
        "name => !document.querySelector('figcaption').textContent.startsWith(name)", arg=name
    )


def wait_for_count(page, digit, *keys):
    """Presses keys and waits until the number of labeled photos begins with a digit."""
    for key in keys:
        page.keyboard.press(key)
    page.wait_for_function(
        "digit => document.querySelector('#count').textContent[0] === digit", arg=digit
    )


def wait_until(page, is_so):
    """Waits for what the page does not show."""
    for _ in range(1500):
        if is_so():
            break
        page.wait_for_timeout(20)


def wait_for_decisions(page, folder, count, case=""):
    """Waits until the table has this many answers, and then a moment, in which none may follow.

    The page may not have heard of them.
    """
    wait_until(page, lambda: len(read_decisions(folder)) >= count)
    page.wait_for_timeout(300)
    assert len(read_decisions(folder)) == count, case


def show(page, view):
    """Opens a view and waits until it is complete: of "photos", until the first one is there."""
    page.click(f"nav button[data-view={view}]")
    page.wait_for_selector("#view:not([aria-busy])")
    if view == "photos":
        page.wait_for_selector(".cell .thumb img")


def read_all(page, selector, name="title"):
    """A property of all elements of a selector."""
    return page.locator(selector).evaluate_all("(all, name) => all.map((one) => one[name])", name)


def find_places(page, selector):
    """The upper left corners of elements."""
    return page.evaluate(
        """selector => [...document.querySelectorAll(selector)].map((one) => {
          const { x, y } = one.getBoundingClientRect();
          return [x, y];
        })""",
        selector,
    )


def choose(page, *places):
    """Clicks photos of the grid, by their places among those without an answer. Returns names."""
    for place in places:
        page.locator(OPEN).nth(place).click()
    names = read_all(page, OPEN)
    return [names[place] for place in places]


def wait_for_photos(page):
    """Waits until the photos of "check" or "suspects" are shown."""
    page.wait_for_function(
        "() => [...document.querySelectorAll('.page img')].every((one) => one.complete && one.src)"
    )
    page.wait_for_timeout(100)


def intercept(page, pattern, handle, **options):
    """Handles requests from now on, with the options of `page.route`.

    The page may learn of a route after the next key, whose request would pass, so the route has
    caught another request before this returns.
    """
    page.route(pattern, handle, **options)
    page.route(CAUGHT, lambda route: route.fulfill(body="caught"))
    while page.evaluate(SEND_CAUGHT) != "caught":
        pass
    page.unroute(CAUGHT)


def catch(page, pattern, **options):
    """Keeps the requests that come from now on, without an answer, in a list."""
    caught = []
    intercept(page, pattern, lambda route: caught.append(route), **options)
    return caught


@contextlib.contextmanager
def hold(page, path):
    """Lets requests wait until the end, at least one of which comes."""
    caught = catch(page, f"**/{path}")
    yield
    wait_until(page, lambda: caught)
    assert caught, path
    for route in caught:
        route.continue_()
    page.unroute(f"**/{path}")


def read_decisions(folder):
    """The answers in the table, without the keys of classes."""
    rows = [row for row in read_table(folder / LABELS_CSV) if row["decision"] != KEY]
    return [(row["file"], row["label"], row["decision"]) for row in rows]


def open_labeled(folder, num_images):
    """A session in which another window has given the first six photos their classes."""
    session = open_ready(folder, create_photos(folder, num_images), CLASSES)
    return decide_all(session, CLASSES * 2, "other")


def open_unsure(folder, num_images):
    """The same with features by which the classes are harder to tell apart."""
    kinds = create_photos(folder, num_images)
    features = create_features(kinds)
    features += np.random.default_rng(1).normal(0, 0.2, features.shape).astype(np.float32)
    return decide_all(open_ready(folder, kinds, CLASSES, features), CLASSES * 2, "other")


def find_violations(page, *rules, within="html"):
    """What axe, which the page has run before, finds wrong in an element, by all rules or some."""
    options = {"runOnly": rules} if rules else {}
    found = page.evaluate("given => axe.run(...given)", [within, options])
    return [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]]


def check_views(page, axe, viewport):
    """Of all views, axe finds nothing, nothing is cut off, and the classes are above the fold."""
    page.evaluate(axe)
    for button in page.locator(".class, .others button:visible").all():
        box = button.bounding_box()
        assert box["y"] + box["height"] <= viewport["height"]
    for view in VIEWS:
        show(page, view)
        if view == "photos":  # With all of its buttons.
            page.locator(".cell").first.click()
            page.wait_for_selector(".selected-count:has-text('1 selected')")
        for scheme, rules in (("light", ()), ("dark", ("color-contrast",))):
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            assert find_violations(page, *rules) == [], (view, scheme)
            assert page.evaluate(LOWEST_CONTRAST) >= 3, (view, scheme)
        assert page.evaluate(BROKEN_WORDS, "button, label, thead th") == [], view
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], view
