"""The check of a GPU runs from end to end on a bare machine, and loses no result."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
# Runs as every Python starts: what a GPU machine may lack cannot be imported.
BLOCKER = """
from importlib.machinery import PathFinder

BLOCKED = {"tensorflow", "tensorflow_datasets", "clu", "tensorboard"}
find_spec = PathFinder.find_spec


def find_unless_blocked(name, path=None, target=None):
    return None if name.partition(".")[0] in BLOCKED else find_spec(name, path, target)


PathFinder.find_spec = find_unless_blocked
"""
# In place of Python: notes what it was called with, and fails or hangs where it is told to.
STUB = """#!/usr/bin/env bash
echo "$@" >>"$CALLS"
case "$*" in
  --version) echo "Python 3" ;;
  *"$FAILS"*) echo "this went wrong" && exit 3 ;;
  *"$HANGS"*) sleep 60 ;;
esac
"""
# A few seconds in A. B and C compile many variants, which takes a minute or two.
PARTS = "ABC" if os.environ.get("CLS_JAX_GPU_CHECK") == "all" else "A"


def run_check(folder: pathlib.Path, part: str, **variables) -> subprocess.CompletedProcess:
    """Runs a part of the check in a copy of the tree, small, on the CPU."""
    environment = {**os.environ, "PART": part, "SIZE": "small", "OUT": str(folder / "out")}
    return subprocess.run(
        ["bash", "experiments/gpu_check.sh"],
        cwd=folder / "tree",
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture
def folder(tmp_path):
    """A copy of the tree without .git, tests and environments."""
    for name in ("cls_jax", "configs", "experiments"):
        ignored = shutil.ignore_patterns("__pycache__", "results")
        shutil.copytree(ROOT / name, tmp_path / "tree" / name, ignore=ignored)
    shutil.copy(ROOT / "main.py", tmp_path / "tree")
    return tmp_path


def run_with_stub(folder: pathlib.Path, part: str, fails="nothing", hangs="nothing", **variables):
    stub = folder / "python"
    stub.write_text(STUB)
    stub.chmod(0o755)
    calls = folder / "calls"
    outcome = run_check(
        folder,
        part,
        PYTHON=str(stub),
        CALLS=str(calls),
        FAILS=fails,
        HANGS=hangs,
        PEER="authors",
        **variables,
    )
    return outcome, calls.read_text()


@pytest.mark.parametrize(
    ("part", "programs"),
    [
        ("A", ["benchmarks.step", "profile_step", "main.py"]),
        ("B", ["compare_devices", "benchmarks.step", "--peer authors"]),
        ("C", ["benchmarks.features", "benchmarks.step", "main.py"]),
    ],
)
def test_every_part_measures_what_it_promises(folder, part, programs):
    outcome, calls = run_with_stub(folder, part)
    assert outcome.returncode == 0, outcome.stdout
    places = [calls.index(setup) for setup in programs]
    assert places == sorted(places)


def test_failing_measurement_is_reported_and_passed_over(folder):
    outcome, calls = run_with_stub(folder, "A", fails="benchmarks.step")
    assert outcome.returncode == 1
    log = (folder / "out" / "A.log").read_text()
    assert "A-step: failed with code 3: this went wrong" in log
    assert "A-training: done" in log
    assert "main.py" in calls


def test_part_ends_within_its_limit(folder):
    outcome, calls = run_with_stub(folder, "A", hangs="benchmarks.step", LIMIT="26")
    log = (folder / "out" / "A.log").read_text()
    assert "A-step: stopped by the clock" in log
    assert "A-training: passed over, no time left" in log
    assert outcome.returncode == 1
    assert "main.py" not in calls


def test_unknown_part_is_refused(folder):
    outcome, _ = run_with_stub(folder, "D")
    assert outcome.returncode == 2
    assert "choose A, B or C" in outcome.stdout


@pytest.mark.parametrize("part", PARTS)
def test_part_runs_on_a_bare_machine(folder, part):
    """Without a repository, TensorFlow, clu and TensorBoard. CLS_JAX_GPU_CHECK=all runs B and C."""
    network = folder / "tree" / "cls_jax" / "models" / "wide_resnet.py"
    source, one_block = re.subn(r"\n_STAGES = .*", "\n_STAGES = ((32, 2),)", network.read_text())
    assert one_block == 1
    network.write_text(source)
    (folder / "blocker").mkdir()
    (folder / "blocker" / "sitecustomize.py").write_text(BLOCKER)
    outcome = run_check(
        folder,
        part,
        PYTHON=sys.executable,
        PYTHONPATH=str(folder / "blocker"),
        JAX_NUM_CPU_DEVICES="1",
    )
    log = (folder / "out" / f"{part}.log").read_text()
    assert outcome.returncode == 0, log
    files = {path.name for path in (folder / "out").iterdir()}
    expected = {
        "A": {"A-step.md", "A-step.json", "A-profile.md", "A-metrics.jsonl", "A-result.json"},
        "B": {"B-step.md", "B-step.json"},
        "C": {"C-features.md", "C-step.md", "C-step.json", "C-metrics.jsonl", "C-result.json"},
    }
    assert files == expected[part] | {f"{part}.log"}
