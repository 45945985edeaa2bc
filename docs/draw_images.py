"""Draws docs/images: the views of `cls-jax label` on drawn pictures, and the report of a run.

python -m docs.draw_images [RUN]

RUN is the folder of a finished run with its report, such as the one that `make demo` trains.
Without it, only the views are drawn. Needs Chromium, Playwright and the extra `label`.
"""

import io
import pathlib
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw
from playwright import sync_api

from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.labeling import server, start, views
from cls_jax.photos.labeling.changes import Change, describe_class, set_example
from cls_jax.photos.labeling.known import Features
from cls_jax.photos.labeling.photos import open_session
from cls_jax.photos.labeling.session import Session

FOLDER = pathlib.Path(__file__).parent / "images"
SCHEMES = ("light", "dark")
VIEWS = ("next", "check", "suspects", "classes", "photos", "result", "try")
NUM_PICTURES, NUM_ANSWERS = 240, 45
WRONG = (1, 6, 12)  # Answers that are wrong on purpose.
_SIZE, _SCALE = (480, 360), 2  # Drawn larger, so that edges come out smooth.
_VIEWPORT = {"width": 1120, "height": 720}
_QUALITY = 80
_ARE_SHOWN = """() => [...document.images].every((i) => i.complete && i.naturalWidth)
  && [...document.querySelectorAll(".thumb")].every((thumb) => thumb.children.length)"""
_IS_FITTED = """() => ![...document.querySelectorAll("#view .hint")].some(
  (hint) => /^(Learning from|Checking the)/.test(hint.textContent))"""
# Where and how fast the run was computed says nothing to the reader.
_LEAVE_OUT_THE_MACHINE = """(name) => {
  const isTime = (tile) => tile.textContent.includes("Training time");
  [...document.querySelectorAll(".tiles > div")].filter(isTime).forEach((tile) => tile.remove());
  const place = document.querySelector("header .path");
  place.textContent = place.textContent.replace(/\\S+(?= ·)/, name);
}"""
_SKIES = ((176, 216, 240), (247, 217, 178), (200, 205, 232), (220, 234, 214))
_GROUNDS = ((126, 168, 98), (196, 178, 128), (150, 158, 120), (222, 226, 230))
_PAINTS = ((196, 64, 52), (38, 98, 158), (230, 168, 46), (84, 56, 128), (40, 132, 118))

Draw = Callable[[ImageDraw.ImageDraw, np.random.Generator, float, float, float], None]


def draw_boat(draw, rng, x, y, r) -> None:
    """A hull on water, a mast and two sails; x, y and r are the center and half the size."""
    draw.rectangle((0, y + 0.45 * r, 9999, 9999), (58, 120, 168))
    draw.line((x, y - r, x, y + 0.4 * r), (90, 66, 46), int(0.06 * r))
    draw.polygon(
        [(x + 0.05 * r, y - r), (x + 0.05 * r, y + 0.3 * r), (x + 0.8 * r, y + 0.3 * r)],
        (250, 247, 240),
    )
    draw.polygon(
        [(x - 0.05 * r, y - 0.7 * r), (x - 0.05 * r, y + 0.3 * r), (x - 0.6 * r, y + 0.3 * r)],
        choose(rng, _PAINTS),
    )
    draw.polygon(
        [
            (x - r, y + 0.4 * r),
            (x + r, y + 0.4 * r),
            (x + 0.65 * r, y + 0.8 * r),
            (x - 0.65 * r, y + 0.8 * r),
        ],
        choose(rng, _PAINTS),
    )


def draw_fish(draw, rng, x, y, r) -> None:
    """A fish under water with bubbles."""
    draw.rectangle(
        (0, 0, 9999, 9999), choose(rng, ((64, 148, 176), (44, 104, 150), (92, 170, 170)))
    )
    paint = choose(rng, _PAINTS)
    draw.polygon([(x + 0.5 * r, y), (x + 1.1 * r, y - 0.5 * r), (x + 1.1 * r, y + 0.5 * r)], paint)
    draw.ellipse((x - r, y - 0.55 * r, x + 0.7 * r, y + 0.55 * r), paint)
    draw.chord((x - 0.4 * r, y - 0.85 * r, x + 0.4 * r, y), 180, 360, paint)
    draw.ellipse((x - 0.7 * r, y - 0.25 * r, x - 0.5 * r, y - 0.05 * r), "white")
    draw.ellipse((x - 0.65 * r, y - 0.2 * r, x - 0.55 * r, y - 0.1 * r), "black")
    for i in range(3):
        size, left = 0.05 * r * (i + 1), x - (1.1 + 0.12 * i) * r
        top = y - (0.4 + 0.35 * i) * r
        draw.ellipse((left - size, top - size, left + size, top + size), (206, 232, 240))


