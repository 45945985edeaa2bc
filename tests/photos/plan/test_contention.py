"""How busy others keep the machine."""

import pathlib
import subprocess
import sys

import pytest

from cls_jax.photos.plan.contention import ContentionMeter
from tests.conftest import ROOT

# Another process wants the only core that this one may use.
_SHARED = """
import os, subprocess, sys, time
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
from cls_jax.photos.plan.contention import ContentionMeter

other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
time.sleep(0.1)
with ContentionMeter() as contention:
    until = time.process_time() + 0.5
    while time.process_time() < until:
        pass
other.kill()
print(contention.slowdown)
"""


@pytest.mark.skipif(
    not pathlib.Path("/proc/self/schedstat").exists(), reason="only Linux counts waiting threads"
)
def test_a_core_that_another_process_shares_takes_twice_the_time():
    command = [sys.executable, "-c", _SHARED]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert float(output) > 1.6  # More where the machine has other work as well.


def test_what_hardly_computes_is_not_judged(monkeypatch, tmp_path):
    with ContentionMeter() as contention:
        pass
    assert contention.slowdown == 1
    monkeypatch.setattr("cls_jax.photos.plan.contention._TASKS", tmp_path / "none")
    with ContentionMeter() as contention:
        sum(range(10**7))
    assert contention.slowdown == 1
