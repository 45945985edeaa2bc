"""The runs of the transfer table, and its probe."""

import argparse

import numpy as np
import pytest
from PIL import Image

from cls_jax.errors import UserError
from experiments.studies import transfer


def parse(tmp_path, **changes):
    defaults = {
        "data": str(tmp_path),
        "pixels": 32,
        "imbalance": 1.0,
        "runs": "runs/transfer",
        "overrides": {},
    }
    return argparse.Namespace(**(defaults | changes))


def test_every_row_is_a_valid_run_of_its_method(tmp_path):
    for name, row in transfer.ROWS.items():
        cell = transfer.create_cell(parse(tmp_path), name, 40, seed=3)
        assert cell.workdir.name == f"{name}-32px-40-seed3"
        assert cell.config.method.name == (row.method or "supervised")
        assert (cell.config.num_labels, cell.config.seed, cell.config.data.image_size) == (
            40,
            3,
            32,
        )
        # Once resolved, so that the folder of a finished run is recognized.
        expected = "wide_resnet" if name == "scratch" else "efficientnet_lite0"
        assert cell.config.model.name == expected


def test_options_apply_to_every_row(tmp_path):
    arguments = parse(tmp_path, overrides={"num_steps": "77"})
    assert transfer.create_cell(arguments, "cls", 40, 0).config.num_steps == 77
    with pytest.raises(UserError, match=r"There is no --config\.nothing"):
        transfer.create_cell(parse(tmp_path, overrides={"nothing": "1"}), "cls", 40, 0)


def test_unequal_classes_have_runs_of_their_own(tmp_path):
    cell = transfer.create_cell(parse(tmp_path, imbalance=10.0), "cls", 40, 0)
    assert cell.config.data.imbalance == 10.0
    assert cell.workdir.name == "cls-32px-40-10to1-seed0"


def test_table_has_means_and_minutes():
    outcomes = {
        ("probe", 40): [{"test_accuracy": 50.0}],
        ("cls", 40): [
            {"test_accuracy": 70.0, "train_seconds": 60.0},
            {"test_accuracy": 74.0, "train_seconds": 120.0},
        ],
    }
    assert transfer.format_table(["probe", "cls"], [40], outcomes).splitlines()[2:] == [
        "| linear probe | 50.00 |  |",
        "| `cls_plus` with `lambda_cutmix=0`, fine-tuning | 72.00 ± 2.83 | 1.5 |",
    ]


def test_probe_tells_colors_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    folder = tmp_path / "photos"
    for split, count in (("train", 4), ("test", 3)):
        for name, color in (("green", (40, 200, 40)), ("red", (200, 40, 40))):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = rng.normal(color, 20, (8, 8, 3)).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{i}.png")
    # Random features of a small network tell as much, and are there in a second.
    config = transfer.create_cell(parse(folder, pixels=8), "scratch", 6, seed=0).config
    config.model.depth, config.model.width, config.model.init_head = 10, 1, "probe"
    assert transfer.probe(config) == 100.0
