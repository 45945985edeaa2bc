"""The paper's Figure 5: the effect of λ1, λ2, μ and τ on the accuracy of CLS.

python -m experiments.figure5 --config configs/digits.py --budgets 20 --seeds 0,1
"""

import statistics

from cls_jax.config import flatten
from experiments import grid, plots

# Key with "__" for "." → axis label and values.
SWEEPS = {
    "method__lambda_self": ("λ1 (self-labeling)", (0.0, 1.0, 2.0, 4.0)),
    "method__lambda_co": ("λ2 (co-labeling)", (0.0, 1.0, 2.0, 4.0)),
    "mu": ("μ (unlabeled per labeled)", (1, 2, 4)),
    "method__tau": ("τ (exchange threshold)", (0.0, 0.5, 0.85, 1.0)),
}


def main() -> None:
    """Trains what is missing and draws one panel per hyperparameter for the first budget."""
    parser = grid.create_parser(__doc__, "20", "experiments/results/figure5_digits.png")
    arguments = grid.parse_arguments(parser)
    budget = arguments.budgets[0]
    default = flatten(grid.create_cell(arguments, budget, "cls", 0).config.to_dict())
    cells = {}
    for key, (_, values) in SWEEPS.items():
        for value in values:
            # The default shares its folder with the tables' runs.
            is_default = default[key.replace("__", ".")] == value
            changes = {} if is_default else {key: value}
            cells[key, value] = [
                grid.create_cell(arguments, budget, "cls", seed, **changes)
                for seed in arguments.seeds
            ]
    results = iter(grid.run_grid([cell for group in cells.values() for cell in group]))
    accuracies = {
        key: [next(results)["test_accuracy"] for _ in group] for key, group in cells.items()
    }
    figure, axes = plots.create_axes(len(SWEEPS), share_y=True)
    for axis, (key, (label, values)) in zip(axes, SWEEPS.items(), strict=True):
        groups = [accuracies[key, value] for value in values]
        means = [statistics.mean(group) for group in groups]
        spreads = [statistics.pstdev(group) for group in groups]
        axis.errorbar(range(len(values)), means, spreads, marker="o", capsize=3)
        axis.set_xticks(range(len(values)), [f"{value:g}" for value in values])
        axis.set(xlabel=label)
    axes[0].set_ylabel("test accuracy (%)")
    plots.save_figure(figure, arguments.output, f"Figure 5: CLS with {budget} labels")


if __name__ == "__main__":
    grid.run_main(main)
