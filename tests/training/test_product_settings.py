"""Interruptions of the program as users run it: with all of XLA's optimizations, unlike here."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT
from tests.outcomes import describe_difference, read_end
from tests.processes import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("whole_networks")]
OPTIONS = ["--config=configs/digits.py:20", "--config.model.depth=10", "--config.model.width=1"]
OPTIONS += ["--config.num_steps=40", "--config.batch_size=8", "--config.mu=2"]
OPTIONS += ["--config.checkpoint_every=4", "--config.eval_every=20", "--config.log_every=1"]


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Starts or resumes a run without what conftest.py sets for JAX and XLA."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    environment |= {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}

    def start(workdir):
        command = [sys.executable, "main.py", *OPTIONS, f"--workdir={workdir}"]
        with workdir.with_suffix(".log").open("a") as log:
            return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)

    return start


@pytest.fixture(scope="module")
def whole(start, tmp_path_factory):
    """The end of an uninterrupted run."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    assert start(workdir).wait(PATIENCE_S) == 0, workdir.with_suffix(".log").read_text()
    return read_end(workdir)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_run_that_is_stopped_or_killed_ends_with_the_same_bits(
    start, whole, tmp_path, number, code
):
    """Stopped, it saves the step that it has reached. Killed, it goes back to a checkpoint."""
    workdir, log = tmp_path / "run", tmp_path / "run.log"
    process, deadline = start(workdir), time.monotonic() + PATIENCE_S
    while not (workdir / "checkpoints" / "4").exists():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(PATIENCE_S) == code, log.read_text()
    assert start(workdir).wait(PATIENCE_S) == 0, log.read_text()
    assert "from step " in log.read_text()
    assert describe_difference(read_end(workdir), whole) is None
