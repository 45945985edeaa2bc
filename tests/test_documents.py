"""Files, tests and keys named by the documents exist."""

import ast
import re

import pytest

from cls_jax.config import OPTIONS, get_options
from cls_jax.methods import METHODS
from docs.write_configuration import PAGE, create_page
from tests.conftest import ROOT

PAGES = [
    path for where in ("*.md", "docs/*.md", "experiments/**/*.md") for path in ROOT.glob(where)
]


def find_links(text):
    """Relative targets of links and pictures, and places on the page itself."""
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    return {target for target in targets if not re.match(r"\w+:", target)}


def leads_somewhere(page, link):
    path, _, place = link.partition("#")
    target = page.parent / path if path else page
    headings = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.M) if place else []
    anchors = [re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings]
    return target.exists() and (not place or place in anchors)


def find_tests(text):
    """(file or folder, name of a test or "") for everything quoted that begins with tests/."""
    return set(re.findall(r"`(tests/[\w/.]*)(?:::(\w+))?`", text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere_and_named_tests_exist(page):
    text = page.read_text("utf-8")
    assert [link for link in find_links(text) if not leads_somewhere(page, link)] == []
    for file, name in find_tests(text):
        assert (ROOT / file).exists(), file
        if name:
            nodes = ast.walk(ast.parse((ROOT / file).read_text("utf-8")))
            assert name in {node.name for node in nodes if isinstance(node, ast.FunctionDef)}


def test_every_package_is_on_the_page_of_the_architecture():
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    for package in (ROOT / "cls_jax").iterdir():
        if not package.name.startswith("__") and package.suffix != ".typed":
            assert f"`{package.name}{'/' if package.is_dir() else ''}`" in page, package
    assert find_links(page)
    assert find_tests((ROOT / "docs" / "trust.md").read_text("utf-8"))


def test_page_of_the_configuration_is_current_and_has_every_key_in_tables_of_even_rows():
    page = create_page()
    assert PAGE.read_text("utf-8") == page, "run python -m docs.write_configuration"
    assert all(f"| `{key}`" in page for key in OPTIONS if key != "method.name")
    for method in METHODS:
        for key in set(get_options(method)) - set(OPTIONS):
            assert f"| `{method}` | `{key}` | " in page
    for table in page.split("\n\n"):
        if table.startswith("|"):
            rows = [line for line in table.splitlines() if not line.startswith("| --")]
            assert len({row.count(" | ") for row in rows}) == 1
