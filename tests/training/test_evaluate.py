"""Accuracies against a plain computation over the whole set at once."""

import jax
import numpy as np
import pytest

from cls_jax.batch import normalize
from cls_jax.models.ensemble import take_network
from cls_jax.training import evaluate as evaluate_lib
from cls_jax.training.evaluate import create_evaluate, iterate_padded
from cls_jax.training.setup import create_train_setup
from tests.conftest import DATASET_SPEC, create_tiny_config

NUM_IMAGES = 70


@pytest.fixture(scope="module")
def test_set():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (NUM_IMAGES, 8, 8, 1), dtype=np.uint8)
    # Unequal classes, of which the last two have no image.
    return images, np.minimum(rng.integers(0, 10, NUM_IMAGES), 7).astype(np.int32)


def evaluate_plainly(setup, state, images, labels):
    model, data = setup.ensemble.model, setup.config.data
    state = jax.device_get(state)

    def accuracy(params):
        variables = [
            {"params": take_network(params, i), "batch_stats": take_network(state.batch_stats, i)}
            for i in range(setup.method.num_networks)
        ]
        x = normalize(images, data.mean, data.std)
        p = np.stack([jax.nn.softmax(jax.jit(model.apply)(v, x)) for v in variables])
        return p, 100 * np.mean(p.argmax(-1) == labels, axis=-1)

    averaged, accuracies = accuracy(state.ema_params)
    ensemble = 100 * np.mean(averaged.mean(0).argmax(-1) == labels)
    is_correct = averaged[0].argmax(-1) == labels
    balanced = 100 * np.mean([is_correct[labels == k].mean() for k in np.unique(labels)])
    return accuracies, balanced, ensemble, accuracy(state.params)[1]


@pytest.mark.parametrize(("mesh", "batch_size"), [((1, 1), NUM_IMAGES), ((2, 2), 32)])
def test_every_image_counts_once_whatever_the_batch_size(test_set, mesh, batch_size):
    config = create_tiny_config(eval_batch_size=batch_size)
    config.mesh.network, config.mesh.data = mesh
    setup = create_train_setup(config, DATASET_SPEC)
    state = setup.init_state()
    # Averages that are the other network's parameters, so that mixing them up shows.
    state = state.replace(ema_params=jax.tree.map(lambda leaf: leaf[::-1], state.params))
    accuracies = create_evaluate(setup)(state, *test_set)
    averaged, balanced, ensemble, live = evaluate_plainly(setup, state, *test_set)
    expected = {
        "test/accuracy": averaged[0],
        "test/balanced_accuracy": balanced,
        "test/accuracy_network_1": averaged[0],
        "test/accuracy_network_2": averaged[1],
        "test/accuracy_ensemble": ensemble,
        "test/accuracy_live_network_1": live[0],
        "test/accuracy_live_network_2": live[1],
    }
    assert accuracies == pytest.approx(expected)
    assert averaged[0] != live[0]
    assert balanced != averaged[0]


def test_last_batch_is_padded_and_masked(test_set):
    images, labels = test_set
    batches = list(iterate_padded(images, labels, 32))
    assert [len(batch[0]) for batch in batches] == [32, 32, 32]
    assert [batch[2].sum() for batch in batches] == [32, 32, 6]
    restored = np.concatenate([batch[0][batch[2]] for batch in batches])
    np.testing.assert_array_equal(restored, images)


def test_small_set_is_not_padded_to_a_whole_batch(test_set, monkeypatch):
    setup = create_train_setup(create_tiny_config(eval_batch_size=1000), DATASET_SPEC)
    sizes = []

    def cut(images, labels, batch_size):
        sizes.append(batch_size)
        return iter(())

    monkeypatch.setattr(evaluate_lib, "iterate_padded", cut)
    images, labels = test_set
    evaluate = create_evaluate(setup)
    assert evaluate(None, images, labels) == evaluate(None, images[:0], labels[:0]) == {}
    assert sizes == [NUM_IMAGES, 1]
