"""Assessments after training: calibration, and a score for images of no class."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import roc_auc_score

from cls_jax.data.datasets import load_dataset
from cls_jax.errors import UserError
from cls_jax.inference import unknown
from cls_jax.inference.calibration import (
    CALIBRATION,
    Calibration,
    apply_calibration,
    fit_calibration,
    read_calibration,
    write_fitted,
)
from cls_jax.inference.classifier import load
from cls_jax.inference.evaluate_run import assess_run, evaluate_run
from cls_jax.inference.predict_files import predict_files
from cls_jax.inference.run import Run
from cls_jax.inference.scores import PER_CLASS, compute_reliability
from cls_jax.runs.folder import read_result
from tests.conftest import create_tiny_config
from tests.outcomes import read_table

K, GROUP_SIZE = 3, 60


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("uniform_share", [0.01, 0.2])
def test_calibration_is_found_and_removes_the_error(temperature, uniform_share):
    rng = np.random.default_rng(0)
    p_BK = rng.dirichlet([0.3] * 5, 20_000).astype(np.float32)
    honest = apply_calibration(p_BK, temperature, uniform_share)
    labels = (honest.cumsum(axis=1) > rng.random((len(p_BK), 1))).argmax(axis=1)
    found = fit_calibration(p_BK, labels)
    assert found == pytest.approx((temperature, uniform_share), rel=0.15, abs=0.02)
    after = compute_reliability(apply_calibration(p_BK, *found), labels).error
    assert after < 0.02
    if (temperature, uniform_share) != (1.0, 0.01):
        assert compute_reliability(p_BK, labels).error > 2 * after


def test_calibration_changes_no_prediction():
    p_BK = np.random.default_rng(0).dirichlet([0.3] * 5, 100).astype(np.float32)
    calibrated = apply_calibration(p_BK, 2.5, 0.1)
    np.testing.assert_array_equal(calibrated.argmax(axis=1), p_BK.argmax(axis=1))
    np.testing.assert_allclose(calibrated.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(apply_calibration(p_BK, 1.0, 0.0), p_BK, rtol=1e-4, atol=1e-7)
    # Probabilities of 0 and 1 can be fitted, too.
    temperature, share = fit_calibration(np.eye(3)[[0, 1, 2, 0]], np.asarray([0, 1, 2, 1]))
    assert 0.05 <= temperature <= 20
    assert 0 < share < 1


def sample(num_groups, seed=0, per_class=4):
    """Features of groups of images, their groups, and labels of the first images of K groups."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(num_groups), GROUP_SIZE)
    features = np.eye(8)[groups] + 0.25 * rng.normal(size=(len(groups), 8))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    is_labeled = (groups < K) & (np.arange(len(groups)) % GROUP_SIZE < per_class)
    return features.astype(np.float32), groups, np.where(is_labeled, groups, -1)


def test_images_of_no_class_score_higher_and_many_are_noticed():
    features, groups, labels = sample(5, per_class=12)
    score = unknown.fit_unknown(features, labels, K)
    new, new_groups, _ = sample(5, seed=1)
    assert roc_auc_score(new_groups >= K, score.apply(new)) > 0.95
    # The score is a share of the unlabeled training images.
    quantiles = np.quantile(score.apply(features[labels < 0]), [0, 0.1, 0.5, 0.9, 1])
    np.testing.assert_allclose(quantiles, [0, 0.1, 0.5, 0.9, 1], atol=0.02)
    without = unknown.fit_unknown(features[groups < K], labels[groups < K], K)
    assert "of the unlabeled images are farther" in unknown.describe_far(score)
    assert unknown.describe_far(without) is None
    # With one label per class, distances within a class are unknown.
    assert unknown.fit_unknown(*sample(5, per_class=1)[::2], K).far_share is None
    # Without labels or without unlabeled images there is no score.
    assert unknown.fit_unknown(features, groups, 5) is None
    assert unknown.fit_unknown(features, np.full(len(groups), -1), 5) is None


@pytest.mark.parametrize(
    ("name", "read", "fitted", "damages"),
    [
        (
            *(CALIBRATION, read_calibration, Calibration(6, 1.5, 0.1, 200)),
            [{"temperature": 0}, {"temperature": "1"}, {"uniform_share": 2}, {"fitted_on": "x"}],
        ),
        (
            *(
                unknown.UNKNOWN,
                unknown.read_unknown,
                unknown.UnknownScore(6, (0.5, -1.0), (0.0, 1.0), None),
            ),
            [{"kernel": ["a"]}, {"quantiles": []}, {"far_share": "a"}, {"other": 1}],
        ),
    ],
)
def test_what_was_fitted_for_another_checkpoint_is_left_out_and_a_damaged_file_named(
    trained_run, tmp_path, name, read, fitted, damages
):
    workdir = shutil.copytree(trained_run, tmp_path / "run")
    assert read(tmp_path, 6) is None
    write_fitted(workdir / name, fitted)
    assert read(workdir, 6) == fitted
    assert read(workdir, 3) is None
    if name == unknown.UNKNOWN:
        with pytest.raises(
            UserError, match=r"it weighs 2 features, .*: delete it, and .* again\.$"
        ):
            load(workdir)
    valid = json.loads((workdir / name).read_text())
    for text in ("", "[]", "3", "{}", *(json.dumps(valid | damage) for damage in damages)):
        (workdir / name).write_text(text)
        with pytest.raises(UserError, match=rf"{name} is not a .* delete it"):
            read(workdir, 6)


