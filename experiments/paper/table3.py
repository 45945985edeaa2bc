"""The newer methods, and `cls_plus` with and without CutMix, on the same label splits.

python -m experiments.paper.table3 --budgets 10,20 --seeds 0,1,2,3,4,5,6,7
python -m experiments.paper.table3 --imbalance 10 --output experiments/results/imbalance_digits.md
python -m experiments.paper.table3 --imbalance 50 --labels reversed --output reversed.md
python -m experiments.paper.table3 --unknown 4 --budgets 24 --rows cls,cls+no_class=removed

A row is a method, or a method with settings: cls_plus+lambda_cutmix=0.0+tau=0.5. With --unknown,
unlabeled images include unknown classes, unless no_class=removed. no_class=ranked removes the half
that is ranked as least similar to the labeled images. Seeds are trained one after the other, each
with all rows, so that an interrupted grid still compares rows on the same splits. --report-only
makes the table of finished runs.
"""

import argparse
import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from cls_jax.data.datasets import load_dataset
from cls_jax.data.label_split import choose_labeled_indices
from cls_jax.data.types import Dataset
from cls_jax.photos.features.neighbors import normalize_rows
from cls_jax.photos.inference.unknown import fit_unknown
from cls_jax.runs.folder import LABELED_INDICES, read_result, write_labeled_indices
from experiments.paper import grid

# In the order in which they are trained.
ROWS = (
    *("cls", "cls_plus", "cls_plus+lambda_cutmix=0.0"),
    *("freematch", "fixmatch", "supervised", "softmatch", "adamatch", "flexmatch", "infomatch"),
)
# Class frequencies of the labels, with --imbalance.
LABELS = ("alike", "uniform", "reversed")
BASELINES = {"cls": "CLS", "freematch": "FreeMatch"}
REMOVED = "+no_class=removed"

# Short enough for dozens of runs on a shared core.
RECIPE = {"batch_size": "10", "mu": "4", "num_steps": "300", "ema_decay": "0.98"}
RECIPE |= {"model.bn_momentum": "0.98", "log_every": "50"}
RECIPE |= {"eval_every": "300", "checkpoint_every": "300"}
# Decay of running means in methods. The defaults are for runs of 2^20 steps.
STATISTICS_DECAY = 0.97

Results = dict[int, dict[str, Any]]  # Seed → result of a run.


def create_cell(arguments: argparse.Namespace, row: str, budget: int, seed: int) -> grid.Cell:
    """One run of a row.

    Raises:
        UserError: If there is no such method, or it has no such setting.
    """
    method, *settings = row.split("+")
    changes = {f"method__{name}": text for name, _, text in (s.partition("=") for s in settings)}
    if arguments.imbalance != 1:
        changes["data__imbalance"] = arguments.imbalance
    kept = changes.pop("method__no_class", "kept")
    cell = grid.create_cell(arguments, budget, method, seed, **changes)
    suffix = f"-labels={arguments.labels}" if arguments.labels != LABELS[0] else ""
    if arguments.unknown:
        suffix += f"-unknown={arguments.unknown}-no_class={kept}"
    cell = dataclasses.replace(cell, workdir=cell.workdir.with_name(cell.workdir.name + suffix))
    if arguments.unknown:  # A dataset in one file is read as CIFAR.
        cell.config.data.name, cell.config.data.data_dir = "cifar10", f"{cell.workdir}.npz"
    if "statistics_decay" in cell.config.method:
        cell.config.method.statistics_decay = STATISTICS_DECAY
    return cell


