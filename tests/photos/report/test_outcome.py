"""The sentences about a result, and the choice of the classifier that predicts."""

import types

import numpy as np
import pytest

from cls_jax.config import with_values
from cls_jax.photos.features.accuracy import Estimate, NewSources
from cls_jax.photos.inference.predictor import (
    RANDOM,
    VALIDATION,
    choose_predictor,
    compare_classifiers,
    describe_choice,
    expect_gain,
)
from cls_jax.photos.report import outcome
from cls_jax.photos.report.outcome import describe_predictor
from tests.conftest import load_config
from tests.photos.helpers import make_folder

REPORTED = "the figure to report"


@pytest.mark.parametrize(
    ("accuracies", "is_trained", "lines"),
    [
        (
            *({"test_accuracy_at_best_validation": 40.0}, True),
            ["40.00%  network 1 at the step of best validation accuracy"],
        ),
        ({"test/accuracy": 50.0}, False, [f"50.00%  instant classifier, {REPORTED}"]),
        (
            *({"test/accuracy": 50.0, "test/mean_average_precision": 80.0}, False),
            [
                f"50.00%  images with all tags right, {REPORTED}",
                "80.00%  mean average precision over the tags",
            ],
        ),
        (
            *({"test_accuracy": 40, "test_accuracy_instant": 50, "predictor": "trained"}, True),
            [
                f"40.00%  network 1 (EMA weights), {REPORTED}",
                "50.00%  instant classifier, before training",
            ],
        ),
        (
            *({"test_accuracy": 40, "test_accuracy_instant": 50, "predictor": "instant"}, True),
            [
                f"50.00%  instant classifier, which is used: {REPORTED}",
                "40.00%  network 1 (EMA weights)",
            ],
        ),
        (
            *({"test_accuracy": 50.0, "test_accuracy_without_copies": 40.0}, True),
            [
                "40.00%  without near-copies of training images, to report",
                "50.00%  network 1 (EMA weights), with near-copies",
            ],
        ),
    ],
)
def test_figures_are_named(accuracies, is_trained, lines):
    said = outcome.describe_accuracies(accuracies, is_trained)
    assert said.split("\n") == [f"   {line}" for line in lines]


def test_monitors_are_shares_in_percent():
    assert outcome.describe_monitors({"mask_ratio": 0.5}).startswith("   50.00%  of images")


@pytest.mark.parametrize(
    ("only_trained", "only_instant", "both", "is_trained", "sentence"),
    [  # Images that are named right.
        (
            12,
            2,
            60,
            True,
            "Better: of 74 random photos that neither has learned from, the trained networks name "
            "72 right and the instant classifier 62. The trained networks are used.",
        ),
        (5, 0, 15, True, "Better: of 20 random photos"),
        (4, 0, 16, False, "Not clear: of 20 random photos"),
        (9, 8, 60, False, "the instant classifier 68. The instant classifier is kept."),
        (3, 12, 60, False, "Worse: of 75 random photos"),
        (8, 12, 60, False, "Not clear: of 80 random photos"),
    ],
)
def test_trained_networks_must_gain_twice_the_error(
    only_trained, only_instant, both, is_trained, sentence
):
    """Whatever earlier runs gained. The counts are told, and no gain beyond what was seen."""
    parts = np.repeat([0, 1, 2], [only_trained, only_instant, both])
    for expected in expect_gain(50, 100), expect_gain(10, 100):
        chosen = compare_classifiers(parts != 1, parts != 0, expected, RANDOM)
        assert chosen["predictor"] == ("trained" if is_trained else "instant")
        assert sentence in describe_choice(chosen)
        assert "point" not in outcome.describe_predictor(chosen)
        assert "--config.data.validation" not in outcome.describe_predictor(chosen)


def test_without_images_to_compare_them_on_earlier_runs_choose_the_classifier():
    nothing = np.zeros(0, bool)
    for weight, used in ((50, "trained networks are used"), (10, "instant classifier is kept")):
        chosen = compare_classifiers(nothing, nothing, expect_gain(weight, 100))
        assert describe_choice(chosen) == f"No photos to compare them on: the {used}."
        assert "--config.data.validation" in outcome.describe_predictor(chosen)


def test_validation_images_of_one_source_count_together():
    """One source gained on all of its images, or as many images of all sources did."""
    gained, lost = np.arange(100) < 20, np.arange(100) >= 92
    sources, expected = np.repeat(np.arange(5), 20), expect_gain(10, 100)
    alone, together, spread = (
        compare_classifiers(~lost, ~gained, expected, sources_B=given)
        for given in (None, sources, np.arange(100) % 50)
    )
    assert alone["predictor_gain"] == together["predictor_gain"]
    assert together["predictor_gain_error"] > 2 * alone["predictor_gain_error"]
    assert spread["predictor_gain_error"] < 1.5 * alone["predictor_gain_error"]
    assert (alone["predictor"], together["predictor"]) == ("trained", "instant")
    assert compare_classifiers(~lost, ~gained, expected, sources_B=np.full(100, -1)) == alone

    assert expect_gain(50, 79) == expect_gain(None, 1000) == expect_gain(10, 1000) < 0


def test_training_that_gains_nothing_is_rarely_taken_for_a_gain():
    """Of equal classifiers, or one that is worse by ten points, and of a tenth that is better."""
    rng = np.random.default_rng(0)
    for num_images, p, lowest, highest in (
        (400, [0.05, 0.05, 0.9], 0, 0.03),
        (400, [0.05, 0.15, 0.8], 0, 0),
        (400, [0.15, 0.05, 0.8], 0.97, 1),
        (20, [0.05, 0.05, 0.9], 0, 0.02),  # Random photos of folders that are alike.
    ):
        draws = [rng.choice(3, num_images, p=p) for _ in range(400)]
        chosen = [compare_classifiers(x != 1, x != 0, 3.4)["predictor"] for x in draws]
        assert lowest <= chosen.count("trained") / len(chosen) <= highest


