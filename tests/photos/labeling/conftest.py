import contextlib
import functools
import pathlib
import re

import pytest

from tests.photos.labeling.modules import NODE, call_in_browser, call_in_node
from tests.photos.labeling.pages import DESKTOP, open_labeled, read_name
from tests.photos.labeling.sessions import create_photos, decide_all, open_ready, serve


@pytest.fixture
def folder(tmp_path, request):
    return tmp_path / getattr(request, "param", "photos")


@pytest.fixture
def kinds(folder):
    return create_photos(folder, 30)


@pytest.fixture
def session(folder, kinds):
    return open_ready(folder, kinds, ["cat", "dog"])


@pytest.fixture
def answered(folder, kinds):
    """A session in which the first nine photos have their classes, three each."""
    return decide_all(open_ready(folder, kinds), "abc" * 3)


@pytest.fixture
def begun(folder):
    """A session in which another window has given the first six photos their classes."""
    return open_labeled(folder, 60)


@pytest.fixture(scope="module")
def context(browser):
    with browser.new_context(reduced_motion="reduce") as context:
        yield context


@pytest.fixture
def open_page(context):
    """Opens the page at a port. No window may log an error.

    The window of the test before is used again, since opening another one takes longer than the
    page. Nothing is left in it: each server has a port of its own.
    """
    problems, free = [], context.pages

    def note_error(error):
        problems.append(str(error.error))

    def note_message(one):
        problems.append(f"{one.text} {one.location['url']}")

    def open_address(port, viewport=DESKTOP, secret="token"):
        page = free.pop() if free else context.new_page()
        page.set_viewport_size(viewport)
        page.set_default_timeout(30_000)
        page.goto(f"http://127.0.0.1:{port}/#{secret}")
        return page

    context.on("weberror", note_error)
    context.on("console", note_message)
    yield open_address
    context.remove_listener("weberror", note_error)
    context.remove_listener("console", note_message)
    for page in context.pages[1:]:
        page.close()
    for page in context.pages:
        page.unroute_all()
        page.emulate_media(color_scheme="light", reduced_motion="reduce")
        page.goto("about:blank")
    # A photo that is gone is none of the page's own files.
    expected = "status of 4(0[39]|22)|status of 404 .*/photos/|net::ERR_"
    assert [problem for problem in problems if not re.search(expected, problem)] == []


@pytest.fixture
def visit(open_page):
    """Serves a session and shows its first photo in a window."""

    @contextlib.contextmanager
    def visit(session, viewport=DESKTOP, training=None):
        with serve(session, training) as port:
            page = open_page(port, viewport)
            read_name(page)
            yield page

    return visit


@pytest.fixture
def page(visit, begun):
    with visit(begun) as page:
        yield page


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
