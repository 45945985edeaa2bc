"""The paper's figures: curves are means over seeds with a band of one standard deviation.

python -m experiments.paper.figures --figure 3 --budgets 20,40       # accuracy over training
python -m experiments.paper.figures --figure 4 --budgets 40          # agreement of the networks
python -m experiments.paper.figures --figure 5 --budgets 20 --seeds 0,1    # λ1, λ2, μ and τ
"""

import argparse
import pathlib
import statistics
from collections.abc import Sequence

import matplotlib

matplotlib.use("Agg")  # Files only; no window is ever opened.

import matplotlib.pyplot as plt
import numpy as np

from cls_jax.config import flatten
from cls_jax.runs.metrics import read_metrics
from experiments.paper import grid
from experiments.paper.grid import Cell
from experiments.paper.tables import TABLE_2

VARIANTS = ("fixmatch", "cls_no_nl", "cls_no_rw", "cls")  # The curves of Figure 3.
# The panels of Figure 4: axis label → metrics with their legends.
MONITORS = {
    "share of the batch": {
        "monitors/pseudo_label_overlap": "same pseudo-label",
        "monitors/complementary_label_overlap": "same complementary label",
        "monitors/exchange_ratio": "exchanged (w ≥ τ)",
        "monitors/pseudo_label_accuracy": "correct pseudo-label",
    },
    "Euclidean distance of parameters": {
        "monitors/distance_networks": "network 1 to network 2",
        "monitors/distance_ema": "network 1 to its average",
    },
}
# The panels of Figure 5: key with "__" for "." → axis label and values.
SWEEPS = {
    "method__lambda_self": ("λ1 (self-labeling)", (0.0, 1.0, 2.0, 4.0)),
    "method__lambda_co": ("λ2 (co-labeling)", (0.0, 1.0, 2.0, 4.0)),
    "mu": ("μ (unlabeled per labeled)", (1, 2, 4)),
    "method__tau": ("τ (exchange threshold)", (0.0, 0.5, 0.85, 1.0)),
}

plt.rc("axes", grid=True)
plt.rc("axes.spines", right=False, top=False)
plt.rc("figure.constrained_layout", use=True)
plt.rc("font", size=9)
plt.rc("grid", alpha=0.3)
plt.rc("legend", frameon=False)
plt.rc("savefig", dpi=200)


def create_axes(num_columns: int, share_y: bool = False):
    """A figure with panels side by side, [num_columns], optionally with a shared y axis."""
    size = 3.6 * num_columns, 2.9
    figure, axes = plt.subplots(1, num_columns, figsize=size, squeeze=False, sharey=share_y)
    return figure, axes[0]


def plot_curve(axis, cells: Sequence[Cell], name: str, label: str, smooth: int = 1) -> None:
    """Draws a scalar of `metrics.jsonl`: the mean over seeds with a band of one deviation.

    Metrics of single batches are smoothed by a moving average over that many rows.
    """
    histories = [
        [(r["step"], r[name]) for r in read_metrics(cell.workdir) if r.get(name) is not None]
        for cell in cells
    ]
    steps = [step for step, _ in histories[0]][smooth - 1 :]
    window = np.ones(smooth) / smooth
    rows = ([value for _, value in history] for history in histories)
    values = np.array([np.convolve(row, window, "valid") for row in rows])
    mean, spread = values.mean(axis=0), values.std(axis=0)
    (line,) = axis.plot(steps, mean, label=label, linewidth=1.3)
    axis.fill_between(steps, mean - spread, mean + spread, color=line.get_color(), alpha=0.15)


def save_figure(figure, path: str, title: str) -> None:
    """Writes the image and a Markdown page with its provenance next to it."""
    picture = pathlib.Path(path)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture)
    plt.close(figure)
    page = f"# {title}\n\n{grid.describe_provenance()}\n![{title}]({picture.name})\n"
    picture.with_suffix(".md").write_text(page)
    print(f"\nWritten to {picture} and {picture.with_suffix('.md')}.")


def draw_figure_3(arguments: argparse.Namespace):
    """Trains missing runs and draws accuracies, one panel per budget."""
    cells = {
        (budget, method): grid.create_cells(arguments, budget, method)
        for budget in arguments.budgets
        for method in VARIANTS
    }
    grid.run_groups(cells)
    figure, axes = create_axes(len(arguments.budgets))
    for axis, budget in zip(axes, arguments.budgets, strict=True):
        for method in VARIANTS:
            plot_curve(axis, cells[budget, method], "test/accuracy", TABLE_2[method])
        axis.set(xlabel="step", ylabel="test accuracy (%)", title=f"{budget} labels")
    axes[0].legend(loc="lower right")
    return figure


def draw_figure_4(arguments: argparse.Namespace):
    """Trains what is missing and draws overlaps and distances for the first budget."""
    cells = grid.create_cells(arguments, arguments.budgets[0], "cls")
    grid.run_grid(cells)
    figure, axes = create_axes(len(MONITORS))
    for axis, (title, curves) in zip(axes, MONITORS.items(), strict=True):
        for name, label in curves.items():
            plot_curve(axis, cells, name, label, smooth=5)  # Metrics of single batches.
        axis.set(xlabel="step", ylabel=title)
        axis.legend()
    return figure


def draw_figure_5(arguments: argparse.Namespace):
    """Trains missing runs and draws one panel per hyperparameter for the first budget."""
    budget = arguments.budgets[0]
    default = flatten(grid.create_config(arguments).to_dict())
    cells = {}
    for key, (_, values) in SWEEPS.items():
        for value in values:
            # The default shares its folder with the tables' runs.
            is_default = default[key.replace("__", ".")] == value
            changes = {} if is_default else {key: value}
            cells[key, value] = grid.create_cells(arguments, budget, "cls", **changes)
    results = grid.run_groups(cells)
    figure, axes = create_axes(len(SWEEPS), share_y=True)
    for axis, (key, (label, values)) in zip(axes, SWEEPS.items(), strict=True):
        groups = [[result["test_accuracy"] for result in results[key, v]] for v in values]
        means = [statistics.mean(group) for group in groups]
        spreads = [statistics.pstdev(group) for group in groups]
        axis.errorbar(range(len(values)), means, spreads, marker="o", capsize=3)
        axis.set_xticks(range(len(values)), [f"{value:g}" for value in values])
        axis.set(xlabel=label)
    axes[0].set_ylabel("test accuracy (%)")
    return figure


# Number → drawing function, default budgets, title.
FIGURES = {
    3: (draw_figure_3, "20,40", "test accuracy over training"),
    4: (draw_figure_4, "40", "agreement and distances of the networks of CLS"),
    5: (draw_figure_5, "20", "hyperparameters of CLS"),
}


def main() -> None:
    """Draws one figure."""
    parser = grid.create_parser(__doc__, "", "")
    parser.add_argument("--figure", type=int, choices=FIGURES, default=3, help="of the paper")
    number = parser.parse_known_args()[0].figure
    draw, budgets, title = FIGURES[number]
    parser.set_defaults(budgets=budgets, output=f"experiments/results/figure{number}_digits.png")
    arguments = grid.parse_arguments(parser)
    save_figure(draw(arguments), arguments.output, f"Figure {number}: {title}")


if __name__ == "__main__":
    grid.run_main(main)
