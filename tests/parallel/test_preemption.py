"""A run that is asked to stop saves and loses nothing."""

import os
import signal
import threading

import pytest

from cls_jax.cli.process import run_to_end
from cls_jax.data.datasets import load_dataset
from cls_jax.errors import StoppedError
from cls_jax.parallel.preemption import PreemptionHandler
from cls_jax.runs.metrics import read_metrics
from cls_jax.training.evaluate import create_evaluate
from cls_jax.training.loop import train
from cls_jax.training.setup import create_train_setup
from tests.conftest import DATASET_SPEC, create_tiny_config, train_interrupted
from tests.outcomes import describe_difference, read_end


def test_a_stopped_run_saves_its_last_step_and_resumes_exactly(trained_run, tmp_path):
    """No checkpoint is due at step 3."""
    workdir = tmp_path / "run"

    def ask() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(StoppedError, match="step 3, and the newest checkpoint is from step 3"):
        train_interrupted(create_tiny_config(), workdir, 2, ask)
    assert signal.getsignal(signal.SIGINT) == before
    assert (workdir / "checkpoints" / "3").exists()
    assert not (workdir / "result.json").exists()
    train(create_tiny_config(), workdir)
    assert describe_difference(read_end(workdir), read_end(trained_run)) is None


def test_a_run_that_stops_at_once_has_nothing_to_save(tmp_path, monkeypatch):
    monkeypatch.setattr(PreemptionHandler, "should_stop", lambda self, step: True)
    with pytest.raises(StoppedError, match="step 0, and there is no checkpoint yet"):
        train(create_tiny_config(), tmp_path / "run")
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


def test_an_evaluation_is_given_up():
    config = create_tiny_config(eval_batch_size=50)
    setup = create_train_setup(config, DATASET_SPEC)
    state = setup.init_state()
    dataset = load_dataset(config)
    answers = iter([False, False, True])
    evaluate = create_evaluate(setup)
    assert evaluate(state, dataset.test_images, dataset.test_labels, lambda: next(answers)) == {}
    assert next(answers, "all asked") == "all asked"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoppedError("Stopped.", signal.SIGTERM), 143),
        (StoppedError("Stopped.", signal.SIGINT), 130),
        (KeyboardInterrupt(), 130),
    ],
)
def test_the_exit_code_is_that_of_a_shell(error, code, capsys):
    def stop() -> None:
        raise error

    with pytest.raises(SystemExit) as end:
        run_to_end(stop)
    assert end.value.code == code
    assert capsys.readouterr().err == "Stopped.\n"
