"""Distribution alignment, and how a method learns the class frequencies of the labeled set."""

import numpy as np
import pytest

from cls_jax.batch import TrainingSplit, create_even_split, create_split
from cls_jax.methods import alignment
from cls_jax.training.setup import create_train_setup
from tests.conftest import DATASET_SPEC, create_tiny_config
from tests.methods import oracles_rules
from tests.methods.rule_cases import K, compute_output, create_batch, create_logits, init_state

UNEQUAL = [0.5, 0.2, 0.1, 0.15, 0.05]


def create_means(seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(K), 1).astype(np.float32)


def softmax_of_aligned(logits, predicted, target):
    return oracles_rules.softmax(np.asarray(alignment.align(logits, predicted, target), np.float64))


def test_alignment_is_p_times_target_over_mean_that_sums_to_one():
    logits = np.random.default_rng(0).normal(0, 3, (1, 20, K)).astype(np.float32)
    predicted, target = create_means(1), create_means(2)
    expected = oracles_rules.aligned(oracles_rules.softmax(logits[0]), predicted[0], target[0])
    np.testing.assert_allclose(
        softmax_of_aligned(logits, predicted, target)[0], expected, rtol=1e-5
    )


def test_alignment_to_the_running_mean_itself_changes_nothing():
    logits, means = create_logits("random")[None].astype(np.float32), create_means()
    np.testing.assert_array_equal(alignment.align(logits, means, means), logits)


def test_aligned_predictions_are_spread_as_the_target():
    """Where all images look alike, exactly; this is what balances classes."""
    logits = np.tile(np.float32([3.0, 0.0, 1.0, -1.0, 0.5]), (1, 4, 1))
    predicted = oracles_rules.softmax(logits)[:, 0].astype(np.float32)
    aligned = softmax_of_aligned(logits, predicted, np.float32([UNEQUAL]))
    np.testing.assert_allclose(aligned[0], np.tile(UNEQUAL, (4, 1)), atol=1e-4)


@pytest.mark.parametrize("kind", ["certain_class", "all_confident"])
def test_alignment_keeps_probabilities_of_zero_finite(kind):
    logits = 1000 * create_logits(kind)[None].astype(np.float32)
    means = np.float32([[1.0, 0, 0, 0, 0]])
    aligned = softmax_of_aligned(logits, means, means[:, ::-1])
    assert np.all(np.isfinite(aligned))
    np.testing.assert_array_equal(aligned.argmax(-1), logits.argmax(-1))


@pytest.mark.parametrize(
    ("align_to", "start", "moves"),
    [("labels", UNEQUAL, False), ("uniform", [1 / K] * K, False), ("predicted", [1 / K] * K, True)],
)
@pytest.mark.parametrize("name", ["softmatch", "adamatch"])
def test_target_is_that_of_the_labels_uniform_or_predicted(name, align_to, start, moves):
    state = init_state(name, UNEQUAL, align_to=align_to)
    for leaf in ("target", "predicted"):  # Equal at first: alignment begins as the identity.
        np.testing.assert_allclose(state[leaf], [start], rtol=1e-6)
    logits = create_logits("random")[None]
    output = compute_output(name, logits, state, create_batch(2), align_to=align_to)
    target = output.method_state["target"]
    assert (np.abs(target - state["target"]).max() > 1e-5) == moves
    assert np.abs(output.method_state["predicted"] - state["predicted"]).max() > 1e-5


def test_defaults_do_not_align_unequal_classes_to_uniform():
    assert alignment.TARGETS[0] == "labels"
    np.testing.assert_allclose(init_state("softmatch", UNEQUAL)["target"], [UNEQUAL], rtol=1e-6)
    np.testing.assert_allclose(init_state("cls_plus", UNEQUAL)["target"], [UNEQUAL] * 2, rtol=1e-6)


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
