"""Runs with a second head, and with labels from a graph in the loss."""

import jax
import numpy as np
import pytest

from cls_jax.data.label_split import choose_long_tail
from cls_jax.methods import balanced_head
from cls_jax.methods.balanced_head import METHOD_HEAD
from cls_jax.methods.options import INFERRED_LABELS
from cls_jax.photos.folder.dataset import open_dataset
from cls_jax.photos.inference import export
from cls_jax.photos.inference.run import load
from cls_jax.photos.start.stages import train_with_stages
from cls_jax.runs.folder import load_labeled_indices, read_result
from cls_jax.training import prepare
from cls_jax.training.prepare import restore_run
from tests.conftest import create_tiny_config

pytestmark = pytest.mark.usefixtures("tiny_model")


def test_the_rarest_class_is_always_kept_and_the_others_as_often():
    shares = balanced_head.compute_shares([0.5, 0.3, 0.2, 0.0])
    np.testing.assert_allclose(shares, [0.4, 2 / 3, 1, 1], rtol=1e-6)


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_model):
    """A finished run of CLS with unequal classes and a graph of pixels, and its configuration."""
    options = {"method__balanced_head": True, "method__inferred": 1.0, "data__imbalance": 10.0}
    config = create_tiny_config(**options, data__pipeline="device")
    workdir = tmp_path_factory.mktemp("balanced") / "whole"
    train_with_stages(config, workdir)
    return config, workdir


def test_a_run_counts_its_labels(run):
    config, workdir = run
    dataset, (_, state, _) = open_dataset(config), restore_run(workdir)
    labeled = load_labeled_indices(workdir, dataset, 20, config.seed, 10.0)
    counts = np.bincount(dataset.train.labels[labeled])
    shares, labels = state.method_state["shares"], state.method_state[INFERRED_LABELS]
    used = choose_long_tail(dataset.train.labels, 10, 10.0, config.seed)
    assert np.mean(labels.weight[:, used]) == pytest.approx(1, rel=1e-4)
    np.testing.assert_allclose(shares, np.tile(counts.min() / counts, (2, 1)), rtol=1e-6)
    assert counts.max() > counts.min()


def test_the_own_head_predicts_everywhere(run, monkeypatch):
    """In evaluation, prediction and export, which all read the same head, and to other runs."""
    config, workdir = run
    setup, state, _ = restore_run(workdir)
    dataset = open_dataset(config)
    images = dataset.test.images

    def predict(head):
        logits, _ = setup.ensemble.forward(
            state.ema_params, state.batch_stats, setup.normalize(images), train=False, head=head
        )
        return np.asarray(jax.nn.softmax(logits))

    expected = predict("head")
    assert np.abs(expected - predict(METHOD_HEAD)).max() > 0.01
    networks = load(workdir).networks
    np.testing.assert_allclose(networks.predict_with_features(images)[0], expected, atol=1e-5)
    exported = export.create_function(load(workdir))(images)
    np.testing.assert_allclose(exported, expected.mean(axis=0), atol=1e-5)
    accuracy = 100 * np.mean(expected[0].argmax(axis=-1) == dataset.test.labels)
    assert read_result(workdir)["test_accuracy"] == pytest.approx(accuracy)
    monkeypatch.setattr(prepare, "to_torch", lambda variables, layout: variables["params"])
    networks = {"params": state.ema_params, "batch_stats": state.batch_stats}
    model = setup.ensemble.model
    weights = prepare.collect_weights("wide_resnet", model, networks, ((0.5,), (0.5,))).arrays
    assert set(weights) == set(state.params) - {METHOD_HEAD}
    np.testing.assert_array_equal(weights["head"]["kernel"], state.ema_params["head"]["kernel"][0])
