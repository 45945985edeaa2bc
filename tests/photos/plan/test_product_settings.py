"""Interruptions of the program with all of XLA's optimizations, as users run it."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT
from tests.outcomes import describe_difference, read_end
from tests.processes import PATIENCE_S

OPTIONS = ["--config=configs/digits.py:20", "--config.model.depth=10", "--config.model.width=1"]
OPTIONS += ["--config.num_steps=40", "--config.batch_size=8", "--config.mu=2"]
OPTIONS += ["--config.checkpoint_every=4", "--config.eval_every=20", "--config.log_every=1"]
OPTIONS += ["--config.data.image_size=8", "--config.data.cutout=3"]


def wait(process, workdir, code):
    assert process.wait(PATIENCE_S) == code, workdir.with_suffix(".log").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("whole_networks")
def test_a_run_that_is_stopped_and_then_killed_ends_with_the_same_bits(tmp_path):
    """Stopped, it saves the current step. Killed, it resumes from a checkpoint."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    environment |= {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    whole, workdir = tmp_path / "whole", tmp_path / "run"

    def start(workdir):
        command = [sys.executable, "main.py", *OPTIONS, f"--workdir={workdir}"]
        with workdir.with_suffix(".log").open("a") as log:
            return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)

    wait(start(whole), whole, 0)
    for first_step, number, code in ((4, signal.SIGINT, 130), (12, signal.SIGKILL, -9)):
        process, deadline = start(workdir), time.monotonic() + PATIENCE_S
        while not any((workdir / f"checkpoints/{i}").exists() for i in range(first_step, 40, 4)):
            assert process.poll() is None, workdir.with_suffix(".log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        wait(process, workdir, code)
    wait(start(workdir), workdir, 0)
    # Where it stopped, and twice where it continued.
    assert workdir.with_suffix(".log").read_text().count("from step ") == 3
    assert describe_difference(read_end(workdir), read_end(whole)) is None
