"""Heat maps against their definitions: finite differences, and products of attentions."""

import jax
import numpy as np
import pytest

from cls_jax.models import resnet
from cls_jax.models.efficientnet import EfficientNetLite, Stage
from cls_jax.models.resnet import ResNet18
from cls_jax.models.vit import VisionTransformer
from cls_jax.models.wide_resnet import WideResNet
from cls_jax.photos.inference import heat_maps

SIZE, NUM_CLASSES = 16, 3


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(resnet, "_STAGES", ((8, 1), (16, 2)))


TABLE = tuple(Stage(1, kernel=3, stride=i, expansion=i, features=8) for i in (1, 2))
CONVOLUTIONAL = {
    "wide_resnet": lambda: WideResNet(NUM_CLASSES, depth=10, width=1),
    "resnet": lambda: ResNet18(NUM_CLASSES, stem="cifar", blocks_per_stage=(1, 1)),
    "efficientnet": lambda: EfficientNetLite(NUM_CLASSES, table=TABLE),
}


def create(model):
    """Random variables, none of which is 0, and three copies of an image."""
    rng = np.random.default_rng(0)
    image = rng.normal(size=(1, SIZE, SIZE, 3)).astype(np.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), image)

    def draw(path, leaf):
        values = 0.3 * rng.normal(size=leaf.shape)
        return np.asarray(0.5 + np.abs(values) if "var" in str(path) else values, np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes), np.repeat(image, 3, axis=0)


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_grad_cam_has_the_weights_that_finite_differences_have(name):
    model = CONVOLUTIONAL[name]()
    variables, images = create(model)
    layer, shape = heat_maps.choose_layer(model, variables, images)

    @jax.jit
    def run(added):
        seen = []

        def visit(name, output):
            seen.extend([output] if name == layer else [])
            return output + added[: output.shape[-1]] if name == layer else output

        return heat_maps._apply(model, variables, images, visit), seen[0]

    # One added number per channel. A layer of fewer channels takes the first of them.
    a_BHWC = np.asarray(run(np.zeros(64, np.float32))[1])
    height, width, channels = a_BHWC.shape[1:]
    assert min(height, width) >= 4
    # Adding ε to channel c at every position changes the logit by ε Σ ∂y/∂A, which is ε H W α_c.
    epsilon, classes = 1e-2, np.arange(3)
    weights = np.zeros((3, channels))
    for c in range(channels):
        step = epsilon * np.eye(64, dtype=np.float32)[c]
        difference = (run(step)[0] - run(-step)[0])[classes, classes]
        weights[:, c] = difference / (2 * epsilon * height * width)
    expected = np.maximum(np.einsum("bhwc,bc->bhw", a_BHWC, weights), 0)
    compute = jax.jit(lambda *arrays: heat_maps.compute_grad_cam(model, *arrays, layer, shape))
    found = compute(variables, images, classes)
    assert expected.max() > 0
    np.testing.assert_allclose(found, expected, atol=0.02 * expected.max())


def test_attention_rollout_is_the_product_of_mean_attentions():
    model = VisionTransformer(NUM_CLASSES, width=16, depth=3, num_heads=2, patch=4, num_registers=2)
    variables, images = create(model)
    queries = {}

    def visit(name, output):
        if name.endswith("qkv"):
            queries[name] = np.asarray(output, np.float64)
        return output

    heat_maps._apply(model, variables, images, visit)
    rollout = np.stack([np.eye(19)] * 3)
    for i in range(3):
        q, k, _ = np.split(queries[f"block{i + 1}/attn/qkv"], 3, axis=-1)
        attention = np.zeros((3, 19, 19))
        for head in (slice(0, 8), slice(8, 16)):
            scores = np.exp(q[..., head] @ k[..., head].swapaxes(1, 2) / np.sqrt(8))
            attention += scores / scores.sum(axis=-1, keepdims=True) / 2
        rollout = (attention + np.eye(19)) / 2 @ rollout
    np.testing.assert_allclose(rollout.sum(axis=-1), 1)
    found = heat_maps.roll_out_attention(model, variables, images)
    np.testing.assert_allclose(found, rollout[:, 0, 3:].reshape(3, 4, 4), rtol=1e-4)
