"""The comparison on the same splits: rows, paired differences, and tables of unfinished grids."""

import argparse
import math

import pytest

from cls_jax.errors import UserError
from experiments.paper import table3


def arguments(imbalance=1.0):
    """Parsed options."""
    return argparse.Namespace(
        config="configs/digits.py",
        runs="runs/table3",
        overrides=dict(table3.RECIPE),
        imbalance=imbalance,
    )


def results(*accuracies, seeds=None):
    """As much of the results of several seeds as tables read."""
    return {
        seed: {
            "test_accuracy": accuracy,
            "test_balanced_accuracy": accuracy - 1,
            "train_seconds": 10.0 + seed,
        }
        for seed, accuracy in zip(seeds or range(len(accuracies)), accuracies, strict=True)
    }


def test_every_row_is_a_run_of_the_recipe():
    for row in table3.ROWS:
        config = table3.create_cell(arguments(), row, 10, 3).config
        assert config.method.name == row.split("+")[0]
        assert config.num_steps == int(table3.RECIPE["num_steps"])
        assert config.method.get("statistics_decay", 0.97) == 0.97


def test_settings_of_a_row_reach_the_run_and_name_its_folder():
    row = "cls_plus+lambda_cutmix=0.0+tau=0.5"
    cell = table3.create_cell(arguments(imbalance=10.0), row, 10, 3)
    assert (cell.config.method.lambda_cutmix, cell.config.method.tau) == (0.0, 0.5)
    assert cell.config.data.imbalance == 10
    assert cell.workdir.name == (
        "digits-10-cls_plus-seed3-method.lambda_cutmix=0.0-method.tau=0.5-data.imbalance=10.0"
    )


@pytest.mark.parametrize("row", ["nothing", "cls+nothing=1", "cls+tau=high", "cls+tau"])
def test_rows_that_are_no_run_are_refused(row):
    with pytest.raises(UserError):
        table3.create_cell(arguments(), row, 10, 0)


def test_differences_are_paired_by_seed():
    # Unpaired, the spread over seeds would hide a difference that is the same at each.
    mean, error, count = table3.compare(
        results(91, 71, 53, seeds=[0, 1, 5]), results(90, 70, 50, seeds=[0, 1, 2]), "test_accuracy"
    )
    assert (mean, error, count) == (1, 0, 2)
    mean, error, _ = table3.compare(results(91, 74), results(90, 70), "test_accuracy")
    assert mean == 2.5
    assert error == pytest.approx(math.sqrt(4.5) / math.sqrt(2))
    assert table3.compare(results(91), results(90, 70), "test_accuracy") is None


def test_a_line_has_seeds_mean_worst_differences_and_time():
    rows = {"cls": results(90, 70), "cls+tau=0.5": results(91, 74), "freematch": {}}
    lines = table3.format_table(rows, "test_accuracy").splitlines()
    assert lines[2] == "| cls | 0, 1 | 80.00 ± 14.14 | 70.00 | – | – | 10 |"
    assert lines[3] == "| cls, tau=0.5 | 0, 1 | 82.50 ± 12.02 | 74.00 | +2.50 ± 1.50 | – | 10 |"
    assert len(lines) == 4  # Rows without results are left out.


def test_a_difference_of_fewer_seeds_than_the_row_has_names_their_number():
    rows = {"cls": results(90, 70), "freematch": results(91, 71, 50)}
    (line,) = [line for line in table3.format_table(rows, "test_accuracy").splitlines()][3:]
    assert line == "| freematch | 0–2 | 70.67 ± 20.50 | 50.00 | +1.00 ± 0.00 (2 pairs) | – | 10 |"


@pytest.mark.parametrize(
    ("imbalance", "line"),
    [
        (1.0, "| cls | 0 | 90.00 | 90.00 | – | – | 10 |"),
        (10.0, "| cls | 0 | 89.00 | 89.00 | – | – | 10 | 90.00 |"),
    ],
)
def test_unequal_classes_are_compared_by_balanced_accuracy(imbalance, line):
    outcomes = {10: {"cls": results(90)}, 20: {"cls": {}}}
    page = table3.describe_page(arguments(imbalance), outcomes)
    header, _, last = (row for row in page.splitlines() if row.startswith("|"))
    assert last == line
    assert header.count("|") == line.count("|")
    assert "20 labels" not in page
