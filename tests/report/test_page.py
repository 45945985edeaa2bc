"""The page of any run: whole, closed, escaped, and free of the network."""

import dataclasses
import pathlib
import re
import shlex
import shutil
import urllib.parse

import numpy as np
import pytest
from sklearn.metrics import classification_report, confusion_matrix

from cls_jax.inference.calibration import Calibration, apply_calibration
from cls_jax.inference.scores import compute_reliability
from cls_jax.inference.suspects import Suspect
from cls_jax.report import charts
from cls_jax.report.data import Predictions, clean_rows
from cls_jax.report.page import render_page
from cls_jax.report.sections import overlay_heat_map
from tests.report.pages import Page, create_run

BROWSERS = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
BROWSER = next(filter(None, BROWSERS), "")
HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(2)'>",
    "a\nb\x00\x07\x1b[31m",
    "\udcff half a surrogate",
    "</title></style><!-- & &amp; &#60;",
)
CONSTANT = {"monitors/exchange_ratio": 0.5, "monitors/pseudo_label_accuracy": None}
CONSTANT |= {"test/accuracy": 50.0, "test/accuracy_network_1": 50.0}
CONSTANT |= {"test/accuracy_network_2": 55.0, "test/accuracy_ensemble": 60.0}
ROWS = [{"step": step, "train/loss": 1.0 / (1 + step), **CONSTANT} for step in range(10)]


@pytest.mark.parametrize(
    ("options", "present", "absent"),
    [
        ({}, {"classes", "calibration", "mistakes", "doubtful", "views"}, set()),
        ({"num_networks": 1, "method": "fixmatch"}, {"classes", "doubtful"}, set()),
        ({"num_test": 0}, {"doubtful", "views"}, {"classes", "calibration", "mistakes"}),
        ({"num_classes": 100, "num_test": 300}, {"classes", "labeled"}, set()),
        ({"predictions": None}, {"views", "labeled"}, {"classes", "doubtful"}),
        (
            {"predictions": None, "dataset": None, "labeled": None, "class_names": None},
            {"training", "configuration"},
            {"views", "labeled"},
        ),
        ({"rows": []}, {"classes"}, {"training"}),
    ],
)
def test_page_shows_what_there_is_and_nothing_comes_from_the_network(options, present, absent):
    text = render_page(create_run(**{"rows": ROWS} | options))
    page = Page(text)
    sections = {attributes["id"] for attributes in page.find("section")}
    assert present | {"configuration", "sessions"} <= sections
    assert not absent & sections
    assert {a["href"] for a in page.find("a")} == {f"#{id_}" for id_ in sections}
    assert all(image["alt"] for image in page.find("img"))
    assert "nan" not in re.findall(r"[\w.]+", page.text.lower())
    assert "unfinished: 9 of 6 steps" in page.text or "rows" in options
    (policy,) = page.find("meta", **{"http-equiv": "Content-Security-Policy"})
    assert policy["content"].startswith("default-src 'none'; img-src data:;")
    for name, attributes in page.elements:
        assert name not in {"link", "iframe", "object", "embed", "base", "form"}
        for key in ("src", "href", "action", "srcset", "data"):
            assert attributes.get(key, "#").startswith(("#", "data:image/")), (name, key)
    # The only address is the name of the SVG namespace, in the script.
    assert set(re.findall(r"https?://[^\s\"'<]*|url\(|@import", text)) == {
        "http://www.w3.org/2000/svg"
    }


def test_hostile_names_are_only_text():
    run = create_run(
        class_names=HOSTILE,
        rows=[{"step": i, f"monitors/{HOSTILE[0]}": float(i)} for i in range(3)],
        result={"step": HOSTILE[0], "test_accuracy": HOSTILE[1], "train_seconds": "<b>"},
        sessions=[{"command": HOSTILE[0], "versions": {"<i>": HOSTILE[1]}, "hardware": ["<u>"]}],
        notes=(HOSTILE[4],),
    )
    run.config.data.data_dir = HOSTILE[1]
    text = render_page(dataclasses.replace(run, workdir=run.workdir / HOSTILE[0]))
    text.encode()
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", text)
    page = Page(text)
    assert len(page.scripts) == 1
    assert not page.find("b", src="x")
    assert {"i", "u"} & {a for tag_, attributes in page.elements for a in attributes} == set()
    assert not any(name.startswith("on") for _, element in page.elements for name in element)
    assert page.find("th", title=HOSTILE[0])
    assert all(page.text.count(name) > 3 for name in HOSTILE[:2])
    assert HOSTILE[4] in page.text


