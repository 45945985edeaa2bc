"""A common style for figures: means over seeds with a band of one standard deviation."""

import pathlib
from collections.abc import Sequence

import matplotlib

matplotlib.use("Agg")  # Files only; no window is ever opened.

import matplotlib.pyplot as plt
import numpy as np

from experiments.grid import Cell, describe_provenance

plt.rcParams.update(
    {
        "axes.grid": True,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "figure.constrained_layout.use": True,
        "font.size": 9,
        "grid.alpha": 0.3,
        "legend.frameon": False,
        "savefig.dpi": 200,
    }
)


def create_axes(num_columns: int, share_y: bool = False):
    """A figure with panels side by side, [num_columns], optionally with a shared y axis."""
    figure, axes = plt.subplots(
        1, num_columns, figsize=(3.6 * num_columns, 2.9), squeeze=False, sharey=share_y
    )
    return figure, axes[0]


def read_curve(cells: Sequence[Cell], name: str) -> tuple[np.ndarray, np.ndarray]:
    """A scalar of `metrics.jsonl` over steps: steps [T] and values [seeds, T]."""
    histories = [
        [(row["step"], row[name]) for row in cell.history if row.get(name) is not None]
        for cell in cells
    ]
    steps = np.array([step for step, _ in histories[0]])
    return steps, np.array([[value for _, value in history] for history in histories])


def plot_curve(
    axis, cells: Sequence[Cell], name: str, label: str, smooth: int = 1, per_step: float = 1
) -> None:
    """Draws the mean over seeds with a band of one standard deviation.

    Args:
        axis: the axis to draw on.
        cells: runs that differ only in their seed.
        name: name of the scalar.
        label: legend entry.
        smooth: length of the moving average in rows, for metrics of single batches.
        per_step: what a step counts on the horizontal axis.
    """
    steps, values = read_curve(cells, name)
    window = np.ones(smooth) / smooth
    values = np.array([np.convolve(row, window, mode="valid") for row in values])
    steps = steps[len(steps) - values.shape[1] :]
    steps = steps * per_step
    mean, spread = values.mean(axis=0), values.std(axis=0)
    (line,) = axis.plot(steps, mean, label=label, linewidth=1.3)
    axis.fill_between(steps, mean - spread, mean + spread, color=line.get_color(), alpha=0.15)


def save_figure(figure, path: str, title: str, text: str = "") -> None:
    """Writes the image and a Markdown page with its provenance next to it."""
    picture = pathlib.Path(path)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture)
    plt.close(figure)
    page = f"# {title}\n\n{describe_provenance()}\n![{title}]({picture.name})\n{text}"
    picture.with_suffix(".md").write_text(page)
    print(f"\nWritten to {picture} and {picture.with_suffix('.md')}.")
