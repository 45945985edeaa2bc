"""The paper's tables: rows, cells, paired differences, and the grid of runs behind them."""

import argparse
import json
import math

import numpy as np
import pytest

from cls_jax.data.datasets import load_dataset
from cls_jax.errors import UserError
from cls_jax.runs.folder import LABELED_INDICES, load_labeled_indices
from experiments.paper import grid, table3, tables


def arguments(**values):
    """Parsed options of a program."""
    defaults = {"config": "configs/digits.py", "runs": "runs/grid", "overrides": {}}
    defaults |= {"imbalance": 1.0, "labels": "alike", "unknown": 0}
    return argparse.Namespace(**(defaults | values))


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


def test_every_row_of_a_table_is_a_run():
    for method in tables.TABLE_1 | tables.TABLE_2:
        cell = grid.create_cell(arguments(), 40, method, 3)
        assert cell.config.method.name == method
        assert cell.workdir.name == f"digits-40-{method}-seed3"
    for row in table3.ROWS:
        cell = table3.create_cell(arguments(overrides=dict(table3.RECIPE)), row, 10, 3)
        assert cell.config.method.name == row.split("+")[0]
        assert cell.config.num_steps == int(table3.RECIPE["num_steps"])


def test_settings_reach_the_run_and_those_of_a_row_name_its_folder():
    options = arguments(imbalance=10.0, overrides={"num_steps": "7"})
    cell = table3.create_cell(options, "cls_plus+lambda_cutmix=0.0+tau=0.5", 10, 3)
    assert (cell.config.method.lambda_cutmix, cell.config.method.tau) == (0.0, 0.5)
    assert (cell.config.num_steps, cell.config.data.imbalance) == (7, 10)
    assert cell.workdir.name == (
        "digits-10-cls_plus-seed3-method.lambda_cutmix=0.0-method.tau=0.5-data.imbalance=10.0"
    )


@pytest.mark.parametrize(
    ("overrides", "row", "message"),
    [
        ({"nothing": "1"}, "cls", "There is no --config.nothing"),
        ({"num_steps": "many"}, "cls", "cannot be 'many'"),
        ({"method.tau": "2.0"}, "cls", "is invalid"),
        *(({}, row, None) for row in ("nothing", "cls+nothing=1", "cls+tau=high", "cls+tau")),
    ],
)
def test_what_is_no_run_is_refused(overrides, row, message):
    with pytest.raises(UserError, match=message):
        table3.create_cell(arguments(overrides=overrides), row, 40, 0)


@pytest.mark.parametrize(
    ("labels", "counts"), [("uniform", [4] * 10), ("reversed", [1, 1, 1, 1, 1, 2, 4, 6, 9, 14])]
)
def test_labels_may_be_distributed_unlike_the_unlabeled_images(labels, counts, tmp_path):
    options = arguments(imbalance=50.0, labels=labels, runs=str(tmp_path))
    cells = [table3.create_cell(options, row, 40, 3) for row in ("cls", "fixmatch")]
    table3.write_labels(cells, labels)
    files = [cell.workdir / LABELED_INDICES for cell in cells]
    by_class = json.loads(files[0].read_text())
    assert [len(by_class[str(k)]) for k in range(10)] == counts
    assert files[0].read_text() == files[1].read_text()
    assert cells[0].workdir.name == f"digits-40-cls-seed3-data.imbalance=50.0-labels={labels}"


def test_images_of_unknown_classes_stay_unlabeled_or_are_removed(tmp_path):
    options = arguments(runs=str(tmp_path), unknown=4)
    digits, sets = load_dataset(grid.create_config(arguments(budgets=[20]))), []
    for row in ("cls", "cls" + table3.REMOVED, "cls+strangers=ranked"):
        cell = table3.create_cell(options, row, 24, 3)
        table3.write_known_classes(digits, cell, options.unknown)
        dataset = load_dataset(cell.config)
        labeled = load_labeled_indices(cell.workdir, dataset, 24, 3, 1.0)
        assert set(np.bincount(dataset.train_labels[labeled])) == {4}
        assert dataset.num_classes == 6
        sets.append((dataset, dataset.train_images[labeled]))
    (kept, own), (removed, same), (ranked, _) = sets
    np.testing.assert_array_equal(own, same)
    np.testing.assert_array_equal(kept.train_images, digits.train_images)
    is_known = kept.train_labels >= 0
    assert len({*digits.train_labels[~is_known]}) == 4
    np.testing.assert_array_equal(removed.train_images, digits.train_images[is_known])
    assert np.mean(ranked.train_labels < 0) < 0.2 < np.mean(~is_known)


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