def test_images_of_a_folder_have_the_names_of_their_files_and_link_to_them(tmp_path):
    run = create_run(num_classes=2, num_test=30)
    odd = [name.replace("\0", "") for name in HOSTILE]
    names = [f"test/{odd[i % 5]}/{i} {odd[i % 5]}.png" for i in range(30)]
    dataset = dataclasses.replace(run.dataset, test_files=tuple(names), name="photos")
    run.config.data.update(name="folder", data_dir=str(tmp_path / "photos"))
    run.config.num_labels = 0
    run = dataclasses.replace(run, dataset=dataset, workdir=tmp_path / "runs" / "mine")
    page = Page(render_page(run))
    assert "photos with 4 labels" in page.text
    place = (run.workdir / "report.html").as_uri()
    shown = page.find("a", **{"class": "file"})
    mistakes, doubtful = run.predictions.mistakes[:24], run.predictions.doubtful[:24]
    uris = [(tmp_path / "photos" / names[i]).as_uri() for i in (*mistakes, *doubtful)]
    assert [urllib.parse.urljoin(place, a["href"]) for a in shown] == uris
    assert f"{100 * run.predictions.confidence[0][mistakes[0]]:.1f}%" in page.text
    assert len(page.scripts) == 1
    assert not page.find("img", src="x")


@pytest.mark.parametrize("has_images", [True, False])
def test_a_page_to_be_sent_names_no_folder_outside_of_the_run_and_maybe_no_image(
    tmp_path, monkeypatch, has_images
):
    home = tmp_path / "home" / "anna smith"
    run = create_run(num_classes=2, num_test=30)
    names = tuple(f"test/IMG_{i}.png" for i in range(30))
    run.config.data.update(name="folder", data_dir=str(home / "my photos"))
    run.config.model.init = f"{home}/runs/first run"
    command = shlex.join(["python", f"{home}/bin/cls-jax", "train", str(home / "my photos")])
    run = dataclasses.replace(
        run,
        workdir=home / "runs" / "mine",
        dataset=dataclasses.replace(run.dataset, test_files=names, name="photos"),
        sessions=[{"command": f"{command} --workdir=/data/secret/mine --config configs/a.py:20"}],
    )
    monkeypatch.setenv("HOME", str(home))
    text = render_page(run, has_images)
    assert not re.findall(f"anna|secret|{tmp_path}|file:", text)
    page = Page(text)
    command = "python 'bin/cls-jax' train 'my photos' --workdir=mine --config configs/a.py:20"
    assert command in page.text
    assert ("IMG_" in text) == bool(page.find("img")) == has_images
    # Two folders that meet only in the root or above the user's home are not linked.
    other = dataclasses.replace(run, workdir=pathlib.Path("/data/runs/mine"))
    assert not Page(render_page(other)).find("a", **{"class": "file"})


def test_suspects_heat_maps_and_calibration_are_shown():
    run = create_run(num_classes=3)
    position = int(run.predictions.mistakes[0])
    heat_map = np.pad(np.ones((2, 2), np.float32), ((0, 2), (0, 2)))
    suspects = [Suspect(True, 7, 0, 2, 0.1, 0.02, 0.3), Suspect(False, 3, 1, 0, 0.2, 0.1, 0.125)]
    calibration = Calibration(6, 1.5, 0.1, 150, fitted_on="validation")
    changes = {"suspects": suspects, "heat_maps": {position: heat_map}, "calibration": calibration}
    page = Page(render_page(dataclasses.replace(run, **changes)))
    assert page.find("img", alt="Test image 7: labeled class 0, probably class 2")
    assert page.find("img", alt="Training image 3: labeled class 1, probably class 0")
    looked = [a for a in page.find("img") if a["alt"].endswith("heat map of network 1")]
    assert {a["alt"].split(":")[0] for a in looked} == {f"Test image {position}"}
    painted = overlay_heat_map(np.full((8, 6, 3), 128, np.uint8), heat_map)
    assert painted[:24, :18].mean() > painted[-24:, -18:].mean() + 50
    mean = run.predictions.probabilities.mean(axis=0)
    after = compute_reliability(apply_calibration(mean, 1.5, 0.1), run.predictions.labels)
    assert f"Expected calibration error {100 * after.error:.1f}%" in page.text


