"""Figures about predictions, against plain loops and known values."""

import json

import numpy as np
import pytest
from sklearn.metrics import classification_report, roc_auc_score

from cls_jax.inference.scores import (
    PER_CLASS,
    compute_figures,
    compute_reliability,
    describe_figures,
    find_confused_pairs,
    summarize_figures,
    write_class_table,
)
from cls_jax.runs.result import wilson_interval
from tests.outcomes import read_table


def draw_probabilities(shape, seed=0):
    logits = 2 * np.random.default_rng(seed).normal(size=shape)
    return np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)


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


def test_figures_are_scikit_learns():
    p_BK, labels = draw_probabilities((300, 4)), np.random.default_rng(1).integers(0, 4, 300)
    p_BK[labels == 0, 0] += 1
    p_BK /= p_BK.sum(axis=1, keepdims=True)
    figures = compute_figures(p_BK, labels, "abcd")
    expected = classification_report(
        labels, p_BK.argmax(axis=1), target_names=list("abcd"), output_dict=True
    )
    assert figures.accuracy == pytest.approx(expected.pop("accuracy"))
    rows = (*figures.classes, figures.macro, figures.weighted)
    for row, want in zip(rows, expected.values(), strict=True):
        assert row[:3] == pytest.approx((want["precision"], want["recall"], want["f1-score"]))
        assert row.support == want["support"]
    # With ties, too: 300 images have at most eleven probabilities each.
    for tied in (p_BK, p_BK.round(1)):
        rows = compute_figures(tied, labels, "abcd").classes
        areas = [roc_auc_score(labels == k, tied[:, k]) for k in range(4)]
        assert [row.auroc for row in rows] == pytest.approx(areas)
    area = roc_auc_score(labels, p_BK, multi_class="ovr")
    assert figures.macro.auroc == pytest.approx(area)
    first = figures.classes[0]
    assert first.auroc == pytest.approx(roc_auc_score(labels == 0, p_BK[:, 0]))
    assert first.interval == wilson_interval(round(first.recall * first.support), first.support)
    assert figures.interval == wilson_interval(round(300 * figures.accuracy), 300)


def test_classes_without_images_do_not_count():
    p_BK = np.array([[0.8, 0.1, 0.1], [0.3, 0.4, 0.3], [0.6, 0.3, 0.1]])
    figures = compute_figures(p_BK, np.array([0, 1, 1]), ("a", "b", "c"))
    assert figures.macro.recall == pytest.approx(0.75)
    assert figures.macro.support == 3
    assert np.isnan([figures.classes[2].recall, figures.classes[2].auroc]).all()
    summary = summarize_figures(figures)
    assert summary["test_recall_macro"] == pytest.approx(75)
    assert summary["per_class"][2]["auroc"] is None
    json.dumps(summary, allow_nan=False)
    lines = describe_figures(figures).splitlines()
    assert lines[1].split() == ["a", "50.0%", "100.0%", "66.7%", "100.0%", "1"]
    assert lines[3].split()[2:] == ["–", "–", "–", "0"]


def test_table_of_figures_reads_back(tmp_path):
    p_BK, labels = draw_probabilities((50, 2)), np.random.default_rng(0).integers(0, 2, 50)
    figures = compute_figures(p_BK, labels, ('a,"b"', "c\nd"))
    write_class_table(tmp_path, figures)
    rows = read_table(tmp_path / PER_CLASS)
    assert [row["class"] for row in rows] == ['a,"b"', "c\nd", "macro avg", "weighted avg"]
    assert float(rows[1]["f1"]) == pytest.approx(figures.classes[1].f1, abs=1e-6)
    assert rows[2]["recall_low"] == ""


def test_confused_pairs_leave_out_what_is_right_and_what_never_happens():
    counts = np.array([[9, 2, 0], [0, 9, 5], [1, 0, 9]])
    assert find_confused_pairs(counts, 10) == [(1, 2, 5), (0, 1, 2), (2, 0, 1)]
    assert find_confused_pairs(counts, 1) == [(1, 2, 5)]
    assert find_confused_pairs(np.eye(3, dtype=int), 10) == []


def test_calibration_is_the_mean_gap_over_bins():
    p_BK = np.concatenate([draw_probabilities((500, 4)), np.eye(4)])  # Of 1, in the last bin, too.
    labels = np.append(np.random.default_rng(1).integers(0, 4, 500), [0, 1, 2, 0])
    found = compute_reliability(p_BK, labels)
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


@pytest.mark.parametrize("num_images", [100, 300, 20_000])
def test_honest_confidences_have_little_error_at_any_size(num_images):
    """With 15 bins of 100 images it was 12% on average."""
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(20):
        p_BK = rng.dirichlet([0.4] * 5, num_images)
        labels = (p_BK.cumsum(axis=1) > rng.random((num_images, 1))).argmax(axis=1)
        errors.append(compute_reliability(p_BK, labels).error)
    assert np.mean(errors) < 0.06
