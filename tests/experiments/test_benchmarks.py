"""The variants of the step that the benchmark times are steps."""

import json

import pytest

from experiments.benchmarks.step import Benchmark, describe_variants
from experiments.benchmarks.variants import StepVariant, create_variant
from tests.conftest import create_tiny_config
from tests.methods.tiny_model import use_tiny_model


@pytest.mark.parametrize(
    "name",
    [
        "highest,separate,device",
        "float32,mesh,synthetic,3",  # More steps per call than the block has.
        "float32,unrolled,tfdata",
    ],
)
def test_every_variant_takes_steps(name):
    config = create_tiny_config(num_steps=100)
    with use_tiny_model():
        variant = create_variant(name, config)
    variant.run(2)
    variant.close()
    assert variant.num_images == 8 * (1 + 2 * 2)
    assert variant.seconds[0] > 0
    assert name in describe_variants([variant])


def test_benchmark_keeps_what_it_measured_when_a_variant_fails(tmp_path):
    def fail(num_steps):
        raise RuntimeError("out of memory")

    benchmark = Benchmark(str(tmp_path / "step.md"))
    benchmark.add("good", lambda: StepVariant("good", lambda num_steps: 2.0, 8), 4)
    benchmark.add("bad", lambda: StepVariant("bad", fail, 8), 4)
    text = (tmp_path / "step.md").read_text()
    assert "| good | 500.00 |" in text
    assert "Failed: bad: RuntimeError: out of memory" in text
    assert json.loads((tmp_path / "step.json").read_text()) == {"good": [0.5]}
