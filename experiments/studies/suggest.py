"""Suggested labels compared with random labels.

python -m experiments.studies.suggest --budgets 40 --seeds 0,1,2,3,4,5,6,7

For each seed, a pool of 80 % of the training images is drawn. Three sets of labels for it: drawn at
random without regard to class; suggested without any label, from the pixels alone; half of them
random, and half suggested by a run that was trained on that half. Each trains a run from scratch.
"""

import statistics
from collections.abc import Callable

import numpy as np

from cls_jax.data.datasets import load_dataset
from cls_jax.data.types import Dataset
from cls_jax.inference.classifier import load
from cls_jax.inference.suggest import choose_typical, compute_pixel_features
from cls_jax.runs.folder import LABELED_INDICES, load_labeled_indices, write_labeled_indices
from experiments.paper import grid

_POOL = 0.8
_NAMES = {
    "random": "{0} at random",
    "suggested": "{0} suggested, from no label",
    "half": "{1} at random + {1} suggested by the run on them",
}


def main() -> None:
    """Trains what is missing and writes the comparison."""
    parser = grid.create_parser(__doc__, "40", "experiments/results/suggest_digits.md")
    parser.add_argument("--method", default="cls")
    parser.add_argument("--sets", default="random,suggested", help=f"of {', '.join(_NAMES)}")
    arguments = grid.parse_arguments(parser)
    text = f"# Suggested and random labels\n\n{grid.describe_provenance()}"
    for budget in arguments.budgets:
        outcomes = [compare(arguments, budget, seed) for seed in arguments.seeds]
        text += f"\n{describe(budget, outcomes)}"
    grid.write_output(arguments.output, text)


def compare(arguments, budget: int, seed: int) -> dict[str, tuple[float, int]]:
    """The runs of one seed: set of labels → test accuracy in percent, classes without a label."""
    dataset = load_dataset(create_cell(arguments, budget, seed, "random").config)
    order = np.random.default_rng(seed).permutation(len(dataset.train_images))
    pool = order[: int(_POOL * len(order))]

    def suggest_more() -> np.ndarray:
        start = create_cell(arguments, budget // 2, seed, "start")
        train(start, pool[: budget // 2], dataset)
        features = load(start.workdir).compute_features(dataset.train_images[pool])
        labeled, rest = np.split(features, [budget // 2])
        chosen = choose_typical(rest, budget - budget // 2, labeled).indices + budget // 2
        return np.concatenate([pool[: budget // 2], pool[chosen]])

    def suggest_first() -> np.ndarray:
        features = compute_pixel_features(dataset.train_images[pool])
        return pool[choose_typical(features, budget).indices]

    choices: dict[str, Callable[[], np.ndarray]] = {
        "random": lambda: pool[:budget],
        "suggested": suggest_first,
        "half": suggest_more,
    }
    outcome = {}
    for name in arguments.sets.split(","):
        cell = create_cell(arguments, budget, seed, name)
        accuracy = train(cell, choices[name](), dataset)
        outcome[name] = (accuracy, count_missing_classes(cell, dataset))
    return outcome


def create_cell(arguments, num_labels: int, seed: int, name: str) -> grid.Cell:
    """A run whose folder name tells how its labels were chosen."""
    cell = grid.create_cell(arguments, num_labels, arguments.method, seed)
    return grid.Cell(cell.config, cell.workdir.with_name(f"{cell.workdir.name}-{name}"))


def train(cell: grid.Cell, labeled: np.ndarray, dataset: Dataset) -> float:
    """Trains or resumes a run with these labels; returns its test accuracy in percent."""
    if not (cell.workdir / LABELED_INDICES).exists():
        write_labeled_indices(cell.workdir, labeled, dataset)
    (result,) = grid.run_grid([cell])
    return result["test_accuracy"]


def count_missing_classes(cell: grid.Cell, dataset: Dataset) -> int:
    """Number of classes without a label."""
    labeled = load_labeled_indices(cell.workdir, dataset, cell.config.num_labels, cell.config.seed)
    return dataset.num_classes - len(np.unique(dataset.train_labels[labeled]))


def describe(budget: int, outcomes: list[dict[str, tuple[float, int]]]) -> str:
    """The comparison as Markdown."""
    rows = []
    for key in outcomes[0]:
        accuracies, missing = zip(*(outcome[key] for outcome in outcomes), strict=True)
        gains = [outcome[key][0] - outcome["random"][0] for outcome in outcomes]
        by_seed = ", ".join(f"{gain:+.2f}" for gain in gains)
        over = "" if key == "random" else f"{grid.describe_mean(gains)}: {by_seed}"
        name = _NAMES[key].format(budget, budget // 2)
        rows.append((name, f"{statistics.mean(missing):.1f}", grid.describe_mean(accuracies), over))
    accuracy = f"test accuracy (%), {len(outcomes)} seed(s)"
    header = ("labels", "classes without a label", accuracy, "over random, by seed")
    return grid.format_table(header, rows) + "\n"


if __name__ == "__main__":
    grid.run_main(main)
