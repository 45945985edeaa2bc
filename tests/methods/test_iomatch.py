"""A run of IOMatch: its readers see only the head of the classes."""

import functools

import jax
import numpy as np
import pytest

from cls_jax.data.datasets import load_dataset
from cls_jax.inference.classifier import load
from cls_jax.runs.folder import read_result
from cls_jax.training import start
from cls_jax.training.loop import train
from tests.conftest import create_tiny_config
from tests.methods.tiny_model import tiny_model

__all__ = ["tiny_model"]
pytestmark = pytest.mark.usefixtures("tiny_model")


def test_the_closed_set_head_of_a_run_predicts(tmp_path, monkeypatch):
    config = create_tiny_config("20,iomatch", data__pipeline="device", data__randaugment_ops=0)
    config.method.threshold = config.method.open_threshold = 0.3
    train(config, tmp_path / "run")
    setup, state, step = start.restore_run(tmp_path / "run")
    queue = np.asarray(state.method_state["queue"])
    assert queue.shape == (1, 128, 10)
    np.testing.assert_allclose(queue.sum(axis=-1)[0], np.arange(128) >= 128 - step, rtol=1e-5)

    dataset = load_dataset(config)
    images = setup.normalize(dataset.test_images)
    forward = jax.jit(functools.partial(setup.ensemble.forward, train=False))
    logits, _ = forward(state.ema_params, state.batch_stats, images)
    probabilities = load(tmp_path / "run").predict_probabilities(dataset.test_images)
    np.testing.assert_allclose(probabilities, jax.nn.softmax(logits), atol=1e-5)
    accuracy = 100 * np.mean(np.argmax(logits[0], axis=-1) == dataset.test_labels)
    assert read_result(tmp_path / "run")["test_accuracy"] == pytest.approx(accuracy)
    monkeypatch.setattr(start, "to_torch", lambda variables, layout: variables["params"])
    own = {"multi_binary", "open_set", "projection"}
    assert set(start.collect_weights(setup, state).arrays) == set(state.params) - own
