"""Suggested labels compared with random labels.

python -m experiments.suggest --config configs/digits.py --budgets 20 --seeds 0,1,2,3

A run starts with --budgets labels, drawn at random without regard to class. From its predictions
for all other training images, --added of them are suggested (see cls_jax/inference/suggest.py), and
as many are drawn at random. A second and a third run train from scratch with these labels added.
"""

import statistics

import numpy as np

from cls_jax.data.datasets import load_dataset
from cls_jax.data.types import Dataset
from cls_jax.inference.classifier import load
from cls_jax.inference.suggest import choose_diverse
from cls_jax.runs.folder import LABELED_INDICES, load_labeled_indices, write_labeled_indices
from experiments import grid

_HEADER = (
    "| labels | classes without a label | test accuracy (%), {n} seed(s) | by seed |\n"
    "|---|---|---|---|\n"
)


def main() -> None:
    """Trains what is missing and writes the comparison."""
    parser = grid.create_parser(__doc__, "20", "experiments/results/suggest_digits.md")
    parser.add_argument("--added", type=int, default=20, help="labels to add")
    parser.add_argument("--method", default="cls")
    arguments = grid.parse_arguments(parser)
    text = f"# Suggested and random labels\n\n{grid.describe_provenance()}"
    for budget in arguments.budgets:
        outcomes = [compare(arguments, budget, seed) for seed in arguments.seeds]
        text += f"\n{describe(budget, arguments.added, outcomes)}"
    grid.write_output(arguments.output, text)


def compare(arguments, budget: int, seed: int) -> dict[str, tuple[float, int]]:
    """Three runs of one seed.

    Returns:
        What the labels are → test accuracy in percent and number of classes without a label, for
        "start", "suggested" and "random".
    """
    start = create_cell(arguments, budget, seed, "random-start")
    dataset = load_dataset(start.config)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(dataset.train_images))
    labeled, rest = order[:budget], order[budget:]
    cells = {
        "start": start,
        "suggested": create_cell(arguments, budget + arguments.added, seed, "suggested"),
        "random": create_cell(arguments, budget + arguments.added, seed, "random"),
    }
    accuracies = {"start": train(start, labeled, dataset)}
    candidates = np.sort(rest)
    probabilities = load(start.workdir).predict_probabilities(dataset.train_images[candidates])
    suggested = candidates[choose_diverse(probabilities, arguments.added)]
    for name, added in [("suggested", suggested), ("random", rest[: arguments.added])]:
        accuracies[name] = train(cells[name], np.concatenate([labeled, added]), dataset)
    return {
        name: (accuracy, count_missing_classes(cells[name], dataset))
        for name, accuracy in accuracies.items()
    }


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


def describe(budget: int, added: int, outcomes: list[dict[str, tuple[float, int]]]) -> str:
    """The comparison as Markdown."""
    names = {
        "start": f"{budget} at random",
        "random": f"{budget} at random + {added} at random",
        "suggested": f"{budget} at random + {added} suggested",
    }
    text = _HEADER.format(n=len(outcomes))
    for key, name in names.items():
        accuracies, missing = zip(*(outcome[key] for outcome in outcomes), strict=True)
        by_seed = ", ".join(f"{accuracy:.2f}" for accuracy in accuracies)
        text += (
            f"| {name} | {statistics.mean(missing):.1f} | {grid.describe_mean(accuracies)} | "
            f"{by_seed} |\n"
        )
    gains = [outcome["suggested"][0] - outcome["random"][0] for outcome in outcomes]
    return f"{text}\nSuggested over random, seed by seed: {grid.describe_mean(gains)} points.\n"


if __name__ == "__main__":
    grid.run_main(main)