def draw_house(draw, rng, x, y, r) -> None:
    """Walls, a roof, a door and two windows."""
    draw_ground(draw, rng, y + 0.8 * r)
    draw.rectangle(
        (x - 0.75 * r, y - 0.2 * r, x + 0.75 * r, y + 0.8 * r),
        choose(rng, ((238, 226, 204), (222, 200, 178), (206, 214, 218))),
    )
    draw.polygon(
        [(x - 0.95 * r, y - 0.2 * r), (x + 0.95 * r, y - 0.2 * r), (x, y - r)], choose(rng, _PAINTS)
    )
    draw.rectangle((x - 0.15 * r, y + 0.25 * r, x + 0.15 * r, y + 0.8 * r), (104, 72, 50))
    for side in (-0.45, 0.45):
        draw.rectangle(
            (x + (side - 0.15) * r, y + 0.05 * r, x + (side + 0.15) * r, y + 0.35 * r),
            (128, 182, 212),
        )


def draw_flower(draw, rng, x, y, r) -> None:
    """Petals around a center, on a stem with a leaf."""
    draw_ground(draw, rng, y + 0.9 * r)
    draw.line((x, y, x, y + 1.1 * r), (74, 128, 62), int(0.08 * r))
    draw.ellipse((x, y + 0.55 * r, x + 0.5 * r, y + 0.75 * r), (88, 146, 72))
    paint, num_petals = choose(rng, _PAINTS), int(rng.integers(6, 10))
    for angle in np.linspace(0, 2 * np.pi, num_petals, endpoint=False):
        left, top = x + 0.42 * r * np.cos(angle), y - 0.2 * r + 0.42 * r * np.sin(angle)
        draw.ellipse((left - 0.27 * r, top - 0.27 * r, left + 0.27 * r, top + 0.27 * r), paint)
    draw.ellipse((x - 0.27 * r, y - 0.47 * r, x + 0.27 * r, y + 0.07 * r), (244, 204, 72))


def draw_tree(draw, rng, x, y, r) -> None:
    """A fir of three layers, or a round crown, on a trunk."""
    draw_ground(draw, rng, y + 0.8 * r)
    draw.rectangle((x - 0.1 * r, y + 0.2 * r, x + 0.1 * r, y + 0.95 * r), (112, 80, 54))
    green = choose(rng, ((52, 110, 66), (92, 140, 58), (34, 88, 74), (186, 122, 44)))
    if rng.random() < 0.5:
        for i in range(3):
            top, half = y - r + 0.4 * i * r, (0.4 + 0.17 * i) * r
            draw.polygon([(x, top), (x - half, top + 0.65 * r), (x + half, top + 0.65 * r)], green)
        return
    for left, top in ((-0.35, -0.1), (0.35, -0.1), (0, -0.5)):
        draw.ellipse(
            (
                x + (left - 0.45) * r,
                y + (top - 0.45) * r,
                x + (left + 0.45) * r,
                y + (top + 0.45) * r,
            ),
            green,
        )


def draw_ground(draw, rng, y) -> None:
    """Everything below y."""
    draw.rectangle((0, y, 9999, 9999), choose(rng, _GROUNDS))


def choose(rng: np.random.Generator, colors) -> tuple[int, int, int]:
    """One of the colors, a little changed."""
    color = np.asarray(colors[rng.integers(len(colors))]) + rng.integers(-14, 15, 3)
    red, green, blue = color.clip(0, 255).tolist()
    return red, green, blue


KINDS: dict[str, Draw] = {
    "boat": draw_boat,
    "fish": draw_fish,
    "flower": draw_flower,
    "house": draw_house,
    "tree": draw_tree,
}


def draw_picture(kind: str, rng: np.random.Generator) -> Image.Image:
    """One picture of a kind, before a sky, with the grain of a photo."""
    width, height = (_SCALE * side for side in _SIZE)
    picture = Image.new("RGB", (width, height), choose(rng, _SKIES))
    r = height * rng.uniform(0.26, 0.36)
    x, y = width * rng.uniform(0.4, 0.6), height * rng.uniform(0.45, 0.55)
    KINDS[kind](ImageDraw.Draw(picture), rng, x, y, r)
    pixels = np.asarray(picture.resize(_SIZE, Image.Resampling.LANCZOS), np.float32)
    light = np.linspace(rng.uniform(0.9, 1.1), rng.uniform(0.85, 1.05), _SIZE[0])[:, None]
    grain = rng.normal(0, 4, pixels.shape[:2])[..., None]
    return Image.fromarray((pixels * light + grain).clip(0, 255).astype(np.uint8))


