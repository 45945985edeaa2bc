"""Charts as inline SVG. Colours are classes of the style sheet, so that they suit the dark too."""

import math
from collections.abc import Sequence

import numpy as np

from cls_jax.report.markup import Html, tag
from cls_jax.report.scores import Calibration
from cls_jax.report.series import Panel, Series

_WIDTH, _HEIGHT = 480, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 10, 10, 26
_NUM_COLOURS = 6


def draw_panel(panel: Panel) -> Html:
    """Curves over the steps, with their last values as the legend."""
    x_low, x_high = _find_range([curve.steps for curve in panel.curves])
    y_low, y_high = _find_range([array for c in panel.curves for array in (c.low, c.high)])
    y_low = min(y_low, 0.0) if y_low < 0.5 * y_high else y_low
    y_ticks = choose_ticks(y_low, y_high)
    y_low, y_high = min(y_low, y_ticks[0]), max(y_high, y_ticks[-1])

    def to_x(steps):
        return _LEFT + (steps - x_low) / (x_high - x_low) * (_WIDTH - _LEFT - _RIGHT)

    def to_y(values):
        return _HEIGHT - _BOTTOM - (values - y_low) / (y_high - y_low) * _inner_height()

    x_ticks = [tick for tick in choose_ticks(x_low, x_high) if x_low <= tick <= x_high]
    parts = [
        *(_draw_y_tick(to_y(tick), f"{tick:g} {panel.unit}".strip()) for tick in y_ticks),
        *(_draw_x_tick(to_x(tick), format_count(tick)) for tick in x_ticks),
    ]
    for i, curve in enumerate(panel.curves):
        x = to_x(curve.steps)
        colour = f"s{i % _NUM_COLOURS + 1}"
        if not np.array_equal(curve.low, curve.high, equal_nan=True):
            parts.append(_draw_band(x, to_y(curve.low), to_y(curve.high), f"band {colour}"))
        parts.append(_draw_curve(curve, x, to_y(curve.values), colour, panel.unit))
    summary = ", ".join(f"{c.name} {format_value(c.last, panel.unit)}" for c in panel.curves)
    chart = _draw_svg(parts, f"{panel.title} over the steps. Last values: {summary}.", "curves")
    return tag(
        "figure",
        tag("h3", panel.title),
        chart,
        tag("ul", map(_draw_entry, *_number(panel)), class_="legend"),
        tag("p", class_="readout", aria_hidden="true"),
        tag("figcaption", panel.caption) if panel.caption else None,
        class_="card",
    )


def draw_reliability(title: str, calibration: Calibration) -> Html:
    """Bars of accuracy by confidence beside the diagonal on which they should end."""
    num_bins = len(calibration.counts)
    width = (_WIDTH - _LEFT - _RIGHT) / num_bins
    bottom = _HEIGHT - _BOTTOM
    parts = [
        *(_draw_y_tick(_place(tick), f"{100 * tick:g} %") for tick in (0, 0.25, 0.5, 0.75, 1)),
        *(
            _draw_x_tick(_LEFT + tick * (_WIDTH - _LEFT - _RIGHT), f"{100 * tick:g} %")
            for tick in (0, 0.25, 0.5, 0.75, 1)
        ),
    ]
    for i, (count, confidence, accuracy) in enumerate(zip(*calibration[:3], strict=True)):
        if count == 0:
            continue
        hint = (
            f"{count} images, mean confidence {100 * confidence:.1f} %, "
            f"accuracy {100 * accuracy:.1f} %"
        )
        x, top, wanted = _LEFT + i * width, _place(accuracy), _place(confidence)
        parts += [
            tag(
                "rect",
                tag("title", hint),
                x=f"{x + 1:.1f}",
                y=f"{top:.1f}",
                width=f"{width - 2:.1f}",
                height=f"{max(bottom - top, 1):.1f}",
                class_="bar",
                opacity=f"{0.25 + 0.6 * (count / calibration.counts.max()) ** 0.5:.2f}",
            ),
            tag(
                "path",
                d=f"M{x + 1:.1f} {wanted:.1f}h{width - 2:.1f}",
                class_="wanted",
            ),
        ]
    right, top = _WIDTH - _RIGHT, _place(1.0)
    parts.append(tag("path", d=f"M{_LEFT} {bottom}L{right} {top}", class_="diagonal"))
    error = f"{100 * calibration.error:.2f} %"
    label = f"Reliability diagram of {title}: expected calibration error {error}."
    return tag(
        "figure",
        tag("h3", title),
        _draw_svg(parts, label),
        tag(
            "figcaption",
            "Expected calibration error ",
            tag("strong", error, class_="ece"),
            f" ({num_bins} bins). Bars: accuracy of the predictions of each confidence, the "
            "fuller, the more images; lines: their mean confidence, where the bars should end.",
        ),
        class_="card",
    )


