"""CIFAR-10 at a size for two CPU cores: accuracy over steps, and over images computed.

python -m experiments.studies.cifar10_two_cores --config.data.data_dir=DATA
"""

from collections.abc import Mapping, Sequence
from typing import Any

from cls_jax.methods import get_method
from cls_jax.runs.sessions import read_sessions
from experiments.paper import figures, grid
from experiments.paper.grid import Cell

# Name → method and the keys in which the row differs from the recipe.
ROWS = {
    "supervised": ("supervised", {}),
    "FixMatch": ("fixmatch", {}),
    "CLS": ("cls", {}),
    "CLS, aligned": ("cls", {"method__align": "joint"}),
}


def main() -> None:
    """Trains what is missing, draws the curves and writes the table."""
    parser = grid.create_parser(__doc__, "250", "experiments/results/cifar10_two_cores.png")
    parser.set_defaults(config="configs/cifar10.py", seeds="0")
    parser.add_argument("--rows", default=";".join(ROWS), help="separated by semicolons")
    arguments = grid.parse_arguments(parser)
    budget = arguments.budgets[0]
    rows = {}
    for name in arguments.rows.split(";"):
        method, changes = ROWS[name]
        rows[name] = [
            grid.create_cell(arguments, budget, f"{method},small", seed, **changes)
            for seed in arguments.seeds
        ]
    results = iter(grid.run_grid([cell for cells in rows.values() for cell in cells]))
    outcomes = {name: [next(results) for _ in cells] for name, cells in rows.items()}
    title = f"CIFAR-10 with {budget} labels on two CPU cores"
    text = f"\n{format_table(rows, outcomes)}\n"
    figures.save_figure(draw_curves(rows), arguments.output, title, text)


def draw_curves(rows: Mapping[str, Sequence[Cell]]):
    """Accuracy over steps and over images computed, pseudo-label accuracy, exchange ratio."""
    figure, axes = figures.create_axes(4)
    for name, cells in rows.items():
        images = count_images_per_step(cells[0]) / 1e6
        figures.plot_curve(axes[0], cells, "test/accuracy", name)
        figures.plot_curve(axes[1], cells, "test/accuracy", name, per_step=images)
        for axis, monitor in zip(
            axes[2:], ("pseudo_label_accuracy", "exchange_ratio"), strict=True
        ):
            if any(f"monitors/{monitor}" in row for row in cells[0].history):
                figures.plot_curve(axis, cells, f"monitors/{monitor}", name, smooth=20)
            else:  # The other rows keep their colors.
                axis.plot([], [])
    axes[0].set(xlabel="step", ylabel="test accuracy (%)")
    axes[1].set(xlabel="million images computed", ylabel="test accuracy (%)")
    axes[2].set(xlabel="step", ylabel="share of right pseudo labels")
    axes[3].set(xlabel="step", ylabel="share of labels exchanged")
    axes[0].legend(loc="lower right")
    return figure


def count_images_per_step(cell: Cell) -> int:
    """Forward passes of single images that train the networks in one step."""
    config, method = cell.config, get_method(cell.config.method.name)
    unlabeled = config.batch_size * config.mu * len(method.unlabeled_views)
    return method.num_networks * (config.batch_size + unlabeled)


def format_table(
    rows: Mapping[str, Sequence[Cell]], outcomes: Mapping[str, Sequence[Mapping[str, Any]]]
) -> str:
    """Markdown: accuracies of all seeds, images computed, time, and how often runs resumed."""
    header = ["", "test accuracy (%)", "both networks together", "at half of the steps"]
    header += ["million images computed", "minutes", "resumed"]
    lines = []
    for name, cells in rows.items():
        results = outcomes[name]
        half = cells[0].config.num_steps // 2
        columns = [
            name,
            grid.describe_mean(result["test_accuracy"] for result in results),
            describe_ensemble(results),
            grid.describe_mean(get_accuracy(cell, half) for cell in cells),
            f"{count_images_per_step(cells[0]) * cells[0].config.num_steps / 1e6:.2f}",
            grid.describe_mean(result["train_seconds"] / 60 for result in results),
            str(sum(len(read_sessions(cell.workdir)) - 1 for cell in cells)),
        ]
        lines.append(columns)
    return grid.format_table(header, lines)


def describe_ensemble(results: Sequence[Mapping[str, Any]]) -> str:
    """Accuracy of the mean probabilities; a dash for a single network."""
    if results[0]["test_accuracy_network_2"] is None:
        return "–"
    return grid.describe_mean(result["test_accuracy_ensemble"] for result in results)


def get_accuracy(cell: Cell, step: int) -> float:
    """Test accuracy after a step that was evaluated."""
    return next(
        row["test/accuracy"]
        for row in cell.history
        if row["step"] == step and "test/accuracy" in row
    )


if __name__ == "__main__":
    grid.run_main(main)