def write_known_classes(digits: Dataset, cell: grid.Cell, unknown: int) -> None:
    """Writes the dataset of a run with some unknown classes, drawn with its seed.

    Test images are only from known classes. Training images of unknown ones get -1 or are removed.
    """
    order = np.random.default_rng(cell.config.seed).permutation(digits.num_classes)
    classes, num_known = np.maximum(order - unknown, -1), digits.num_classes - unknown
    train, test = classes[digits.train.labels], classes[digits.test.labels]
    labeled = choose_labeled_indices(train, cell.config.num_labels, num_known, cell.config.seed)
    kept = np.ones(len(train), bool)
    if cell.workdir.name.endswith("removed"):
        kept = train >= 0
    elif cell.workdir.name.endswith("ranked"):
        labels = np.full(len(train), -1)
        labels[labeled] = train[labeled]
        features = normalize_rows(digits.train.images.reshape(len(train), -1).astype(np.float32))
        kept = (fit_unknown(features, labels, num_known).apply(features) <= 0.5) | (labels >= 0)
    cell.workdir.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        cell.config.data.data_dir,
        train_images=digits.train.images[kept],
        train_labels=train[kept],
        test_images=digits.test.images[test >= 0],
        test_labels=test[test >= 0],
    )
    own = np.searchsorted(np.flatnonzero(kept), labeled)
    write_labeled_indices(cell.workdir, own, load_dataset(cell.config))


def choose_labels(dataset: Dataset, config: ConfigDict, labels: str) -> np.ndarray:
    """The label budget of a run whose unlabeled images have a long tail, int32 [num_labels].

    "reversed" labels have the tail's frequencies in the opposite order. Images outside of the tail
    may be drawn, too.
    """
    num_classes, imbalance, truth = dataset.num_classes, config.data.imbalance, dataset.train.labels
    if labels == "uniform":
        return choose_labeled_indices(truth, config.num_labels, num_classes, config.seed)
    mirrored = num_classes - 1 - truth
    return choose_labeled_indices(mirrored, config.num_labels, num_classes, config.seed, imbalance)


def write_labels(cells: Iterable[grid.Cell], labels: str) -> None:
    """Writes the label budgets of runs that have not started into their folders."""
    for cell in cells:
        if labels != LABELS[0] and not (cell.workdir / LABELED_INDICES).exists():
            dataset = load_dataset(cell.config)
            indices = choose_labels(dataset, cell.config, labels)
            write_labeled_indices(cell.workdir, indices, dataset)


def compare(results: Results, baseline: Results, key: str) -> tuple[float, float, int] | None:
    """The mean paired difference to a baseline, its standard error and the number of pairs.

    None if they share fewer than two seeds.
    """
    shared = sorted(results.keys() & baseline.keys())
    if len(shared) < 2:
        return None
    differences = [results[seed][key] - baseline[seed][key] for seed in shared]
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return statistics.mean(differences), error, len(differences)


def describe_row(row: str, rows: dict[str, Results], key: str) -> list[str]:
    """The cells of a line: name, seeds, mean, worst seed, differences, seconds, other accuracy."""
    results = rows[row]
    values = [result[key] for result in results.values()]
    line = [row.replace("+", ", "), describe_seeds(results), grid.describe_mean(values)]
    line.append(f"{min(values):.2f}")
    for baseline in list_baselines(row, rows).values():
        difference = compare(results, rows.get(baseline, {}), key) if row != baseline else None
        if difference is None:
            line.append("–")
            continue
        mean, error, count = difference
        pairs = "" if count == len(results) else f" ({count} pairs)"
        line.append(f"{mean:+.2f} ± {error:.2f}{pairs}")
    line.append(f"{min(result['train_seconds'] for result in results.values()):.0f}")
    if key != "test_accuracy":
        line.append(grid.describe_mean(result["test_accuracy"] for result in results.values()))
    return line


def list_baselines(row: str, rows: Iterable[str]) -> dict[str, str]:
    """The baselines of a row: name → the baseline's row."""
    baselines = {title: name for name, title in BASELINES.items()}
    if any(name.endswith(REMOVED) for name in rows):
        baselines["itself without images of no class"] = row.split("+no_class=")[0] + REMOVED
    return baselines


