"""The Markdown of tables, and the options that all programs share."""

import argparse

import pytest

from cls_jax.errors import UserError
from experiments.paper import grid, tables
from experiments.paper.tables import format_table


def result(accuracy: float, dataset: str = "digits") -> dict:
    """As much of a `result.json` as tables read."""
    return {"dataset": dataset, "test_accuracy": accuracy}


def arguments(**values):
    """Parsed options of a program."""
    defaults = {"config": "configs/digits.py", "runs": "runs/grid", "overrides": {}}
    return argparse.Namespace(**(defaults | values))


def test_a_cell_is_mean_and_sample_deviation():
    outcomes = {("cls", 40): [result(90.0), result(94.0)]}
    table = format_table({"cls": "CLS"}, ["cls"], [40], outcomes).splitlines()
    assert table[0] == "| method | digits@40 |"
    assert table[2] == "| CLS | 92.00 ± 2.83 |"


def test_figures_of_the_paper_are_shown_for_its_datasets():
    outcomes = {("cls", 250): [result(90.0, "cifar10")]}
    table = format_table(tables.TABLE_1, ["cls"], [250], outcomes)
    assert table.splitlines()[2] == "| CLS | 90.00 | 95.55 ± .33 |"


def test_methods_newer_than_the_paper_have_no_figure_there():
    outcomes = {("freematch", 250): [result(90.0, "cifar10")]}
    table = format_table(tables.TABLE_1, ["freematch"], [250], outcomes)
    assert table.splitlines()[2] == "| freematch | 90.00 | – |"


def test_every_row_of_the_tables_is_a_method():
    for method in tables.TABLE_1 | tables.TABLE_2:
        cell = grid.create_cell(arguments(), 40, method, 3)
        assert cell.config.method.name == method
        assert cell.workdir.name == f"digits-40-{method}-seed3"


def test_changes_mark_the_folder_and_overrides_hold_for_all():
    cell = grid.create_cell(arguments(overrides={"num_steps": "7"}), 40, "cls", 0, method__tau=0.5)
    assert (cell.config.num_steps, cell.config.method.tau) == (7, 0.5)
    assert cell.workdir.name == "digits-40-cls-seed0-method.tau=0.5"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"nothing": "1"}, "There is no --config.nothing"),
        ({"num_steps": "many"}, "cannot be 'many'"),
        ({"method.tau": "2.0"}, "is invalid"),
    ],
)
def test_wrong_overrides_are_named(overrides, message):
    with pytest.raises(UserError, match=message):
        grid.create_cell(arguments(overrides=overrides), 40, "cls", 0)


def test_a_grid_whose_folder_holds_another_configuration_trains_nothing(tmp_path):
    cells = [grid.create_cell(arguments(runs=str(tmp_path)), 40, "cls", seed) for seed in range(2)]
    foreign = cells[1].workdir
    foreign.mkdir()
    (foreign / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty and not the folder of a run"):
        grid.run_grid(cells)
    assert not cells[0].workdir.exists()
    assert [path.name for path in foreign.iterdir()] == ["notes.txt"]


def test_provenance_does_without_git(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert "commit unknown" in grid.describe_provenance()
