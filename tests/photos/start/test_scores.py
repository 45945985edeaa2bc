"""Figures of classes and tags are those of scikit-learn, and say what is known."""

import json

import numpy as np
import pytest
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    classification_report,
    roc_auc_score,
)

from cls_jax.photos.features.accuracy import wilson_interval
from cls_jax.photos.start import scores
from cls_jax.photos.start.scores import Scoring
from tests.outcomes import read_table

NAMES = ("boots", "gloves", "hat")


@pytest.mark.parametrize(
    ("num_correct", "num_images", "expected"),
    # Newcombe (1998), Statistics in Medicine 17, Table I, method 3.
    [(81, 263, (0.2553, 0.3662)), (0, 20, (0.0, 0.1611)), (1, 29, (0.0061, 0.1718))],
)
def test_interval_is_wilsons(num_correct, num_images, expected):
    interval = wilson_interval(num_correct, num_images)
    assert interval == pytest.approx(expected, abs=5e-5)
    mirrored = wilson_interval(num_images - num_correct, num_images)
    assert interval == pytest.approx((1 - mirrored[1], 1 - mirrored[0]))


def test_nothing_is_measured_where_nothing_is_known():
    """Such as one test photo of which all tags are open."""
    scoring = Scoring(NAMES, np.full(3, 0.5))
    assert scoring.measure(np.full((1, 2, 3), 0.4), np.full((2, 3), -1)) == {}
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_calibration_is_the_mean_gap_over_bins():
    rng = np.random.default_rng(0)
    p_BK = np.concatenate([rng.dirichlet([0.3] * 4, 500), np.eye(4)])  # Of 1, in the last bin, too.
    labels = np.append(rng.integers(0, 4, 500), [0, 1, 2, 0])
    found = scores.compute_reliability(p_BK, labels)
    confidence, is_right = p_BK.max(axis=1), p_BK.argmax(axis=1) == labels
    num_bins = len(found.counts)
    bins = np.ceil(num_bins * confidence).astype(int) - 1
    np.testing.assert_array_equal(found.counts, np.bincount(bins, minlength=num_bins))
    np.testing.assert_array_equal(np.isnan(found.accuracy), found.counts == 0)
    for i in np.unique(bins):
        assert found.confidence[i] == pytest.approx(confidence[bins == i].mean())
        assert found.accuracy[i] == pytest.approx(is_right[bins == i].mean())
    gaps = np.nan_to_num(np.abs(found.confidence - found.accuracy))
    assert found.error == pytest.approx(np.average(gaps, weights=found.counts))
    # Honest confidences have little error, also of few images. With 15 bins of 100 it was 12%.
    errors = []
    for _ in range(20):
        p_BK = rng.dirichlet([0.4] * 5, 100)
        labels = (p_BK.cumsum(axis=1) > rng.random((100, 1))).argmax(axis=1)
        errors.append(scores.compute_reliability(p_BK, labels).error)
    assert np.mean(errors) < 0.06


def draw(num_images=200):
    """Probabilities that say something of random tags, rounded so that many are equal."""
    rng = np.random.default_rng(0)
    has = rng.random((num_images, 3)) < [0.2, 0.5, 0.7]
    p_BT = np.clip(0.3 * rng.normal(size=has.shape) + np.where(has, 0.65, 0.4), 0, 1).round(2)
    return p_BT, has.astype(np.int8)


@pytest.mark.parametrize(
    "thresholds",
    [None, np.array([0.3, 0.5, 0.7]), np.array([0.3, 0.5, 1.01])],
    ids=["classes", "tags", "a tag that is never said"],
)
def test_figures_are_scikit_learns(thresholds):
    p_BK, known = draw()
    if thresholds is None:
        known, measure_area = known.argmax(axis=1), roc_auc_score
        marks, says = np.eye(3)[known], np.eye(3)[p_BK.argmax(axis=1)]
    else:
        marks, says, measure_area = known, p_BK >= thresholds, average_precision_score
    figures = Scoring(NAMES, thresholds).compute_figures(p_BK, known)
    expected = classification_report(
        marks, says, target_names=NAMES, output_dict=True, zero_division=np.nan
    )
    names = (*NAMES, "macro avg", "weighted avg")
    for name, row in zip(names, (*figures.classes, figures.macro, figures.weighted), strict=True):
        want = expected[name]
        found = want["precision"], want["recall"], want["f1-score"]
        assert row[:3] == pytest.approx(found, nan_ok=True)
        assert row.support == want["support"]
    areas = measure_area(marks, p_BK, average=None)
    assert [row.area for row in figures.classes] == pytest.approx(areas)
    assert figures.accuracy == accuracy_score(marks, says) > 0
    assert figures.interval == wilson_interval(round(200 * figures.accuracy), 200)
    first = figures.classes[0]
    assert first.interval == wilson_interval(round(first.recall * first.support), first.support)
    measured = Scoring(NAMES, thresholds).measure(p_BK[None], known)
    assert measured["test/accuracy"] == pytest.approx(100 * figures.accuracy)
    mean = measured.get("test/mean_average_precision", 100 * areas.mean())
    assert mean == 100 * figures.macro.area == pytest.approx(100 * areas.mean())


