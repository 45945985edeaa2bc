"""The sentences about a result, and the choice of the classifier that predicts."""

import numpy as np
import pytest

from cls_jax.photos.features.accuracy import Estimate
from cls_jax.photos.features.new_sources import NewSources
from cls_jax.photos.inference.predictor import compare_classifiers, expect_gain
from cls_jax.photos.report import outcome


def test_figures_are_named():
    said = outcome.describe_accuracies({"test_accuracy_at_best_validation": 40.0})
    assert said == "   40.00%  network 1 at the step of best validation accuracy"
    assert outcome.describe_monitors({"mask_ratio": 0.5}).startswith("   50.00%  of images")
    instant = outcome.describe_accuracies({"test/accuracy": 50.0}, is_instant=True)
    assert instant == "   50.00%  instant classifier, the figure to report"
    measured = {"test_accuracy": 40.0, "test_accuracy_instant": 50.0}
    for used, figure in (("trained", "40.00%"), ("instant", "50.00%")):
        first, *others = outcome.describe_accuracies({**measured, "predictor": used}).split("\n")
        assert figure in first
        assert "the figure to report" in first
        assert not any("report" in line for line in others)


@pytest.mark.parametrize(
    ("only_trained", "only_instant", "both", "weight", "sentence"),
    [  # Validation images that are named right, and the weight of graphs in percent.
        (12, 4, 60, 50, "Better by about 11 points: the trained networks are used."),
        (24, 8, 300, 10, "Better by about 5 points: the trained networks are used."),
        (9, 8, 60, 50, "Better by about 1 point: the trained networks are used."),
        (9, 8, 60, 10, "Not clearly better: the instant classifier is kept."),
        (5, 6, 60, 50, "Not clearly worse: the trained networks are used."),
        (3, 12, 60, 50, "No better: the instant classifier is kept."),
        (5, 5, 60, 10, "No better: the instant classifier is kept."),
        (0, 0, 0, 50, "No photos to compare them on: the trained networks are used."),
        (0, 0, 0, 10, "No photos to compare them on: the instant classifier is kept."),
    ],
)
def test_validation_images_and_earlier_runs_choose_the_classifier(
    only_trained, only_instant, both, weight, sentence
):
    parts = np.repeat([0, 1, 2], [only_trained, only_instant, both])
    chosen = compare_classifiers(parts != 1, parts != 0, expect_gain(weight, 100))
    assert chosen["predictor"] == ("trained" if "trained" in sentence else "instant")
    assert outcome.describe_choice(chosen) == sentence
    said = outcome.describe_predictor(chosen)
    assert said.startswith(sentence)
    assert ("--config.data.validation" in said) == (not len(parts))


def test_validation_images_of_one_source_count_together():
    """One source gained on all of its images, or as many images of all sources did."""
    gained, lost = np.arange(100) < 20, np.arange(100) >= 92
    sources, expected = np.repeat(np.arange(5), 20), expect_gain(10, 100)
    alone, together, spread = (
        compare_classifiers(~lost, ~gained, expected, given)
        for given in (None, sources, np.arange(100) % 50)
    )
    assert alone["predictor_gain"] == together["predictor_gain"]
    assert together["predictor_gain_error"] > 2 * alone["predictor_gain_error"]
    assert spread["predictor_gain_error"] < 1.5 * alone["predictor_gain_error"]
    assert (alone["predictor"], together["predictor"]) == ("trained", "instant")
    assert compare_classifiers(~lost, ~gained, expected, np.full(100, -1)) == alone


def test_many_validation_images_overrule_earlier_runs():
    """Each is right where the other is wrong on a tenth of the images, or one on a tenth more."""
    rng = np.random.default_rng(0)
    for p, expected in (([0.15, 0.05, 0.8], "trained"), ([0.05, 0.15, 0.8], "instant")):
        for gain in expect_gain(50, 100), expect_gain(10, 100):
            draws = (rng.choice(3, 400, p=p) for _ in range(200))
            chosen = [compare_classifiers(x != 1, x != 0, gain)["predictor"] for x in draws]
            assert chosen.count(expected) > 195
    assert expect_gain(50, 79) == expect_gain(None, 1000) == expect_gain(10, 1000) < 0


def test_the_expected_accuracy_is_that_of_the_instant_classifier():
    estimate = Estimate(13, 3, 77.6, 68.2, 86.4)
    result = {f"labels_{name}": value for name, value in estimate._asdict().items()}
    said = "About 78% of the other photos are named right (68 to 86%)."
    assert outcome.describe_outcome(result | {"method": "instant"}) == [said]
    trained = outcome.describe_expected(result | {"method": "fixmatch"})
    assert trained == f"{said} This is the instant classifier, before training."
    early = result | {"method": "instant", "labels_accuracy": None}
    said = "Too early to say: 3 of 13 classes have only one answer."
    assert outcome.describe_expected(early) == said
    assert outcome.describe_expected({"labels_classes": None}) is None


def test_what_to_expect_on_new_sources_stands_beside_it_also_where_all_is_labeled():
    of_new = NewSources(8, 0, 53.2, 41.4, 65.1)
    known = {f"labels_{name}": value for name, value in of_new._asdict().items()}
    said = (
        "On photos of new sources, about 53% are named right (41 to 65%), judged by 8 sources that "
        "were held out in turn."
    )
    result = known | {"method": "instant"}
    assert outcome.describe_outcome(result) == [said]
    estimate = Estimate(13, 3, 77.6, 68.2, 86.4)
    both = result | {f"labels_{name}": value for name, value in estimate._asdict().items()}
    first = "About 78% of the other photos are named right (68 to 86%)."
    assert outcome.describe_expected(both) == f"{first} {said}"


def test_near_copies_among_the_labels_are_told():
    result = {"labels_weight_graph": 50.0, "labels_weight_stages": 30.0, "labels_near_copies": 0.0}
    assert "near-copies" not in outcome.describe_labelers(result)
    result |= {"labels_near_copies": 5.0, "labels_near_copy_groups": 2.0}
    said = outcome.describe_labelers(result)
    assert "7 of the labeled images are near-copies, in 2 groups. Each group was held" in said


def test_gain_over_a_probe_is_that_of_what_predicts():
    result = {"test_accuracy": 75.0, "test_accuracy_probe": 56.0, "test_accuracy_instant": 75.0}
    assert "19.0 points above a linear probe on frozen features" in outcome.describe_gain(result)
    both = result | {"test_accuracy_ensemble": 55.0}
    assert "1.0 points below" in outcome.describe_gain(both)
    assert "19.0 points above" in outcome.describe_gain(both | {"predictor": "instant"})
    assert "is as accurate as a linear" in outcome.describe_gain(
        both | {"test_accuracy_probe": 55.0}
    )
    assert outcome.describe_gain(result | {"test_accuracy_probe": None}) is None
