"""Figures of tags are those of scikit-learn, and say what is known."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, average_precision_score, classification_report

from cls_jax.photos.features.accuracy import wilson_interval
from cls_jax.photos.inference import scores
from cls_jax.photos.inference.tag_scores import TagScoring
from tests.outcomes import read_table

NAMES = ("boots", "gloves", "hat")


def draw(num_images=200):
    """Probabilities that say something of random tags, rounded so that many are equal."""
    rng = np.random.default_rng(0)
    has = rng.random((num_images, 3)) < [0.2, 0.5, 0.7]
    p_BT = np.clip(0.3 * rng.normal(size=has.shape) + np.where(has, 0.65, 0.4), 0, 1).round(2)
    return p_BT, has.astype(np.int8)


def test_figures_are_scikit_learns():
    p_BT, known = draw()
    scoring = TagScoring(NAMES, np.array([0.3, 0.5, 0.7]))
    figures = scoring.compute_figures(p_BT, known)
    says = p_BT >= scoring.thresholds
    expected = classification_report(
        known, says, target_names=NAMES, output_dict=True, zero_division=0
    )
    names = (*NAMES, "macro avg", "weighted avg")
    for name, row in zip(names, (*figures.classes, figures.macro, figures.weighted), strict=True):
        want = expected[name]
        assert row[:3] == pytest.approx((want["precision"], want["recall"], want["f1-score"]))
        assert row.support == want["support"]
    areas = average_precision_score(known, p_BT, average=None)
    assert [row.area for row in figures.classes] == pytest.approx(areas)
    assert figures.accuracy == accuracy_score(known, says) > 0
    assert figures.interval == wilson_interval(round(200 * figures.accuracy), 200)
    first = figures.classes[0]
    assert first.interval == wilson_interval(round(first.recall * first.support), first.support)
    assert scoring.measure(p_BT[None], known) == {
        "test/accuracy": 100 * figures.accuracy,
        "test/mean_average_precision": pytest.approx(100 * areas.mean()),
    }


def test_what_is_open_does_not_count():
    p_BT, known = draw()
    scoring = TagScoring(NAMES, np.full(3, 0.5))
    without = scoring.compute_figures(p_BT[50:], known[50:])
    known[:50] = -1
    assert scoring.compute_figures(p_BT, known) == without
    known[50:100, 1] = -1
    figures = scoring.compute_figures(p_BT, known)
    assert figures.classes[1].support == known[100:, 1].sum()
    others = figures.classes[0], figures.classes[2]
    assert others == (without.classes[0], without.classes[2])
    assert figures.accuracy > without.accuracy


def test_a_tag_that_no_image_has_is_in_no_mean(tmp_path):
    p_BT, known = draw()
    known[:, 2] = 0
    figures = TagScoring(NAMES, np.full(3, 0.5)).compute_figures(p_BT, known)
    assert np.isnan([figures.classes[2].area, figures.classes[2].recall]).all()
    assert figures.macro.area == pytest.approx(np.mean([row.area for row in figures.classes[:2]]))
    summary = scores.summarize_figures(figures)
    assert summary["per_class"][2] == {
        "tag": "hat", "precision": 0, "recall": None, "f1": None, "average_precision": None,
        "support": 0,
    }  # fmt: skip
    scores.write_class_table(tmp_path, figures)
    rows = read_table(tmp_path / scores.PER_CLASS)
    assert [row["tag"] for row in rows] == [*NAMES, "macro avg", "weighted avg"]
    assert float(rows[0]["average_precision"]) == pytest.approx(figures.classes[0].area, abs=1e-6)
    header, first = scores.describe_figures(figures).splitlines()[:2]
    assert header.split() == ["tag", "precision", "recall", "F1", "AP", "images"]
    assert first.split()[0] == "boots"
    nothing = TagScoring(NAMES, np.full(3, 0.5)).measure(p_BT[None], np.zeros_like(known))
    assert list(nothing) == ["test/accuracy"]


def test_a_tag_that_is_never_said_has_no_precision():
    p_BT, known = draw()
    figures, strict = (
        TagScoring(NAMES, np.array([0.5, 0.5, threshold])).compute_figures(p_BT, known)
        for threshold in (0.5, 1.01)
    )
    assert np.isnan(strict.classes[2].precision)
    assert (strict.classes[2].recall, strict.classes[2].f1) == (0, 0)
    assert strict.classes[2].area == figures.classes[2].area
    said = [row.precision for row in figures.classes[:2]]
    assert strict.macro.precision == pytest.approx(np.mean(said))


def test_labels_of_another_folder_are_tags_of_the_run():
    scoring = TagScoring(NAMES, np.full(3, 0.5))
    labels = [";", "Boots;hat", "?hat;gloves"]
    known = scoring.number(np.array([2, 1, 0]), labels)
    assert known.tolist() == [[0, 1, -1], [1, 0, 1], [0, 0, 0]]
