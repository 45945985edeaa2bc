"""Wrong labels are found by what is known without them."""

import csv

import numpy as np
import pytest
from sklearn.datasets import load_digits

from cls_jax.data.types import Dataset
from cls_jax.features import propagation
from cls_jax.features.propagation import hold_out_labels
from cls_jax.inference.suspects import (
    SUSPECTS,
    Suspect,
    find_suspects,
    rate_labels,
    write_suspects,
)


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
    quality, suggested = rate_labels(q_BK[labeled], labels[labeled])
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


def test_quality_is_the_probability_of_a_label_that_is_not_the_only_one_of_its_class():
    p_BK = np.array([[0.9, 0.1, 0], [0.6, 0.4, 0], [0.2, 0.7, 0.1]])
    quality, suggested = rate_labels(np.repeat(p_BK, 2, axis=0), np.array([0, 1, 0, 1, 0, 2]))
    np.testing.assert_allclose(quality, [0.9, 0.1, 0.6, 0.4, 0.2, 1])
    assert suggested.tolist() == [0, 0, 0, 0, 1, 2]


def test_the_table_names_files_and_classes(tmp_path):
    suspects = [Suspect(True, 5, 0, 1, 0.1, 0.02, 0.3), Suspect(False, 2, 1, 0, 0.4, 0.3, 0.2)]
    write_suspects(tmp_path, suspects, ["a,b", "c"], ["test/x.png", "odd\n\udcff.png"])
    with (tmp_path / SUSPECTS).open(newline="", errors="surrogateescape") as file:
        _, first, second = csv.reader(file)
    assert first == ["1", "test/x.png", "test", "a,b", "c", "0.100000", "0.020000", "0.300000"]
    assert second[:3] == ["2", "odd\n\udcff.png", "labeled"]


def repeat(images, known):
    """Networks that repeat the labels they were trained on, and are right everywhere else."""
    one = np.eye(10, dtype=np.float32)[[known[image.tobytes()] for image in images]]
    return np.stack([0.9 * one + 0.01] * 2), images.reshape(len(images), 64).astype(np.float32)


def test_suspects_of_a_run_are_found_although_the_networks_know_the_labels_by_heart(digits):
    pixels, truth = digits
    images, labels = pixels.astype(np.uint8).reshape(-1, 8, 8, 1), truth.astype(np.int32)
    labels[[6, 1506]] = (labels[[6, 1506]] + 4) % 10  # A labeled image and a test image.
    dataset = Dataset(
        name="digits",
        class_names=tuple("0123456789"),
        train_images=images[:1500],
        train_labels=np.where(np.arange(1500) < 200, labels[:1500], -1),
        test_images=images[1500:],
        test_labels=labels[1500:],
        image_shape=(8, 8, 1),
    )
    answers = np.concatenate([labels[:200], truth[200:]])
    known = {image.tobytes(): label for image, label in zip(images, answers, strict=True)}
    look = lambda part, rows: repeat(getattr(dataset, f"{part}_images")[rows], known)  # noqa: E731
    suspects = find_suspects(look, dataset, np.arange(200, dtype=np.int32))
    found = {(row.is_test, row.position): row for row in suspects}
    assert found[True, 6].suggested == truth[1506]
    assert found[True, 6] in suspects[:5]
    assert found[False, 6].suggested == truth[6]
    assert found[False, 6] in suspects[:10]
    assert found[False, 6].networks > 0.9
    assert len(suspects) < 30
    assert [row.quality for row in suspects] == sorted(row.quality for row in suspects)
