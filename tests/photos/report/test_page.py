"""The page of any run: whole, closed, escaped, free of the network, and true to a trained run."""

import dataclasses
import html
import json
import pathlib
import re
import shlex
import shutil
import sys
import unittest.mock
import urllib.parse
from xml.etree import ElementTree

import jinja2
import numpy as np
import pytest
import scipy.special
from sklearn.metrics import average_precision_score, classification_report, confusion_matrix

from cls_jax.data.types import Dataset, Split
from cls_jax.errors import UserError
from cls_jax.photos.cli import commands, console
from cls_jax.photos.folder.options import AUTOMATIC
from cls_jax.photos.inference.assessment import evaluate_run
from cls_jax.photos.inference.calibration import Calibration, apply_calibration
from cls_jax.photos.inference.suggest import suggest_files
from cls_jax.photos.inference.suspects import SUSPECTS, Suspect
from cls_jax.photos.report import charts
from cls_jax.photos.report.data import Predictions, RunData, clean_rows
from cls_jax.photos.report.page import REPORT, overlay_heat_map, render_page, write_report
from cls_jax.photos.start.scores import PER_CLASS, Scoring, compute_reliability
from cls_jax.runs.folder import CONFIG, DATASET, LABELED_INDICES, RESULT, read_result
from cls_jax.runs.metrics import METRICS, read_metrics
from cls_jax.runs.sessions import SESSIONS, read_sessions
from tests.conftest import create_tiny_config
from tests.outcomes import read_table

HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(2)'>",
    "a\nb\x00\x07\x1b[31m",
    "\udcff half a surrogate",
    "</title></style><!-- & &amp; &#60;",
)
CONSTANT = {
    "monitors/exchange_ratio": 0.5,
    "monitors/pseudo_label_accuracy": None,
    "test/accuracy": 50.0,
    "test/accuracy_network_1": 50.0,
    "test/accuracy_network_2": 55.0,
    "test/accuracy_ensemble": 60.0,
}
NOTHING = dict.fromkeys(("predictions", "dataset", "labeled"))
ROWS = [{"step": step, "train/loss": 1.0 / (1 + step), **CONSTANT} for step in range(10)]


class Page:
    """The page as XML, so that each element is closed in its turn and has no attribute twice."""

    def __init__(self, text: str):
        self.scripts = re.findall(r"(?s)<script>(.*?)</script>", text)
        text = re.sub(r"(?s)<(script|style)>.*?</\1>|<!DOCTYPE html>", "", text)
        root = ElementTree.fromstring(re.sub(r"(<(?:br|img|meta)[^>]*)>", r"\1/>", text))
        self.elements = [(element.tag, element.attrib) for element in root.iter()]
        self.tables = list(root.iter("table"))
        self.text = "".join(root.itertext())

    def find(self, name, **attributes):
        """Attributes of the elements of a name that have all these values."""
        wanted = {key.rstrip("_"): value for key, value in attributes.items()}
        return [a for tag, a in self.elements if tag == name and wanted.items() <= a.items()]

    def table(self, class_):
        """Rows of the one table of a class, its head among them."""
        (found,) = [each for each in self.tables if class_ in each.get("class", "").split()]
        return [["".join(cell.itertext()) for cell in row] for row in found.iter("tr")]


