"""Two numbers that make confidences honest, and their file in the run's folder."""

import dataclasses
import shutil

import numpy as np
import pytest

import cls_jax
from cls_jax.data.datasets import load_dataset
from cls_jax.errors import UserError
from cls_jax.inference.calibration import (
    CALIBRATION,
    Calibration,
    apply_calibration,
    fit_calibration,
    read_calibration,
    write_fitted,
)
from cls_jax.inference.evaluate_run import OpenRun, assess_run, evaluate_run
from cls_jax.inference.scores import PER_CLASS, compute_reliability
from cls_jax.runs.folder import read_result
from tests.conftest import create_tiny_config


def sample(temperature, uniform_share, num_images=20_000, num_classes=5):
    """Probabilities that are off, and labels that are drawn from the honest ones."""
    rng = np.random.default_rng(0)
    claimed = rng.dirichlet([0.3] * num_classes, num_images).astype(np.float32)
    honest = apply_calibration(claimed, temperature, uniform_share)
    labels = (honest.cumsum(axis=1) > rng.random((num_images, 1))).argmax(axis=1)
    return claimed, labels


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("uniform_share", [0.01, 0.2])
def test_calibration_is_found_and_removes_the_error(temperature, uniform_share):
    p_BK, labels = sample(temperature, uniform_share)
    found = fit_calibration(p_BK, labels)
    assert found == pytest.approx((temperature, uniform_share), rel=0.15, abs=0.02)
    after = compute_reliability(apply_calibration(p_BK, *found), labels).error
    assert after < 0.02
    if (temperature, uniform_share) != (1.0, 0.01):
        assert compute_reliability(p_BK, labels).error > 2 * after


def test_calibration_changes_no_prediction():
    p_BK, _ = sample(1.0, 0.0, 100)
    calibrated = apply_calibration(p_BK, 2.5, 0.1)
    np.testing.assert_array_equal(calibrated.argmax(axis=1), p_BK.argmax(axis=1))
    np.testing.assert_allclose(calibrated.sum(axis=1), 1, rtol=1e-5)
    assert (calibrated.max(axis=1) < p_BK.max(axis=1)).all()
    np.testing.assert_allclose(apply_calibration(p_BK, 1.0, 0.0), p_BK, rtol=1e-4, atol=1e-7)


def test_probabilities_of_0_and_1_can_be_fitted():
    p_BK = np.eye(3, dtype=np.float32)[[0, 1, 2, 0]]
    temperature, share = fit_calibration(p_BK, np.asarray([0, 1, 2, 1]))
    assert 0.05 <= temperature <= 20
    assert 0 < share < 1
    assert np.isfinite(apply_calibration(p_BK, 20.0, 0.0)).all()


@pytest.fixture(scope="module")
def run(trained_run, tmp_path_factory):
    """A copy of a run, evaluated."""
    workdir = shutil.copytree(trained_run, tmp_path_factory.mktemp("calibrated") / "run")
    evaluate_run(workdir)
    return workdir


def test_evaluation_adds_figures_per_class_to_the_result(run, trained_run):
    before, after = read_result(trained_run), read_result(run)
    assert before.items() <= after.items()
    assert after["test_accuracy_low"] < after["test_accuracy"] < after["test_accuracy_high"]
    assert after["test_recall_macro"] == pytest.approx(before["test_balanced_accuracy"])
    assert after["test_recall_weighted"] == pytest.approx(before["test_accuracy"])
    assert [row["class"] for row in after["per_class"]] == [str(k) for k in range(10)]
    assert sum(row["support"] for row in after["per_class"]) == 450
    assert (run / PER_CLASS).read_text().count("\n") == 1 + 10 + 2


def test_evaluation_calibrates_the_predictions_of_its_checkpoint(run):
    calibration = read_calibration(run, 6)
    assert (calibration.step, calibration.num_images) == (6, 450)
    dataset = load_dataset(create_tiny_config())
    prediction = cls_jax.load(run).predict(dataset.test_images)
    numbers = (calibration.temperature, calibration.uniform_share)
    likelihoods = [
        np.log(apply_calibration(prediction.probabilities, t, e)[range(450), dataset.test_labels])
        for t, e in (numbers, (0.9 * numbers[0], numbers[1]), (numbers[0], 0.5), (1.0, 0.0))
    ]
    assert likelihoods[0].mean() >= max(value.mean() for value in likelihoods)
    expected = apply_calibration(prediction.probabilities, *numbers).max(axis=1)
    np.testing.assert_allclose(prediction.calibrated_confidence, expected, rtol=1e-6)
    np.testing.assert_array_equal(
        prediction.abstain, prediction.calibrated_confidence < calibration.abstain_below
    )


def test_a_run_without_calibration_has_none(trained_run):
    prediction = cls_jax.load(trained_run).predict(np.zeros((1, 8, 8, 1), np.uint8))
    assert prediction.calibrated_confidence is prediction.abstain is None


def test_calibration_of_another_checkpoint_is_left_out(tmp_path):
    write_fitted(tmp_path / CALIBRATION, Calibration(3, 1.5, 0.1, 200))
    assert read_calibration(tmp_path, 3) == Calibration(3, 1.5, 0.1, 200, 0.8)
    assert read_calibration(tmp_path, 6) is None


def test_too_few_test_images_are_not_calibrated_on(trained_run, tmp_path):
    dataset = load_dataset(create_tiny_config())
    few = dataclasses.replace(
        dataset, test_images=dataset.test_images[:99], test_labels=dataset.test_labels[:99]
    )
    run = OpenRun(create_tiny_config(), shutil.copytree(trained_run, tmp_path / "run"))
    run.dataset = few
    assert assess_run(run).macro.support == 99
    assert (run.workdir / PER_CLASS).exists()
    assert not (run.workdir / CALIBRATION).exists()


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "3", "{}"),
        '{"step": 6, "temperature": 0, "uniform_share": 0.1, "num_images": 9}',
        '{"step": 6, "temperature": "1", "uniform_share": 0.1, "num_images": 9}',
        '{"step": 6, "temperature": 1, "uniform_share": 2, "num_images": 9}',
    ],
)
def test_damaged_calibration_is_named(tmp_path, text):
    (tmp_path / CALIBRATION).write_text(text)
    with pytest.raises(UserError, match=r"calibration\.json is not a calibration .* delete it"):
        read_calibration(tmp_path, 6)
