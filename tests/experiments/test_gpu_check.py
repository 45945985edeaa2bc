"""The script for a GPU, whose minutes are few: its commands have the options of their programs.

It runs with an interpreter that only writes down what it is asked for.
"""

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from absl import flags
from absl.testing import flagsaver

import main
from cls_jax.config import validate_config
from cls_jax.models import vit
from cls_jax.photos.cli import console
from experiments.benchmarks.variants import configure_variant
from experiments.paper import grid
from tests.conftest import ROOT

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
