"""Runs that start from pretrained weights."""

import dataclasses

import jax
import numpy as np
import pytest

from cls_jax.data.types import Dataset, Split
from cls_jax.errors import UserError
from cls_jax.models.ensemble import take_network
from cls_jax.models.weights.layout import OWN, Weights, to_torch
from cls_jax.training.prepare import resolve_model, use_stored_normalization
from cls_jax.training.setup import create_train_setup
from cls_jax.training.step import create_train_step
from tests.conftest import DATASET_SPEC, create_raw_batch, create_tiny_config
from tests.core.models.make_fixtures import draw_parameter
from tests.outcomes import assert_close


def create(**changes):
    """Builds (setup, the weights that it reads, with a head of 1000 classes)."""
    config = create_tiny_config(model__init="w.safetensors", **changes)
    state = create_train_setup(config, DATASET_SPEC).state_shapes
    shapes = {"params": state.params, "batch_stats": state.batch_stats}
    network = jax.tree.map(lambda leaf: np.zeros(leaf.shape[1:], np.float32), shapes)
    names = to_torch(network, OWN)
    weights = {name: draw_parameter(name, value.shape) for name, value in names.items()}
    weights |= {"head.weight": np.zeros((1000, 7)), "head.bias": np.zeros(1000)}
    read_weights = lambda: Weights(weights)  # noqa: E731
    return create_train_setup(config, DATASET_SPEC, read_weights=read_weights), weights


def test_both_networks_start_from_the_weights_with_their_own_heads():
    setup, weights = create()
    state = setup.init_state()
    networks = jax.device_get({"params": state.params, "batch_stats": state.batch_stats})
    first, second = (to_torch(take_network(networks, i), OWN) for i in (0, 1))
    heads = {"head.weight", "head.bias"}
    assert heads < first.keys() == weights.keys()
    for name in weights.keys() - heads:
        np.testing.assert_array_equal(first[name], weights[name], err_msg=name)
        np.testing.assert_array_equal(second[name], weights[name], err_msg=name)
    assert np.abs(first["head.weight"] - second["head.weight"]).max() > 0.01
    for seed in (0, 1):  # The heads are those of networks without pretrained weights.
        random = dataclasses.replace(create(seed=seed)[0], read_weights=None).init_state()
        kernels = (networks.params["head"]["kernel"] for networks in (state, random))
        assert np.allclose(*kernels) == (seed == setup.config.seed)
    jax.tree.map(np.testing.assert_array_equal, state.params, state.ema_params)


def test_frozen_stages_are_computed_once_for_both_networks():
    setup, _ = create(optimizer__frozen_stages=1)
    assert setup.ensemble.shared == {"stem", "stage1_block1"}
    apart, states, flops = dataclasses.replace(setup.ensemble, shared=frozenset()), [], []
    for ensemble in (setup.ensemble, apart):
        program = dataclasses.replace(setup, ensemble=ensemble)
        state, batch = program.init_state(), create_raw_batch(setup.config)
        schedule = program.put_schedule()
        step = create_train_step(program).lower(state, batch, schedule).compile()
        flops.append(step.cost_analysis()["flops"])
        for _ in range(2):
            state, _ = step(state, batch, schedule)
        states.append(state)
    assert_close(*states, atol=1e-5)
    assert flops[0] < 0.95 * flops[1]
    # Networks from random weights differ in stages that are never trained.
    random = create_tiny_config(optimizer__frozen_stages=1)
    assert not create_train_setup(random, DATASET_SPEC, read_weights=dict).ensemble.shared


@pytest.mark.parametrize(
    ("name", "shape", "remedy"),
    [
        ("stage9_block1.conv2.weight", (3,), r"does not fit WRN-10-1 .*: set model.name"),
        ("stem.weight", (16, 1, 5, 5), r"does not fit WRN-10-1 .*: set model\.name"),
        ("stem.weight", (16, 1, 7, 7), r"set model\.stem=imagenet, which these weights have\."),
        ("stem.weight", (16, 3, 3, 3), "for 3 color channels and the images have 1, so choose"),
    ],
)
def test_weights_that_do_not_fit_tell_what_to_change(name, shape, remedy):
    setup, weights = create()
    weights[name] = np.zeros(shape)
    with pytest.raises(UserError, match=remedy):
        setup.init_state()


def test_builtin_weights_imply_their_architecture_and_contradict_another():
    config = create_tiny_config(model__init="builtin:efficientnet_lite0")
    assert resolve_model(config).model.name == "efficientnet_lite0"
    config.model.name = "resnet18"
    with pytest.raises(UserError, match="set only one of the two"):
        resolve_model(config)


@pytest.mark.parametrize("init", ["", "builtin:efficientnet_lite0"])
@pytest.mark.parametrize("mean", [(), (0.5, 0.4, 0.3)])
def test_weights_bring_their_normalization_where_none_is_set(init, mean, tmp_path):
    split = Split(np.zeros((2, 8, 8, 3), np.uint8), np.zeros(2, np.int32))
    computed = mean or (0.1, 0.2, 0.3)
    dataset = Dataset("d", ("a",), split, split, (8, 8, 3), mean=computed, std=computed)
    config = create_tiny_config(model__init=init, data__mean=mean, data__std=mean)
    dataset = use_stored_normalization(
        resolve_model(config), dataset, lambda: Weights({}), tmp_path
    )
    expected = (127 / 255, 128 / 255) if init and not mean else (computed, computed)
    np.testing.assert_allclose(dataset.mean, np.broadcast_to(expected[0], 3))
    np.testing.assert_allclose(dataset.std, np.broadcast_to(expected[1], 3))
