"""Accuracies against a plain computation over the whole set at once."""

import jax
import numpy as np
import pytest

from cls_jax.batch import normalize
from cls_jax.models.ensemble import take_network
from cls_jax.training.evaluate import create_evaluate
from cls_jax.training.setup import create_train_setup
from tests.conftest import DATASET_SPEC, create_tiny_config

NUM_IMAGES = 70


@pytest.fixture(scope="module")
def test_set():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (NUM_IMAGES, 8, 8, 1), dtype=np.uint8)
    # Unequal classes, of which the last two have no image.
    return images, np.minimum(rng.integers(0, 10, NUM_IMAGES), 7).astype(np.int32)


def predict_plainly(setup, params, batch_stats, images):
    """Probabilities [N, B, K], network by network."""
    networks = jax.device_get({"params": params, "batch_stats": batch_stats})
    x = normalize(images, setup.config.data.mean, setup.config.data.std)
    apply = jax.jit(setup.ensemble.model.apply)
    return np.stack([jax.nn.softmax(apply(take_network(networks, i), x)) for i in range(2)])


@pytest.mark.parametrize(("mesh", "batch_size"), [((1, 1), NUM_IMAGES), ((2, 2), 32)])
def test_every_image_counts_once_whatever_the_batch_size(test_set, mesh, batch_size):
    images, labels = test_set
    config = create_tiny_config(eval_batch_size=batch_size)
    config.mesh.network, config.mesh.data = mesh
    setup = create_train_setup(config, DATASET_SPEC)
    state = setup.init_state()
    # Averages that are the other network's parameters, so that mixing them up shows.
    averages = jax.tree.map(lambda leaf: leaf[::-1], state.params)
    # Of a black image, as padding is, network 1 thinks what padding has as its label.
    black = predict_plainly(setup, averages, state.batch_stats, 0 * images[:1])[0].argmax()
    averages["head"] = jax.tree.map(lambda leaf: np.roll(leaf, -black, axis=-1), averages["head"])
    state = state.replace(ema_params=averages)
    averaged, live = (
        predict_plainly(setup, params, state.batch_stats, images)
        for params in (state.ema_params, state.params)
    )
    is_correct = averaged[0].argmax(-1) == labels
    balanced = np.mean([is_correct[labels == k].mean() for k in np.unique(labels)])
    shares = {
        "accuracy": is_correct.mean(),
        "balanced_accuracy": balanced,
        "accuracy_ensemble": np.mean(averaged.mean(0).argmax(-1) == labels),
    }
    for i in range(2):
        shares[f"accuracy_network_{i + 1}"] = np.mean(averaged[i].argmax(-1) == labels)
        shares[f"accuracy_live_network_{i + 1}"] = np.mean(live[i].argmax(-1) == labels)
    accuracies = create_evaluate(setup)(state, images, labels)
    assert create_evaluate(setup)(state, images, labels, lambda: True) == {}  # Given up.
    assert accuracies == pytest.approx({f"test/{k}": 100 * v for k, v in shares.items()})
    assert shares["accuracy"] not in (shares["accuracy_live_network_1"], balanced)
