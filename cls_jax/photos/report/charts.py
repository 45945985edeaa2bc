"""The metrics of a run as charts: panels of curves over the steps, and reliability diagrams.

Charts are inline SVG, drawn by `templates/macros.html.j2` and colored by the page's style sheet. A
chart is a dictionary of places in pixels, in an <svg> element of `WIDTH` x `HEIGHT`: "x_ticks" and
"y_ticks", places with their labels; "shapes", lines through points [n, 2] with their style; and
"traces", the values that the page shows at the pointer: for each curve its name, and points [x, y,
place, value as text].
"""

import dataclasses
import importlib.resources
import math
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cls_jax.photos.start.scores import Reliability

WIDTH, HEIGHT = 480, 250
MAX_POINTS = 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 12, 10, 26
_NUM_COLORS = 6  # Of curves: the style sheet's variables c1 to c6.
_DASHED = "; stroke-dasharray: 2 2"
_TEXTS = tomllib.loads(
    importlib.resources.files("cls_jax.photos.report")
    .joinpath("templates/panels.toml")
    .read_text("utf-8")
)
NAMES = _TEXTS["names"]
NAMES |= {name.replace("test/", "validation/"): NAMES[name] for name in NAMES if "test/" in name}
Rows = Sequence[Mapping[str, Any]]  # As `data.clean_rows` returns them.


@dataclasses.dataclass(frozen=True)
class Series:
    """A curve of T points, each the mean of one or more measurements."""

    name: str
    steps: np.ndarray  # float64 [T], ascending.
    values: np.ndarray  # float64 [T], means, NaN where nothing was measured.
    low: np.ndarray  # float64 [T], the smallest measurement of each point.
    high: np.ndarray  # float64 [T], the largest.
    last: float
    is_dashed: bool = False


@dataclasses.dataclass
class Panel:
    """Curves that share their axes. `templates/panels.toml` lists the known panels."""

    title: str
    prefixes: Sequence[str]  # Prefixes of the names of its scalars.
    caption: str = ""
    unit: str = ""
    scale: float = 1.0  # Factor from stored to displayed numbers.
    curves: list[Series] = dataclasses.field(default_factory=list)

    def format(self, value: float) -> str:
        """A measured number as text."""
        return f"{value:.1f}%" if self.unit == "%" else f"{value:.4g}"


def create_panels(rows: Rows) -> list[Panel]:
    """Groups the scalars that are known at two or more steps."""
    order = {name: place for place, name in enumerate(NAMES)}
    names = {name for row in rows for name in row} - {"step"}
    for name in ("validation/accuracy", "test/accuracy"):
        if f"{name}_network_1" in names:
            names.discard(name)  # A duplicate under another name.
        if f"{name}_network_2" not in names:
            names.discard(f"{name}_ensemble")  # Of one.
    panels = [Panel(**entry) for entry in _TEXTS["panels"]]
    for name in sorted(names, key=lambda name: (order.get(name, len(order)), name)):
        claims = (panel for panel in panels if name.startswith(tuple(panel.prefixes)))
        if (panel := next(claims, None)) is None:
            panels.append(panel := Panel(name, (name,)))
        if (curve := read_series(rows, name, panel.scale)) is not None:
            panel.curves.append(curve)
    return [panel for panel in panels if panel.curves]


def read_series(rows: Rows, name: str, scale: float = 1.0) -> Series | None:
    """One scalar times `scale` over the steps, or None with fewer than two numbers."""
    points = [(row["step"], row[name]) for row in rows if name in row]
    known = [value for _, value in points if value is not None]
    if len(known) < 2:
        return None
    steps, values = np.array(points, np.float64).T  # None becomes NaN.
    steps, values, low, high = downsample(steps, scale * values)
    return Series(
        NAMES.get(name, name),
        steps=steps,
        values=values,
        low=low,
        high=high,
        last=scale * known[-1],
        is_dashed="_live_" in name,
    )


def downsample(
    steps: np.ndarray, values: np.ndarray, max_points: int = MAX_POINTS
) -> tuple[np.ndarray, ...]:
    """Replaces neighboring points by their mean step, mean, minimum and maximum.

    Steps are float64 [n], ascending, and values float64 [n], NaN where unknown. The results are
    float64 [min(n, max_points)], NaN where none of the neighbors is known.
    """
    points = []
    for part in np.array_split(np.arange(len(values)), min(len(values), max_points)):
        known = values[part][~np.isnan(values[part])]
        summary = (known.mean(), known.min(), known.max()) if len(known) else (np.nan,) * 3
        points.append((steps[part].mean(), *summary))
    return tuple(np.array(points).T)


def find_last(rows: Rows, name: str) -> float | None:
    """The last known value of a scalar."""
    return next((row[name] for row in reversed(rows) if row.get(name) is not None), None)


