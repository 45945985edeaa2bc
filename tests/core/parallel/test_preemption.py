"""A run that is asked to stop saves and loses nothing."""

import os
import signal
import threading
from signal import SIGINT

import pytest

from cls_jax.errors import StoppedError
from cls_jax.parallel.preemption import PreemptionHandler
from cls_jax.runs.metrics import read_metrics
from cls_jax.training.loop import run_training
from tests.conftest import create_tiny_config, train_interrupted
from tests.outcomes import describe_difference, read_end


def test_a_stopped_run_saves_its_last_step_and_resumes_exactly(trained_run, tmp_path):
    """No checkpoint is due at step 3."""
    workdir, before = tmp_path / "run", signal.getsignal(signal.SIGINT)
    with pytest.raises(StoppedError, match="step 3, and the newest checkpoint is from step 3"):
        train_interrupted(create_tiny_config(), workdir, 2, lambda: os.kill(os.getpid(), SIGINT))
    assert signal.getsignal(signal.SIGINT) == before
    assert (workdir / "checkpoints" / "3").exists()
    assert not (workdir / "result.json").exists()
    run_training(create_tiny_config(), workdir)
    assert describe_difference(read_end(workdir), read_end(trained_run)) is None


def test_a_run_that_stops_at_once_has_nothing_to_save(tmp_path, monkeypatch):
    monkeypatch.setattr(PreemptionHandler, "should_stop", lambda self, step: True)
    with pytest.raises(StoppedError, match="step 0, and there is no checkpoint yet"):
        run_training(create_tiny_config(), tmp_path / "run")
    assert read_metrics(tmp_path / "run") == []


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_leaves_at_once(sent):
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with PreemptionHandler() as stop:
        assert not stop.should_stop(0)
        os.kill(os.getpid(), sent)
        assert stop.should_stop(0)
        assert stop.interrupts_eval()
        assert stop.signal == sent
        assert all(signal.getsignal(number) == signal.SIG_DFL for number in before)
    assert {number: signal.getsignal(number) for number in before} == before


def test_signals_are_left_alone_outside_the_main_thread():
    seen = []

    def look() -> None:
        with PreemptionHandler() as stop:
            seen.append(stop.should_stop(0))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [False]
