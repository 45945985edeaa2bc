"""What the documents name exists: files that they link to, and tests that keep a promise."""

import ast
import re

import pytest

from tests.conftest import ROOT

PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *ROOT.glob("experiments/**/*.md"),
    ]
)


def find_links(text):
    """Relative targets of links and pictures, without the place inside the page."""
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    return {target.split("#")[0] for target in targets if not re.match(r"\w+:|#", target)}


def find_tests(text):
    """(file or folder, name of a test or "") for everything quoted that begins with tests/."""
    return set(re.findall(r"`(tests/[\w/.]*)(?:::(\w+))?`", text))


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    path = ROOT / page
    links = find_links(path.read_text("utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_named_tests_exist(page):
    for file, name in find_tests((ROOT / page).read_text("utf-8")):
        assert (ROOT / file).exists(), file
        if name:
            tree = ast.parse((ROOT / file).read_text("utf-8"))
            assert name in {
                node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
            }


def test_every_room_is_on_the_page_of_the_architecture():
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    packages = [path for path in (ROOT / "cls_jax").iterdir() if not path.name.startswith("__")]
    for package in packages:
        assert package.suffix in (".typed", "") or f"`{package.name}`" in page, package
        assert not package.is_dir() or f"`{package.name}/`" in page, package
    assert find_links(page)
    assert find_tests(page)