@pytest.mark.skipif(not BROWSER, reason="no Chromium on this machine")
@pytest.mark.parametrize(
    ("width", "options"),
    [
        (1200, {"num_classes": 40, "side": 120}),
        (390, {"class_names": (*HOSTILE[:3], "long " * 40, "w" * 300)}),
    ],
)
def test_it_opens_whole_and_without_an_error_in_a_browser(width, options, tmp_path):
    path, problems = tmp_path / "report.html", []
    path.write_text(render_page(create_run(rows=ROWS, **options)))
    with pytest.importorskip("playwright.sync_api").sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 844})
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(path.as_uri())
        images = page.evaluate("[...document.images].map((image) => image.naturalWidth)")
        needed = page.evaluate("document.documentElement.scrollWidth")
        chart = page.locator("svg[data-traces]").first
        chart.hover(position={"x": chart.bounding_box()["width"] - 1, "y": 5})
        readout = page.locator(".readout").first.inner_text()
        browser.close()
    assert problems == []
    assert len(images) > 20
    assert all(images)
    assert needed <= width
    assert readout.startswith("step 9: network 1 (EMA) 50.0%")


def test_baselines_stand_beside_the_result():
    result = {"step": 6, "test_accuracy": 70.0, "test_accuracy_ensemble": 71.0}
    result |= {"test_accuracy_instant": 72.5, "test_accuracy_probe": 65.0}
    result |= {"answer": "instant", "answer_gain": -1.5, "answer_images": "test"}
    text = Page(render_page(create_run(result=result))).text
    words = ("72.5%", "65.0%", "7.5 points above", "fine-tuning lost 1.5 points", "Linear probe")
    assert all(part in text for part in words)
    assert "Linear probe" not in Page(render_page(create_run())).text


def test_figures_of_the_test_images_are_recomputed():
    run = create_run(num_classes=4, num_test=60)
    predicted, labels = run.predictions.probabilities[0].argmax(axis=-1), run.predictions.labels
    page = Page(render_page(run))
    head, *rows = page.table("confusion")
    assert head[1:] == list(run.class_names)
    counts = confusion_matrix(labels, predicted, labels=range(4))
    assert [row[1:] for row in rows] == [[str(count) for count in row] for row in counts]
    report = classification_report(labels, predicted, output_dict=True)["weighted avg"]
    row = page.table("per-class")[-1]
    values = [f"{100 * report[name]:.1f}%" for name in ("precision", "recall", "f1-score")]
    assert [row[1], row[2], row[4], row[6]] == [*values, f"{report['support']:.0f}"]
    texts = "\n".join(attributes["alt"] for attributes in page.find("img"))
    mistakes = re.findall(r"^Test image \d+: class \d, predicted class", texts, re.MULTILINE)
    assert len(mistakes) == min(np.sum(predicted != labels), 24)


def test_many_classes_have_a_heat_map_and_pairs():
    run = create_run(num_classes=30, num_test=500)
    page, predicted = Page(render_page(run)), run.predictions.probabilities[0].argmax(axis=-1)
    mistakes = confusion_matrix(run.predictions.labels, predicted, labels=range(30))
    np.fill_diagonal(mistakes, 0)
    true, predicted, count, _ = page.table("pairs")[1]
    place = run.class_names.index(true), run.class_names.index(predicted)
    assert int(count) == mistakes.max() == mistakes[place]
    assert len(page.find("img", class_="heat")) == 1


