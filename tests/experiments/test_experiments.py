"""The programs of experiments/: every row of a table is a run, and differences are found."""

import argparse
import math
import tarfile

import numpy as np
import pytest
from PIL import Image

from cls_jax.data.sources.benchmarks import read_single_file
from experiments.benchmarks.pack_archive import pack_archive
from experiments.benchmarks.step import Benchmark, describe_variants
from experiments.benchmarks.variants import StepVariant, create_variant
from experiments.paper import grid, table3, tables
from experiments.studies import transfer
from tests.conftest import create_tiny_config
from tests.core.methods.tiny_model import use_tiny_model
from tests.outcomes import describe_difference, read_end


def arguments(**values):
    """Parsed options of a program."""
    defaults = {"config": "configs/digits.py", "runs": "runs/grid", "overrides": {}}
    defaults |= {"imbalance": 1.0, "labels": "alike", "unknown": 0, "data": "x", "pixels": 32}
    return argparse.Namespace(**(defaults | values))


def test_every_row_of_a_table_is_a_run():
    for method in tables.TABLE_1 | tables.TABLE_2:
        cell = grid.create_cell(arguments(), 40, method, 3)
        assert cell.config.method.name == method
        assert cell.workdir.name == f"digits-40-{method}-seed3"
    options = arguments(imbalance=10.0, overrides={"num_steps": "7"})
    cell = table3.create_cell(options, "cls_plus+lambda_cutmix=0.0+tau=0.5", 10, 3)
    assert (cell.config.method.lambda_cutmix, cell.config.method.tau) == (0.0, 0.5)
    assert (cell.config.num_steps, cell.config.data.imbalance) == (7, 10)
    settings = "method.lambda_cutmix=0.0-method.tau=0.5-data.imbalance=10.0"
    assert cell.workdir.name == f"digits-10-cls_plus-seed3-{settings}"
    for row in table3.ROWS:
        cell = table3.create_cell(arguments(overrides=dict(table3.RECIPE)), row, 10, 3)
        assert cell.config.method.name == row.split("+")[0]
        assert cell.config.num_steps == int(table3.RECIPE["num_steps"])
    options = arguments(config="configs/folder.py", overrides={"num_steps": "77"}, imbalance=10.0)
    for name, row in transfer.ROWS.items():
        cell = transfer.create_cell(options, name, 40, seed=3)
        assert cell.workdir.name == f"{name}-32px-40-10to1-seed3"
        assert cell.config.method.name == (row.method or "supervised")
        assert (cell.config.num_labels, cell.config.seed, cell.config.num_steps) == (40, 3, 77)
        # Once resolved, so that the folder of a finished run is recognized.
        expected = "wide_resnet" if name == "scratch" else "efficientnet_lite0"
        assert cell.config.model.name == expected


def test_differences_are_paired_by_seed():
    """Unpaired, the spread over seeds would hide a difference that is the same at each."""

    def compare(ours, theirs):
        ours, theirs = ({i: {"x": x} for i, x in seeds.items()} for seeds in (ours, theirs))
        return table3.compare(ours, theirs, "x")

    assert compare({0: 91, 1: 71, 5: 53}, {0: 90, 1: 70, 2: 50}) == (1, 0, 2)
    mean, error, _ = compare({0: 91, 1: 74}, {0: 90, 1: 70})
    assert (mean, error) == (2.5, pytest.approx(math.sqrt(4.5) / math.sqrt(2)))
    assert compare({0: 91}, {0: 90, 1: 70}) is None


@pytest.mark.parametrize(
    "name",
    [
        "float32,mesh,synthetic,3",
        pytest.param("highest,separate,device", marks=pytest.mark.slow),
    ],
)
def test_every_variant_takes_steps(name):
    with use_tiny_model():
        variant = create_variant(name, create_tiny_config(num_steps=100))
    variant.run(2)
    variant.close()
    assert variant.num_images == 8 * (1 + 2 * 2)
    assert variant.seconds[0] > 0
    assert name in describe_variants([variant])


def test_a_variant_that_fails_is_left_out_of_the_table(tmp_path):
    def trace(name, error=None):
        def compile_variant():
            if error:
                raise error
            return StepVariant(name, lambda num_steps: 0.1 * num_steps, num_images=8)

        return lambda: compile_variant

    benchmark = Benchmark(tmp_path / "step.md")
    traces = {"good": trace("good"), "bad": trace("bad", RuntimeError("no memory"))}
    benchmark.begin(traces, num_steps=4, num_threads=2)
    assert [variant.name for variant in benchmark.variants] == ["good"]
    text = (tmp_path / "step.md").read_text()
    assert "| good | 100.00 |" in text
    assert "Failed: bad: RuntimeError: no memory" in text


def test_an_archive_of_images_becomes_a_dataset(tmp_path):
    with tarfile.open(tmp_path / "images.tar", "w") as tar:
        for split, name, value in (("train", "dog", 9), ("train", "cat", 5), ("test", "dog", 7)):
            path = tmp_path / f"{split}_{name}.png"
            Image.new("RGB", (4, 4), (value,) * 3).save(path)
            tar.add(path, f"images/{split}/{name}/1.png")
    np.savez(tmp_path / "images.npz", **pack_archive(str(tmp_path / "images.tar")))
    dataset = read_single_file(str(tmp_path / "images.npz"))
    assert dataset.class_names == ("cat", "dog")
    assert dataset.train.images[:, 0, 0, 0].tolist() == [9, 5]
    assert dataset.train.labels.tolist() == [1, 0]
    assert dataset.test.labels.tolist() == [1]


def test_every_difference_between_two_runs_is_seen(trained_run):
    end, expected = read_end(trained_run), read_end(trained_run)
    assert describe_difference(end, expected) is None
    for part, value in (("metrics", end["metrics"][:-1]), ("result", {})):
        assert describe_difference(end | {part: value}, expected) == part
    end["state"][3] = end["state"][3].copy()
    end["state"][3].view(np.uint8).flat[0] ^= 1
    assert describe_difference(end, expected) == "state"
