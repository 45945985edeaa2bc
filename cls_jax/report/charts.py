"""The metrics of a run as charts: panels of curves over the steps, and reliability diagrams.

Charts are inline SVG, drawn by matplotlib and colored by the page's style sheet.
"""

import dataclasses
import importlib.resources
import io
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from cls_jax.inference.scores import Reliability

WIDTH, HEIGHT = 480, 250
MAX_POINTS = 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 12, 10, 26
# matplotlib does not know CSS variables: while it draws, "#0000NN" stands for the NNth of these.
_VARIABLES = ("line", "soft", "wrong", "c1", "c2", "c3", "c4", "c5", "c6")
_NUM_COLORS = 6  # Of curves: c1 to c6.
_DASHES = (0, (2, 2))
# Parts of an SVG file that a drawing inside a page does not need: clip paths and groups with IDs
# (not unique there), fonts (set by the style sheet), and fractions of a pixel.
_CLUTTER = re.compile(
    r"<defs>\s*<clipPath.*?</defs>|</?g\b[^>]*>|</svg>|"
    r'font-[a-z]+: [^;]*; | (?:clip-path|transform)="[^"]*"|(?<=\.\d)\d{2,}',
    re.DOTALL,
)
_STYLE = ("default", {"svg.fonttype": "none"})  # Text as <text>, whatever the user's matplotlibrc.
_TEXTS = tomllib.loads(
    importlib.resources.files("cls_jax.report").joinpath("templates/panels.toml").read_text("utf-8")
)
NAMES = _TEXTS["names"]
NAMES |= {name.replace("test/", "validation/"): NAMES[name] for name in NAMES if "test/" in name}
Rows = Sequence[Mapping[str, Any]]  # As `data.clean_rows` returns them.


@dataclasses.dataclass(frozen=True)
class Series:
    """One curve of T points, each of which may stand for several measurements."""

    name: str
    steps: np.ndarray  # float64 [T], ascending.
    values: np.ndarray  # float64 [T], means, NaN where nothing was measured.
    low: np.ndarray  # float64 [T], smallest of the measurements behind each point.
    high: np.ndarray  # float64 [T], largest.
    last: float
    is_dashed: bool = False


@dataclasses.dataclass
class Panel:
    """Curves that share their axes. `templates/panels.toml` lists the known panels."""

    title: str
    prefixes: Sequence[str]  # Of the names of its scalars.
    caption: str = ""
    unit: str = ""
    scale: float = 1.0  # Factor from the stored numbers to those shown.
    curves: list[Series] = dataclasses.field(default_factory=list)

    def format(self, value: float) -> str:
        """A measured number as text."""
        return f"{value:.1f}%" if self.unit == "%" else f"{value:.4g}"


def create_panels(rows: Rows) -> list[Panel]:
    """Groups the scalars that are known at two or more steps."""
    order = {name: place for place, name in enumerate(NAMES)}
    names = sorted({name for row in rows for name in row} - {"step"})
    names.sort(key=lambda name: order.get(name, len(order)))
    for split in ("validation", "test"):
        first, one, two, both = (
            f"{split}/accuracy{end}" for end in ("", "_network_1", "_network_2", "_ensemble")
        )
        if one in names and first in names:
            names.remove(first)  # The same under another name.
        if two not in names and both in names:
            names.remove(both)  # An ensemble of one.
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


class Chart(NamedTuple):
    """A drawing, and the values that the page shows at the pointer."""

    svg: str  # Contents of an <svg> element of `WIDTH` x `HEIGHT`; only numbers, units and colors.
    traces: list[dict[str, Any]]  # By curve: name, points [x, y in pixels, place, value as text].


@matplotlib.style.context(_STYLE)
def draw_panel(panel: Panel) -> Chart:
    """Curves over the steps, each with a band where its points stand for several measurements."""
    axes = _create_axes()
    steps = np.concatenate([curve.steps for curve in panel.curves])
    values = np.concatenate([array for c in panel.curves for array in (c.low, c.high)])
    axes.set_xlim(*axes.xaxis.get_major_locator().nonsingular(steps.min(), steps.max()))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 20k
    ticks = choose_ticks(np.nanmin(values), np.nanmax(values))
    axes.set_yticks(ticks, [f"{tick:g}{panel.unit}" for tick in ticks])
    axes.set_ylim(ticks[0], ticks[-1])
    traces = []
    for i, curve in enumerate(panel.curves):
        color = _color(f"c{i % _NUM_COLORS + 1}")
        if not np.array_equal(curve.low, curve.high, equal_nan=True):
            band = {"facecolor": color, "edgecolor": "none", "alpha": 0.16}
            axes.fill_between(curve.steps, curve.low, curve.high, clip_on=False, **band)
        line = {"linewidth": 1.3, "linestyle": _DASHES} if curve.is_dashed else {"linewidth": 1.8}
        axes.plot(curve.steps, curve.values, color=color, clip_on=False, **line)
        points = zip(curve.steps, curve.values, strict=True)
        texts = [(f"step {step:.0f}", panel.format(value)) for step, value in points]
        traces.append(_trace(axes, curve.name, curve.steps, curve.values, texts))
    return Chart(_to_svg(axes.figure), traces)


