"""Distribution alignment, and how a method learns the class frequencies of the labeled set."""

import jax
import numpy as np
import pytest

from cls_jax.batch import TrainingSplit, create_even_split, create_split
from cls_jax.methods import METHODS, alignment
from cls_jax.methods.base import InitContext
from cls_jax.training.setup import create_train_setup
from tests.conftest import DATASET_SPEC, create_tiny_config

K = 5
UNEQUAL = [0.5, 0.2, 0.1, 0.15, 0.05]


def create_means(seed):
    return np.random.default_rng(seed).dirichlet(np.ones(K), 1).astype(np.float32)


def create_logits(scale=3.0):
    return np.random.default_rng(0).normal(0, scale, (1, 20, K)).astype(np.float32)


def init_state(name, **hparams):
    """The method's initial state where the classes of the labeled set are unequal."""
    method = METHODS[name]
    defaults = {key: hp.default for key, hp in method.hyperparameters.items()}
    init = InitContext(defaults | hparams, method.num_networks, K, 30, 27, UNEQUAL)
    return method.init_state(init)


def test_alignment_is_p_times_target_over_mean_that_sums_to_one():
    logits, predicted, target = create_logits(), create_means(1), create_means(2)
    p = np.asarray(jax.nn.softmax(logits)) * (target + 1e-6) / (predicted + 1e-6)
    aligned = jax.nn.softmax(alignment.align(logits, predicted, target))
    np.testing.assert_allclose(aligned, p / p.sum(-1, keepdims=True), rtol=1e-5)


def test_alignment_to_the_running_mean_itself_changes_nothing():
    logits, means = create_logits(), create_means(0)
    np.testing.assert_array_equal(alignment.align(logits, means, means), logits)


def test_aligned_predictions_are_spread_as_the_target():
    """Where all images look alike, exactly. This is what balances classes."""
    logits = np.tile(np.float32([3.0, 0.0, 1.0, -1.0, 0.5]), (1, 4, 1))
    predicted = jax.nn.softmax(logits)[:, 0]
    aligned = jax.nn.softmax(alignment.align(logits, predicted, np.float32([UNEQUAL])))
    np.testing.assert_allclose(aligned[0], np.tile(UNEQUAL, (4, 1)), atol=1e-4)


def test_alignment_keeps_probabilities_of_zero_finite():
    logits = create_logits(1e5)
    means = np.float32([[1.0, 0, 0, 0, 0]])
    aligned = np.asarray(jax.nn.softmax(alignment.align(logits, means, means[:, ::-1])))
    assert np.all(np.isfinite(aligned))
    np.testing.assert_array_equal(aligned.argmax(-1), logits.argmax(-1))


@pytest.mark.parametrize(
    ("name", "align_to", "start"),
    [
        *((name, "labels", UNEQUAL) for name in ("softmatch", "adamatch")),
        *((name, "uniform", [1 / K] * K) for name in ("softmatch", "adamatch")),
        *((name, "predicted", [1 / K] * K) for name in ("softmatch", "adamatch")),
        ("cls_plus", None, UNEQUAL),
    ],
)
def test_means_start_at_the_target_so_that_alignment_begins_as_the_identity(name, align_to, start):
    state = init_state(name, **({"align_to": align_to} if align_to else {}))
    for leaf in ("target", "predicted"):
        np.testing.assert_allclose(state[leaf], [start] * METHODS[name].num_networks, rtol=1e-6)


def test_class_balance_is_the_smallest_mean_over_the_largest():
    means = np.float32([[0.1, 0.4, 0.5], [1 / 3, 1 / 3, 1 / 3]])
    np.testing.assert_allclose(alignment.compute_class_balance(means), [0.2, 1.0], rtol=1e-6)


def test_split_counts_the_labels_of_the_labeled_set():
    split = create_split(np.array([2, 0, 2, 2]), 4, 9)
    assert split == TrainingSplit((0.25, 0.0, 0.75, 0.0), 9)
    even = create_even_split(DATASET_SPEC)
    assert even.num_unlabeled == DATASET_SPEC.num_images
    np.testing.assert_allclose(even.class_frequencies, 0.1)


def test_frequencies_of_a_run_reach_its_initial_state():
    frequencies = tuple(np.arange(10) / 45)
    setup = create_train_setup(
        create_tiny_config("20,softmatch"),
        DATASET_SPEC,
        split=TrainingSplit(frequencies, DATASET_SPEC.num_images),
    )
    state = setup.init_state().method_state
    np.testing.assert_allclose(state["target"], [frequencies], rtol=1e-6)
