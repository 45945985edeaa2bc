"""The sentences about a result, and the choice of the classifier that predicts."""

import pytest

from cls_jax.photos.features.accuracy import Estimate
from cls_jax.photos.report import outcome
from cls_jax.photos.start.stages import choose_predictor


def test_figures_are_named():
    said = outcome.describe_accuracies({"test_accuracy_at_best_validation": 40.0})
    assert said == "   40.00%  network 1 at the step of best validation accuracy"
    assert outcome.describe_monitors({"mask_ratio": 0.5}).startswith("   50.00%  of images")
    instant = outcome.describe_accuracies({"test/accuracy": 50.0}, is_instant=True)
    assert instant == "   50.00%  instant classifier, the figure to report"


@pytest.mark.parametrize(
    ("trained", "instant", "predictor", "sentence"),
    [  # Two networks predict together.
        ((70.0, 80.0), 75.0, "trained", "On the validation images, fine-tuning gained 5.0 points"),
        ((75.0, 70.0), 75.0, "instant", "On the validation images, fine-tuning lost 5.0 points"),
        ((60.0, None), 60.0, "trained", "On the validation images, fine-tuning gained 0.0 points"),
        ((None, None), None, "trained", "`predict`, `evaluate` and `export` will use the fine-tun"),
    ],
)
def test_only_validation_images_decide_what_predicts(trained, instant, predictor, sentence):
    for test in (0.0, 100.0):
        result = {"validation_accuracy": trained[0], "validation_accuracy_ensemble": trained[1]}
        result |= {"test_accuracy": test, "test_accuracy_ensemble": test}
        start = {"validation_accuracy_instant": instant, "test_accuracy_instant": 100 - test}
        chosen = choose_predictor(result | start)
        assert chosen["predictor"] == predictor
        said = outcome.describe_predictor(chosen)
        assert said.startswith(sentence)
        # The higher of two accuracies on the same images.
        assert ("a little too high for the one that was chosen" in said) == (instant is not None)


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
    assert outcome.describe_gain(result | {"test_accuracy_probe": None}) is None