@pytest.mark.parametrize(
    ("thresholds", "noun", "area", "title", "unsaid"),
    [
        (None, "class", "auroc", "AUROC", 0.0),
        (np.full(3, 0.35), "tag", "average_precision", "AP", None),
    ],
)
def test_what_no_image_has_is_in_no_mean(tmp_path, thresholds, noun, area, title, unsaid):
    names, labels = ('a,"b"', "c\nd", "e"), np.array([0, 1, 1])
    p_BK = np.array([[0.8, 0.1, 0.1], [0.3, 0.4, 0.3], [0.6, 0.3, 0.1]])
    known = labels if thresholds is None else np.eye(3, dtype=np.int8)[labels]
    figures = Scoring(names, thresholds).compute_figures(p_BK, known)
    assert figures.macro.recall == pytest.approx(0.75)
    assert np.isnan([figures.classes[2].recall, figures.classes[2].area]).all()
    assert figures.macro.area == pytest.approx(np.mean([row.area for row in figures.classes[:2]]))
    summary = scores.summarize_figures(figures)
    assert summary["test_recall_macro"] == pytest.approx(75)
    nothing = {"precision": unsaid, "recall": None, "f1": None, area: None, "support": 0}
    assert summary["per_class"][2] == {noun: "e"} | nothing
    json.dumps(summary, allow_nan=False)
    scores.write_class_table(tmp_path, figures)
    rows = read_table(tmp_path / scores.PER_CLASS)
    assert [row[noun] for row in rows] == [*names, "macro avg", "weighted avg"]
    assert float(rows[1]["f1"]) == pytest.approx(figures.classes[1].f1, abs=1e-6)
    header, _, _, last, *_ = scores.describe_figures(figures).splitlines()
    assert header.split() == [noun, "precision", "recall", "F1", title, "images"]
    assert last.split()[2:] == ["–", "–", "–", "0"]


def test_what_is_open_does_not_count():
    p_BT, known = draw()
    scoring = Scoring(NAMES, np.full(3, 0.5))
    without = scoring.compute_figures(p_BT[50:], known[50:])
    known[:50] = -1
    assert scoring.compute_figures(p_BT, known) == without
    known[50:100, 1] = -1
    figures = scoring.compute_figures(p_BT, known)
    assert figures.classes[1].support == known[100:, 1].sum()
    others = figures.classes[0], figures.classes[2]
    assert others == (without.classes[0], without.classes[2])
    assert figures.accuracy > without.accuracy
    assert list(scoring.measure(p_BT[None], 0 * known)) == ["test/accuracy"]


def test_labels_of_another_folder_are_classes_or_tags_of_the_run():
    scoring = Scoring(NAMES, np.full(3, 0.5))
    labels = [";", "Boots;hat", "?hat;gloves"]
    known = scoring.number(np.array([2, 1, 0]), labels)
    assert known.tolist() == [[0, 1, -1], [1, 0, 1], [0, 0, 0]]
    labels_B = np.array([2, -1, 0])
    assert Scoring(NAMES).number(labels_B, ("Gloves", "x", "boots")).tolist() == [0, -1, 1]


def test_classes_of_an_array_may_differ_in_case_alone():
    for labels, expected in (("AaB", [0, 1, 2]), ("bAa", [2, 0, 1])):
        assert Scoring(("A", "a", "B")).number(np.arange(3), labels).tolist() == expected
