"""What the documents name exists: files, tests that keep a promise, and keys."""

import ast
import re

import pytest

from cls_jax.config import OPTIONS, get_options
from cls_jax.methods import METHODS
from docs.write_configuration import PAGE, create_page
from tests.conftest import ROOT

PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/*.md", "experiments/**/*.md")
    for path in ROOT.glob(pattern)
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
            functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
            assert name in {function.name for function in functions}


def test_every_room_is_on_the_page_of_the_architecture():
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    packages = [path for path in (ROOT / "cls_jax").iterdir() if not path.name.startswith("__")]
    for package in packages:
        assert package.suffix in (".typed", "") or f"`{package.name}`" in page, package
        assert not package.is_dir() or f"`{package.name}/`" in page, package
    assert find_links(page)
    assert find_tests(page)


def test_page_of_the_configuration_is_the_one_that_the_table_of_keys_gives():
    assert PAGE.read_text(encoding="utf-8") == create_page(), (
        "regenerate it with python -m docs.write_configuration"
    )


def test_page_of_the_configuration_has_a_row_for_every_key_and_hyperparameter():
    page = create_page()
    assert all(f"| `{key}`" in page for key in OPTIONS if key != "method.name")
    for method in METHODS:
        for key in set(get_options(method)) - set(OPTIONS):
            assert f"| `{method}` | `{key}` | " in page


def test_every_row_of_a_table_has_as_many_cells_as_its_head():
    for table in create_page().split("\n\n"):
        if table.startswith("|"):
            rows = [line for line in table.splitlines() if not line.startswith("| --")]
            assert len({row.count(" | ") for row in rows}) == 1
