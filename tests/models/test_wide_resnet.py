"""The architecture of the authors' code."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.models import WideResNet, count_parameters

pytestmark = pytest.mark.usefixtures("whole_networks")

IMAGES = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)


@pytest.mark.parametrize(
    ("depth", "width", "num_classes", "expected"),
    [(28, 2, 10, 1_467_610), (28, 8, 100, 23_401_012)],
)
def test_parameter_counts_are_the_papers(depth, width, num_classes, expected):
    model = WideResNet(num_classes, depth=depth, width=width)
    variables = jax.eval_shape(model.init, jax.random.key(0), IMAGES)
    assert count_parameters(variables["params"]) == expected


@pytest.fixture(scope="module")
def small():
    model = WideResNet(num_classes=10, depth=10, width=2)
    return model, jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 8, 8, 3)))


def test_kernels_are_drawn_with_the_authors_deviations(small):
    _, variables = small
    params = variables["params"]
    kernel = params["stage3_block1"]["conv2"]["kernel"]  # 3 x 3, 128 channels out.
    np.testing.assert_allclose(kernel.std(), np.sqrt(2 / (9 * 128)), rtol=0.02)
    head = params["head"]["kernel"]  # Glorot: 2 / (in + out).
    np.testing.assert_allclose(head.std(), np.sqrt(2 / (128 + 10)), rtol=0.1)
    np.testing.assert_array_equal(params["head"]["bias"], 0)


def test_first_norm_of_stages_2_and_3_is_dead_and_all_else_alive(small):
    model, variables = small
    x = jax.random.normal(jax.random.key(1), (4, 8, 8, 3))

    def loss(params):
        logits, _ = model.apply(
            {**variables, "params": params}, x, train=True, mutable=["batch_stats"]
        )
        return jnp.sum(jnp.sin(logits))

    gradients = jax.tree_util.tree_leaves_with_path(jax.jit(jax.grad(loss))(variables["params"]))
    dead = {path[0].key + "/" + path[1].key for path, leaf in gradients if not np.any(leaf)}
    assert dead == {"stage2_block1/norm1", "stage3_block1/norm1"}


def test_running_statistics_move_by_one_minus_momentum(small):
    model, variables = small
    x = jax.random.normal(jax.random.key(1), (4, 8, 8, 3))
    apply = jax.jit(functools.partial(model.apply, train=True, mutable=["batch_stats"]))
    _, updated = apply(variables, x)
    before = variables["batch_stats"]["stage1_block1"]["norm1"]
    after = updated["batch_stats"]["stage1_block1"]["norm1"]
    kernel = variables["params"]["stem"]["kernel"]
    stem = jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    moved = 0.999 * before["mean"] + 0.001 * stem.mean((0, 1, 2))
    np.testing.assert_allclose(after["mean"], moved, rtol=1e-4, atol=1e-7)


def test_depth_that_is_not_6n_plus_4_is_refused():
    with pytest.raises(ValueError, match="6n \\+ 4"):
        WideResNet(num_classes=10, depth=12).init(jax.random.key(0), jnp.zeros((1, 8, 8, 3)))
