"""Figures about predictions, against plain loops and known values, and wrong labels."""

import csv
import json

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.metrics import classification_report, roc_auc_score

from cls_jax.data.types import Dataset
from cls_jax.features import propagation
from cls_jax.features.propagation import hold_out_labels
from cls_jax.inference import scores
from cls_jax.inference import suspects as suspects_lib
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
    figures = scores.compute_figures(p_BK, labels, "abcd")
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
        rows = scores.compute_figures(tied, labels, "abcd").classes
        areas = [roc_auc_score(labels == k, tied[:, k]) for k in range(4)]
        assert [row.auroc for row in rows] == pytest.approx(areas)
    area = roc_auc_score(labels, p_BK, multi_class="ovr")
    assert figures.macro.auroc == pytest.approx(area)
    first = figures.classes[0]
    assert first.auroc == pytest.approx(roc_auc_score(labels == 0, p_BK[:, 0]))
    assert first.interval == wilson_interval(round(first.recall * first.support), first.support)
    assert figures.interval == wilson_interval(round(300 * figures.accuracy), 300)


def test_classes_without_images_do_not_count(tmp_path):
    p_BK = np.array([[0.8, 0.1, 0.1], [0.3, 0.4, 0.3], [0.6, 0.3, 0.1]])
    figures = scores.compute_figures(p_BK, np.array([0, 1, 1]), ('a,"b"', "c\nd", "e"))
    assert figures.macro.recall == pytest.approx(0.75)
    assert np.isnan([figures.classes[2].recall, figures.classes[2].auroc]).all()
    summary = scores.summarize_figures(figures)
    assert summary["test_recall_macro"] == pytest.approx(75)
    assert summary["per_class"][2]["auroc"] is None
    json.dumps(summary, allow_nan=False)
    scores.write_class_table(tmp_path, figures)
    rows = read_table(tmp_path / scores.PER_CLASS)
    assert [row["class"] for row in rows] == ['a,"b"', "c\nd", "e", "macro avg", "weighted avg"]
    assert float(rows[1]["f1"]) == pytest.approx(figures.classes[1].f1, abs=1e-6)
    assert scores.describe_figures(figures).splitlines()[-3].split()[2:] == ["–", "–", "–", "0"]


def test_calibration_is_the_mean_gap_over_bins():
    p_BK = np.concatenate([draw_probabilities((500, 4)), np.eye(4)])  # Of 1, in the last bin, too.
    labels = np.append(np.random.default_rng(1).integers(0, 4, 500), [0, 1, 2, 0])
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


@pytest.mark.parametrize("num_images", [100, 300, 20_000])
def test_calibrated_confidences_have_little_error_at_any_size(num_images):
    """With 15 bins of 100 images it was 12% on average."""
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(20):
        p_BK = rng.dirichlet([0.4] * 5, num_images)
        labels = (p_BK.cumsum(axis=1) > rng.random((num_images, 1))).argmax(axis=1)
        errors.append(scores.compute_reliability(p_BK, labels).error)
    assert np.mean(errors) < 0.06


@pytest.fixture(scope="module")
def digits():
    data = load_digits()
    return data.data.astype(np.float32), data.target


@pytest.mark.parametrize("num_labels", [100, 400])
def test_flipped_labels_come_first(digits, num_labels):
    features, truth = digits
    rng = np.random.default_rng(0)
    labeled = rng.permutation(len(truth))[:num_labels]
    flipped = labeled[: num_labels // 20]
    labels = np.full(len(truth), -1)
    labels[labeled] = truth[labeled]
    labels[flipped] = (truth[flipped] + rng.integers(1, 10, len(flipped))) % 10
    q_BK = hold_out_labels(features, labels, 10)
    quality, suggested = suspects_lib.rate_labels(q_BK[labeled], labels[labeled])
    first = labeled[np.argsort(quality)[: num_labels // 10]]
    assert np.isin(flipped, first).mean() >= 0.8
    found = np.isin(labeled, flipped)
    assert (suggested[found] == truth[labeled[found]]).mean() >= 0.8


def test_a_label_has_no_say_in_its_own_case(digits, monkeypatch):
    monkeypatch.setattr(propagation, "_NUM_FOLDS", 30)  # As many as labels.
    features, truth = digits[0][:200], digits[1][:200]
    labels = np.where(np.arange(200) < 30, truth, -1)
    expected = hold_out_labels(features, labels, 10)
    np.testing.assert_allclose(expected.sum(axis=1), 1, rtol=1e-5)
    changed = labels.copy()
    changed[7] = (labels[7] + 1) % 10
    found = hold_out_labels(features, changed, 10)
    np.testing.assert_allclose(found[7], expected[7], rtol=1e-5)
    assert np.abs(found[:30] - expected[:30]).max() > 0.01


def test_quality_is_the_probability_of_a_label_that_is_not_the_only_one_of_its_class(tmp_path):
    p_BK = np.array([[0.9, 0.1, 0], [0.6, 0.4, 0], [0.2, 0.7, 0.1]])
    quality, suggested = suspects_lib.rate_labels(
        np.repeat(p_BK, 2, axis=0), np.array([0, 1, 0, 1, 0, 2])
    )
    np.testing.assert_allclose(quality, [0.9, 0.1, 0.6, 0.4, 0.2, 1])
    assert suggested.tolist() == [0, 0, 0, 0, 1, 2]
    suspects = [
        suspects_lib.Suspect(True, 5, 0, 1, 0.1, 0.02, 0.3),
        suspects_lib.Suspect(False, 2, 1, 0, 0.4, 0.3, 0.2),
    ]
    suspects_lib.write_suspects(tmp_path, suspects, ["a,b", "c"], ["test/x.png", "odd\n\udcff.png"])
    with (tmp_path / suspects_lib.SUSPECTS).open(newline="", errors="surrogateescape") as file:
        _, first, second = csv.reader(file)
    assert first == ["1", "test/x.png", "test", "a,b", "c", "0.100000", "0.020000", "0.300000"]
    assert second[:3] == ["2", "odd\n\udcff.png", "labeled"]


def test_suspects_of_a_run_are_found_although_the_networks_repeat_the_labels(digits):
    """They repeat the labels that they were trained on and are right elsewhere."""
    pixels, truth = digits
    images, labels = pixels.astype(np.uint8).reshape(-1, 8, 8, 1), truth.astype(np.int32)
    labels[[6, 1506]] = (labels[[6, 1506]] + 4) % 10  # A labeled image and a test image.
    known = np.where(np.arange(len(images)) < 1500, labels, -1)
    known[200:1500] = -1
    parts = images[:1500], known[:1500], images[1500:], labels[1500:]
    dataset = Dataset("digits", tuple("0123456789"), *parts, (8, 8, 1))
    p_BK = 0.9 * np.eye(10, dtype=np.float32)[np.where(known < 0, truth, known)] + 0.01

    def look(part, rows):
        rows = rows + 1500 if part == "test" else rows
        return np.stack([p_BK[rows]] * 2), pixels[rows]

    suspects = suspects_lib.find_suspects(look, dataset, np.arange(200, dtype=np.int32))
    found = {(row.is_test, row.position): row for row in suspects}
    assert found[True, 6].suggested == truth[1506]
    assert found[True, 6] in suspects[:5]
    assert found[False, 6].suggested == truth[6]
    assert found[False, 6] in suspects[:10]
    assert found[False, 6].networks > 0.9
    assert len(suspects) < 30
    assert [row.quality for row in suspects] == sorted(row.quality for row in suspects)
