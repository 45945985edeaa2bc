import functools
import pathlib
import re

import pytest

from tests.conftest import BROWSER
from tests.photos.labeling.modules import NODE, call_in_browser, call_in_node
from tests.photos.labeling.pages import DESKTOP
from tests.photos.labeling.sessions import create_photos, open_ready


@pytest.fixture
def folder(tmp_path, request):
    return tmp_path / getattr(request, "param", "photos")


@pytest.fixture
def kinds(folder):
    return create_photos(folder, 30)


@pytest.fixture
def session(folder, kinds):
    return open_ready(folder, kinds, ["cat", "dog"])


@pytest.fixture(scope="module")
def browser():
    """Of one file: while Playwright runs, its thread cannot start another event loop."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if not BROWSER:
        pytest.skip("no Chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def context(browser):
    with browser.new_context(reduced_motion="reduce") as context:
        yield context


@pytest.fixture
def open_page(context):
    """Opens the page at a port in a new window. No window may log an error.

    Windows of a test share nothing with those of another one: each server has a port of its own,
    and the page keeps what it stores by window.
    """
    problems = []

    def open_address(port, viewport=DESKTOP, secret="token"):
        page = context.new_page()
        page.set_viewport_size(viewport)
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda one: problems.append(f"{one.text} {one.location['url']}"))
        page.goto(f"http://127.0.0.1:{port}/#{secret}")
        return page

    yield open_address
    for page in context.pages:
        page.close()
    # A photo that is gone is none of the page's own files.
    expected = "status of 4(0[39]|22)|status of 404 .*/photos/|net::ERR_"
    assert [problem for problem in problems if not re.search(expected, problem)] == []


@pytest.fixture(scope="module")
def axe():
    package = pytest.importorskip("axe_playwright_python", reason="no axe-core on this machine")
    return (pathlib.Path(package.__file__).parent / "axe.min.js").read_text()


@pytest.fixture
def call_module(request, tmp_path):
    """Calls a function of the page's JavaScript that draws nothing, without a page.

    `call_module("names.js", "({ fold }, names) => names.map(fold)", ["Cat"])` gives ["cat"].
    """
    if NODE:
        return functools.partial(call_in_node, tmp_path / "page")
    return functools.partial(call_in_browser, request.getfixturevalue("browser"))
