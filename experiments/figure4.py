"""The paper's Figure 4: agreement and distances of the two networks of CLS.

python -m experiments.figure4 --config configs/digits.py --budgets 40
"""

from experiments import grid, plots

PANELS = {
    "share of the batch": {
        "monitors/pseudo_label_overlap": "same pseudo label",
        "monitors/complementary_label_overlap": "same complementary label",
        "monitors/exchange_ratio": "exchanged (w ≥ τ)",
        "monitors/pseudo_label_accuracy": "pseudo label is right",
    },
    "Euclidean distance of parameters": {
        "monitors/distance_networks": "network 1 to network 2",
        "monitors/distance_ema": "network 1 to its average",
    },
}
_SMOOTH = 5


def main() -> None:
    """Trains what is missing and draws overlaps and distances for the first budget."""
    parser = grid.create_parser(__doc__, "40", "experiments/results/figure4_digits.png")
    arguments = grid.parse_arguments(parser)
    budget = arguments.budgets[0]
    cells = [grid.create_cell(arguments, budget, "cls", seed) for seed in arguments.seeds]
    grid.run_grid(cells)
    figure, axes = plots.create_axes(len(PANELS))
    for axis, (title, curves) in zip(axes, PANELS.items(), strict=True):
        for name, label in curves.items():
            plots.plot_curve(axis, cells, name, label, smooth=_SMOOTH)
        axis.set(xlabel="step", ylabel=title)
        axis.legend()
    plots.save_figure(figure, arguments.output, f"Figure 4: CLS with {budget} labels")


if __name__ == "__main__":
    grid.run_main(main)