@matplotlib.style.context(_STYLE)
def draw_reliability(reliability: Reliability) -> Chart:
    """Bars of accuracy by confidence, the mean confidence of each, and the diagonal."""
    counts, confidence, accuracy, _ = reliability
    axes = _create_axes()
    for axis, set_limits in ((axes.xaxis, axes.set_xlim), (axes.yaxis, axes.set_ylim)):
        set_limits(0, 1)
        axis.set_ticks(np.linspace(0, 1, 5))
        axis.set_major_formatter(PercentFormatter(xmax=1, symbol="%"))
    axes.plot([0, 1], [0, 1], color=_color("soft"), linewidth=1, linestyle=_DASHES, clip_on=False)
    # Half a pixel of background on either side of a bar.
    half = 0.5 / len(counts) - 1 / WIDTH
    center = (np.arange(len(counts)) + 0.5) / len(counts)
    opacity = np.round(0.25 + 0.6 * np.sqrt(counts / max(counts.max(), 1)), 2)
    fill = {"width": 2 * half, "linewidth": 0, "clip_on": False}
    for i in np.flatnonzero(counts):
        axes.bar(center[i], accuracy[i], color=_color("c1"), alpha=opacity[i], **fill)
        mark = [center[i] - half, center[i] + half], [confidence[i]] * 2
        axes.plot(*mark, color=_color("wrong"), linewidth=2, solid_capstyle="butt", clip_on=False)
    texts = [
        (f"{count} images with mean confidence {100 * mean:.1f}%", f"{100 * right:.1f}%")
        for count, mean, right in zip(counts, confidence, accuracy, strict=True)
    ]
    return Chart(_to_svg(axes.figure), [_trace(axes, "accuracy", center, accuracy, texts)])


def choose_ticks(low: float, high: float) -> np.ndarray:
    """About five round numbers that enclose a range, from 0 if that is in or near the range."""
    locator = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10])
    low, high = locator.nonsingular(low, high)  # A range that is not empty.
    low = min(low, 0.0) if low < 0.5 * high else low
    return locator.tick_values(low, high) + 0.0  # Never -0.


def _create_axes() -> Axes:
    """Axes on a figure whose points are the pixels of the view box."""
    figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), dpi=72)
    size = (WIDTH - _LEFT - _RIGHT) / WIDTH, (HEIGHT - _TOP - _BOTTOM) / HEIGHT
    axes = figure.add_axes((_LEFT / WIDTH, _BOTTOM / HEIGHT, *size))
    for patch in (figure.patch, axes.patch, *axes.spines.values()):
        patch.set_visible(False)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.tick_params(length=0, pad=6, labelsize=11, labelcolor=_color("soft"))
    axes.tick_params(axis="x", pad=9)
    axes.grid(axis="y", color=_color("line"), linewidth=1)
    return axes


def _trace(axes: Axes, name: str, x: np.ndarray, y: np.ndarray, texts: Iterable) -> dict[str, Any]:
    pixels = axes.transData.transform(np.column_stack([x, y]))
    points = [
        [round(float(left), 1), round(HEIGHT - float(bottom), 1), *text]
        for (left, bottom), text in zip(pixels, texts, strict=True)
        if np.isfinite(bottom)
    ]
    return {"name": name, "points": points}


def _color(variable: str) -> str:
    return f"#0000{_VARIABLES.index(variable):02}"


def _to_svg(figure: Figure) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg")
    # Everything up to there is the head of the file and its style sheet.
    drawing = " ".join(_CLUTTER.sub("", file.getvalue().partition("</defs>")[2]).split())
    return re.sub(r"#0000(\d\d)", lambda match: f"var(--{_VARIABLES[int(match[1])]})", drawing)
