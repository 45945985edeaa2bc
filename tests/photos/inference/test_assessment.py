"""Assessments after training: calibration, and a score for images of no class."""

import csv
import dataclasses
import errno
import itertools
import json
import shutil
import unittest.mock

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from cls_jax.data.types import Dataset, Split
from cls_jax.errors import UserError
from cls_jax.photos.features.infer import HeldOutLabels
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.inference import suspects as suspects_lib
from cls_jax.photos.inference import unknown
from cls_jax.photos.inference.assessment import assess_run, evaluate_run, train_and_assess
from cls_jax.photos.inference.calibration import (
    CALIBRATION,
    Calibration,
    apply_calibration,
    fit_calibration,
    read_calibration,
    write_fitted,
)
from cls_jax.photos.inference.predict_files import predict_files
from cls_jax.photos.inference.run import create_run, load
from cls_jax.photos.start.scores import compute_reliability
from cls_jax.runs.folder import read_result
from tests.conftest import create_tiny_config
from tests.outcomes import read_table
from tests.photos.helpers import write_image

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
    np.testing.assert_array_equal(honest.argmax(axis=1), p_BK.argmax(axis=1))
    np.testing.assert_allclose(honest.sum(axis=1), 1, rtol=1e-5)
    # Probabilities of 0 and 1 can be fitted, too.
    found = fit_calibration(np.eye(3)[[0, 1, 2, 0]], np.asarray([0, 1, 2, 1]))
    assert (0.05 <= found[0] <= 20, 0 < found[1] < 1) == (True, True)
    if (temperature, uniform_share) != (1.0, 0.01):
        assert compute_reliability(p_BK, labels).error > 2 * after


@pytest.mark.parametrize("num_classes", [3, 10, 45])
def test_calibration_explains_the_labels_at_least_as_well_as_the_truth(num_classes):
    """Networks of any confidence. The search from a single point missed a quarter of these."""
    missed, rng = [], np.random.default_rng(num_classes)

    def compute_loss(temperature, uniform_share):
        q_BK = apply_calibration(p_BK, temperature, uniform_share)
        return -np.log(np.maximum(q_BK[np.arange(len(labels)), labels], 1e-12)).mean()

    for truth in itertools.product([0.1, 0.3, 1.0, 3.0], [0.01, 0.1, 0.3]):
        p_BK = rng.dirichlet([1.0] * num_classes, 300).astype(np.float32)
        honest = apply_calibration(p_BK, *truth)
        labels = (honest.cumsum(axis=1) > rng.random((len(p_BK), 1))).argmax(axis=1)
        if compute_loss(*fit_calibration(p_BK, labels)) > compute_loss(*truth) + 1e-3:
            missed.append(truth)
    assert not missed


