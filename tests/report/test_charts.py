"""Curves of what was measured."""

import re

import numpy as np
import pytest

from cls_jax.report.charts import (
    choose_ticks,
    create_panels,
    downsample,
    draw_panel,
    find_last,
    read_series,
)
from cls_jax.report.data import clean_rows
from tests.report.pages import Page


def test_many_points_keep_mean_and_extremes_and_few_stay_as_they_are():
    steps, values = np.arange(5.0), np.array([1.0, np.nan, 3.0, 4.0, 5.0])
    for result, expected in zip(downsample(steps, values), (steps, *[values] * 3), strict=True):
        np.testing.assert_array_equal(result, expected)
    steps, values = np.arange(10_000.0), np.random.default_rng(0).normal(size=10_000)
    values[:150] = np.nan
    mean_steps, means, low, high = downsample(steps, values, 100)
    np.testing.assert_allclose(mean_steps, np.arange(49.5, 10_000, 100))
    assert np.isnan(means[0])
    assert means[1] == pytest.approx(values[150:200].mean())
    assert (np.nanmin(low), np.nanmax(high)) == (np.nanmin(values), np.nanmax(values))


def draw_names(*names):
    return create_panels([{"step": i, **dict.fromkeys(names, float(i))} for i in range(3)])


def test_everything_measured_has_its_panel_once():
    names = ["train/loss", "train/loss_co", "monitors/entropy", "test/accuracy", "perf/x", "new"]
    panels = draw_names(*names)
    assert sum(len(panel.curves) for panel in panels) == len(names)
    assert panels[0].title == "Test accuracy"
    # An accuracy has no second curve under another name.
    one = ["test/accuracy", "test/accuracy_network_1", "test/accuracy_ensemble"]
    assert [len(panel.curves) for panel in draw_names(*one)] == [1]
    assert len(draw_names(*one, "test/accuracy_network_2")[0].curves) == 3


def test_values_that_cannot_be_drawn_are_gaps_and_never_the_last():
    rows = clean_rows([{"step": i, "x": v} for i, v in enumerate([1, None, 3, float("nan")])])
    series = read_series(rows, "x")
    np.testing.assert_array_equal(series.values, [1, np.nan, 3, np.nan])
    assert series.last == find_last(rows, "x") == 3
    assert create_panels(clean_rows([{"step": i, "x": None} for i in range(5)])) == []
    rows = [{"step": 2, "x": 1.0}, {"step": 1, "x": float("inf"), "y": 10**40, "z": None}]
    assert clean_rows(rows) == [{"step": 1, "x": None, "y": None, "z": None}, {"step": 2, "x": 1.0}]


@pytest.mark.parametrize("value", [0.0, -3.0, 1e-12, 1e20])
def test_a_constant_is_drawn(value):
    (panel,) = create_panels([{"step": step, "x": value} for step in (0, 1, 2)])
    chart = draw_panel(panel)
    assert not re.search("nan|inf", chart["svg"])
    assert len(chart["traces"][0]["points"]) == 3


def test_gaps_break_the_line_and_the_pointer_reads_it():
    rows = [{"step": i, "x": v} for i, v in enumerate([1.0, 2.0, None, 3.0, 4.0])]
    chart = draw_panel(create_panels(rows)[0])
    (curve,) = (a for a in Page(chart["svg"]).find("path") if "var(--c1)" in a["style"])
    assert curve["d"].count("M") == 2
    (trace,) = chart["traces"]
    texts = [["step 0", "1"], ["step 1", "2"], ["step 3", "3"], ["step 4", "4"]]
    assert [point[2:] for point in trace["points"]] == texts
    drawn = [list(map(float, pair)) for pair in re.findall(r"([\d.]+) ([\d.]+)", curve["d"])]
    np.testing.assert_allclose(drawn, [point[:2] for point in trace["points"]], atol=0.1)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (88.2, 97.3), (0, 307200), (-3e-9, 2e-9)])
def test_ticks_are_few_even_and_around(low, high):
    ticks = choose_ticks(low, high)
    assert ticks[0] <= low
    assert ticks[-1] >= high * (1 - 1e-9)
    assert 3 <= len(ticks) <= 8
    np.testing.assert_allclose(np.diff(ticks), ticks[1] - ticks[0])