def draw_panel(panel: Panel) -> dict[str, Any]:
    """Curves over the steps, with bands of the smallest and largest measurements."""
    steps = np.concatenate([curve.steps for curve in panel.curves])
    values = np.concatenate([array for c in panel.curves for array in (c.low, c.high)])
    first, last = steps.min(), max(steps.max(), steps.min() + 1)
    x_ticks = {x: _shorten(x) for x in choose_ticks(first, last) if first <= x <= last}
    low, high = np.nanmin(values), np.nanmax(values)
    ticks = choose_ticks(min(low, 0.0) if low < 0.5 * high else low, high)
    box = (first, last), (ticks[0], ticks[-1])
    shapes: list[tuple[list[np.ndarray], str]] = []
    traces = []
    for i, curve in enumerate(panel.curves):
        color = f"var(--c{i % _NUM_COLORS + 1})"
        top, line, bottom = (
            _place(box, curve.steps, y) for y in (curve.high, curve.values, curve.low)
        )
        runs = np.ma.clump_unmasked(np.ma.masked_invalid(curve.values))
        if not np.array_equal(curve.low, curve.high, equal_nan=True):
            bands = [np.concatenate([top[run], bottom[run][::-1]]) for run in runs]
            shapes.append((bands, f"fill: {color}; fill-opacity: 0.16"))
        dash = f"1.3{_DASHED}" if curve.is_dashed else "1.8"
        style = f"fill: none; stroke: {color}; stroke-width: {dash}"
        shapes.append(([line[run] for run in runs], style))
        points = [
            [*pixels, f"step {step:.0f}", panel.format(value)]
            for pixels, step, value in zip(line.tolist(), curve.steps, curve.values, strict=True)
            if np.isfinite(value)
        ]
        traces.append({"name": curve.name, "points": points})
    y_ticks = {y: f"{y:g}{panel.unit}" for y in ticks}
    return _place_ticks(box, x_ticks, y_ticks) | {"shapes": shapes, "traces": traces}


def draw_reliability(reliability: Reliability) -> dict[str, Any]:
    """Bars of accuracy by confidence, the mean confidence of each, and the diagonal."""
    counts, confidence, accuracy, _ = reliability
    box = ((0, 1), (0, 1))
    ticks = {tick: f"{tick:.0%}" for tick in np.linspace(0, 1, 5)}
    shapes = [([_place(box, [0, 1], [0, 1])], f"fill: none; stroke: var(--soft){_DASHED}")]
    # Half a pixel of background on either side of a bar.
    half = 0.5 / len(counts) - 1 / WIDTH
    center = (np.arange(len(counts)) + 0.5) / len(counts)
    opacity = 0.25 + 0.6 * np.sqrt(counts / max(counts.max(), 1))
    for i in np.flatnonzero(counts):
        sides = np.array([-half, -half, half, half]) + center[i]
        bar = _place(box, sides, [0, accuracy[i], accuracy[i], 0])
        shapes.append(([bar], f"fill: var(--c1); fill-opacity: {opacity[i]:.2f}"))
        mark = _place(box, sides[1:3], [confidence[i]] * 2)
        shapes.append(([mark], "stroke: var(--wrong); stroke-width: 2"))
    points = [
        [*pixels, f"{count} images with mean confidence {100 * mean:.1f}%", f"{100 * right:.1f}%"]
        for pixels, count, mean, right in zip(
            _place(box, center, accuracy).tolist(), counts, confidence, accuracy, strict=True
        )
        if np.isfinite(right)
    ]
    traces = [{"name": "accuracy", "points": points}]
    return _place_ticks(box, ticks, ticks) | {"shapes": shapes, "traces": traces}


def choose_ticks(low: float, high: float) -> np.ndarray:
    """About five round numbers that enclose a range, which may have length 0."""
    if not high > low:
        low, high = low - 0.05 * abs(low or 1), high + 0.05 * abs(high or 1)
    power = 10.0 ** math.floor(math.log10((high - low) / 5))
    size = next(n * power for n in (1, 2, 2.5, 5, 10) if (high - low) <= 5.001 * n * power)
    return size * np.arange(math.floor(low / size + 1e-9), math.ceil(high / size - 1e-9) + 1)


def _shorten(step: float) -> str:
    """A number of steps, such as 20k."""
    size, unit = next((s, u) for s, u in ((1e6, "M"), (1e3, "k"), (0, "")) if step >= s)
    return f"{step / (size or 1):g}{unit}"


def _place(box: Any, x: Any, y: Any) -> np.ndarray:
    """Points as pixels [n, 2], given the lowest and highest values of both axes."""
    (x_low, x_high), (y_low, y_high) = box
    left = _LEFT + (np.asarray(x) - x_low) / (x_high - x_low) * (WIDTH - _LEFT - _RIGHT)
    up = (np.asarray(y) - y_low) / (y_high - y_low) * (HEIGHT - _TOP - _BOTTOM)
    return np.column_stack([left, HEIGHT - _BOTTOM - up]).round(1)


def _place_ticks(box: Any, x_ticks: Mapping, y_ticks: Mapping) -> dict[str, Any]:
    """The places of both axes' labels, by value."""
    (x_low, _), (y_low, _) = box
    return {
        "x_ticks": [(_place(box, x, y_low)[0, 0], text) for x, text in x_ticks.items()],
        "y_ticks": [(_place(box, x_low, y)[0, 1], text) for y, text in y_ticks.items()],
    }
