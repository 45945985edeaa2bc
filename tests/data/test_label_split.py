"""Balanced, reproducible, stored."""

import numpy as np
import pytest

from cls_jax.data.datasets import load_dataset
from cls_jax.data.label_split import (
    check_labeled_indices,
    choose_labeled_indices,
    choose_long_tail,
    choose_unlabeled_indices,
    choose_validation_indices,
    labeled_indices_to_json,
    read_labeled_indices,
)
from cls_jax.errors import UserError
from cls_jax.training import loop
from tests.conftest import create_tiny_config

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
    [(7, "choose a multiple of 5"), (3, "choose a multiple of 5"), (155, "choose at most 150")],
)
def test_budget_that_does_not_fit_is_refused(budget, message):
    with pytest.raises(UserError, match=message):
        choose_labeled_indices(LABELS, budget, 5, seed=0)


def test_budget_of_zero_is_all_labels_by_class():
    labels = np.array([1, -1, 0, 1, 0])
    indices = choose_labeled_indices(labels, 0, 2, seed=0)
    assert indices.tolist() == [2, 4, 0, 3]
    assert indices.dtype == np.int32


def test_long_tail_is_exponential_as_large_as_possible_and_decided_by_the_seed():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(5), 100))
    kept, again, other = (choose_long_tail(labels, 5, 10, seed) for seed in (0, 0, 1))
    assert np.bincount(labels[kept]).tolist() == [100, 56, 31, 17, 10]
    np.testing.assert_array_equal(kept, again)
    assert np.any(kept != other)
    assert len(np.unique(kept)) == len(kept)
    # The largest of these classes is the one that can keep least.
    tailed = choose_long_tail(LABELS, 5, 10, seed=0)
    assert np.bincount(LABELS[tailed]).tolist() == [30, 16, 9, 5, 3]


def test_balanced_classes_stay_as_they_are():
    assert choose_long_tail(np.array([0, -1, 1]), 2, 1.0, seed=0).tolist() == [0, 1, 2]


@pytest.mark.parametrize("budget", [5, 7, 20, 63])
@pytest.mark.parametrize("imbalance", [2, 10, 50])
def test_long_tailed_budget_is_within_the_long_tail(budget, imbalance):
    labels = np.repeat(np.arange(5), 200)
    indices = choose_labeled_indices(labels, budget, 5, seed=3, imbalance=imbalance)
    counts = np.bincount(labels[indices])
    assert counts.sum() == budget
    assert counts.min() >= 1
    assert (np.diff(counts) <= 0).all()
    shares = budget * imbalance ** -np.linspace(0, 1, 5)
    assert np.abs(counts - shares / np.sum(imbalance ** -np.linspace(0, 1, 5))).max() < 3
    assert set(indices) <= set(choose_long_tail(labels, 5, imbalance, seed=3))


def test_long_tailed_budget_has_the_ratio_asked_for():
    labels = np.repeat(np.arange(3), 1000)
    indices = choose_labeled_indices(labels, 111, 3, seed=0, imbalance=100)
    assert np.bincount(labels[indices]).tolist() == [100, 10, 1]


def test_budget_that_a_long_tail_does_not_hold_is_refused_with_one_that_it_does():
    labels = np.repeat(np.arange(5), 100)
    with pytest.raises(UserError, match="choose at most") as caught:
        choose_labeled_indices(labels, 300, 5, seed=0, imbalance=10)
    most = int(str(caught.value).rstrip(".").split()[-1])
    assert len(choose_labeled_indices(labels, most, 5, seed=0, imbalance=10)) == most


def test_long_tail_of_unknown_classes_is_refused():
    with pytest.raises(UserError, match=r"class of every training image, and 1 have none: set"):
        choose_long_tail(np.array([0, -1, 1]), 2, 10, seed=0)


def test_unlabeled_set_is_all_or_the_rest():
    labeled = choose_labeled_indices(LABELS, 20, 5, seed=0)
    everything = np.arange(250, dtype=np.int32)
    assert len(choose_unlabeled_indices(everything, labeled, True)) == 250
    rest = choose_unlabeled_indices(everything, labeled, False)
    assert len(rest) == 230
    assert not set(rest) & set(labeled)
    with pytest.raises(UserError, match=r"set --config\.data\.unlabeled_includes_labeled=True"):
        choose_unlabeled_indices(labeled, labeled, False)


def test_stored_budget_comes_back(tmp_path):
    indices = choose_labeled_indices(LABELS, 20, 5, seed=0)
    (tmp_path / "l.json").write_text(labeled_indices_to_json(indices, LABELS, NAMES))
    np.testing.assert_array_equal(read_labeled_indices(tmp_path / "l.json", NAMES), indices)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "[" * 100_000, '{"a": [1]}', '{"a": "x"}'),
        *('{"a": 1e400, "b": [], "c": [], "d": [], "e": []}',),
        *('{"a": [true], "b": [], "c": [], "d": [], "e": []}',),
    ],
)
def test_damaged_budget_is_refused(tmp_path, text):
    (tmp_path / "l.json").write_text(text)
    with pytest.raises(UserError, match="does not list labeled images"):
        read_labeled_indices(tmp_path / "l.json", NAMES)


def test_budget_that_does_not_fit_the_run_is_refused(tmp_path):
    path = tmp_path / "l.json"
    check_labeled_indices(path, np.asarray([0, 9]), num_labels=2, num_images=10)
    with pytest.raises(UserError, match=r"lists 2 labeled images and not 3: set --config.num_l"):
        check_labeled_indices(path, np.asarray([0, 9]), num_labels=3, num_images=10)
    for wrong in ([0, 10], [-1, 0], [3, 3]):
        with pytest.raises(UserError, match="lists an image twice, or an image outside"):
            check_labeled_indices(path, np.asarray(wrong), num_labels=2, num_images=10)


def test_training_sees_the_long_tail_only(tmp_path):
    config = create_tiny_config("20", data__imbalance=10.0, data__pipeline="device", num_steps=1)
    dataset = load_dataset(config)
    specs = []

    def note(spec, *args):
        specs.append(spec)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "create_pipeline", note)
        with pytest.raises(KeyboardInterrupt):
            loop.train(config, tmp_path / "run")
    (spec,) = specs
    counts = np.bincount(dataset.train_labels[spec.unlabeled_indices])
    assert counts[0] == pytest.approx(10 * counts[9], abs=10)
    assert set(spec.labeled_indices) <= set(spec.unlabeled_indices)


def test_validation_images_are_a_share_of_every_class_and_leave_one():
    labels = np.repeat([0, 1, 2, -1], [60, 30, 1, 50])
    held = choose_validation_indices(labels, 3, 0.1, seed=0)
    assert np.bincount(labels[held]).tolist() == [6, 3]
    np.testing.assert_array_equal(held, choose_validation_indices(labels, 3, 0.1, seed=0))
    assert set(held) != set(choose_validation_indices(labels, 3, 0.1, seed=1))
    most = choose_validation_indices(labels, 3, 0.99, seed=0)
    assert np.bincount(labels[most]).tolist() == [59, 29]
    with pytest.raises(UserError, match="choose a larger share"):
        choose_validation_indices(labels, 3, 0.001, seed=0)
