"""A temperature that makes confidences honest, and its file in the run's folder."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

import cls_jax
from cls_jax.data.datasets import load_dataset
from cls_jax.errors import UserError
from cls_jax.inference.calibration import (
    CALIBRATION,
    Calibration,
    apply_temperature,
    fit_temperature,
    read_calibration,
    write_calibration,
)
from cls_jax.inference.classifier import load
from cls_jax.inference.evaluate_run import calibrate_run, evaluate_run
from cls_jax.report.scores import compute_calibration
from tests.conftest import create_tiny_config


def sample(temperature, num_images=20_000, num_classes=5):
    """Probabilities that are off by a temperature, and labels drawn from the honest ones."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (num_images, num_classes))
    honest = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (honest.cumsum(axis=1) > rng.random((num_images, 1))).argmax(axis=1)
    claimed = apply_temperature(honest.astype(np.float32), 1 / temperature)
    return claimed, labels


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_temperature_is_found_and_removes_the_error(temperature):
    p_BK, labels = sample(temperature)
    found = fit_temperature(p_BK, labels)
    assert found == pytest.approx(temperature, rel=0.05)
    assert compute_calibration(apply_temperature(p_BK, found), labels).error < 0.02
    if temperature != 1:
        assert compute_calibration(p_BK, labels).error > 0.1


def test_temperature_changes_no_prediction():
    p_BK, _ = sample(1.0, 100)
    calibrated = apply_temperature(p_BK, 2.5)
    np.testing.assert_array_equal(calibrated.argmax(axis=1), p_BK.argmax(axis=1))
    np.testing.assert_allclose(calibrated.sum(axis=1), 1, rtol=1e-5)
    assert (calibrated.max(axis=1) < p_BK.max(axis=1)).all()
    np.testing.assert_allclose(apply_temperature(p_BK, 1.0), p_BK, rtol=1e-5)


def test_probabilities_of_0_and_1_can_be_fitted():
    p_BK = np.eye(3, dtype=np.float32)[[0, 1, 2, 0]]
    assert 0.05 <= fit_temperature(p_BK, np.asarray([0, 1, 2, 1])) <= 20
    assert np.isfinite(apply_temperature(p_BK, 20.0)).all()


@pytest.fixture(scope="module")
def run(trained_run, tmp_path_factory):
    """A copy of a run, evaluated."""
    workdir = shutil.copytree(trained_run, tmp_path_factory.mktemp("calibrated") / "run")
    evaluate_run(workdir)
    return workdir


def test_evaluation_calibrates_the_predictions_of_its_checkpoint(run):
    calibration = read_calibration(run, 6)
    assert (calibration.step, calibration.num_images) == (6, 450)
    dataset = load_dataset(create_tiny_config())
    prediction = cls_jax.load(run).predict(dataset.test_images)
    errors = [
        np.log(apply_temperature(prediction.probabilities, t)[range(450), dataset.test_labels])
        for t in (calibration.temperature, 0.9 * calibration.temperature, 1.0)
    ]
    assert errors[0].mean() >= max(error.mean() for error in errors)
    expected = apply_temperature(prediction.probabilities, calibration.temperature).max(axis=1)
    np.testing.assert_allclose(prediction.calibrated_confidence, expected, rtol=1e-6)
    np.testing.assert_array_equal(prediction.abstain, expected < calibration.abstain_below)


def test_a_run_without_calibration_has_none(trained_run):
    prediction = cls_jax.load(trained_run).predict(np.zeros((1, 8, 8, 1), np.uint8))
    assert prediction.calibrated_confidence is prediction.abstain is None


def test_calibration_of_another_checkpoint_is_left_out(tmp_path):
    write_calibration(tmp_path, Calibration(3, 1.5, 200))
    assert read_calibration(tmp_path, 3) == Calibration(3, 1.5, 200, 0.8)
    assert read_calibration(tmp_path, 6) is None


def test_too_few_test_images_are_not_calibrated_on(trained_run, tmp_path):
    dataset = load_dataset(create_tiny_config())
    few = dataclasses.replace(
        dataset, test_images=dataset.test_images[:99], test_labels=dataset.test_labels[:99]
    )
    assert calibrate_run(tmp_path, load(trained_run), few) is None
    assert not (tmp_path / CALIBRATION).exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "3",
        "{}",
        json.dumps({"step": 6, "temperature": 0, "num_images": 9}),
        json.dumps({"step": 6, "temperature": "1", "num_images": 9}),
    ],
)
def test_damaged_calibration_is_named(tmp_path, text):
    (tmp_path / CALIBRATION).write_text(text)
    with pytest.raises(UserError, match=r"calibration\.json is not a calibration .* delete it"):
        read_calibration(tmp_path, 6)