def describe_seeds(results: Results) -> str:
    """The seeds as a range where they are consecutive, otherwise as a list."""
    seeds = sorted(results)
    if len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"{seeds[0]}–{seeds[-1]}"
    return ", ".join(map(str, seeds))


def format_table(rows: dict[str, Results], key: str) -> str:
    """Markdown with a line for each row that has results; `key` names the accuracy in them."""
    header = ["method", "seeds", "mean ± sd", "worst"]
    header += [f"− {name}, ± standard error" for name in list_baselines("", rows)] + ["seconds"]
    header += ["accuracy"] if key != "test_accuracy" else []
    lines = [describe_row(row, rows, key) for row, results in rows.items() if results]
    return grid.format_table(header, lines)


def describe_page(arguments: argparse.Namespace, outcomes: dict[int, dict[str, Results]]) -> str:
    """The page: how it was made, and a table for each budget."""
    imbalance = arguments.imbalance
    key = "test_accuracy" if imbalance == 1 else "test_balanced_accuracy"
    tables = [
        f"## {budget} labels\n\n{format_table(rows, key)}\n"
        for budget, rows in outcomes.items()
        if any(rows.values())
    ]
    what = "Test accuracy" if imbalance == 1 else "Balanced test accuracy"
    title = "Table 3" if imbalance == 1 else f"Unequal classes, {imbalance:g}:1"
    if arguments.unknown:
        title = f"{arguments.unknown} unknown classes"
    recipe = ", ".join(f"{name}={value}" for name, value in arguments.overrides.items())
    return (
        f"# {title}\n\n{grid.describe_provenance()}\n"
        f"{what} in percent of network 1 (EMA weights) after the last step: mean and standard "
        f"deviation over seeds, worst seed, mean paired difference to CLS and to FreeMatch (same "
        f"seed: same labeled images) with its standard error; seconds of the fastest run, without "
        f"compilation.\n\nRecipe: {recipe}, statistics_decay={STATISTICS_DECAY} where a method "
        f"has it.\n\n" + "\n".join(tables)
    )


def main() -> None:
    """Trains missing runs and writes the page."""
    parser = grid.create_parser(
        "Table 3", budgets="10,20", output="experiments/results/table3_digits.md"
    )
    parser.set_defaults(seeds="0,1,2,3,4,5,6,7", runs="runs/table3")
    parser.add_argument("--rows", default=",".join(ROWS), help="comma-separated rows")
    parser.add_argument("--imbalance", type=float, default=1.0, help="data.imbalance of all runs")
    parser.add_argument("--labels", choices=LABELS, default=LABELS[0], help="their frequencies")
    parser.add_argument("--unknown", type=int, default=0, help="classes without labels")
    parser.add_argument("--report-only", action="store_true", help="train nothing")
    arguments = grid.parse_arguments(parser)
    arguments.overrides = RECIPE | arguments.overrides
    rows = arguments.rows.split(",")
    keys = itertools.product(arguments.seeds, arguments.budgets, rows)
    cells = {key: create_cell(arguments, key[2], key[1], key[0]) for key in keys}
    if not arguments.report_only:
        digits = load_dataset(grid.create_config(arguments)) if arguments.unknown else None
        for cell in cells.values() if digits else ():
            if not (cell.workdir / LABELED_INDICES).exists():
                write_known_classes(digits, cell, arguments.unknown)
        write_labels(cells.values(), arguments.labels)
        grid.run_grid(list(cells.values()))
    outcomes: dict[int, dict[str, Results]] = {
        budget: {row: {} for row in rows} for budget in arguments.budgets
    }
    for (seed, budget, row), cell in cells.items():
        if (result := read_result(cell.workdir)) is not None:
            outcomes[budget][row][seed] = result
    grid.write_output(arguments.output, describe_page(arguments, outcomes))


if __name__ == "__main__":
    grid.run_main(main)