def name_labels(values):
    return {f"labels_{name}": value for name, value in values._asdict().items()}


LABELS, SOURCES = (
    name_labels(Estimate(13, 3, 77.6, 68.2, 86.4)),
    name_labels(NewSources(8, 0, 53.2, 41.4, 65.1)),
)
RIGHT = "About 78% of the other photos are named right by the instant classifier (68 to 86%)."
ON_SOURCES = (
    "On photos of new sources, about 53% are named right (41 to 65%), judged by 8 sources that "
    "were held out in turn."
)
PLACES = np.arange(20)
CHOSEN = compare_classifiers(PLACES < 19, (PLACES < 19) & (PLACES > 6), 0, RANDOM)
BY_TRAINED = (
    "About 95% of the other photos are named right by the trained networks (76 to 99%), measured "
    "on 20 random photos."
)


@pytest.mark.parametrize(
    ("method", "result", "expected"),
    [
        ("instant", LABELS, RIGHT),
        ("fixmatch", LABELS, RIGHT.replace("classifier", "classifier before training")),
        ("fixmatch", LABELS | {"predictor": "instant"}, RIGHT),
        ("fixmatch", LABELS | CHOSEN, BY_TRAINED),
        (
            *("instant", LABELS | {"labels_accuracy": None}),
            "Too early to say: 3 of 13 classes have only one answer.",
        ),
        ("instant", LABELS | SOURCES, f"{RIGHT} {ON_SOURCES}"),
        ("instant", SOURCES, ON_SOURCES),  # Where all is labeled.
        ("instant", {"labels_classes": None}, None),
    ],
)
def test_the_expected_accuracy_is_that_of_what_predicts(method, result, expected):
    assert outcome.describe_expected(result | {"method": method}) == expected


def test_near_copies_among_the_labels_are_told():
    result = {"labels_weight_graph": 50.0, "labels_weight_stages": 30.0, "labels_near_copies": 0.0}
    assert "near-copies" not in outcome.describe_labelers(result)
    result |= {"labels_near_copies": 5.0, "labels_near_copy_groups": 2.0}
    said = outcome.describe_labelers(result)
    assert "7 of the labeled images are near-copies, in 2 groups. Each group was held" in said


CHECKS = [f"{i:02}.png,cat,check 0.1 0.9 cat,2026-01-01T00:00:{i:02}Z" for i in range(20)]
MIXED = ["file,label,decision,time", "00.png,dog,label,2026-01-01T00:01:00Z"]
PAGE = ["file,label,decision,time", "30.png,dog,label,2026-01-01T00:01:00Z", *CHECKS]
OTHER = ["file,label", *(f"{i:02}.png,{'cat' if i % 2 else 'dog'}" for i in range(40))]
STAYS = "Too few checked photos to tell which is better: the instant classifier stays."


def end_run(folder, rows, files=(), validation=0.0):
    """A finished run of which 80% of validation images are named right, and 40% before."""
    names = [f"{i:02}.png" for i in range(40)]
    if rows is MIXED:
        names += [f"train/{label}/{i}.png" for label in ("cat", "dog") for i in range(20)]
    make_folder(folder, names, {"labels.csv": "\n".join(rows) + "\n"})
    values = {
        "data.name": "folder",
        "data.data_dir": str(folder),
        "data.validation": validation,
        "model.init_head": "inferred",
        "num_steps": 400,
    }

    def name(share):
        is_right = np.arange(len(files)) < share * len(files)
        return {VALIDATION: (np.eye(2)[is_right.astype(int)][None], np.ones(len(files), int))}

    split = types.SimpleNamespace(files=() if files is UNNAMED else tuple(files), sources=None)
    return types.SimpleNamespace(
        config=with_values(load_config("folder", "all"), values),
        result={"labels_weight_graph": 50.0},
        dataset=types.SimpleNamespace(held_out={VALIDATION: files}, validation=split),
        held_out=name(0.8),
        begun_with=types.SimpleNamespace(held_out=name(0.4)),
    )


CHECKED = [f"{i:02}.png" for i in range(20)]
ASKED = [f"{i:02}.png" for i in range(20, 40)]
UNNAMED = range(20)  # Images that are no files.
OWN = [f"val/cat/{i}.png" for i in range(20)]


@pytest.mark.parametrize(
    ("rows", "files", "validation", "used", "images"),
    [
        (PAGE, [], 0.0, "instant", "random"),
        (PAGE, ASKED, 0.3, "instant", "random"),  # They were asked because they are hard.
        (PAGE, CHECKED, 0.3, "trained", "random"),
        (PAGE, OWN, 0.0, "trained", "validation"),
        (MIXED, ASKED, 0.3, "trained", "validation"),  # Most labels are of class folders.
        (OTHER, [], 0.0, "trained", None),
        (OTHER, ASKED, 0.3, "trained", "validation"),
        (OTHER, UNNAMED, 0.3, "trained", "validation"),
    ],
)
def test_of_labels_from_the_page_only_random_ones_choose_the_classifier(
    tmp_path, rows, files, validation, used, images
):
    chosen = choose_predictor(end_run(tmp_path / "photos", rows, files, validation))
    assert (chosen["predictor"], chosen.get("predictor_images")) == (used, images)
    assert (describe_choice(chosen) == STAYS) == (used == "instant")
    assert ("Check 20 random photos" in describe_predictor(chosen)) == (used == "instant")
    if used == "trained" and files:
        assert (chosen["predictor_right_trained"], chosen["predictor_right_instant"]) == (16, 8)