def sample(num_groups, seed=0, per_class=4):
    """Features of groups of images, their groups, and labels of the first images of K groups."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(num_groups), GROUP_SIZE)
    features = np.eye(8)[groups] + 0.25 * rng.normal(size=(len(groups), 8))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    is_labeled = (groups < K) & (np.arange(len(groups)) % GROUP_SIZE < per_class)
    return features.astype(np.float32), groups, np.where(is_labeled, groups, -1)


def test_images_of_no_class_score_higher():
    features, groups, labels = sample(5, per_class=12)
    score = unknown.fit_unknown(features, labels, K)
    new, new_groups, _ = sample(5, seed=1)
    assert roc_auc_score(new_groups >= K, score.apply(new)) > 0.95
    # The score is a share of the unlabeled training images.
    quantiles = np.quantile(score.apply(features[labels < 0]), [0, 0.1, 0.5, 0.9, 1])
    np.testing.assert_allclose(quantiles, [0, 0.1, 0.5, 0.9, 1], atol=0.02)
    # Without labels or without unlabeled images there is no score.
    assert unknown.fit_unknown(features, groups, 5) is None
    assert unknown.fit_unknown(features, np.full(len(groups), -1), 5) is None
    # Nothing distinguishes identical images.
    assert unknown.fit_unknown(np.ones_like(features), labels, K) is None


@pytest.mark.parametrize(
    ("name", "read", "fitted", "damages"),
    [
        (
            *(CALIBRATION, read_calibration, Calibration(6, 1.5, 0.1, 200)),
            [{"temperature": 0}, {"temperature": "1"}, {"uniform_share": 2}, {"fitted_on": "x"}],
        ),
        (
            *(unknown.UNKNOWN, unknown.read_unknown),
            unknown.UnknownScore(6, (0.5, -1.0), (0.0, 1.0)),
            [{"kernel": ["a"]}, {"quantiles": []}, {"other": 1}],
        ),
    ],
)
def test_stale_fits_are_left_out(run_copy, tmp_path, name, read, fitted, damages):
    assert read(tmp_path, 6) is None
    write_fitted(run_copy / name, fitted)
    assert read(run_copy, 6) == fitted
    assert read(run_copy, 3) is None
    if name == unknown.UNKNOWN:
        with pytest.raises(UserError, match=r"weighs 2 features, .*: delete it, and .* again\.$"):
            load(run_copy)
    valid = json.loads((run_copy / name).read_text())
    for text in ("", "[]", "3", "{}", *(json.dumps(valid | damage) for damage in damages)):
        (run_copy / name).write_text(text)
        with pytest.raises(UserError, match=rf"{name} is not a .* delete it"):
            read(run_copy, 6)


@pytest.fixture(scope="module")
def assessed(trained_run, tmp_path_factory):
    """A copy of a run, evaluated after its training as if it had validation images."""
    workdir = shutil.copytree(trained_run, tmp_path_factory.mktemp("assessed") / "run")
    assess_run(open_validated(workdir))
    return workdir


def open_validated(workdir, num_images=450, test_labels=None):
    """A run whose test images are its validation images, too, as many as given."""
    run = create_run(create_tiny_config(), workdir)
    test = run.dataset.test
    validation = test.take(np.arange(num_images))
    if test_labels is not None:
        test = dataclasses.replace(test, labels=test_labels)
    run.dataset = dataclasses.replace(run.dataset, test=test, validation=validation)
    return run


def test_evaluation_calibrates_the_predictions_of_its_checkpoint(assessed, classifier, dataset):
    calibration = read_calibration(assessed, 6)
    assert calibration.num_images == 450
    prediction = load(assessed).predict(dataset.test.images)
    numbers = fit_calibration(prediction.probabilities, dataset.test.labels)
    assert calibration[1:3] == pytest.approx(numbers, rel=1e-4)
    expected = apply_calibration(prediction.probabilities, *calibration[1:3]).max(axis=1)
    np.testing.assert_allclose(prediction.calibrated_confidence, expected, rtol=1e-6)
    np.testing.assert_array_equal(prediction.abstain, expected < calibration.abstain_below)
    assert classifier.predict(dataset.test.images[:1]).calibrated_confidence is None


def test_neither_test_images_nor_too_few_validation_images_calibrate(run_copy):
    run = open_validated(run_copy, num_images=99)
    assert assess_run(run).macro.support == 450
    assert not (run.workdir / CALIBRATION).exists()
    evaluate_run(run.workdir)  # Its dataset has test images only.
    assert not (run.workdir / CALIBRATION).exists()


def test_other_test_labels_make_the_same_fits(assessed, run_copy, dataset):
    permuted = np.random.default_rng(0).permutation(dataset.test.labels)
    assess_run(open_validated(run_copy, test_labels=permuted))
    for name in (CALIBRATION, unknown.UNKNOWN):
        assert (run_copy / name).read_text() == (assessed / name).read_text()
    assert read_result(run_copy)["per_class"] != read_result(assessed)["per_class"]


def test_an_assessed_run_scores_unknown_images(
    assessed, classifier, dataset, tmp_path, monkeypatch
):
    scoring, images = load(assessed), dataset.test.images[:50]
    plain, prediction = classifier.predict(images), scoring.predict(images)
    assert plain.unknown is None
    np.testing.assert_allclose(prediction.probabilities, plain.probabilities, rtol=1e-5, atol=1e-7)
    assert np.ptp(prediction.unknown) > 0.5
    expected = scoring.unknown.apply(scoring.networks.predict_with_features(images)[1])
    np.testing.assert_allclose(prediction.unknown, expected, atol=1e-3)
    assert scoring.predict(images[:0]).unknown.shape == (0,)
    features = scoring.networks.predict_with_features(images)[1]
    scoring.folder_images = unknown.collect_images(features)
    both = scoring.predict(images)
    np.testing.assert_array_equal(both.unknown, prediction.unknown)
    assert not both.foreign.any()
    assert scoring.compute_fingerprint() != classifier.compute_fingerprint()
    path = write_image(tmp_path / "0.png", images[0, ..., 0])
    refuse = unittest.mock.Mock(side_effect=OSError(errno.ENOLCK, "No locks available"))
    monkeypatch.setattr("filelock.FileLock.acquire", refuse)  # Where nothing can be locked, too.
    predict_files(scoring, [str(path)], tmp_path / "p.csv")
    (row,) = read_table(tmp_path / "p.csv")
    for name in ("unknown", "calibrated_confidence"):
        assert float(row[name]) == pytest.approx(getattr(prediction, name)[0], abs=1e-5)
    assert row["abstain"] == str(prediction.abstain[0])


@pytest.fixture(scope="module")
def digits():
    data = load_digits()
    return data.data.astype(np.float32), data.target


def test_labels_are_suspect_that_others_contradict_clearly_in_classes_with_three(tmp_path):
    p_BK = np.array(
        [[0.05, 0.9, 0.05], [0.2, 0.75, 0.05], [0.3, 0.6, 0.1], [0.9, 0.1, 0], [0, 1, 0]]
    )
    labels = np.array([0, 0, 0, 1, 2, -1])
    held_out = HeldOutLabels(np.vstack([p_BK, [[1 / 3] * 3]]), np.arange(6) < 5)
    assert suspects_lib.choose_suspects(held_out, labels).tolist() == [0, 1]
    unjudged = held_out._replace(is_judged=np.arange(6) > 0)
    assert suspects_lib.choose_suspects(unjudged, labels).tolist() == [1]
    rows = (True, 5, 0, 1, 0.1), (False, 2, 1, 0, 0.4)
    suspects = [suspects_lib.Suspect(*row) for row in rows]
    suspects_lib.write_suspects(tmp_path, suspects, ["a,b", "c"], ["test/x.png", "odd\n\udcff.png"])
    with (tmp_path / suspects_lib.SUSPECTS).open(newline="", errors="surrogateescape") as file:
        _, first, second = csv.reader(file)
    assert first == ["1", "test/x.png", "test", "a,b", "c", "0.100000"]
    assert second[:3] == ["2", "odd\n\udcff.png", "labeled"]


def find_suspects(pixels, labels, num_labeled, num_train, sources=None):
    """Suspects among the first labels of training images, and those of test images, the rest."""
    images, known = np.zeros((len(pixels), 8, 8, 1), np.uint8), labels.astype(np.int32)
    known[num_labeled:num_train] = -1
    train = Split(images[:num_train], known[:num_train], sources=sources)
    test = Split(images[num_train:], known[num_train:])
    dataset = Dataset("digits", tuple("0123456789"), train, test, (8, 8, 1))

    def extract(part, rows):
        features = pixels[rows + num_train if part == "test" else rows]
        return FrozenFeatures(features, features, features[:, :0])

    suspects, _ = suspects_lib.judge_labels(extract, dataset, np.arange(num_labeled))
    return suspects


def test_flipped_labels_come_first(digits):
    """Of training and of test images."""
    pixels, truth = digits
    rng, labels = np.random.default_rng(0), truth.copy()
    places = np.append(np.arange(100), np.arange(1500, len(truth)))
    flipped = rng.choice(places, len(places) // 20, replace=False)
    labels[flipped] = (labels[flipped] + rng.integers(1, 10, len(flipped))) % 10
    suspects = find_suspects(pixels, labels, 100, 1500)
    found = np.array([row.position + 1500 * row.is_test for row in suspects])
    assert np.isin(flipped, found[: len(places) // 10]).mean() >= 0.5
    is_flipped = np.isin(found, flipped)
    assert is_flipped.mean() >= 1 / 3
    suggested = np.array([row.suggested for row in suspects])
    assert (suggested == truth[found])[is_flipped].mean() >= 0.8


def test_labels_of_one_source_do_not_defend_each_other(digits):
    """All labels of one source are wrong in the same way, as where a person has misunderstood."""
    pixels, truth = digits
    labels = truth[:400].copy()
    sources = np.random.default_rng(0).integers(0, 6, 400).astype(np.int32)
    wrong = np.flatnonzero((sources == 0) & (labels == 3))
    pixels = pixels[:400].copy()
    pixels[sources == 0] += 8  # They resemble each other.
    labels[wrong] = 5

    together, alone = (
        [row.position for row in find_suspects(pixels, labels, 400, 400, given)]
        for given in (sources, None)
    )
    assert len(wrong) >= 4
    assert np.isin(wrong, together).mean() > np.isin(wrong, alone).mean() + 0.3


def test_without_checkpoints_a_run_has_its_result_and_one_remedy(run_copy):
    shutil.rmtree(run_copy / "checkpoints")
    result = read_result(run_copy)
    assert train_and_assess(create_run(create_tiny_config(), run_copy)) == result
    with pytest.raises(UserError, match=r"its checkpoints have been deleted: restore .* or delete"):
        evaluate_run(run_copy)
    (run_copy / "result.json").unlink()  # As before the first checkpoint.
    with pytest.raises(UserError, match="holds no checkpoint yet"):
        evaluate_run(run_copy)
