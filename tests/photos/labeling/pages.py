"""What the tests of the page in a browser share."""

import numpy as np

from cls_jax.photos.folder.label_table import KEY, LABELS_CSV
from cls_jax.photos.labeling.photos import open_session
from tests.outcomes import read_table
from tests.photos.labeling.sessions import (
    CLASSES,
    create_features,
    create_photos,
    decide,
    describe_some,
    open_ready,
)

VIEWS = ("next", "check", "suspects", "classes", "photos", "result", "try")
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
SEARCH = ".chooser .search"
ZOOMED = {"width": 640, "height": 400}  # What 200% zoom leaves of the desktop.
# Notes when Enter was pressed.
COUNT_ENTERS = """() => {
  window.enters = [];
  const note = ({ key, timeStamp }) => key === "Enter" && window.enters.push(timeStamp);
  addEventListener("keydown", note, { capture: true });
}"""


def read_name(page):
    """The name of the photo that is shown, once it is there."""
    page.wait_for_selector("figure[aria-busy=false] img")
    return page.locator("figcaption").inner_text().split(" · ")[0]


def press(page, *keys):
    """Presses keys and waits for the next photo."""
    name = read_name(page)
    for key in keys:
        page.keyboard.press(key)
    page.wait_for_function(
        "name => !document.querySelector('figcaption').textContent.startsWith(name)", arg=name
    )
    return name


def wait_for_count(page, digit):
    """Waits until the number of labeled photos begins with a digit."""
    page.wait_for_function(
        "digit => document.querySelector('#count').textContent[0] === digit", arg=digit
    )


def wait_for_decisions(page, folder, count):
    """Waits until the table has this many answers, and then a moment, in which none may follow."""
    for _ in range(1500):
        if len(read_decisions(folder)) >= count:
            break
        page.wait_for_timeout(20)
    page.wait_for_timeout(300)
    assert len(read_decisions(folder)) == count


def show(page, view):
    """Opens a view and waits until it is complete: of "photos", until the first one is there."""
    page.click(f"nav button[data-view={view}]")
    page.wait_for_selector("#view:not([aria-busy])")
    if view == "photos":
        page.wait_for_selector(".cell .thumb img")


def wait_for_photos(page):
    """Waits until the photos of "check" or "suspects" are shown."""
    page.wait_for_function(
        "() => [...document.querySelectorAll('.page img')].every((one) => one.complete && one.src)"
    )
    page.wait_for_timeout(100)


def hold(page, path, folder="api"):
    """Lets requests wait until `release`, which is returned."""
    held = []
    page.route(f"**/{folder}/{path}", lambda route: held.append(route))

    def release():
        while not held:
            page.wait_for_timeout(20)
        for route in held:
            route.continue_()
        page.unroute(f"**/{folder}/{path}")

    return release


def read_decisions(folder):
    """The answers in the table, without the keys of classes."""
    rows = [row for row in read_table(folder / LABELS_CSV) if row["decision"] != KEY]
    return [(row["file"], row["label"], row["decision"]) for row in rows]


def open_labeled(folder, num_images):
    """A session in which another window has given the first six photos their classes."""
    session = open_ready(folder, create_photos(folder, num_images), CLASSES)
    for image in range(6):
        decide(session, image, CLASSES[image % 3], "other")
    return session


def open_unsure(folder, num_images):
    """The same with features by which the classes are harder to tell apart."""
    kinds = create_photos(folder, num_images)
    session, features = open_session(folder, CLASSES), create_features(kinds)
    features += np.random.default_rng(1).normal(0, 0.2, features.shape).astype(np.float32)
    session.load(lambda report: describe_some(range(len(kinds)), features))
    for image in range(6):
        decide(session, image, CLASSES[image % 3], "other")
    return session
