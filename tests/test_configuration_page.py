"""The page about the configuration matches the code."""

from cls_jax.config import OPTIONS, get_options
from cls_jax.methods import METHODS
from docs.write_configuration import PAGE, create_page


def test_page_is_the_one_that_the_table_of_keys_gives():
    assert PAGE.read_text(encoding="utf-8") == create_page(), (
        "regenerate it with python -m docs.write_configuration"
    )


def test_page_has_a_row_for_every_key_and_hyperparameter():
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
