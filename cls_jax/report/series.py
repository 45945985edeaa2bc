"""What a run measured over its steps, grouped into panels of curves."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MAX_POINTS = 300
ACCURACY = "Accuracy on the test images"

NAMES = {
    "test/accuracy": "network 1, averaged",
    "test/accuracy_network_1": "network 1, averaged",
    "test/accuracy_network_2": "network 2, averaged",
    "test/accuracy_ensemble": "both, averaged, together",
    "test/accuracy_live_network_1": "network 1, not averaged",
    "test/accuracy_live_network_2": "network 2, not averaged",
    "train/loss": "whole loss",
    "train/loss_supervised": "on labelled images",
    "train/loss_self": "on a network's own labels",
    "train/loss_co": "on the other network's labels",
    "train/gradient_norm": "gradient norm",
    "monitors/pseudo_label_accuracy": "pseudo labels that are right",
    "monitors/exchange_ratio": "labels sent to the other network",
    "monitors/mask_ratio": "images that teach",
    "monitors/confidence_weight": "mean confidence weight w",
    "monitors/pseudo_label_overlap": "same pseudo label",
    "monitors/complementary_label_overlap": "same complementary label",
    "monitors/distance_ema": "network 1 to its average",
    "monitors/distance_networks": "network 1 to network 2",
    "perf/steps_per_second": "steps a second",
}


@dataclasses.dataclass(frozen=True)
class Series:
    """One curve of T points; each stands for several measurements where there are many.

    Attributes:
        name: for the legend.
        steps: float64 [T], ascending.
        values: float64 [T], means; NaN where nothing was measured.
        low: float64 [T], smallest of the measurements behind a point.
        high: float64 [T], largest.
        last: the last measurement.
        is_dashed: whether to draw it as secondary.
    """

    name: str
    steps: np.ndarray
    values: np.ndarray
    low: np.ndarray
    high: np.ndarray
    last: float
    is_dashed: bool = False


@dataclasses.dataclass(frozen=True)
class Panel:
    """Curves that share their axes.

    Attributes:
        title: of the panel.
        prefixes: names of scalars begin with one of these; see `create_panels`.
        caption: what to see in it.
        scale: factor from the stored number to the shown one.
        unit: of the shown number.
        curves: what was measured; empty until filled.
    """

    title: str
    prefixes: tuple[str, ...]
    caption: str = ""
    scale: float = 1.0
    unit: str = ""
    curves: tuple[Series, ...] = ()


# A scalar belongs to the first panel that claims it.
_PANELS = (
    Panel(
        ACCURACY,
        ("test/accuracy",),
        "The averaged network 1 is the figure to report.",
        unit="%",
    ),
    Panel(
        "Pseudo labels: how many, how right",
        ("monitors/pseudo_label_accuracy", "monitors/exchange_ratio", "monitors/mask_ratio"),
        "Shares of the unlabelled images of a batch.",
        scale=100.0,
        unit="%",
    ),
    Panel("Losses", ("train/loss",), "Means over networks, each of one batch."),
    Panel(
        "Do the networks agree?",
        ("monitors/pseudo_label_overlap", "monitors/complementary_label_overlap"),
        "Share of unlabelled images to which both networks give the same label.",
        scale=100.0,
        unit="%",
    ),
    Panel(
        "Confidence",
        ("monitors/confidence_weight",),
        "w = 1 − H(p) / log K: 0 is a guess among all classes, 1 is certainty.",
    ),
    Panel(
        "Distances of the weights",
        ("monitors/distance_",),
        "Euclidean. Networks that stay apart have something to teach each other.",
    ),
    Panel("Gradient norm", ("train/gradient_norm",), "Of one batch, mean over networks."),
    Panel("Speed", ("perf/",), "Without compilation and evaluation."),
)


def create_panels(rows: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Groups everything measured at two or more steps; what no panel knows gets one of its own.

    Args:
        rows: as `data.clean_rows` returns them.
    """
    names = sorted({name for row in rows for name in row} - {"step"}, key=_order)
    if "test/accuracy_network_1" in names and "test/accuracy" in names:
        names.remove("test/accuracy")  # The same under another name.
    if "test/accuracy_network_2" not in names and "test/accuracy_ensemble" in names:
        names.remove("test/accuracy_ensemble")  # Of one network: the same again.
    members: dict[Panel, list[str]] = {panel: [] for panel in _PANELS}
    for name in names:
        claims = (panel for panel in _PANELS if name.startswith(panel.prefixes))
        members.setdefault(next(claims, Panel(name, (name,))), []).append(name)
    filled = []
    for panel, claimed in members.items():
        curves = tuple(
            curve for name in claimed if (curve := read_series(rows, name, panel.scale)) is not None
        )
        if curves:
            filled.append(dataclasses.replace(panel, curves=curves))
    return filled


def read_series(rows: Sequence[Mapping[str, Any]], name: str, scale: float = 1.0) -> Series | None:
    """One scalar over the steps, or None if fewer than two numbers of it are known.

    Args:
        rows: as `data.clean_rows` returns them.
        name: of the scalar.
        scale: factor onto its values.
    """
    points = [(row["step"], row[name]) for row in rows if name in row]
    known = [value for _, value in points if value is not None]
    if len(known) < 2:
        return None
    steps = np.array([step for step, _ in points], np.float64)
    values = scale * np.array([np.nan if v is None else v for _, v in points], np.float64)
    steps, values, low, high = downsample(steps, values)
    return Series(
        NAMES.get(name, name), steps, values, low, high, scale * known[-1], "_live_" in name
    )


def downsample(
    steps: np.ndarray, values: np.ndarray, max_points: int = MAX_POINTS
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Replaces runs of neighbouring points by their mean, minimum and maximum.

    Args:
        steps: float64 [n], ascending.
        values: float64 [n]; NaN where unknown.
        max_points: how many may remain.

    Returns:
        Mean step, mean, minimum and maximum, float64 [min(n, max_points)] each; NaN where all
        points of a run are unknown.
    """
    parts = np.array_split(np.arange(len(values)), min(len(values), max_points))
    rows = []
    for part in parts:
        known = values[part][~np.isnan(values[part])]
        summary = (known.mean(), known.min(), known.max()) if len(known) else (np.nan,) * 3
        rows.append((steps[part].mean(), *summary))
    mean_steps, means, low, high = np.array(rows, np.float64).reshape(-1, 4).T
    return mean_steps, means, low, high


def find_last(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """The last known value of a scalar."""
    known = (row[name] for row in reversed(rows) if row.get(name) is not None)
    return next(known, None)


def _order(name: str) -> tuple[int, str]:
    known = list(NAMES)
    return (known.index(name) if name in known else len(known), name)
