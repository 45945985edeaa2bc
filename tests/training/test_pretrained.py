"""Runs that start from pretrained weights."""

import dataclasses

import jax
import numpy as np
import pytest

from cls_jax.batch import DatasetSpec
from cls_jax.data.types import Dataset
from cls_jax.errors import UserError
from cls_jax.models import MODELS
from cls_jax.models.weights.layout import to_torch
from cls_jax.training.pretrained import resolve_model, use_own_normalization
from cls_jax.training.program import create_program
from experiments.make_model_fixtures import draw_parameter
from tests.conftest import create_tiny_config

SPEC = DatasetSpec(image_shape=(32, 32, 3), num_classes=4, num_images=100)


def draw_weights(program):
    """Weights for the program's architecture, by PyTorch's names, and a head of 1000 classes."""
    shapes = {
        "params": program.state_shapes.params,
        "batch_stats": program.state_shapes.batch_stats,
    }
    network = jax.tree.map(lambda leaf: np.zeros(leaf.shape[1:], np.float32), shapes)
    layout = MODELS[program.config.model.name].layout
    arrays = {
        name: draw_parameter(name, value.shape) for name, value in to_torch(network, layout).items()
    }
    head = layout.to_torch_name(("head",))
    arrays[f"{head}.weight"] = np.zeros((1000, 7), np.float32)
    arrays[f"{head}.bias"] = np.zeros(1000, np.float32)
    return arrays


def create(method="cls", **changes):
    config = create_tiny_config(f"20,{method}", data__image_size=32, **changes)
    program = create_program(config, SPEC)
    weights = draw_weights(program)
    return dataclasses.replace(program, read_weights=lambda: weights), weights


def get_networks(state):
    return jax.device_get({"params": state.params, "batch_stats": state.batch_stats})


def test_both_networks_start_from_the_weights_with_their_own_heads():
    program, weights = create(model__init="weights.safetensors", model__name="efficientnet_lite0")
    networks = get_networks(program.init_state())
    layout = MODELS["efficientnet_lite0"].layout
    first, second = (
        to_torch(jax.tree.map(lambda leaf, i=i: leaf[i], networks), layout) for i in (0, 1)
    )
    for name, value in first.items():
        if name.startswith("_fc."):
            assert value.shape[0] == 4
            continue
        np.testing.assert_array_equal(value, weights[name], err_msg=name)
        np.testing.assert_array_equal(second[name], weights[name], err_msg=name)
    assert np.abs(first["_fc.weight"] - second["_fc.weight"]).max() > 0.01


def test_noise_is_that_of_the_second_network_alone():
    changes = {"model__init": "weights.safetensors", "model__name": "efficientnet_lite0"}
    program, weights = create(model__init_noise=0.1, **changes)
    params = get_networks(program.init_state())["params"]
    kernel, norm = params["stage3_block2"]["expand"]["kernel"], params["top_norm"]["scale"]
    expected = weights["_blocks.4._expand_conv.weight"].transpose(2, 3, 1, 0)
    np.testing.assert_array_equal(kernel[0], expected)
    ratio = np.std(kernel[1] - kernel[0]) / np.sqrt(np.mean(kernel[0] ** 2))
    assert ratio == pytest.approx(0.1, rel=0.05)
    np.testing.assert_array_equal(norm[0], norm[1])


def test_weights_of_another_architecture_are_refused():
    program, weights = create(model__init="w.safetensors", model__name="efficientnet_lite0")
    for change in (
        lambda: weights.pop("_blocks.3._bn1.bias"),
        lambda: weights.update({"_blocks.16._bn1.bias": np.zeros(3)}),
        lambda: weights.update({"_conv_stem.weight": np.zeros((32, 1, 3, 3), np.float32)}),
    ):
        kept = dict(weights)
        change()
        with pytest.raises(UserError, match=r"does not fit EfficientNet-Lite0 .*: set model.name"):
            program.init_state()
        weights.clear()
        weights.update(kept)


def test_builtin_weights_imply_their_architecture_and_contradict_another():
    config = create_tiny_config(model__init="builtin:efficientnet_lite0")
    resolved = resolve_model(config)
    assert resolved.model.name == "efficientnet_lite0"
    assert resolve_model(resolved) is resolved
    config.model.name = "resnet18"
    with pytest.raises(UserError, match="set only one of the two"):
        resolve_model(config)


@pytest.mark.parametrize("init", ["", "builtin:efficientnet_lite0"])
@pytest.mark.parametrize("mean", [(), (0.5, 0.4, 0.3)])
def test_weights_bring_their_normalization_where_none_is_set(init, mean, tmp_path):
    images = np.zeros((2, 8, 8, 3), np.uint8)
    labels = np.zeros(2, np.int32)
    computed = mean or (0.1, 0.2, 0.3)
    dataset = Dataset("d", ("a",), images, labels, images, labels, (8, 8, 3), computed, computed)
    config = create_tiny_config(model__init=init, data__mean=mean, data__std=mean)
    dataset = use_own_normalization(resolve_model(config), dataset, tmp_path)
    if init and not mean:
        pixels = 255 * np.array(dataset.mean)
        np.testing.assert_allclose(pixels, 127)
        np.testing.assert_allclose(255 * np.array(dataset.std), 128)
    else:
        assert dataset.mean == dataset.std == computed
