"""Accuracies against a plain computation over the whole set at once."""

import jax
import numpy as np
import pytest

from cls_jax.batch import normalize
from cls_jax.models.ensemble import take_network
from cls_jax.parallel.mesh import BatchShard
from cls_jax.training import evaluate as evaluate_lib
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


@pytest.mark.parametrize(
    ("batch_size", "num_images", "num_shards", "shards", "sizes", "rows"),
    [
        (1000, NUM_IMAGES, 1, (0, 1), [70], range(70)),  # No larger than the set.
        (1000, 0, 1, (0, 1), [], []),
        # Every device has as many images as one alone, and a process reads those of its own only.
        (20, NUM_IMAGES, 4, (2, 4), [72], range(36, 70)),
        (10, NUM_IMAGES, 2, (0, 1), [20] * 4, [i for i in range(70) if i % 20 < 10]),
    ],
)
def test_a_process_reads_its_part_of_batches_as_large_as_the_devices_hold(
    test_set, monkeypatch, batch_size, num_images, num_shards, shards, sizes, rows
):
    config = create_tiny_config(eval_batch_size=batch_size, mesh__data=num_shards)
    setup = create_train_setup(config, DATASET_SPEC)
    put = []
    part = BatchShard(*shards, num_shards)
    monkeypatch.setattr(evaluate_lib, "get_process_shard", lambda mesh: part)
    monkeypatch.setattr(evaluate_lib, "to_global_arrays", lambda *given: put.append(given))
    images, labels = (array[:num_images] for array in test_set)
    assert len(list(evaluate_lib.iterate_on_mesh(setup, images, labels))) == len(sizes)
    assert [shapes[0][0] for *_, shapes in put] == sizes
    held = [arrays[0][arrays[2]] for arrays, *_ in put]
    np.testing.assert_array_equal(np.concatenate([images[:0], *held]), images[list(rows)])
