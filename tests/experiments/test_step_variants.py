"""The forms of the step that the benchmark times are steps."""

import pytest

from experiments.benchmark import describe_variants
from experiments.step_variants import create_variant
from tests.conftest import create_tiny_config


@pytest.mark.parametrize(
    "name",
    [
        "float32,unrolled,synthetic",
        "float32,separate,synthetic",
        "float32,mesh,synthetic",
        "float32,remat,synthetic",
        "highest,unrolled,synthetic,2",
        "float32,unrolled,device",
        "float32,unrolled,tfdata",
        "float32,unrolled,loop",
    ],
)
def test_every_form_takes_steps(name):
    config = create_tiny_config(num_steps=100)
    form = create_variant(name, config)
    form.run(2)
    form.close()
    assert form.name == name
    assert form.num_images == 8 * (1 + 2 * 2)
    (seconds,) = form.seconds
    assert seconds > 0
    assert name in describe_variants([form])
