"""Balanced, reproducible, stored."""

import numpy as np
import pytest

from cls_jax.data.label_split import (
    check_labeled_indices,
    choose_labeled_indices,
    choose_unlabeled_indices,
    labeled_indices_to_json,
    read_labeled_indices,
)
from cls_jax.errors import UserError

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(5), [30, 40, 50, 60, 70]))
NAMES = tuple("abcde")


@pytest.mark.parametrize("budget", [5, 20, 150])
def test_budget_is_balanced_and_without_repeats(budget):
    indices = choose_labeled_indices(LABELS, budget, 5, seed=0)
    assert np.bincount(LABELS[indices]).tolist() == [budget // 5] * 5
    assert len(set(indices.tolist())) == budget


def test_seed_decides_the_budget():
    first, again, other = (choose_labeled_indices(LABELS, 20, 5, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


@pytest.mark.parametrize(
    ("budget", "message"),
    [(7, "choose a multiple of 5"), (0, "choose a multiple of 5"), (155, "choose at most 150")],
)
def test_budget_that_does_not_fit_is_refused(budget, message):
    with pytest.raises(UserError, match=message):
        choose_labeled_indices(LABELS, budget, 5, seed=0)


def test_unlabelled_set_is_all_or_the_rest():
    labeled = choose_labeled_indices(LABELS, 20, 5, seed=0)
    assert len(choose_unlabeled_indices(250, labeled, "all")) == 250
    rest = choose_unlabeled_indices(250, labeled, "rest")
    assert len(rest) == 230
    assert not set(rest) & set(labeled)


def test_stored_budget_comes_back(tmp_path):
    indices = choose_labeled_indices(LABELS, 20, 5, seed=0)
    (tmp_path / "l.json").write_text(labeled_indices_to_json(indices, LABELS, NAMES))
    np.testing.assert_array_equal(read_labeled_indices(tmp_path / "l.json", NAMES), indices)


@pytest.mark.parametrize("text", ["", "[]", '{"a": [1]}', '{"a": "x"}'])
def test_damaged_budget_is_refused(tmp_path, text):
    (tmp_path / "l.json").write_text(text)
    with pytest.raises(UserError, match="does not list labelled images"):
        read_labeled_indices(tmp_path / "l.json", NAMES)


def test_budget_that_does_not_fit_the_run_is_refused(tmp_path):
    path = tmp_path / "l.json"
    check_labeled_indices(path, np.asarray([0, 9]), num_labels=2, num_images=10)
    with pytest.raises(UserError, match=r"lists 2 labelled images and not 3: set --config.num_l"):
        check_labeled_indices(path, np.asarray([0, 9]), num_labels=3, num_images=10)
    for wrong in ([0, 10], [-1, 0], [3, 3]):
        with pytest.raises(UserError, match="lists an image twice or one that is not among"):
            check_labeled_indices(path, np.asarray(wrong), num_labels=2, num_images=10)
