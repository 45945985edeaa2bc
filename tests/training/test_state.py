"""The initial state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.data.pipelines import device
from cls_jax.data.sampling import create_stream_spec
from cls_jax.training.setup import create_train_setup
from cls_jax.training.step import create_context
from tests.conftest import DATASET_SPEC, create_tiny_config


@pytest.mark.parametrize(("argument", "num_networks"), [("20", 2), ("20,fixmatch", 1)])
def test_every_leaf_of_the_state_carries_the_networks(argument, num_networks):
    config = create_tiny_config(argument)
    state = create_train_setup(config, DATASET_SPEC).init_state()
    stacked = (state.params, state.batch_stats, state.ema_params)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(stacked)} == {num_networks}
    np.testing.assert_array_equal(state.step, 0)
    jax.tree.map(np.testing.assert_array_equal, state.params, state.ema_params)


def test_seed_decides_the_initial_weights():
    def kernel(seed):
        state = create_train_setup(create_tiny_config(seed=seed), DATASET_SPEC).init_state()
        return np.asarray(state.params["stem"]["kernel"])

    np.testing.assert_array_equal(kernel(0), kernel(0))
    assert np.all(kernel(0) != kernel(1))


def test_augmentations_methods_and_weights_share_no_random_key(monkeypatch):
    """The keys that the code draws from, at the step that has MixUp and CutMix beside views."""
    config = create_tiny_config(data__pipeline="device")
    setup = create_train_setup(config, DATASET_SPEC)
    state = setup.init_state().replace(step=jnp.int32(0))
    used = []

    def note(key, shape, *_):
        used.append(jax.random.key_data(key).tobytes())
        return jnp.full(shape, 0.5)

    monkeypatch.setattr(jax.random, "uniform", note)
    monkeypatch.setattr(device, "_take_shard", lambda whole, num_shards: whole)
    labeled, unlabeled = np.arange(20), np.arange(100)
    spec = create_stream_spec(config, "weak", ("weak", "weak"), labeled, unlabeled)
    images, labels = np.zeros((100, 8, 8, 1), np.uint8), np.zeros(100, np.int32)
    data = device.DeviceData(np.uint32(config.seed), images, labels, labels, labeled, unlabeled)
    device.make_batch_creator(spec, (8, 8, 1), setup.mesh)(state, data)
    assert len(used) == 3
    method_key = create_context(setup, state).key
    derived = [*jax.random.split(method_key), *(jax.random.fold_in(method_key, i) for i in (2, 3))]
    used += [jax.random.key_data(key).tobytes() for key in (method_key, *derived)]

    def note_key(model, key, *_, drawn):
        used.append(jax.random.key_data(key).tobytes())
        return networks

    networks = state.params, state.batch_stats
    monkeypatch.setattr("cls_jax.training.setup.init_networks", note_key)
    for round_index in range(3):
        setup.init_state(round_index)
    assert len(set(used)) == len(used) == 11
