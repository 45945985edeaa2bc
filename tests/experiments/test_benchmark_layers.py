"""The convolutions of a network, one by one."""

import math

import numpy as np
import pytest

from cls_jax.errors import UserError
from experiments import benchmark_layers, grid


@pytest.fixture(scope="module")
def layers():
    config = grid.load_config("configs/digits.py", "40")
    config.batch_size, config.mu = 2, 1
    return benchmark_layers.list_convolutions(config)


def test_convolutions_are_those_of_the_network(layers):
    """WRN-10-1 on 16 x 16 digits: stem, two 3x3 and one 1x1 per stage."""
    assert {str(layer): count for layer, count in layers.items()} == {
        "3x3, 1 to 16, 16 pixels": 1,
        "3x3, 16 to 16, 16 pixels": 2,
        "3x3, 16 to 32, 16 pixels, stride 2": 1,
        "1x1, 16 to 32, 16 pixels, stride 2": 1,
        "3x3, 32 to 32, 8 pixels": 1,
        "3x3, 32 to 64, 8 pixels, stride 2": 1,
        "1x1, 32 to 64, 8 pixels, stride 2": 1,
        "3x3, 64 to 64, 4 pixels": 1,
    }
    assert {layer.num_images for layer in layers} == {6}
    first = next(iter(layers))
    assert first.flops == 2 * math.prod([6, 16, 16, 3, 3, 1, 16])


@pytest.mark.parametrize(("stride", "kernel"), [(1, 3), (2, 3), (2, 1)])
def test_all_forms_compute_the_same(stride, kernel):
    layer = benchmark_layers.Convolution(2, 6, 3, 4, kernel, stride, kernel // 2)
    passes = [benchmark_layers.create_passes(layer, form) for form in ("xla", "patches")]
    for one, other in zip(*passes, strict=True):
        np.testing.assert_allclose(one(), other(), rtol=1e-4, atol=1e-4)


def test_an_unknown_form_is_refused(layers):
    with pytest.raises(UserError, match="Unknown form 'onedn': choose from xla, patches, onednn"):
        benchmark_layers.create_passes(next(iter(layers)), "onedn")


def test_table_adds_up_all_layers(layers):
    seconds = {("xla", name): 1e-3 for name in benchmark_layers.PASSES}
    table = benchmark_layers.format_table(layers, dict.fromkeys(layers, seconds), ["xla"])
    assert table.splitlines()[-1] == "| all | 9 | 9 / 9 / 9 = 27 ms |"