def open_drawn_session(root: pathlib.Path) -> Session:
    """A session on drawn pictures, in which many questions are answered already.

    The features are those of a network that tells most of them apart.
    """
    rng, names = np.random.default_rng(7), list(KINDS)
    kinds = rng.integers(len(names), size=NUM_PICTURES)
    root.mkdir()
    for i, kind in enumerate(kinds):
        draw_picture(names[kind], rng).save(root / f"IMG_{1000 + i}.jpg", quality=90)
    features = rng.normal(size=(len(names), 32))[kinds] + 1.5 * rng.normal(size=(NUM_PICTURES, 32))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    session = open_session(root, names)
    everything = np.arange(NUM_PICTURES)
    features = features.astype(np.float32)
    session.load(
        lambda report: Features(everything, FrozenFeatures(features, features, features[:, :0]))
    )
    for i in range(NUM_ANSWERS):
        (item, *_) = views.describe(session, "w")["next"]
        label = names[(kinds[item["image"]] + (i in WRONG)) % len(names)]
        session.decide([Change(item["image"], "label", label, item["revision"])], "w")
    for name in names[:2]:
        session.change(
            "w", describe_class, name, {"boat": "With its sails", "fish": "Under water"}[name]
        )
        labels = [views.describe_image(session.known, i)["label"] for i in range(NUM_PICTURES)]
        session.change("w", set_example, labels.index(name))
    return session


def draw_views(browser: sync_api.Browser) -> None:
    """Writes label_VIEW_SCHEME.webp for all views and color schemes."""
    with tempfile.TemporaryDirectory() as folder, start.open_socket(0) as listener:
        session = open_drawn_session(pathlib.Path(folder) / "photos")
        port = listener.getsockname()[1]
        running = start.create_server(server.create_app(session, "token"))
        listener.listen()
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            for scheme in SCHEMES:
                page = browser.new_page(viewport=_VIEWPORT, color_scheme=scheme)
                page.goto(f"http://127.0.0.1:{port}/#token")
                for view in VIEWS:
                    page.click(f"nav button[data-view={view}]")
                    page.wait_for_selector("#view:not([aria-busy])")
                    page.wait_for_function(_ARE_SHOWN)
                    page.wait_for_function(_IS_FITTED)
                    page.evaluate(
                        "document.querySelectorAll('code').forEach("
                        "(e) => (e.textContent = 'cls-jax train photos'))"
                    )
                    save(page.screenshot(), f"label_{view}_{scheme}.webp")
                page.close()
        finally:
            running.should_exit = True
            thread.join()


def draw_report(browser: sync_api.Browser, run: pathlib.Path) -> None:
    """Writes report.webp: the top of the page, and its mistakes on a phone in the dark."""
    address = (run / "report.html").resolve().as_uri()
    parts = []
    for scheme, width in (("light", 980), ("dark", 390)):
        viewport = {"width": width, "height": 1170}
        page = browser.new_page(viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
        page.goto(address)
        page.wait_for_function(_ARE_SHOWN)
        page.evaluate(_LEAVE_OUT_THE_MACHINE, f"runs/{run.resolve().name}")
        if scheme == "dark":
            page.evaluate(
                "document.getElementById('mistakes').scrollIntoView({behavior: 'instant'})"
            )
        parts.append(Image.open(io.BytesIO(page.screenshot())))
        page.close()
    both = Image.new("RGB", (980 + 12 + 390, 1170), (150, 154, 160))
    both.paste(parts[0], (0, 0))
    both.paste(parts[1], (980 + 12, 0))
    both.save(FOLDER / "report.webp", quality=_QUALITY, method=6)


def save(screenshot: bytes, name: str) -> None:
    """Writes a screenshot as WebP."""
    Image.open(io.BytesIO(screenshot)).convert("RGB").save(
        FOLDER / name, quality=_QUALITY, method=6
    )


def launch(playwright: sync_api.Playwright) -> sync_api.Browser:
    """Starts the Chromium of this machine."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    return playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])


def main() -> None:
    """Draws what can be drawn."""
    with sync_api.sync_playwright() as playwright:
        browser = launch(playwright)
        draw_views(browser)
        if len(sys.argv) > 1:
            draw_report(browser, pathlib.Path(sys.argv[1]))
        browser.close()


if __name__ == "__main__":
    main()