def choose_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers from at most `low` to at least `high`."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(i * step, 12 - math.floor(math.log10(step))) for i in range(first, last + 1)]


def format_count(value: float) -> str:
    """A step as an axis says it: 500, 20k, 1.5M."""
    for factor, letter in ((1e6, "M"), (1e4, "k")):
        if abs(value) >= factor:
            return f"{value / (1e3 if letter == 'k' else factor):g}{letter}"
    return f"{value:g}"


def format_value(value: float, unit: str) -> str:
    """A measured number for reading."""
    return f"{value:.2f} %" if unit == "%" else f"{value:.4g}"


def _find_range(arrays: Sequence[np.ndarray]) -> tuple[float, float]:
    values = np.concatenate(arrays)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    half = 0.5 * abs(low) or 0.5
    return low - half, high + half


def _inner_height() -> int:
    return _HEIGHT - _TOP - _BOTTOM


def _place(share: float) -> float:
    return _HEIGHT - _BOTTOM - share * _inner_height()


def _draw_svg(parts: Sequence[Html], label: str, class_: str | None = None) -> Html:
    box = f"0 0 {_WIDTH} {_HEIGHT}"
    return tag("svg", *parts, viewBox=box, role="img", aria_label=label, class_=class_)


def _draw_y_tick(y: float, text: str) -> Html:
    line = tag("path", d=f"M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}", class_="grid")
    return Html(line + tag("text", text, x=_LEFT - 6, y=f"{y + 4:.1f}", class_="end"))


def _draw_x_tick(x: float, text: str) -> Html:
    anchor = "end" if x > _WIDTH - _RIGHT - 12 else "middle"
    return tag("text", text, x=f"{x:.1f}", y=_HEIGHT - 8, class_=anchor)


def _draw_band(x: np.ndarray, low: np.ndarray, high: np.ndarray, class_: str) -> Html:
    known = np.flatnonzero(~np.isnan(low))
    pieces = np.split(known, np.flatnonzero(np.diff(known) > 1) + 1)
    outlines = (
        "M"
        + "L".join(
            [f"{x[i]:.1f} {high[i]:.1f}" for i in piece]
            + [f"{x[i]:.1f} {low[i]:.1f}" for i in reversed(piece)]
        )
        + "Z"
        for piece in pieces
    )
    return tag("path", d="".join(outlines), class_=class_)


def _draw_curve(curve: Series, x: np.ndarray, y: np.ndarray, colour: str, unit: str) -> Html:
    commands, is_down = [], False
    for px, py in zip(x, y, strict=True):
        if math.isnan(py):
            is_down = False
            continue
        commands.append(f"{'L' if is_down else 'M'}{px:.1f} {py:.1f}")
        is_down = True
    points = (
        f"{step:.0f},{format_value(value, unit)},{px:.1f},{py:.1f}"
        for step, value, px, py in zip(curve.steps, curve.values, x, y, strict=True)
        if not math.isnan(value)
    )
    return tag(
        "path",
        d="".join(commands),
        class_=f"curve {colour}{' dashed' if curve.is_dashed else ''}",
        data_name=curve.name,
        data_points=";".join(points),
    )


def _number(panel: Panel):
    return [panel.unit] * len(panel.curves), range(len(panel.curves)), panel.curves


def _draw_entry(unit: str, index: int, curve: Series) -> Html:
    mark = f"mark s{index % _NUM_COLOURS + 1}{' dashed' if curve.is_dashed else ''}"
    value = tag("b", format_value(curve.last, unit))
    return tag("li", tag("i", class_=mark), curve.name, " ", value)
