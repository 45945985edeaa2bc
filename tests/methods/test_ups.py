"""UPS: what it selects, what it learns from, and its rounds."""

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest

from cls_jax.methods import METHODS
from cls_jax.methods.ups_selection import NO_LABEL, balance, select_labels
from cls_jax.runs.checkpoint import Checkpointer
from cls_jax.training.loop import train
from cls_jax.training.program import create_program
from cls_jax.training.rounds import is_round_start, start_round
from tests.conftest import DATASET_SPEC, create_tiny_config, train_interrupted
from tests.methods.stubs import (
    B,
    K,
    U,
    compute_output,
    create_batch,
    create_context,
    create_params,
    cross_entropy,
    predict,
)

HPARAMS = ml_collections.ConfigDict(
    {name: hp.default for name, hp in METHODS["ups"].hyperparameters.items()}
)
UNBALANCED_ROUND = HPARAMS.rounds


@pytest.fixture(scope="module")
def logits():
    """Passes that agree on some images and not on others, [10, 400, 5]."""
    rng = np.random.default_rng(0)
    centre = rng.normal(0, 4, (400, K))
    noise = rng.uniform(0, 1.0, (400, 1))
    return (centre + noise * rng.normal(size=(10, 400, K))).astype(np.float32)


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_positive_labels_obey_both_thresholds(logits):
    label = select_labels(logits, HPARAMS, UNBALANCED_ROUND)["label"]
    p = softmax(logits.astype(np.float64))
    mean, std = p.mean(0), p.std(0, ddof=1)
    top = np.arange(400), mean.argmax(-1)
    expected = (mean[top] >= 0.7) & (std[top] < 0.05)
    np.testing.assert_array_equal(label != NO_LABEL, expected)
    np.testing.assert_array_equal(label[expected], mean.argmax(-1)[expected])
    assert 0 < expected.sum() < 400


def test_negative_labels_obey_both_thresholds_and_never_name_the_chosen_class(logits):
    row = select_labels(logits, HPARAMS, UNBALANCED_ROUND)
    p = softmax(logits.astype(np.float64) / 2)
    expected = (p.mean(0) < 0.05) & (p.std(0, ddof=1) < 0.005)
    top = softmax(logits.astype(np.float64)).mean(0).argmax(-1)
    expected[np.arange(400), top] = False
    expected[row["label"] != NO_LABEL] = False  # Positive beats negative.
    np.testing.assert_array_equal(row["negative"], expected)
    assert expected.any()
    assert not row["negative"][np.arange(400), top].any()


def test_first_rounds_are_balanced_and_take_the_surest():
    rng = np.random.default_rng(0)
    label = np.repeat([0, 1, 2], [200, 60, 30])
    std, is_sure = rng.uniform(size=290), np.ones(290, bool)
    kept = balance(is_sure, label, std, 3)
    assert np.bincount(label[kept]).tolist() == [30, 30, 30]
    for k in range(3):
        assert std[kept & (label == k)].max() <= np.sort(std[label == k])[29]
    few = balance(label < 2, label, std, 3)  # The smallest class has none: 25 of the others.
    assert np.bincount(label[few], minlength=3).tolist() == [25, 25, 0]


def test_balance_ends_after_its_share_of_the_rounds(logits):
    counts = [np.sum(select_labels(logits, HPARAMS, i)["label"] != NO_LABEL) for i in range(1, 10)]
    assert counts[0] == counts[2] < counts[3] == counts[-1]


def test_loss_equals_numpy():
    params, batch = create_params(), create_batch(1)
    rng = np.random.default_rng(0)
    label = np.where(rng.uniform(size=U) < 0.4, rng.integers(0, K, U), NO_LABEL)
    negative = (rng.uniform(size=(U, K)) < 0.3) & (label == NO_LABEL)[:, None]
    table = {"label": jnp.asarray(label)[None], "negative": jnp.asarray(negative)[None]}
    context = create_context("ups")._replace(method_state=table)
    output = compute_output("ups", params, batch, context)

    index = np.asarray(batch.u_index)
    p_x, p_u = predict(params, batch.x), predict(params, batch.u[0])
    selected = label[index] != NO_LABEL
    positive = cross_entropy(p_x, np.asarray(batch.y)).sum()
    positive += cross_entropy(p_u, np.maximum(label[index], 0))[selected].sum()
    positive /= B + selected.sum()
    has = negative[index].any(-1)
    terms = -(np.log(1 - p_u) * negative[index]).sum(-1)[has] / negative[index].sum(-1)[has]
    np.testing.assert_allclose(output.losses, [positive + terms.mean()], rtol=1e-4)


def create_ups_config(**changes):
    return create_tiny_config("20,ups", method__rounds=2, method__passes=2, **changes)


def test_round_begins_with_other_networks_and_chosen_labels():
    config = create_ups_config(method__threshold_positive=0.0, method__std_positive=1.0)
    program = create_program(config, DATASET_SPEC)
    state = program.init_state()
    rng = np.random.default_rng(0)

    class Images:
        train_images = rng.integers(0, 256, (DATASET_SPEC.num_images, 8, 8, 1), dtype=np.uint8)

    assert [step for step in range(6) if is_round_start(config, step)] == [3]
    after = start_round(program, state, Images, 3)
    again = start_round(program, state, Images, 3)
    jax.tree.map(np.testing.assert_array_equal, after, again)
    assert int(after.step) == 3
    kernel, fresh = state.params["stem"]["kernel"], after.params["stem"]["kernel"]
    assert np.all(np.asarray(kernel) != np.asarray(fresh))
    assert np.any(np.asarray(after.method_state["label"]) != NO_LABEL)


@pytest.mark.parametrize("num_batches", [3, 5])
def test_run_killed_between_or_inside_rounds_resumes_exactly(tmp_path, num_batches):
    """The second round begins before step 3; checkpoints are at 2 and 4."""
    config = create_ups_config()
    train_interrupted(config, tmp_path / "killed", num_batches)
    states = []
    for name in ("killed", "whole"):
        result = train(config, tmp_path / name)
        assert result["step"] == 6
        state = create_program(config, DATASET_SPEC).init_state()
        states.append(Checkpointer(tmp_path / name).restore_newest(state).state)
    jax.tree.map(np.testing.assert_array_equal, *states)
