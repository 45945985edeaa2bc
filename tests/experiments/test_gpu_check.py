"""The check of a GPU starts all that it promises, and passes over what fails."""

import os
import re
import shutil
import subprocess

import pytest

from tests.conftest import ROOT

# In place of Python: notes what it was called with, and fails where it is told to.
STUB = """#!/usr/bin/env bash
echo "$@" >>"$CALLS"
case "$*" in
  --version) echo "Python 3" ;;
  *"$FAILS"*) echo "this went wrong" && exit 3 ;;
esac
"""


@pytest.mark.parametrize(
    ("part", "fails", "programs"),
    [
        ("A", "nothing", "benchmarks.step.*profile_step.*main.py"),
        ("A", "benchmarks.step", "main.py"),
        ("B", "nothing", "compare_devices.*benchmarks.step.*--peer authors"),
        ("C", "nothing", "benchmarks.features.*benchmarks.step.*main.py"),
    ],
)
def test_every_part_measures_what_it_promises(tmp_path, part, fails, programs):
    (tmp_path / "experiments").mkdir()
    script = shutil.copy(ROOT / "experiments" / "gpu_check.sh", tmp_path / "experiments")
    (tmp_path / "python").write_text(STUB)
    (tmp_path / "python").chmod(0o755)
    environment = {"PART": part, "SIZE": "small", "PEER": "authors", "OUT": f"{tmp_path}"}
    environment |= {"PYTHON": f"{tmp_path}/python", "CALLS": f"{tmp_path}/calls", "FAILS": fails}
    outcome = subprocess.run(["bash", script], env=os.environ | environment, capture_output=True)
    log = (tmp_path / f"{part}.log").read_text() + outcome.stdout.decode()
    assert outcome.returncode == (fails != "nothing"), log
    assert ("A-step: failed with code 3: this went wrong" in log) == (fails != "nothing")
    assert re.search(programs, (tmp_path / "calls").read_text(), re.DOTALL)
