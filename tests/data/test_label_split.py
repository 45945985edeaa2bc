"""Balanced, reproducible, stored."""

import numpy as np
import pytest

from cls_jax.data import label_split
from cls_jax.errors import UserError

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(5), [30, 40, 50, 60, 70]))


@pytest.mark.parametrize("budget", [5, 150])
def test_budget_is_balanced_without_repeats_and_decided_by_the_seed(budget):
    first, again, other = (
        label_split.choose_labeled_indices(LABELS, budget, 5, seed) for seed in (0, 0, 1)
    )
    assert np.bincount(LABELS[first]).tolist() == [budget // 5] * 5
    assert len(set(first.tolist())) == budget
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)
    for wrong, message in ((7, "multiple of 5"), (3, "multiple of 5"), (155, "at most 150")):
        with pytest.raises(UserError, match=f"choose (a )?{message}"):
            label_split.choose_labeled_indices(LABELS, wrong, 5, seed=0)


def test_long_tail_is_exponential_as_large_as_possible_and_decided_by_the_seed():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(5), 100))
    kept, again, other = (label_split.choose_long_tail(labels, 5, 10, seed) for seed in (0, 0, 1))
    assert np.bincount(labels[kept]).tolist() == [100, 56, 31, 17, 10]
    np.testing.assert_array_equal(kept, again)
    assert np.any(kept != other)
    assert len(np.unique(kept)) == len(kept)
    # The largest of these classes is the one that can keep least.
    tailed = label_split.choose_long_tail(LABELS, 5, 10, seed=0)
    assert np.bincount(LABELS[tailed]).tolist() == [30, 16, 9, 5, 3]
    # Balanced classes stay as they are. Other ones cannot be made of unknown classes.
    assert label_split.choose_long_tail(np.array([0, -1, 1]), 2, 1.0, seed=0).tolist() == [0, 1, 2]
    with pytest.raises(UserError, match=r"class of every training image, and 1 have none: set"):
        label_split.choose_long_tail(np.array([0, -1, 1]), 2, 10, seed=0)


@pytest.mark.parametrize(
    ("num_labels", "imbalance", "expected"),
    [
        *((5, 2, [1, 1, 1, 1, 1]), (7, 50, [3, 1, 1, 1, 1]), (20, 10, [9, 5, 3, 2, 1])),
        *((63, 2, [17, 15, 12, 10, 9]), (111, 100, [76, 24, 8, 2, 1])),
    ],
)
def test_long_tailed_budget_has_the_ratio_asked_for(num_labels, imbalance, expected):
    labels = np.repeat(np.arange(5), 200)
    indices = label_split.choose_labeled_indices(labels, num_labels, 5, seed=3, imbalance=imbalance)
    assert np.bincount(labels[indices]).tolist() == expected
    assert set(indices) <= set(label_split.choose_long_tail(labels, 5, imbalance, seed=3))
    # One that the tail does not hold is refused with one that it does.
    with pytest.raises(UserError, match="choose at most") as caught:
        label_split.choose_labeled_indices(labels, 900, 5, seed=0, imbalance=10)
    most = int(str(caught.value).rstrip(".").split()[-1])
    assert len(label_split.choose_labeled_indices(labels, most, 5, seed=0, imbalance=10)) == most


def test_unlabeled_set_is_all_or_the_rest():
    labeled = label_split.choose_labeled_indices(LABELS, 20, 5, seed=0)
    everything = np.arange(250, dtype=np.int32)
    assert len(label_split.choose_unlabeled_indices(everything, labeled, True)) == 250
    rest = label_split.choose_unlabeled_indices(everything, labeled, False)
    assert len(rest) == 230
    assert not set(rest) & set(labeled)
    with pytest.raises(UserError, match=r"set --config\.data\.unlabeled_includes_labeled=True"):
        label_split.choose_unlabeled_indices(labeled, labeled, False)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "[" * 100_000, '{"a": [1]}', '{"a": "x", "b": []}'),
        *('{"a": 1e400, "b": []}', '{"a": [true], "b": []}', '{"a": [], "b": []}'),
    ],
)
def test_stored_budget_comes_back_and_another_or_damaged_one_is_refused(tmp_path, text):
    indices, labels, path = np.array([2, 4, 0, 3]), np.array([1, -1, 0, 1, 0]), tmp_path / "l.json"
    path.write_text(label_split.labeled_indices_to_json(indices, labels, ("a", "b")))
    np.testing.assert_array_equal(label_split.read_labeled_indices(path, ("a", "b")), indices)
    path.write_text(text)
    with pytest.raises(UserError, match="does not list labeled images"):
        label_split.read_labeled_indices(path, ("a", "b"))
    label_split.check_labeled_indices(path, np.asarray([0, 9]), num_labels=2, num_images=10)
    for wrong, message in (
        ([0, 1, 9], r"lists 3 labeled images and not 2: set --config.num_l"),
        *(
            (rows, "lists an image twice, or an image outside")
            for rows in ([0, 10], [-1, 0], [3, 3])
        ),
    ):
        with pytest.raises(UserError, match=message):
            label_split.check_labeled_indices(path, np.asarray(wrong), num_labels=2, num_images=10)


def test_validation_images_are_a_share_of_every_class_and_leave_one():
    labels = np.repeat([0, 1, 2, -1], [60, 30, 1, 50])
    held = label_split.choose_validation_indices(labels, 3, 0.1, seed=0)
    assert np.bincount(labels[held]).tolist() == [6, 3]
    np.testing.assert_array_equal(
        held, label_split.choose_validation_indices(labels, 3, 0.1, seed=0)
    )
    assert set(held) != set(label_split.choose_validation_indices(labels, 3, 0.1, seed=1))
    most = label_split.choose_validation_indices(labels, 3, 0.99, seed=0)
    assert np.bincount(labels[most]).tolist() == [59, 29]
    with pytest.raises(UserError, match="choose a larger share"):
        label_split.choose_validation_indices(labels, 3, 0.001, seed=0)
