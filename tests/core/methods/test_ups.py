"""Runs of UPS, with rounds. Its loss is in `test_oracles.py`."""

import types

import jax
import ml_collections
import numpy as np
import pytest

from cls_jax.data.label_split import choose_unlabeled_indices
from cls_jax.data.sampling import StreamSpec
from cls_jax.methods import METHODS
from cls_jax.methods.ups import NO_LABEL, select_labels
from cls_jax.runs.checkpoint import Checkpointer
from cls_jax.training.loop import run_training
from cls_jax.training.rounds import create_enter_round, create_mc_dropout, is_round_boundary
from cls_jax.training.setup import create_train_setup
from tests.conftest import DATASET_SPEC, create_tiny_config, train_interrupted
from tests.core.methods.oracles import softmax

pytestmark = pytest.mark.usefixtures("tiny_model")

K = 5
HPARAMS = ml_collections.ConfigDict(
    {name: hp.default for name, hp in METHODS["ups"].hyperparameters.items()}
)


@pytest.fixture(scope="module")
def logits():
    """Passes that agree on some images and not on others, [10, 400, 5]."""
    rng = np.random.default_rng(0)
    center = rng.normal(0, 4, (400, K))
    noise = rng.uniform(0, 1.0, (400, 1))
    return (center + noise * rng.normal(size=(10, 400, K))).astype(np.float32)


def select_by_loops(logits, is_balanced):
    """The method's description, followed image by image: (labels, sets of negative classes)."""
    logits = logits.astype(np.float64)
    candidates, negatives = {}, []
    for a in range(logits.shape[1]):
        passes = [softmax(z) for z in logits[:, a]]
        soft = [softmax(z / 2) for z in logits[:, a]]
        top = int(np.mean(passes, axis=0).argmax())
        spread = np.std([p[top] for p in passes], ddof=1)
        if np.mean([p[top] for p in passes]) >= 0.7 and spread < 0.05:
            candidates[a] = (top, spread)
        means, stds = np.mean(soft, axis=0), np.std(soft, axis=0, ddof=1)
        others = set(range(K)) - {top}
        negatives.append({k for k in others if means[k] < 0.05 and stds[k] < 0.005})
    by_class = [
        sorted((spread, a) for a, (top, spread) in candidates.items() if top == k) for k in range(K)
    ]
    limit = max(25, min(map(len, by_class))) if is_balanced else None
    labels = {a: k for k, ranked in enumerate(by_class) for _, a in ranked[:limit]}
    return labels, [set() if a in labels else n for a, n in enumerate(negatives)]


@pytest.mark.parametrize(  # The authors balance the first 6 of 20 rounds.
    ("num_rounds", "round_index", "is_balanced"),
    [(20, 6, True), (20, 7, False), (10, 3, True), (10, 4, False)],
)
def test_selection_equals_its_description(logits, num_rounds, round_index, is_balanced):
    row = select_labels(logits, {**HPARAMS, "rounds": num_rounds}, round_index)
    labels, negatives = select_by_loops(logits, is_balanced)
    assert {a: k for a, k in enumerate(row["label"]) if k != NO_LABEL} == labels
    assert [set(np.flatnonzero(classes)) for classes in row["negative"]] == negatives
    assert 0 < len(labels) < len(negatives)
    assert any(negatives)
    nothing = select_labels(logits[:, :0], HPARAMS, round_index)
    assert nothing["label"].shape == (0,)
    assert nothing["negative"].shape == (0, K)


def create_ups_config(**changes):
    return create_tiny_config("20,ups", method__rounds=2, method__passes=2, **changes)


@pytest.fixture(scope="module")
def first_round(tiny_model):
    """(program, state, dataset) before the second round starts."""
    # Any prediction is confident enough.
    config = create_ups_config(
        method__threshold_positive=0.0, method__std_positive=1.0, method__balanced_share=1.0
    )
    setup = create_train_setup(config, DATASET_SPEC)
    images = np.random.default_rng(0).integers(0, 256, (DATASET_SPEC.num_images, 8, 8, 1), np.uint8)
    return (
        setup,
        setup.init_state(),
        types.SimpleNamespace(train=types.SimpleNamespace(images=images)),
    )


def start_second_round(first_round, labeled, which="all", record=lambda *columns: None):
    setup, state, dataset = first_round
    everything = np.arange(DATASET_SPEC.num_images, dtype=np.int32)
    unlabeled = choose_unlabeled_indices(everything, labeled, which)
    spec = StreamSpec(setup.config, "strong", ("strong",), labeled, unlabeled)
    return create_enter_round(setup, dataset, spec, setup.init_state, record)(state, 3)


def test_round_starts_with_other_networks_and_chosen_labels(first_round):
    setup, state, dataset = first_round
    assert [step for step in range(6) if is_round_boundary(setup.config, step)] == [3]
    labeled, recorded = np.arange(20), []
    after = start_second_round(first_round, labeled, record=lambda *row: recorded.append(row))
    again = start_second_round(first_round, labeled)
    jax.tree.map(np.testing.assert_array_equal, after, again)
    assert int(after.step) == 3
    kernel, fresh = state.params["Dense_0"]["kernel"], after.params["Dense_0"]["kernel"]
    assert np.all(np.asarray(kernel) != np.asarray(fresh))
    table = np.asarray(after.method_state["label"][0])
    [(indices, labels, weights)] = recorded
    assert len(indices) > 0
    np.testing.assert_array_equal(indices, np.flatnonzero(table != NO_LABEL))
    np.testing.assert_array_equal(labels, table[indices])
    assert set(weights) == {1}
    # Every round, pass and batch has its own dropout: of one image, what differs was dropped.
    num_images = setup.config.eval_batch_size + 1
    images, predict = np.repeat(dataset.train.images[:1], num_images, 0), create_mc_dropout(setup)
    logits = np.stack([predict(state, images, np.arange(num_images), i)[0] for i in (1, 2)])
    assert len(np.unique(logits[:, :, [0, -1]].reshape(8, 10), axis=0)) == 8


@pytest.mark.slow
def test_run_killed_between_or_inside_rounds_resumes_exactly(tmp_path):
    """It dies before step 3, when the second round begins, and before step 5, within it."""
    config = create_ups_config(data__pipeline="device")
    state_shapes = create_train_setup(config, DATASET_SPEC).state_shapes

    def train_to_the_end(workdir):
        assert run_training(config, workdir)[0]["step"] == 6
        return Checkpointer(workdir).restore_newest(state_shapes)[1]

    expected = train_to_the_end(tmp_path / "whole")
    for _ in range(2):  # Checkpoints are at 2 and 4.
        train_interrupted(config, tmp_path / "killed", num_batches=3)
    jax.tree.map(np.testing.assert_array_equal, train_to_the_end(tmp_path / "killed"), expected)
