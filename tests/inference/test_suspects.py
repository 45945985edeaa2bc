"""Wrong labels are found by what is known without them."""

import csv

import numpy as np
import pytest
from sklearn.datasets import load_digits

from cls_jax.inference.suspects import (
    SUSPECTS,
    Suspect,
    hold_out_labels,
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


def test_a_label_has_no_say_in_its_own_case(digits):
    features, truth = digits[0][:200], digits[1][:200]
    labels = np.where(np.arange(200) < 30, truth, -1)
    expected = hold_out_labels(features, labels, 10, num_folds=30)
    np.testing.assert_allclose(expected.sum(axis=1), 1, rtol=1e-5)
    changed = labels.copy()
    changed[7] = (labels[7] + 1) % 10
    found = hold_out_labels(features, changed, 10, num_folds=30)
    np.testing.assert_allclose(found[7], expected[7], rtol=1e-5)
    assert np.abs(found[:30] - expected[:30]).max() > 0.01


def test_each_class_is_measured_by_its_own_standard():
    # Whoever is labeled 1 has .4 of it at best: image 2 is an ordinary one of its class.
    p_BK = np.array([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.6, 0.4], [0.95, 0.05]])
    quality, suggested = rate_labels(p_BK, np.array([0, 0, 1, 1, 1]))
    assert suggested.tolist() == [0, 0, 1, 1, 0]
    assert np.argmin(quality) == 4
    assert ((quality >= 0) & (quality <= 1)).all()


def test_the_only_label_of_a_class_cannot_be_judged():
    quality, suggested = rate_labels(np.full((3, 3), 1 / 3), np.array([0, 0, 2]))
    assert (quality[2], suggested[2]) == (1.0, 2)
    assert 1 not in suggested


def test_the_table_names_files_and_classes(tmp_path):
    suspects = [Suspect(True, 5, 0, 1, 0.1, 0.02, 0.3), Suspect(False, 2, 1, 0, 0.4, 0.3, 0.2)]
    write_suspects(tmp_path, suspects, ["a,b", "c"], ["test/x.png", "odd\n\udcff.png"])
    with (tmp_path / SUSPECTS).open(newline="", errors="surrogateescape") as file:
        first, second = csv.DictReader(file)
    assert [first[key] for key in ("rank", "file", "part", "label", "suggested", "neighbors")] == [
        *("1", "test/x.png", "test", "a,b", "c", "0.020000")
    ]
    assert (second["file"], second["part"]) == ("odd\n\udcff.png", "labeled")