@pytest.fixture(scope="module")
def assessed(trained_run, tmp_path_factory):
    """A copy of a run, evaluated after its training as if it had validation images."""
    workdir = shutil.copytree(trained_run, tmp_path_factory.mktemp("assessed") / "run")
    assess_run(open_validated(workdir))
    return workdir


def open_validated(workdir, num_images=450, test_labels=None):
    """A run whose test images are its validation images, too, as many as given."""
    run = Run(create_tiny_config(), workdir)
    images, labels = run.dataset.test_images, run.dataset.test_labels
    changes = {"validation_images": images[:num_images], "validation_labels": labels[:num_images]}
    changes["test_labels"] = labels if test_labels is None else test_labels
    run.dataset = dataclasses.replace(run.dataset, **changes)
    return run


def test_evaluation_adds_figures_per_class_to_the_result(assessed, trained_run):
    before, after = read_result(trained_run), read_result(assessed)
    assert before.items() <= after.items()
    assert after["test_accuracy_low"] < after["test_accuracy"] < after["test_accuracy_high"]
    assert after["test_recall_macro"] == pytest.approx(before["test_balanced_accuracy"])
    assert [row["class"] for row in after["per_class"]] == [str(k) for k in range(10)]
    assert len(read_table(assessed / PER_CLASS)) == 10 + 2


def test_evaluation_calibrates_the_predictions_of_its_checkpoint(assessed, trained_run):
    dataset, calibration = load_dataset(create_tiny_config()), read_calibration(assessed, 6)
    assert calibration.num_images == 450
    prediction = load(assessed).predict(dataset.test_images)
    numbers = (calibration.temperature, calibration.uniform_share)
    likelihoods = [
        np.log(apply_calibration(prediction.probabilities, t, e)[range(450), dataset.test_labels])
        for t, e in (numbers, (0.9 * numbers[0], numbers[1]), (numbers[0], 0.5), (1.0, 0.0))
    ]
    assert likelihoods[0].mean() >= max(value.mean() for value in likelihoods)
    expected = apply_calibration(prediction.probabilities, *numbers).max(axis=1)
    np.testing.assert_allclose(prediction.calibrated_confidence, expected, rtol=1e-6)
    np.testing.assert_array_equal(prediction.abstain, expected < calibration.abstain_below)
    assert load(trained_run).predict(dataset.test_images[:1]).calibrated_confidence is None


def test_neither_test_images_nor_too_few_validation_images_calibrate(trained_run, tmp_path):
    run = open_validated(shutil.copytree(trained_run, tmp_path / "run"), num_images=99)
    assert assess_run(run).macro.support == 450
    assert not (run.workdir / CALIBRATION).exists()
    evaluate_run(run.workdir)  # Its dataset has test images only.
    assert not (run.workdir / CALIBRATION).exists()


def test_other_test_labels_make_the_same_calibration_and_score_of_unknown_images(
    assessed, trained_run, tmp_path
):
    labels = load_dataset(create_tiny_config()).test_labels
    permuted = np.random.default_rng(0).permutation(labels)
    workdir = shutil.copytree(trained_run, tmp_path / "run")
    assess_run(open_validated(workdir, test_labels=permuted))
    for name in (CALIBRATION, unknown.UNKNOWN):
        assert (workdir / name).read_text() == (assessed / name).read_text()
    assert read_result(workdir)["per_class"] != read_result(assessed)["per_class"]


def test_an_assessed_run_scores_unknown_images_and_changes_no_other_column(
    assessed, trained_run, tmp_path
):
    classifier, images = load(assessed), load_dataset(create_tiny_config()).test_images[:50]
    # Networks that have learned the labels do not count images of no class.
    assert classifier.unknown.far_share is None
    plain, prediction = load(trained_run).predict(images), classifier.predict(images)
    assert plain.unknown is None
    np.testing.assert_allclose(prediction.probabilities, plain.probabilities, rtol=1e-5, atol=1e-7)
    assert np.ptp(prediction.unknown) > 0.5
    expected = classifier.unknown.apply(classifier.compute_features(images))
    np.testing.assert_allclose(prediction.unknown, expected, atol=1e-3)
    assert classifier.predict(images[:0]).unknown.shape == (0,)
    assert classifier.compute_fingerprint() != load(trained_run).compute_fingerprint()
    Image.fromarray(images[0, ..., 0]).save(tmp_path / "0.png")
    predict_files(classifier, [str(tmp_path / "0.png")], tmp_path / "p.csv")
    (row,) = read_table(tmp_path / "p.csv")
    assert float(row["unknown"]) == pytest.approx(prediction.unknown[0], abs=1e-5)
