"""The order of parameters from the images to the heads, for every architecture."""

import jax
import jax.numpy as jnp
import pytest

from cls_jax.models.layers import Head
from cls_jax.training.optimizer import Layer, order_layers
from cls_jax.training.setup import MODELS

# What may come between the last block and the head. A new architecture's other names are either
# blocks, or belong in its `stem_names`.
_LAST = {"norm", "top", "top_norm"}


def test_layers_are_counted_as_in_timm():
    names = ("head", "norm", "stage10_block1", "stage2_block1", "stage2_block2", "stem", "rotation")
    assert order_layers(names, stem=("stem",), heads=("head", "rotation")) == {
        "stem": Layer(0, 0),
        "stage2_block1": Layer(1, 1),
        "stage2_block2": Layer(2, 1),
        "stage10_block1": Layer(3, 2),  # By number, not by name.
        "norm": Layer(3, None),
        "head": Layer(4, None),
        "rotation": Layer(4, None),
    }


def test_blocks_of_a_network_without_stages_are_its_stages():
    layers = order_layers([*(f"block{i}" for i in range(12)), "embed", "head"], ["embed"], ["head"])
    assert layers["embed"] == Layer(0, 0)
    assert [layers[f"block{i}"] for i in range(12)] == [Layer(i + 1, i + 1) for i in range(12)]
    assert layers["head"] == Layer(13, None)


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_of_every_architecture_has_its_layer(name):
    heads = Head("rotation", 4), Head("binary", 6, is_projected=True, use_bias=False)
    model = MODELS[name][0](num_classes=3, extra_heads=heads)
    variables = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 32, 32, 3)))
    layers = order_layers(variables["params"], model.stem_names, model.head_names)
    first = {key for key, layer in layers.items() if layer.stage == 0}
    assert first == set(model.stem_names) & set(layers)
    assert first
    last, names = max(layer.position for layer in layers.values()), set(model.head_names)
    assert names == {"head", "rotation", "binary", "projection"}
    assert {key for key, layer in layers.items() if layer.position == last} == names
    assert {key for key, layer in layers.items() if layer.stage is None} <= names | _LAST
    (kernel,) = variables["params"]["binary"].values()
    assert kernel.shape == (128, 6)
    assert {layer.position for layer in layers.values()} == set(range(last + 1))
