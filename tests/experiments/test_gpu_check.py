"""What runs on a GPU whose minutes are few: a script, and a training that ends when they do.

The script runs with an interpreter that only writes down what it is asked for.
"""

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

import main
from cls_jax.config import read_config, validate_config, with_values
from cls_jax.data.datasets import load_dataset
from cls_jax.errors import UserError
from cls_jax.models import vit
from cls_jax.photos.cli import console
from cls_jax.runs.folder import read_result
from cls_jax.runs.metrics import read_metrics
from experiments.benchmarks.variants import configure_variant
from experiments.paper import grid
from experiments.paper.timed_run import choose_config, choose_length
from tests.conftest import ROOT
from tests.processes import PATIENCE_S

STUB = f"""#!{sys.executable} -S
import json, os, sys
with open(os.environ["RECORD"], "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
sys.exit(os.environ.get("FAILING", "nothing") in sys.argv)
"""


class ParsedError(Exception):
    """A program has read its options."""


@pytest.fixture
def run_script(tmp_path):
    """A function that runs a part with settings and returns its commands, exit code and log."""

    def run(part: str, **settings: str):
        for name, text in (("python", STUB), ("sleep", "#!/bin/sh\n")):
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        record, out = tmp_path / "record", tmp_path / "out"
        environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PART": part}
        environment |= {"PYTHON": str(tmp_path / "python"), "RECORD": str(record)}
        environment |= {"OUT": str(out), "RUNS": str(tmp_path / "runs"), "PHOTOS": "photos"}
        environment |= {"DATA": "cifar10.tar.xz", "PEER": "peer"} | settings
        script = ["bash", ROOT / "experiments" / "gpu_check.sh"]
        done = subprocess.run(script, env=environment, capture_output=True, text=True)
        commands = list(map(json.loads, record.read_text().splitlines()))
        # Short ones ask what the interpreter and its packages are.
        commands = [command for command in commands if len(command) > 2]
        return commands, done.returncode, (out / f"{part}.log").read_text()

    return run


def check_program(command: list[str], main: Callable[[], None], monkeypatch) -> None:
    """Lets a program of experiments/ read its options, and build its configuration and variants."""
    parse_args, parse_arguments = argparse.ArgumentParser.parse_args, grid.parse_arguments

    def parse_and_stop(parser, *args):
        parse_args(parser, *args)
        raise ParsedError

    def build_and_stop(parser):
        arguments = parse_arguments(parser)
        config = grid.create_config(arguments)
        for name in (vars(arguments).get("variants") or vars(arguments).get("variant", "")).split():
            configure_variant(name, config)
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    monkeypatch.setattr(grid, "parse_arguments", build_and_stop)
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(ParsedError):
        main()


def check_main(command: list[str], monkeypatch) -> None:
    """Lets main.py read its options and its configuration."""
    monkeypatch.setattr(main, "prepare_process", lambda: None)
    monkeypatch.setattr(main, "run_to_end", lambda *functions: None)
    monkeypatch.setattr(sys, "argv", command)  # Where ml_collections looks for keys.
    with flagsaver.flagsaver():
        main.parse_flags(command)
        main.main(None)
        if flags.FLAGS.mode == "train":
            validate_config(flags.FLAGS.config)


def check_command(command: list[str], monkeypatch) -> None:
    """Lets a program read its options."""
    match command:
        case ["-m", "cls_jax", *options]:
            console.parse_arguments(options)
        case ["-m", module, *_]:
            check_program(command[1:], importlib.import_module(module).main, monkeypatch)
        case ["-c", code, *_]:
            # What the code sets must exist. It is set back afterwards.
            monkeypatch.setattr(vit, "attend", vit.attend)
            given: list[Callable[[], None]] = []
            monkeypatch.setattr(grid, "run_main", given.append)
            exec(code, {})
            check_program(command[1:], given[0], monkeypatch)
        case ["main.py", *_]:
            check_main(command, monkeypatch)
        case _:
            raise AssertionError(command)


@pytest.mark.filterwarnings("ignore:the load_module")  # By which ml_collections reads a file.
@pytest.mark.parametrize("size", ["full", pytest.param("small", marks=pytest.mark.slow)])
@pytest.mark.parametrize("part", ["A", "B", "C"])
def test_every_command_has_the_options_of_its_program(run_script, part, size, monkeypatch):
    commands, code, log = run_script(part, SIZE=size)
    assert code == 0, log
    assert len(commands) == {"A": 8, "B": 2, "C": 9}[part]
    for command in commands:
        with monkeypatch.context() as patch:
            check_command(command, patch)


def test_chosen_measurements_run_and_one_that_fails_in_the_background_counts(run_script):
    commands, code, log = run_script("C", FAILING="--device", ONLY="C-instant C-eval C-eval-cpu")
    assert [command[2] for command in commands] == ["train", "evaluate", "evaluate"]
    assert code == 1
    assert "C-eval: done" in log
    assert "C-eval-cpu: failed with code 1" in log
    _, code, log = run_script("B", ONLY="B-pack B-unknown")
    assert code == 1
    assert "B-unknown: failed" in log


@pytest.mark.parametrize(
    ("settings", "name", "options", "seconds"),
    [
        ({}, "B-cls-250", ["250", "0", "cls"], 530),
        (
            {"TRAINING": "fixmatch-40-1", "LIMIT": "240"},
            "B-fixmatch-40-1",
            ["40", "1", "fixmatch"],
            212,
        ),
        ({"LIMIT": "60"}, "B-cls-250", ["250", "0", "cls"], 53),
    ],
)
def test_a_training_ends_in_time_and_comes_back_in_parts_that_resume_it(
    run_script, tmp_path, settings, name, options, seconds
):
    run = tmp_path / "runs" / name
    (run / "checkpoints" / "7.orbax-checkpoint-tmp-1").mkdir(parents=True)
    (run / "checkpoints" / "6").mkdir()
    content = {"config.json": b"{}", "checkpoints/6/state": os.urandom(40_000_000)}
    for file, written in content.items():
        (run / file).write_bytes(written)
    started = time.time()
    commands, code, log = run_script("B", **settings)
    assert code == 0, log
    until = float(commands[-1][commands[-1].index("--until") + 1])
    assert -1 <= until - started - seconds <= 60
    given = commands[-1]
    names = ("--budgets", "--seeds", "--method")
    assert [given[given.index(option) + 1] for option in names] == options
    parts = sorted((tmp_path / "out").glob(f"{name}.tar.*"))
    assert len(parts) == 3
    assert max(part.stat().st_size for part in parts) <= 15_000_000
    shutil.rmtree(run)
    shutil.move(tmp_path / "out", tmp_path / "earlier")
    run_script("B", FROM=str(tmp_path / "earlier"), **settings)
    found = {
        str(file.relative_to(run)): file.read_bytes() for file in run.rglob("*") if file.is_file()
    }
    assert found == content


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
