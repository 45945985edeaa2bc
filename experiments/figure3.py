"""The paper's Figure 3: test accuracy over training of FixMatch, CLS and variants between them.

python -m experiments.figure3 --config configs/digits.py --budgets 20,40
"""

from experiments import grid, paper, plots

METHODS = ("fixmatch", "cls_no_nl", "cls_no_rw", "cls")


def main() -> None:
    """Trains what is missing and draws one panel per budget."""
    parser = grid.create_parser(__doc__, "20,40", "experiments/results/figure3_digits.png")
    arguments = grid.parse_arguments(parser)
    cells = {
        (budget, method): [
            grid.create_cell(arguments, budget, method, seed) for seed in arguments.seeds
        ]
        for budget in arguments.budgets
        for method in METHODS
    }
    grid.run_grid([cell for group in cells.values() for cell in group])
    figure, axes = plots.create_axes(len(arguments.budgets))
    for axis, budget in zip(axes, arguments.budgets, strict=True):
        for method in METHODS:
            label = paper.TABLE_2[method]
            plots.plot_curve(axis, cells[budget, method], "test/accuracy", label)
        axis.set(xlabel="step", ylabel="test accuracy (%)", title=f"{budget} labels")
    axes[0].legend(loc="lower right")
    plots.save_figure(figure, arguments.output, "Figure 3: test accuracy over training")


if __name__ == "__main__":
    grid.run_main(main)
