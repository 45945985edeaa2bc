"""A training that ends when the device is given back, and the page about it."""

import subprocess
import sys
import tarfile
import time

import numpy as np
import pytest

from cls_jax.config import read_config, with_values
from cls_jax.data.datasets import load_dataset
from cls_jax.errors import UserError
from cls_jax.runs.folder import read_result
from cls_jax.runs.metrics import read_metrics
from experiments.paper.timed_run import choose_config, choose_length
from tests.conftest import ROOT
from tests.processes import PATIENCE_S

# Without what the device pipeline does not need.
PROGRAM = """
import sys
hidden = ("tensorflow", "tensorflow_datasets", "clu", "tensorboard", "sklearn", "grain")
sys.modules.update(dict.fromkeys(hidden))
from experiments.paper import grid, timed_run
from tests.core.methods.tiny_model import use_tiny_model
with use_tiny_model():
    grid.run_main(timed_run.main)
"""
SMALL = {"model.depth": 10, "model.width": 1, "batch_size": 4, "mu": 2, "data.pipeline": "device"}
SMALL |= {"mesh.network": 1, "mesh.data": 1}
SMALL |= {"data.cutout": 3, "data.randaugment_ops": 0, "data.image_size": 8, "keep_checkpoints": 1}


@pytest.mark.parametrize("step", [0.0136, 0.0177, 0.5])
def test_the_last_step_falls_where_the_time_ends(step):
    num_steps = choose_length(450.0, 40.0, step)
    assert num_steps % 10 == 0
    assert 450 - 10 * step < 40 + num_steps * step <= 450
    assert choose_length(1.0, 40.0, step) == 10  # There is always something to look at.


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run."""
    folder, rng = tmp_path_factory.mktemp("timed"), np.random.default_rng(0)
    arrays = {"class_names": np.array(list("abcdefghij"))}
    for split, count in (("train", 200), ("test", 40)):
        arrays[f"{split}_images"] = rng.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
        arrays[f"{split}_labels"] = np.arange(count, dtype=np.int32) % 10
    np.savez(folder / "cifar10.npz", **arrays)
    options = [f"--config.{key}={value}" for key, value in SMALL.items()]
    options += [
        f"--config.data.data_dir={folder / 'cifar10.npz'}",
        "--until",
        str(time.time() + 6),
    ]
    words = ["--config", "configs/cifar10.py", "--budgets", "40", "--seeds", "1", *options]
    words += ["--timed", "10"]
    command = [sys.executable, "-c", PROGRAM, *words, "--workdir", str(folder / "B-cls-40-1")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return folder / "B-cls-40-1"


@pytest.mark.slow
def test_a_run_is_evaluated_ten_times_and_keeps_its_length_when_it_is_resumed(finished):
    config = read_config(finished / "config.json")
    rows = read_metrics(finished)
    evaluated = [row["step"] for row in rows if "test/accuracy" in row]
    tenth = config.num_steps // 10
    assert evaluated == [tenth * i for i in range(1, 11)]
    assert read_result(finished)["step"] == config.num_steps
    assert [path.name for path in (finished / "checkpoints").glob("[0-9]*")] == [str(10 * tenth)]
    again = with_values(config, {"num_steps": 7, "eval_every": 7, "log_every": 7})
    assert choose_config(again, finished, 0, 0, load_dataset).to_dict() == config.to_dict()


@pytest.mark.slow
@pytest.mark.parametrize("card", ["", "NVIDIA H200, 580.159.04, 143771 MiB, 1980 MHz"])
def test_the_page_says_what_was_measured_and_that_a_rehearsal_means_nothing(
    finished, tmp_path, monkeypatch, card
):
    from experiments.paper import cifar10_page  # Matplotlib takes a second.

    run = finished
    missing = "gpu_check.sh: line 251: nvidia-smi: command not found\n[0 s] no nvidia-smi"
    (tmp_path / "B.log").write_text(f"[0 s] part B, small\n{card or missing}\n[9 s] end\n")
    with tarfile.open(tmp_path / "whole", "w") as tar:
        tar.add(run, run.name)
    content = (tmp_path / "whole").read_bytes()
    for suffix, part in (("aa", content[:5000]), ("ab", content[5000:])):
        (tmp_path / f"{run.name}.tar.{suffix}").write_bytes(part)
    page = tmp_path / "results" / "page.md"
    monkeypatch.setattr(sys, "argv", ["page", str(tmp_path), "--output", str(page)])
    cifar10_page.main()
    text, result = page.read_text(), read_result(run)
    assert ("Rehearsed without a GPU" in text) == (not card)
    assert card in text
    assert f"| CLS, 40 labels, seed 1 | {result['test_accuracy']:.2f} |" in text
    assert "91.82 ± 1.77" in text
    images = 2 * 4 * (1 + 2 * 2) * result["step"]  # CLS has two networks and two views.
    assert f"| {images / 1e6:.1f} |" in text
    assert text.count("–") == 0
    assert page.with_suffix(".png").stat().st_size > 1000


def test_a_folder_without_a_finished_run_is_refused(tmp_path):
    from experiments.paper import cifar10_page

    with pytest.raises(UserError, match="no finished run"):
        cifar10_page.read_runs(tmp_path)
