"""The metrics of a run over its steps, grouped into panels of curves."""

import dataclasses
import importlib.resources
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MAX_POINTS = 300
_TEXTS = tomllib.loads(
    importlib.resources.files("cls_jax.report").joinpath("templates/panels.toml").read_text("utf-8")
)
NAMES = _TEXTS["names"]
Rows = Sequence[Mapping[str, Any]]  # As `data.clean_rows` returns them.


@dataclasses.dataclass(frozen=True)
class Series:
    """One curve of T points, each of which may stand for several measurements."""

    name: str
    steps: np.ndarray  # float64 [T], ascending.
    values: np.ndarray  # float64 [T], means; NaN where nothing was measured.
    low: np.ndarray  # float64 [T], smallest of the measurements behind each point.
    high: np.ndarray  # float64 [T], largest.
    last: float
    is_dashed: bool = False


@dataclasses.dataclass
class Panel:
    """Curves that share their axes; `templates/panels.toml` lists those with known names."""

    title: str
    prefixes: Sequence[str]  # Of the names of its scalars.
    caption: str = ""
    unit: str = ""
    scale: float = 1.0  # Factor from the stored numbers to those shown.
    curves: list[Series] = dataclasses.field(default_factory=list)

    def format(self, value: float) -> str:
        """A measured number for reading."""
        return f"{value:.2f} %" if self.unit == "%" else f"{value:.4g}"


def create_panels(rows: Rows) -> list[Panel]:
    """Groups all scalars known at two or more steps."""
    names = sorted({name for row in rows for name in row} - {"step"}, key=_order)
    if "test/accuracy_network_1" in names and "test/accuracy" in names:
        names.remove("test/accuracy")  # The same under another name.
    if "test/accuracy_network_2" not in names and "test/accuracy_ensemble" in names:
        names.remove("test/accuracy_ensemble")  # An ensemble of one.
    panels = [Panel(**entry) for entry in _TEXTS["panels"]]
    for name in names:
        claims = (panel for panel in panels if name.startswith(tuple(panel.prefixes)))
        if (panel := next(claims, None)) is None:
            panels.append(panel := Panel(name, (name,)))
        if (curve := read_series(rows, name, panel.scale)) is not None:
            panel.curves.append(curve)
    return [panel for panel in panels if panel.curves]


def read_series(rows: Rows, name: str, scale: float = 1.0) -> Series | None:
    """One scalar times `scale` over the steps, or None if fewer than two numbers are known."""
    points = [(row["step"], row[name]) for row in rows if name in row]
    known = [value for _, value in points if value is not None]
    if len(known) < 2:
        return None
    steps, values = np.array(points, np.float64).T  # None becomes NaN.
    curve = downsample(steps, scale * values)
    return Series(NAMES.get(name, name), *curve, scale * known[-1], is_dashed="_live_" in name)


def downsample(
    steps: np.ndarray, values: np.ndarray, max_points: int = MAX_POINTS
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Replaces neighboring points by their mean step, mean, minimum and maximum.

    Args:
        steps: float64 [n], ascending.
        values: float64 [n]; NaN where unknown.
        max_points: how many may remain.

    Returns:
        Four times float64 [min(n, max_points)]; NaN where none of the neighbors is known.
    """
    points = []
    for part in np.array_split(np.arange(len(values)), min(len(values), max_points)):
        known = values[part][~np.isnan(values[part])]
        summary = (known.mean(), known.min(), known.max()) if len(known) else (np.nan,) * 3
        points.append((steps[part].mean(), *summary))
    mean_steps, means, low, high = np.array(points).T
    return mean_steps, means, low, high


def find_last(rows: Rows, name: str) -> float | None:
    """The last known value of a scalar."""
    return next((row[name] for row in reversed(rows) if row.get(name) is not None), None)


def _order(name: str) -> tuple[int, str]:
    known = list(NAMES)
    return (known.index(name) if name in known else len(known), name)