def create_run(num_classes=3, num_networks=2, num_test=40, rows=(), side=8, **changes) -> RunData:
    """A run with random images and predictions."""
    rng = np.random.default_rng(0)
    method, names = changes.pop("method", "cls"), changes.pop("class_names", None)
    names = tuple(names or (f"class {k}" for k in range(num_classes)))
    train_labels = np.tile(np.arange(len(names), dtype=np.int32), 4)
    test_labels = rng.integers(0, len(names), num_test).astype(np.int32)
    train, test = (
        Split(rng.integers(0, 256, (len(labels), side, side, 3), dtype=np.uint8), labels)
        for labels in (train_labels, test_labels)
    )
    dataset = Dataset("drawn", names, train, test, image_shape=(side, side, 3))
    labels = test_labels if num_test else np.full(len(train_labels), -1)
    p_NBK = scipy.special.softmax(3 * rng.normal(size=(num_networks, len(labels), len(names))), -1)
    contents = {
        "rows": list(rows),
        "class_names": names,
        "dataset": dataset,
        "labeled": np.arange(2 * len(names), dtype=np.int32),
        "label_counts": np.full(len(names), 2),
        "num_images": len(train_labels),
        "predictions": Predictions(
            6,
            p_NBK.astype(np.float32),
            labels,
            np.arange(len(labels)),
            is_test=num_test > 0,
            scoring=Scoring(names),
        ),
    }
    config = create_tiny_config(f"20,{method}")
    return RunData(pathlib.Path("runs/drawn"), config, **contents | changes)


def place_in_folder(run, folder, files=(), **options) -> RunData:
    """The same run, in runs/mine beside a folder of photos, whose test images have these files."""
    test = dataclasses.replace(run.dataset.test, files=tuple(files))
    run.dataset = dataclasses.replace(run.dataset, test=test, name=folder.name)
    with run.config.unlocked():
        options = AUTOMATIC._replace(**options)._asdict()
        run.config.data.update(name="folder", data_dir=str(folder), **options)
    run.config.num_labels, run.workdir = 0, folder.parent / "runs" / "mine"
    return run


