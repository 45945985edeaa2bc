"""A run that is asked to stop saves and loses nothing."""

import concurrent.futures
import os
import pty
import signal
import subprocess
import sys

import pytest

from cls_jax.config import read_config, with_values
from cls_jax.errors import StoppedError
from cls_jax.parallel.preemption import FINISH, SIGNALS, PreemptionHandler
from cls_jax.runs.folder import read_result
from cls_jax.runs.metrics import read_metrics
from cls_jax.training.loop import run_training
from cls_jax.training.prepare import restore_run
from tests.conftest import ROOT, create_tiny_config, train_interrupted


def test_a_run_that_stops_at_once_has_nothing_to_save(tmp_path, monkeypatch):
    monkeypatch.setattr(PreemptionHandler, "should_stop", lambda self, step: True)
    with pytest.raises(StoppedError, match="step 0, and there is no checkpoint yet"):
        run_training(create_tiny_config(), tmp_path / "run")
    assert read_metrics(tmp_path / "run") == []


@pytest.mark.skipif(FINISH is None, reason="Windows has no such signal")
def test_a_run_that_is_to_end_early_is_a_finished_run_of_fewer_steps(tmp_path, capsys):
    workdir, config = tmp_path / "run", create_tiny_config()
    train_interrupted(config, workdir, 2, lambda: os.kill(os.getpid(), FINISH))
    assert read_config(workdir / "config.json").num_steps == 3
    result = read_result(workdir)
    assert result["step"] == restore_run(workdir).step == 3
    assert [row["step"] for row in read_metrics(workdir) if "test/accuracy" in row] == [3]
    assert run_training(with_values(config, {"num_steps": 3}), workdir)[0] == result
    assert "is finished: nothing to do" in capsys.readouterr().out
    os.kill(os.getpid(), FINISH)  # It comes too late, and does nothing.


@pytest.fixture
def heard():
    """SIGHUP ends this process, as usual, even if it was started by nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("sent", SIGNALS)
def test_the_second_signal_leaves_at_once_unless_it_may_come_by_itself(sent, heard):
    before = {number: signal.getsignal(number) for number in SIGNALS}
    with PreemptionHandler() as stop:
        assert not stop.should_stop(0)
        os.kill(os.getpid(), sent)
        assert stop.should_stop(0)
        assert stop.interrupts_eval()
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.signal == sent
        for number in (signal.SIGTERM, signal.SIGINT):
            assert signal.getsignal(number) == signal.SIG_DFL
    assert {number: signal.getsignal(number) for number in before} == before


def test_what_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with PreemptionHandler() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.should_stop(0)
    finally:
        signal.signal(signal.SIGHUP, before)


TRAINING = """
import fcntl, signal, sys, termios, time
from cls_jax.errors import StoppedError
from cls_jax.parallel.preemption import PreemptionHandler
from cls_jax.process import run_to_end

def train():
    with PreemptionHandler() as stop:
        print("begun", flush=True)
        while not stop.should_stop(0):
            time.sleep(0.01)
        print("evaluation", flush=True)
        print("progress", file=sys.stderr, flush=True)
        open(sys.argv[1], "w").close()
        raise StoppedError("Stopped.", stop.signal)

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # The tests may run under nohup.
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # As the process that a terminal starts.
run_to_end(train)
"""


@pytest.mark.parametrize("is_piped", [False, True])
def test_a_terminal_that_closes_does_not_keep_the_run_from_saving(tmp_path, is_piped):
    """Neither its own output, nor that which a pipe in the same terminal shows."""
    saved, (terminal, side) = tmp_path / "saved", pty.openpty()
    reader, writer = os.pipe()
    outputs = {"stdout": writer, "stderr": writer} if is_piped else {"stdout": side, "stderr": side}
    run = subprocess.Popen(
        [sys.executable, "-c", TRAINING, saved],
        stdin=side,
        **outputs,
        start_new_session=True,
        cwd=ROOT,
    )
    os.close(side)
    os.close(writer)
    try:
        assert os.read(reader if is_piped else terminal, 5) == b"begun"
        os.close(reader)
        os.close(terminal)  # The kernel sends SIGHUP.
        assert run.wait(60) == 128 + signal.SIGHUP
    finally:
        run.kill()
        run.wait()
    assert saved.exists()


def test_signals_are_left_alone_outside_the_main_thread():
    def look() -> bool:
        with PreemptionHandler() as stop:
            return stop.should_stop(0)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        assert not pool.submit(look).result()