def test_page_of_a_long_run_with_many_classes_and_large_images_stays_small():
    values = np.random.default_rng(0).random(5000)
    rows = [{"step": i, **dict.fromkeys(ROWS[0], v)} | {"step": i} for i, v in enumerate(values)]
    text = render_page(create_run(num_classes=1000, num_test=3000, side=224, rows=rows))
    assert len(text.encode()) < 5e6


def test_mistakes_and_disagreements_come_most_confident_first():
    first = np.array([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])
    second = np.array([[0.4, 0.6], [0.1, 0.9], [0.8, 0.2], [0.1, 0.9]])
    both, labels = np.stack([first, second]), np.array([1, -1, 1, 0])
    predictions = Predictions(6, both, labels, np.arange(4), is_test=True)
    assert predictions.mistakes.tolist() == [0, 3, 2]
    assert predictions.doubtful.tolist() == [1, 0]


def test_many_points_keep_mean_and_extremes_and_few_stay_as_they_are():
    steps, values = np.arange(5.0), np.array([1.0, np.nan, 3.0, 4.0, 5.0])
    for result, expected in zip(
        charts.downsample(steps, values), (steps, *[values] * 3), strict=True
    ):
        np.testing.assert_array_equal(result, expected)
    steps, values = np.arange(10_000.0), np.random.default_rng(0).normal(size=10_000)
    values[:150] = np.nan
    mean_steps, means, low, high = charts.downsample(steps, values, 100)
    np.testing.assert_allclose(mean_steps, np.arange(49.5, 10_000, 100))
    assert np.isnan(means[0])
    assert means[1] == pytest.approx(values[150:200].mean())
    assert (np.nanmin(low), np.nanmax(high)) == (np.nanmin(values), np.nanmax(values))


def draw_names(*names):
    return charts.create_panels([{"step": i, **dict.fromkeys(names, float(i))} for i in range(3)])


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
    series = charts.read_series(rows, "x")
    np.testing.assert_array_equal(series.values, [1, np.nan, 3, np.nan])
    assert series.last == charts.find_last(rows, "x") == 3
    assert charts.create_panels(clean_rows([{"step": i, "x": None} for i in range(5)])) == []
    rows = [{"step": 2, "x": 1.0}, {"step": 1, "x": float("inf"), "y": 10**40, "z": None}]
    assert clean_rows(rows) == [{"step": 1, "x": None, "y": None, "z": None}, {"step": 2, "x": 1.0}]


@pytest.mark.parametrize("value", [0.0, -3.0, 1e-12, 1e20])
def test_a_constant_is_drawn(value):
    (panel,) = charts.create_panels([{"step": step, "x": value} for step in (0, 1, 2)])
    chart = charts.draw_panel(panel)
    assert not re.search("nan|inf", chart["svg"])
    assert len(chart["traces"][0]["points"]) == 3


def test_gaps_break_the_line_and_the_pointer_reads_it():
    rows = [{"step": i, "x": v} for i, v in enumerate([1.0, 2.0, None, 3.0, 4.0])]
    chart = charts.draw_panel(charts.create_panels(rows)[0])
    (curve,) = (a for a in Page(chart["svg"]).find("path") if "var(--c1)" in a["style"])
    assert curve["d"].count("M") == 2
    (trace,) = chart["traces"]
    texts = [["step 0", "1"], ["step 1", "2"], ["step 3", "3"], ["step 4", "4"]]
    assert [point[2:] for point in trace["points"]] == texts
    drawn = [list(map(float, pair)) for pair in re.findall(r"([\d.]+) ([\d.]+)", curve["d"])]
    np.testing.assert_allclose(drawn, [point[:2] for point in trace["points"]], atol=0.1)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (88.2, 97.3), (0, 307200), (-3e-9, 2e-9)])
def test_ticks_are_few_even_and_around(low, high):
    ticks = charts.choose_ticks(low, high)
    assert ticks[0] <= low
    assert ticks[-1] >= high * (1 - 1e-9)
    assert 3 <= len(ticks) <= 8
    np.testing.assert_allclose(np.diff(ticks), ticks[1] - ticks[0])