@pytest.mark.parametrize(
    ("options", "present", "absent"),
    [
        ({"num_test": 120}, {"classes", "calibration", "mistakes", "uncertain"}, set()),
        ({}, {"classes"}, {"calibration"}),
        ({"num_networks": 1, "method": "fixmatch"}, {"classes", "uncertain"}, set()),
        ({"num_test": 0}, {"uncertain"}, {"classes", "calibration", "mistakes"}),
        ({"num_classes": 100, "num_test": 300}, {"classes", "labeled"}, set()),
        ({"predictions": None}, {"labeled"}, {"classes", "uncertain"}),
        (NOTHING, {"training", "configuration"}, {"labeled"}),
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
    odd = [name.replace("\0", "") for name in HOSTILE]
    names = [f"test/{odd[i % 5]}/{i} {odd[i % 5]}.png" for i in range(30)]
    run = place_in_folder(create_run(num_classes=2, num_test=30), tmp_path / "photos", names)
    page, place = Page(render_page(run)), (run.workdir / "report.html").as_uri()
    assert "photos with 4 labels" in page.text
    mistakes, uncertain = run.predictions.mistakes[:24], run.predictions.uncertain[:24]
    uris = [(tmp_path / "photos" / names[i]).as_uri() for i in (*mistakes, *uncertain)]
    links = page.find("a", class_="file")
    assert [urllib.parse.urljoin(place, link["href"]) for link in links] == uris
    assert f"{100 * run.predictions.confidence[0][mistakes[0]]:.1f}%" in page.text
    assert not page.find("img", src="x")


@pytest.mark.parametrize("has_images", [True, False])
def test_a_page_to_be_sent_names_no_folder_outside(tmp_path, monkeypatch, has_images):
    home = tmp_path / "home" / "anna smith"
    names = [f"test/IMG_{i}.png" for i in range(30)]
    run = place_in_folder(create_run(num_classes=2, num_test=30), home / "my photos", names)
    run.config.model.init = f"{home}/runs/first run"
    command = shlex.join(["python", f"{home}/bin/cls-jax", "train", str(home / "my photos")])
    run.sessions = [{"command": f"{command} --workdir=/data/secret/mine --config configs/a.py:20"}]
    monkeypatch.setenv("HOME", str(home))
    text = render_page(run, has_images)
    assert not re.findall(f"anna|secret|{tmp_path}|file:", text)
    page = Page(text)
    command = "python 'bin/cls-jax' train 'my photos' --workdir=mine --config configs/a.py:20"
    assert command in page.text
    assert ("IMG_" in text) == bool(page.find("img")) == has_images
    # Two folders that meet only in the root or above the user's home are not linked.
    other = dataclasses.replace(run, workdir=pathlib.Path("/data/runs/mine"))
    assert not Page(render_page(other)).find("a", class_="file")


def test_photos_that_were_moved_are_asked_for(copy, tmp_path):
    config = json.loads((copy / CONFIG).read_text())
    config["data"].update(name="folder", data_dir=str(tmp_path / "gone"))
    (copy / CONFIG).write_text(json.dumps(config))
    gone = f"The run's photos are no longer in {tmp_path / 'gone'}: .* in .*"
    with pytest.raises(UserError, match=f"{gone}evaluate {copy} --photos DIR"):
        evaluate_run(copy)
    with pytest.raises(UserError, match=f"{gone}suggest DIR"):
        suggest_files(copy, 3)
    with pytest.raises(UserError, match=r"stays as it is.*are no longer in gone: .* --photos DIR"):
        write_report(copy)


def create_labeled(tmp_path, **result) -> RunData:
    """A finished run of a folder of photos without test images."""
    known = {
        "step": 6,
        "test_accuracy": None,
        "labels_classes": 3.0,
        "labels_classes_with_one_label": 0.0,
        "labels_accuracy": 87.6,
        "labels_accuracy_low": 80.4,
        "labels_accuracy_high": 94.7,
        "labels_weight_graph": 40.0,
        "labels_weight_stages": 20.0,
        "train_seconds": 75.0,
        "predictor": "instant",
    }
    run = create_run(
        num_test=0,
        rows=ROWS,
        result=known | result,
        suspects=[Suspect(is_test=False, position=0, label=0, suggested=1, quality=0.1)],
        confusions=np.array([[2, 1, 0], [0, 2, 0], [0, 0, 2]]),
        named=np.array([4, 1, 1]),
        num_named=6,
    )
    run.heat_maps = {i: np.ones((2, 2), np.float32) for i in run.predictions.uncertain.tolist()}
    (tmp_path / "photos").mkdir(parents=True)
    return place_in_folder(run, tmp_path / "photos")


def test_who_labeled_reads_first_what_to_expect_and_what_to_do(tmp_path):
    """Without test images. What is inside of the training is folded."""
    page = Page(render_page(create_labeled(tmp_path)))
    (said,) = re.findall(r"Expected accuracy\s*88%\s*(.*)\n", page.text)
    assert said == "of the photos without a label, 80 to 95%, by the instant classifier"
    assert "–" not in page.text.partition("What to do next")[0]
    rows = [tuple(row) for row in page.table("photos")]
    assert rows == [
        ("class", "labels", "others"),
        *((f"class {k}", "2", str(named)) for k, named in enumerate((4, 1, 1))),
    ]
    assert ["".join(row[1:]) for row in page.table("confusion")[1:]] == ["210", "020", "002"]
    assert page.table("pairs")[1] == ["class 0", "class 1", "1"]
    sections = [attributes["id"] for attributes in page.find("section")]
    assert sections[:2] == ["next", "photos"]
    _, opened, folded = page.text.split("\nDetails\n")
    inside = ["Losses", "Configuration", "data.image_size", "Labels of the other images"]
    assert all(text in folded for text in inside)
    hidden = *inside, "seed", "..", "frozen", "true"
    assert not [text for text in hidden if text in opened]
    assert "`" not in page.text
    for text in (
        "labeled by you",
        "in the folder that has photos and runs/mine",
        "cls-jax predict runs/mine photos",
        "bright places speak for the predicted class",
    ):
        assert text in opened
    assert page.find("details") == [{"id": "details"}]
    # Without the photos, their numbers stay.
    run = create_labeled(tmp_path / "gone")
    run.dataset = run.predictions = None
    page = Page(render_page(run))
    assert [tuple(row) for row in page.table("photos")] == rows
    assert "12 photos, 6 of them with a label. The classes of the others are as" in page.text
    # Of trained networks, it is theirs.
    chosen = {"predictor": "trained", "predictor_images": "random", "predictor_gain_images": 40}
    text = render_page(create_labeled(tmp_path / "b", **chosen, predictor_right_trained=38))
    assert re.search(r"Expected accuracy\s*95%\s*.*to 99%, by the trained", Page(text).text)


def test_the_commands_of_a_report_can_be_typed_where_it_says(tmp_path, monkeypatch):
    run = create_labeled(tmp_path)
    run.workdir.mkdir(parents=True)
    found = re.findall("<pre><code>cls-jax (.*?)</code>", render_page(run))
    assert [command.split(" ")[0] for command in found] == ["label", "predict"]
    monkeypatch.chdir(tmp_path)
    for command in found:
        arguments = vars(console.parse_arguments(shlex.split(html.unescape(command))))
        places = [arguments.get(name) for name in ("folder", "data", "run", "workdir", "images")]
        words = [word for place in places if place for word in np.ravel(place)]
        folders = {pathlib.Path(word).resolve() for word in words}
        assert {tmp_path / "photos"} <= folders <= {tmp_path / "photos", run.workdir}


def test_it_opens_whole_and_without_an_error_in_a_browser(tmp_path, browser):
    path, problems, odd = tmp_path / "report.html", [], (*HOSTILE[:3], "long " * 40, "w" * 300)
    with browser.new_page() as page:
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        for width, options in (
            (1200, {"num_classes": 40, "side": 120}),
            (390, {"class_names": odd}),
        ):
            path.write_text(render_page(create_run(rows=ROWS, **options)))
            page.set_viewport_size({"width": width, "height": 844})
            page.goto(path.as_uri())
            images = page.evaluate("[...document.images].map((image) => image.naturalWidth)")
            assert len(images) > 20
            assert all(images)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            chart = page.locator("svg[data-traces]").first
            chart.hover(position={"x": chart.bounding_box()["width"] - 1, "y": 5})
            readout = page.locator(".readout").first.inner_text()
            assert readout.startswith("step 9: network 1 (EMA) 50.0%")
    assert problems == []


@pytest.mark.parametrize("num_classes", [4, 30])
def test_figures_of_the_test_images_are_recomputed(num_classes):
    run = create_run(num_classes=num_classes, num_test=500)
    page, labels = Page(render_page(run)), run.predictions.labels
    predicted = run.predictions.probabilities[0].argmax(axis=-1)
    counts = confusion_matrix(labels, predicted, labels=range(num_classes))
    if num_classes < 10:
        head, *rows = page.table("confusion")
        assert head[1:] == list(run.class_names)
        assert [row[1:] for row in rows] == [[str(count) for count in row] for row in counts]
    else:  # A picture and the largest mistakes.
        np.fill_diagonal(counts, 0)
        true, guessed, count, _ = page.table("pairs")[1]
        place = run.class_names.index(true), run.class_names.index(guessed)
        assert int(count) == counts.max() == counts[place]
        assert len(page.find("img", class_="heat")) == 1
    report = classification_report(labels, predicted, output_dict=True)["weighted avg"]
    row = page.table("per-class")[-1]
    values = [f"{100 * report[name]:.1f}%" for name in ("precision", "recall", "f1-score")]
    assert [row[1], row[2], row[4], row[6]] == [*values, f"{report['support']:.0f}"]
    mistake = re.compile(r"Test image \d+: class \d+, predicted class")
    num_shown = sum(bool(mistake.match(image["alt"])) for image in page.find("img"))
    assert num_shown == min(np.sum(predicted != labels), 24)


def test_suspects_heat_maps_and_calibration_are_shown():
    run = create_run(num_classes=3, num_test=120)
    position = int(run.predictions.mistakes[0])
    heat_map = np.pad(np.ones((2, 2), np.float32), ((0, 2), (0, 2)))
    run.suspects = [Suspect(True, 7, 0, 2, 0.1), Suspect(False, 3, 1, 0, 0.2)]
    run.heat_maps = {position: heat_map}
    run.calibration = Calibration(6, 1.5, 0.1, 150, fitted_on="validation")
    page = Page(render_page(run))
    assert page.find("img", alt="Test image 7: labeled class 0, looks like class 2")
    assert page.find("img", alt="Training image 3: labeled class 1, looks like class 0")
    assert "is a mistake" not in page.text  # How many are depends on the labels.
    looked = [a for a in page.find("img") if a["alt"].endswith("heat map of network 1")]
    assert {a["alt"].split(":")[0] for a in looked} == {f"Test image {position}"}
    painted = overlay_heat_map(np.full((8, 6, 3), 128, np.uint8), heat_map)
    assert painted[:24, :18].mean() > painted[-24:, -18:].mean() + 50
    mean = run.predictions.probabilities.mean(axis=0)
    after = compute_reliability(apply_calibration(mean, 1.5, 0.1), run.predictions.labels)
    assert f"Expected calibration error {100 * after.error:.1f}%" in page.text


TAG_SETS = (";", "boots;hat", "gloves", "hat")


def create_tagged(num_test=40, **changes) -> RunData:
    """An instant classifier of photos with tags."""
    names = ("boots", "gloves", "hat")
    scoring = Scoring(names, np.array([0.3, 0.5, 0.6]))
    run = create_run(class_names=TAG_SETS, num_networks=1, num_test=num_test, **changes)
    rng = np.random.default_rng(1)
    labels = run.predictions.labels
    p_NBT = rng.random((1, len(labels), len(names)), np.float32)
    known = scoring.number(labels, TAG_SETS)
    return dataclasses.replace(
        place_in_folder(run, pathlib.Path("photos"), tags=True),
        labels=TAG_SETS,
        class_names=names,
        label_counts=np.array([2, 2, 4]),
        predictions=dataclasses.replace(
            run.predictions, probabilities=p_NBT, labels=known, scoring=scoring
        ),
    )


def test_each_tag_has_its_most_confident_wrong_and_uncertain_photos():
    run = create_tagged(named=np.array([5, 6, 7]), num_named=8)
    page = Page(render_page(run))
    sections = [attributes["id"] for attributes in page.find("section")]
    assert sections[:4] == ["photos", "classes", "tags", "labeled"]
    assert not {"mistakes", "calibration"} & set(sections)
    assert [row[:2] for row in page.table("photos")] == [
        ["tag", "labels"], ["boots", "2"], ["gloves", "2"], ["hat", "4"]
    ]  # fmt: skip
    p_BT, known = run.predictions.probabilities[0], run.predictions.labels
    is_right = ((p_BT >= run.predictions.scoring.thresholds) == known).all(axis=1)
    assert f"finds all tags of {is_right.sum()} of 40 test images" in page.text
    ap = average_precision_score(known[:, 2], p_BT[:, 2])
    assert page.table("per-class")[3][5] == f"{100 * ap:.1f}%"
    text = page.text.partition("Photos of each tag\nWith")[2].partition("from 60.0% on\n")[2]
    confident, mistakes, closest = (
        re.findall(r"([\d.]+)%", part) for part in re.split("Mistakes|Least certain", text)
    )
    says = p_BT[:, 2] >= 0.6
    right, wrong = p_BT[says & (known[:, 2] == 1), 2], p_BT[says != (known[:, 2] == 1), 2]
    nearest = p_BT[np.argsort(abs(p_BT[:, 2] - 0.6))[:6], 2]
    assert confident == [f"{100 * p:.1f}" for p in np.sort(right)[::-1][:6]]
    assert mistakes == [f"{100 * p:.1f}" for p in wrong[np.argsort(-abs(wrong - 0.6))][:6]]
    assert closest[:6] == [f"{100 * p:.1f}" for p in nearest]
    # A labeled photo is shown with each of its tags.
    shown = page.text.partition("training images count as labeled.")[2]
    assert [line for line in shown.split() if line in run.class_names] == ["boots", "gloves", "hat"]
    # Without test images, nothing is right or wrong.
    text = render_page(create_tagged(num_test=0))
    found = [word in text for word in ("of photos without a label", "Mistakes", 'class="wrong"')]
    assert found == [True, False, False]


@pytest.mark.slow
def test_page_of_a_long_run_with_many_classes_and_large_images_stays_small():
    values = np.random.default_rng(0).random(5000)
    rows = [{"step": i, **dict.fromkeys(ROWS[0], v)} | {"step": i} for i, v in enumerate(values)]
    text = render_page(create_run(num_classes=1000, num_test=3000, side=224, rows=rows))
    assert len(text.encode()) < 5e6


def test_mistakes_and_disagreements_come_most_confident_first():
    first = np.array([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])
    second = np.array([[0.4, 0.6], [0.1, 0.9], [0.8, 0.2], [0.1, 0.9]])
    both, labels = np.stack([first, second]), np.array([1, -1, 1, 0])
    predictions = Predictions(6, both, labels, np.arange(4), is_test=True, scoring=Scoring(()))
    assert predictions.mistakes.tolist() == [0, 3, 2]
    assert predictions.uncertain.tolist() == [1, 0]


def test_many_points_keep_mean_and_extremes_and_few_stay_as_they_are():
    few = np.arange(5.0), np.array([1.0, np.nan, 3.0, 4.0, 5.0])
    np.testing.assert_array_equal(charts.downsample(*few), (few[0], *[few[1]] * 3))
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
    everyday = "train/learning_rate perf/input_wait perf/images_per_second perf/steps_per_second"
    for panel in draw_names(*everyday.split()):
        assert "/" not in panel.title + "".join(curve.name for curve in panel.curves)
    # An accuracy has no second curve under another name.
    one = ["test/accuracy", "test/accuracy_network_1", "test/accuracy_ensemble"]
    assert [len(panel.curves) for panel in draw_names(*one)] == [1]
    assert len(draw_names(*one, "test/accuracy_network_2")[0].curves) == 3


def test_values_that_cannot_be_drawn_break_the_line_and_are_never_the_last():
    rows = clean_rows([{"step": 2, "x": 1.0}, {"step": 1, "x": float("inf"), "y": 10**40}])
    assert rows == [{"step": 1, "x": None, "y": None}, {"step": 2, "x": 1.0}]
    assert charts.create_panels(clean_rows([{"step": i, "x": None} for i in range(5)])) == []
    values = [1.0, 2.0, None, 3.0, 4.0, float("nan")]
    rows = clean_rows([{"step": i, "x": value} for i, value in enumerate(values)])
    assert charts.read_series(rows, "x").last == charts.find_last(rows, "x") == 4
    chart = charts.draw_panel(charts.create_panels(rows)[0])
    (lines,) = (lines for lines, style in chart["shapes"] if "var(--c1)" in style)
    assert len(lines) == 2
    points = chart["traces"][0]["points"]  # The pointer reads them.
    texts = [["step 0", "1"], ["step 1", "2"], ["step 3", "3"], ["step 4", "4"]]
    assert [point[2:] for point in points] == texts
    np.testing.assert_array_equal(np.concatenate(lines), [point[:2] for point in points])


LIMITS = [(0, 1), (88.2, 97.3), (0, 307200), (-3e-9, 2e-9)]


@pytest.mark.parametrize(("low", "high"), [*LIMITS, *((x, x) for x in (0.0, -3.0, 1e-12, 1e20))])
def test_curves_and_constants_are_drawn_between_few_even_ticks(low, high):
    rows = [{"step": step, "x": value} for step, value in enumerate((low, high, low))]
    chart = charts.draw_panel(charts.create_panels(rows)[0])
    assert all(np.isfinite(line).all() for lines, _ in chart["shapes"] for line in lines)
    assert len(chart["traces"][0]["points"]) == 3
    if low < high:
        ticks = charts.choose_ticks(low, high)
        assert ticks[0] <= low < high * (1 - 1e-9) <= ticks[-1]
        assert 3 <= len(ticks) <= 8
        np.testing.assert_allclose(np.diff(ticks), ticks[1] - ticks[0])


@pytest.fixture(scope="module")
def run(trained_run, tmp_path_factory):
    """A finished run with its report, and its configuration."""
    workdir = shutil.copytree(trained_run, tmp_path_factory.mktemp("report") / "run")
    config = create_tiny_config()
    commands.train_config(config, str(workdir))
    return workdir, config


@pytest.fixture
def copy(run, tmp_path):
    """The run once more, to be damaged."""
    return shutil.copytree(run[0], tmp_path / "run")


def test_training_writes_it_with_the_figures_of_the_result(run):
    workdir, _ = run
    page, result = Page((workdir / REPORT).read_text()), read_result(workdir)
    num_right = round(4.5 * result["test_accuracy"])
    for text in (
        f"{num_right} of 450 test images correctly: {result['test_accuracy']:.1f}%",
        f"{result['test_accuracy_ensemble']:.1f}%",
        f"{result['test_accuracy_low']:.1f}–{result['test_accuracy_high']:.1f}%",
        "cls · finished",
        *(row[key] for row in read_sessions(workdir) for key in ("command", "hardware")),
    ):
        assert text in page.text
    assert not page.find("aside")
    named = [row["class"] for row in read_table(workdir / PER_CLASS)]
    assert named[:-2] == list("0123456789")
    assert (workdir / SUSPECTS).exists()


def test_a_report_that_fails_never_fails_the_training(copy, run, capsys, monkeypatch):
    (copy / REPORT).unlink()
    page = "cls_jax.photos.report.page"
    without_template = unittest.mock.Mock(side_effect=jinja2.TemplateNotFound("page.html.j2"))
    for damage, reason in (
        (lambda to: to.setattr(f"{page}.collect_run", lambda *_: 1 / 0), "division by zero"),
        (lambda to: to.setattr(f"{page}.render_page", without_template), "page.html.j2"),
        (lambda to: to.setitem(sys.modules, page, None), f"import of {page}"),  # Not possible.
    ):
        with monkeypatch.context() as patch:
            damage(patch)
            commands.train_config(run[1], str(copy))
        output = capsys.readouterr().out
        assert f"The report could not be drawn ({reason}" in output
        assert f"Results:        {copy / RESULT}" in output
    commands.train_config(run[1], str(copy))
    assert str(copy / REPORT) in capsys.readouterr().out


def test_an_unfinished_run_shows_its_newest_checkpoint(copy):
    for name in (RESULT, REPORT):
        (copy / name).unlink()
    for step in ("4", "6"):
        shutil.rmtree(copy / "checkpoints" / step)
    rows = [json.dumps(row) for row in read_metrics(copy) if row["step"] < 3]
    (copy / METRICS).write_text("\n".join(rows))
    page = Page(write_report(copy).read_text())
    assert re.search(r"unfinished: 2 of 6 steps.*checkpoint of step 2\)", page.text, re.DOTALL)
    assert "not measured yet" in page.text


@pytest.mark.parametrize(
    ("damaged", "notes", "kept"),
    [
        ({"checkpoints": None}, ["No predictions: "], {"training", "labeled"}),
        ({DATASET: "{}"}, ["The classes are unknown: "], {"training", "configuration"}),
        (
            {RESULT: "{", LABELED_INDICES: "[]", SESSIONS: "[]\n{", "metrics.jsonl": "\xff{"},
            ["The result cannot be read: ", "The labeled images are unknown: "],
            {"classes", "configuration"},
        ),
    ],
)
def test_missing_and_damaged_files_are_named_and_the_rest_is_shown(copy, damaged, notes, kept):
    for name, text in damaged.items():
        if text is None:
            shutil.rmtree(copy / name)
        else:
            (copy / name).write_text(text, encoding="latin-1")
    before = (copy / REPORT).read_bytes()
    with pytest.raises(UserError, match=rf"stays as it is.* {notes[0]}.* delete {REPORT}"):
        write_report(copy)
    assert (copy / REPORT).read_bytes() == before
    (copy / REPORT).unlink()
    page = Page(write_report(copy).read_text())
    assert kept <= {attributes["id"] for attributes in page.find("section")}
    assert all(note in page.text for note in notes)
