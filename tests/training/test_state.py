"""The initial state."""

import jax
import numpy as np
import pytest

from cls_jax.training.setup import create_train_setup
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
