"""The variants of the step that the benchmark times are steps."""

import pytest

from experiments.benchmarks.step import describe_variants
from experiments.benchmarks.variants import create_variant
from tests.conftest import create_tiny_config
from tests.methods.tiny_model import use_tiny_model


@pytest.mark.parametrize("name", ["highest,separate,device", "float32,mesh,synthetic,3"])
def test_every_variant_takes_steps(name):
    config = create_tiny_config(num_steps=100)
    with use_tiny_model():
        variant = create_variant(name, config)
    variant.run(2)
    variant.close()
    assert variant.num_images == 8 * (1 + 2 * 2)
    assert variant.seconds[0] > 0
    assert name in describe_variants([variant])
