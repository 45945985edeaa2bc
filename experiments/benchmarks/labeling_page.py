"""The labeling page in Chromium: frames per second of the grid, and the time from key to photo.

python -m experiments.benchmarks.labeling_page [--photos 2000,10000]

Small drawings with random features of five groups, so no network runs, but as many features as
EfficientNet has. The server is a process of its own, as for a user. The classifier is fitted in it
after every ten answers. Needs Chromium, Playwright and the extra `label`.
"""

import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import numpy as np
from playwright import sync_api

from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.labeling import photos, start
from cls_jax.photos.labeling.known import Features
from docs.draw_images import KINDS, draw_picture, launch
from experiments.paper import grid

_NUM_DRAWN = 200  # Others are links to these, which the server reads and encodes all the same.
_NUM_FEATURES = 1280
_NUM_ANSWERS = 12
_SIZE = (320, 240)
_VIEWPORT = {"width": 1280, "height": 800}
_TIMEOUT_MS = 600_000
# Scrolls by some pixels in each frame. Returns the times of all frames, in milliseconds.
_SCROLL = """([pixels, duration]) => new Promise((resolve) => {
  const times = [];
  const step = (now) => {
    times.push(now);
    if (now - times[0] > duration) return resolve(times);
    scrollBy(0, pixels);
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})"""
# From the key to the next photo on the screen, in milliseconds.
_PRESS = """(key) => new Promise((resolve) => {
  const figure = document.querySelector("figure.photo");
  const name = figure.querySelector("figcaption").textContent;
  const before = performance.now();
  const observer = new MutationObserver(() => {
    const isNew = figure.querySelector("figcaption").textContent !== name;
    if (!isNew || figure.getAttribute("aria-busy") !== "false") return;
    observer.disconnect();
    resolve(performance.now() - before);
  });
  observer.observe(figure, { attributes: true, subtree: true, childList: true });
  document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
})"""
# From the key to the class under a selected photo, in milliseconds.
_PRESS_IN_GRID = """(key) => new Promise((resolve) => {
  const cell = document.querySelector(".cell[aria-selected=true]:not([data-decision=label])");
  const before = performance.now();
  const observer = new MutationObserver(() => {
    if (cell.dataset.decision !== "label") return;
    observer.disconnect();
    requestAnimationFrame(() => resolve(performance.now() - before));
  });
  observer.observe(cell, { attributes: true });
  document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
})"""


def main() -> None:
    """Measures, or serves the page of a folder of drawings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", default="2000,10000", help="comma-separated numbers of photos")
    parser.add_argument("--output", help="a .md to write (default: print)")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return
    rows = [measure(int(number)) for number in arguments.photos.split(",")]
    header = ["photos", "key to photo", "slowest", "frames/s, 1 screen/s", "frames/s, 5 screens/s"]
    header += ["late frames", "one key for 10", "one key for all"]
    load = f"Load of the machine: {os.getloadavg()[0]:.0f}."
    text = f"{grid.describe_provenance()}\n{grid.format_table(header, rows)}\n\n{load}\n"
    if arguments.output:
        grid.write_output(arguments.output, text)
    else:
        print(text)


def serve(folder: str) -> None:
    """Serves the page on features of five groups, in the order of the names of files."""

    def load(files, *_):
        rng = np.random.default_rng(0)
        centers = rng.normal(size=(len(KINDS), _NUM_FEATURES))
        kinds = np.arange(len(files)) % len(KINDS)
        rows = centers[kinds] + 3 * rng.normal(size=(len(files), _NUM_FEATURES))
        features = rows.astype(np.float32)
        frozen = FrozenFeatures(features, features, features[:, :0])
        return Features(np.arange(len(files)), frozen)

    photos.load_all = load
    start.label_folder(folder, list(KINDS), opens_browser=False)


def draw_folder(root: pathlib.Path, num_photos: int) -> None:
    """Writes drawings whose kinds alternate."""
    rng, names = np.random.default_rng(0), list(KINDS)
    root.mkdir()
    for i in range(num_photos):
        path = root / f"IMG_{i:05}.jpg"
        if i < _NUM_DRAWN:
            draw_picture(names[i % len(names)], rng).resize(_SIZE).save(path, quality=85)
        else:
            os.link(root / f"IMG_{i % _NUM_DRAWN:05}.jpg", path)


def measure(num_photos: int) -> list[str]:
    """A row of the table for a number of photos."""
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place) / "photos"
        draw_folder(folder, num_photos)
        command = [sys.executable, "-m", __spec__.name, "--serve", str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None, "it is a pipe"
                found = re.search(r"http://\S+", server.stdout.readline())
                assert found, "the first line has the address"
                with sync_api.sync_playwright() as playwright:
                    return [f"{num_photos:,}", *measure_page(playwright, found[0])]
            finally:
                server.terminate()


def measure_page(playwright: sync_api.Playwright, address: str) -> list[str]:
    """All figures of a page."""
    browser = launch(playwright)
    page = browser.new_page(viewport=_VIEWPORT)
    page.set_default_timeout(_TIMEOUT_MS)
    page.goto(address)
    delays = []
    for _ in range(_NUM_ANSWERS):
        page.wait_for_selector("figure[aria-busy=false] img")
        page.wait_for_timeout(1000)  # As a person who looks at it.
        number = int(page.locator("figcaption").inner_text()[4:9])
        delays.append(page.evaluate(_PRESS, str(number % len(KINDS) + 1)) / 1000)
    page.click("nav button[data-view=photos]")
    page.wait_for_selector(".cell img")
    page.wait_for_timeout(2000)
    speeds, late = [], 0.0
    for screens in (1, 5):
        pixels = screens * _VIEWPORT["height"] / 60
        times = np.array(page.evaluate(_SCROLL, [pixels, 8000]))
        gaps = np.diff(times)
        speeds.append(f"{1000 / gaps.mean():.0f}")
        late = max(late, float(np.mean(gaps > 25)))
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(1000)
    groups = []
    for select_all in (False, True):
        cells = page.locator(".cell")
        if select_all:
            page.keyboard.press("Control+a")
            page.keyboard.press("1")  # For so many, the page asks for a second press.
            page.wait_for_timeout(1000)
        else:
            cells.nth(0).click()
            cells.nth(9).click(modifiers=["Shift"])
        groups.append(f"{page.evaluate(_PRESS_IN_GRID, '1') / 1000:.2f} s")
        page.wait_for_timeout(1000)
    browser.close()
    figures = [f"{statistics.median(delays):.2f} s", f"{max(delays):.2f} s", *speeds]
    return [*figures, f"{late:.0%}", *groups]


if __name__ == "__main__":
    main()
