import pathlib
import re

import pytest

from tests.conftest import BROWSER
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
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser):
    """Opens the page at a port in a browser of its own. No window may log an error."""
    contexts, problems = [], []

    def open_address(port, viewport=DESKTOP, secret="token"):
        context = browser.new_context(viewport=viewport, reduced_motion="reduce")
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda one: problems.append(f"{one.text} {one.location['url']}"))
        page.goto(f"http://127.0.0.1:{port}/#{secret}")
        return page

    yield open_address
    for context in contexts:
        context.close()
    # A photo that is gone is none of the page's own files.
    expected = "status of 4(0[39]|22)|status of 404 .*/photos/|net::ERR_"
    assert [problem for problem in problems if not re.search(expected, problem)] == []


@pytest.fixture(scope="module")
def axe():
    package = pytest.importorskip("axe_playwright_python", reason="no axe-core on this machine")
    return (pathlib.Path(package.__file__).parent / "axe.min.js").read_text()
