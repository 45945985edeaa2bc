"""What a person sees in the terminal: results, and one sentence with exit code 2 on a mistake."""

import errno
import html
import json
import subprocess
import sys

import pytest

from cls_jax.cli.process import run_to_end
from tests.conftest import ROOT

TINY = [
    "--config.num_steps=2",
    "--config.batch_size=8",
    "--config.mu=1",
    "--config.data.image_size=8",
    "--config.data.cutout=3",
]


def run_main(*arguments, cwd=ROOT, timeout=None):
    return subprocess.run(
        [sys.executable, ROOT / "main.py", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
        timeout=timeout,
    )


def test_train_then_eval_then_train_again(tmp_path):
    train = run_main("--config", f"{ROOT}/configs/digits.py:20,fixmatch", *TINY, cwd=tmp_path)
    assert train.returncode == 0, train.stderr
    workdir = tmp_path / "runs" / "digits-20-fixmatch-seed0"
    result = json.loads((workdir / "result.json").read_text())
    headline = f"{result['test_accuracy']:6.2f} %  network 1, averaged"
    assert headline in train.stdout
    assert "tensorboard --logdir runs/digits-20-fixmatch-seed0" in train.stdout
    assert "The whole run:  runs/digits-20-fixmatch-seed0/report.html" in train.stdout
    command = json.loads((workdir / "sessions.jsonl").read_text())["command"]
    assert f"main.py --config {ROOT}/configs/digits.py:20,fixmatch" in command
    assert command in html.unescape((workdir / "report.html").read_text())

    evaluation = run_main("--mode", "eval", "--workdir", workdir)
    assert evaluation.returncode == 0, evaluation.stderr
    assert headline in evaluation.stdout

    again = run_main("--config", f"{ROOT}/configs/digits.py:20,fixmatch", *TINY, cwd=tmp_path)
    assert again.returncode == 0
    assert "is finished" in again.stdout


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ([], "add --config configs/digits.py:40"),
        (["--config", "configs/nothing.py"], "configs/nothing.py"),
        (["--config", "configs/digits.py:many"], "write the number of labels"),
        (["--config", "configs/digits.py:40,fixmatsch"], "choose one of"),
        (["--config", "configs/digits.py:45"], "choose a multiple of 10"),
        (["--config", "configs/digits.py:40", "--config.sead=1"], "sead"),
        (["--config", "configs/digits.py:40", "--config.seed=one"], "seed"),
        (["--config", "configs/digits.py:40", "--config.mu=0"], "choose a positive number"),
        (["--config", "configs/digits.py:40", "seed=1"], "seed=1"),
        (["--confg", "configs/digits.py:40"], "confg"),
        (["--mode", "eval"], "add --workdir DIR"),
        (["--mode", "eval", "--workdir", "tests"], "give --workdir"),
        (["--mode", "report"], "add --workdir DIR"),
        (["--mode", "sing"], "train"),
        (["--mode", "predict", "--suggest=-1"], "suggest"),
    ],
)
def test_mistake_gets_one_sentence_and_exit_code_2(tmp_path, arguments, remedy):
    if "--workdir" not in arguments and "--config" in arguments:
        arguments = [*arguments, "--workdir", tmp_path / "run"]
    outcome = run_main(*arguments)
    assert outcome.returncode == 2, outcome.stderr
    (line,) = outcome.stderr.strip().splitlines()
    assert line.startswith("Error: ")
    assert remedy in line
    assert not list(tmp_path.rglob("checkpoints"))


def test_run_that_fails_half_way_ends_and_does_not_hang(tmp_path):
    """Threads of the input stream are still busy when the loss stops being finite."""
    options = [*TINY, "--config.num_steps=1000", "--config.optimizer.learning_rate=100"]
    options += ["--workdir", tmp_path / "run"]
    outcome = run_main("--config", "configs/digits.py:20,fixmatch", *options, timeout=120)
    assert outcome.returncode == 2
    assert "Training stopped at step" in outcome.stderr.splitlines()[-1]


def test_a_disk_that_takes_nothing_is_named(capsys):
    def write() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "runs/mine/config.json")

    with pytest.raises(SystemExit) as end:
        run_to_end(write)
    assert end.value.code == 2
    assert "runs/mine/config.json cannot be written (No space" in capsys.readouterr().err
