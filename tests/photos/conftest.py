"""What all tests of the product share."""

import shutil

import pytest

from cls_jax.photos.images import decode
from tests.conftest import BROWSER


@pytest.fixture(scope="session", autouse=True)
def known_formats():
    """The formats that can be read are found once, before a test hides a package."""
    decode._get_formats()


@pytest.fixture
def run_copy(trained_run, tmp_path):
    """The trained run once more, to be changed."""
    return shutil.copytree(trained_run, tmp_path / "run")


@pytest.fixture(scope="module", autouse=True)
def store(tmp_path_factory):
    """Images and features are kept for the tests of a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


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
