"""The check of a GPU starts all that it promises, and loses no result."""

import os
import re
import shutil
import subprocess

import pytest

from tests.conftest import ROOT

# In place of Python: notes what it was called with, and fails or hangs where it is told to.
STUB = """#!/usr/bin/env bash
echo "$@" >>"$CALLS"
case "$*" in
  --version) echo "Python 3" ;;
  *"$FAILS"*) echo "this went wrong" && exit 3 ;;
  *"$HANGS"*) sleep 60 ;;
esac
"""


@pytest.fixture
def check(tmp_path):
    """Runs a part of the check. Returns its outcome, its log and the calls of Python."""
    (tmp_path / "experiments").mkdir()
    script = shutil.copy(ROOT / "experiments" / "gpu_check.sh", tmp_path / "experiments")
    (tmp_path / "python").write_text(STUB)
    (tmp_path / "python").chmod(0o755)

    def run(part, **variables):
        environment = os.environ | {"PART": part, "SIZE": "small", "PEER": "authors"}
        environment |= {"OUT": f"{tmp_path}", "PYTHON": f"{tmp_path}/python"}
        environment |= {"CALLS": f"{tmp_path}/calls", "FAILS": "nothing", "HANGS": "nothing"}
        outcome = subprocess.run(
            ["bash", script], env=environment | variables, capture_output=True, text=True
        )
        log, calls = tmp_path / f"{part}.log", tmp_path / "calls"
        return outcome.returncode, log.read_text() + outcome.stdout, calls.read_text()

    return run


@pytest.mark.parametrize(
    ("part", "programs"),
    [
        ("A", "benchmarks.step.*profile_step.*main.py"),
        ("B", "compare_devices.*benchmarks.step.*--peer authors"),
        ("C", "benchmarks.features.*benchmarks.step.*main.py"),
    ],
)
def test_every_part_measures_what_it_promises(check, part, programs):
    code, log, calls = check(part)
    assert code == 0, log
    assert re.search(programs, calls, re.DOTALL)


def test_failing_measurement_is_reported_and_passed_over(check):
    code, log, calls = check("A", FAILS="benchmarks.step")
    assert code == 1
    assert "A-step: failed with code 3: this went wrong" in log
    assert "A-training: done" in log
    assert "main.py" in calls


def test_part_ends_within_its_limit(check):
    code, log, calls = check("A", HANGS="benchmarks.step", LIMIT="26")
    assert "A-step: stopped by the clock" in log
    assert "A-training: passed over, no time left" in log
    assert code == 1
    assert "main.py" not in calls


def test_unknown_part_is_refused(check):
    code, log, _ = check("D")
    assert code == 2
    assert "choose A, B or C" in log
