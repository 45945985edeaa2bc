"""Runs of networks with a second head: `method.balanced_head`, with `method.graph`.

Their losses and gradients are in `test_oracles.py`, meshes in `test_compiled_step.py`.
"""

import jax
import numpy as np
import pytest

from cls_jax.data.datasets import load_dataset
from cls_jax.data.label_split import choose_long_tail
from cls_jax.inference import export
from cls_jax.inference.classifier import load
from cls_jax.methods import balanced_head
from cls_jax.methods.balanced_head import METHOD_HEAD
from cls_jax.runs.checkpoint import Checkpointer
from cls_jax.runs.folder import load_labeled_indices, read_result
from cls_jax.training import start
from cls_jax.training.loop import train
from cls_jax.training.setup import nest_method_state, restore_newest
from cls_jax.training.start import restore_run
from tests.conftest import create_tiny_config, train_interrupted
from tests.methods.tiny_model import tiny_model
from tests.outcomes import describe_difference, read_end

__all__ = ["tiny_model"]
pytestmark = pytest.mark.usefixtures("tiny_model")


def test_the_rarest_class_is_always_kept_and_the_others_as_often():
    shares = balanced_head.compute_shares([0.5, 0.3, 0.2, 0.0])
    np.testing.assert_allclose(shares, [0.4, 2 / 3, 1, 1], rtol=1e-6)


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_model):
    """A finished run of CLS with unequal classes and a graph of pixels, and its configuration."""
    options = {"method__balanced_head": True, "method__graph": 1.0, "data__imbalance": 10.0}
    config = create_tiny_config(**options, data__pipeline="device")
    workdir = tmp_path_factory.mktemp("balanced") / "whole"
    train(config, workdir)
    return config, workdir


def test_a_run_resumes_exactly(run, tmp_path):
    config, whole = run
    train_interrupted(config, tmp_path, 5)
    train(config, tmp_path)
    assert not describe_difference(read_end(tmp_path), read_end(whole))


def test_a_run_counts_its_labels(run):
    config, workdir = run
    dataset, (_, state, _) = load_dataset(config), restore_run(workdir)
    labeled = load_labeled_indices(workdir, dataset, 20, config.seed, 10.0)
    counts = np.bincount(dataset.train_labels[labeled])
    shares, labels = state.method_state["shares"], state.method_state["graph"]
    used = choose_long_tail(dataset.train_labels, 10, 10.0, config.seed)
    assert np.mean(labels.weight[:, used]) == pytest.approx(1, rel=1e-4)
    np.testing.assert_allclose(shares, np.tile(counts.min() / counts, (2, 1)), rtol=1e-6)
    assert counts.max() > counts.min()


def test_a_checkpoint_from_before_the_state_was_a_dictionary_is_read(run, tmp_path):
    setup, state, step = restore_run(run[1])
    stored = nest_method_state(state)
    (own, shares), labels = stored.method_state
    assert (own, len(shares), len(labels)) == ((), 2, 4)
    checkpointer = Checkpointer(tmp_path, keep=1)
    checkpointer.save(step, stored, {})
    checkpointer.finish(step)
    restored = restore_newest(checkpointer, setup).state
    jax.tree.map(np.testing.assert_array_equal, restored, state)


def test_the_own_head_predicts_everywhere(run, monkeypatch):
    """In evaluation, prediction and export, which all read the same head, and to other runs."""
    config, workdir = run
    setup, state, _ = restore_run(workdir)
    dataset = load_dataset(config)
    images = dataset.test_images

    def predict(head):
        logits, _ = setup.ensemble.forward(
            state.ema_params, state.batch_stats, setup.normalize(images), train=False, head=head
        )
        return np.asarray(jax.nn.softmax(logits))

    expected = predict("head")
    assert np.abs(expected - predict(METHOD_HEAD)).max() > 0.01
    np.testing.assert_allclose(load(workdir).predict_probabilities(images), expected, atol=1e-5)
    exported = export.create_function(load(workdir))(images)
    np.testing.assert_allclose(exported, expected.mean(axis=0), atol=1e-5)
    accuracy = 100 * np.mean(expected[0].argmax(axis=-1) == dataset.test_labels)
    assert read_result(workdir)["test_accuracy"] == pytest.approx(accuracy)
    monkeypatch.setattr(start, "to_torch", lambda variables, layout: variables["params"])
    networks = {"params": state.ema_params, "batch_stats": state.batch_stats}
    weights = start.collect_weights(setup.config, setup.ensemble.model, networks).arrays
    assert set(weights) == set(state.params) - {METHOD_HEAD}
    np.testing.assert_array_equal(weights["head"]["kernel"], state.ema_params["head"]["kernel"][0])
