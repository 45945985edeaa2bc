"""Several real processes on this machine train one run together."""

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from cls_jax.config import read_config
from cls_jax.errors import UserError
from cls_jax.inference.evaluate_run import evaluate_run
from cls_jax.parallel.distributed import check_values, has_scheduler, initialize_distributed
from cls_jax.runs.folder import CONFIG
from cls_jax.runs.metrics import read_metrics
from cls_jax.training.loop import train
from tests.conftest import ROOT, train_interrupted

_TINY = [
    "--config=configs/digits.py:20",
    "--config.batch_size=8",
    "--config.mu=2",
    "--config.data.image_size=8",
    "--config.data.cutout=3",
    "--config.log_every=1",
    "--config.mesh.network=1",
    "--config.mesh.data=2",
]
# Makes the batches without TensorFlow, which takes seconds to start.
_ON_DEVICE = "--config.data.pipeline=device"
_PATIENCE_S = 180


def start(workdir: pathlib.Path, *options: str) -> subprocess.Popen:
    """Starts one process with one CPU device."""
    return subprocess.Popen(
        [sys.executable, "main.py", *_TINY, f"--workdir={workdir}", *options],
        cwd=ROOT,
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def start_two(workdirs: list[pathlib.Path], *options: str) -> list[subprocess.Popen]:
    """Starts two processes of one run."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    return [
        start(
            workdir,
            f"--coordinator_address={address}",
            "--num_processes=2",
            f"--process_id={i}",
            *options,
        )
        for i, workdir in enumerate(workdirs)
    ]


def finish(process: subprocess.Popen) -> tuple[int, str]:
    """Exit code and output of a process that has to end by itself."""
    output, _ = process.communicate(timeout=_PATIENCE_S)
    return process.returncode, output


def test_two_processes_compute_what_one_does(tmp_path):
    processes = start_two([tmp_path / "two"] * 2, "--config.num_steps=4")
    (code, output), (other_code, other_output) = map(finish, processes)
    assert (code, other_code) == (0, 0), output + other_output
    assert "Test accuracy" in output
    assert "Test accuracy" not in other_output

    config = read_config(tmp_path / "two" / CONFIG)
    config.mesh.data = 1
    train(config, tmp_path / "one")
    ours, theirs = read_metrics(tmp_path / "two"), read_metrics(tmp_path / "one")
    assert [row["step"] for row in ours] == [row["step"] for row in theirs] == [0, 1, 2, 3, 4]
    for a, b in zip(ours, theirs, strict=True):
        for name in a.keys() & {"train/loss", "train/gradient_norm", "monitors/distance_ema"}:
            np.testing.assert_allclose(a[name], b[name], rtol=1e-3, err_msg=name)
    # Here on the four devices of this process.
    step, accuracies = evaluate_run(tmp_path / "two")
    assert step == 4
    assert accuracies["test/accuracy"] == ours[-1]["test/accuracy"]


def test_the_loss_of_a_process_ends_the_other_and_the_run_goes_on_alone(tmp_path, capsys):
    options = ["--config.num_steps=2000", "--config.checkpoint_every=10", _ON_DEVICE]
    first, second = start_two([tmp_path] * 2, *options)
    deadline = time.monotonic() + _PATIENCE_S
    while not (tmp_path / "checkpoints" / "10").exists():
        assert time.monotonic() < deadline
        assert first.poll() is None
        time.sleep(0.1)
    second.send_signal(signal.SIGKILL)
    code, output = finish(first)
    second.communicate()
    assert code != 0
    # The runtime may be faster than we.
    assert "process of this run was lost" in output or "another task died" in output

    train_interrupted(read_config(tmp_path / CONFIG), tmp_path, num_batches=2)
    start_step = int(re.search(r"from step (\d+)", capsys.readouterr().out)[1])
    assert start_step >= 10
    assert start_step % 10 == 0


def test_a_process_asked_to_stop_takes_the_other_along_and_both_save_one_step(tmp_path):
    options = ["--config.num_steps=2000", "--config.checkpoint_every=1000", _ON_DEVICE]
    options += ["--config.mesh.network=2", "--config.mesh.data=1"]
    first, second = start_two([tmp_path] * 2, *options)
    deadline = time.monotonic() + _PATIENCE_S
    while not read_metrics(tmp_path):
        assert time.monotonic() < deadline
        assert first.poll() is None
        time.sleep(0.1)
    second.send_signal(signal.SIGTERM)
    (code, output), (other_code, _) = finish(first), finish(second)
    assert (code, other_code) == (143, 143), output
    (step,) = [path.name for path in (tmp_path / "checkpoints").iterdir() if path.is_dir()]
    assert f"Stopped before step {step}; the newest checkpoint is that of step {step}" in output


def test_processes_of_different_runs_are_refused(tmp_path):
    processes = start_two([tmp_path / "a", tmp_path / "b"])
    for process in processes:
        code, output = finish(process)
        assert code == 2
        assert "another configuration or --workdir than process 0" in output
    assert not list(tmp_path.iterdir())


def test_a_coordinator_out_of_reach_is_named(tmp_path):
    program = (
        "import sys; from cls_jax.parallel.distributed import initialize_distributed as join; "
    )
    program += "join('localhost:1', 2, 1, timeout=2)"
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    _, error = process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == 2
    assert error.splitlines()[-1].startswith("Error: This process did not meet the coordinator ")
    assert "localhost:1" in error


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("localhost:1", None, 0), "together"),
        (("localhost", 2, 0), "host:port"),
        (("localhost:1", 2, 2), "from 0 to 1"),
    ],
)
def test_values_that_make_no_sense_are_refused(values, message):
    with pytest.raises(UserError, match=message):
        initialize_distributed(*values)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"SLURM_NTASKS": "4"}, False),  # An allocation, not a step of it.
        (
            {
                "SLURM_NTASKS": "4",
                "SLURM_STEP_NODELIST": "n[1-4]",
                "SLURM_PROCID": "1",
                "SLURM_LOCALID": "0",
            },
            True,
        ),
        ({"OMPI_COMM_WORLD_SIZE": "1"}, False),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, True),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False),  # A notebook in a pod.
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"}, True),
    ],
)
def test_a_scheduler_is_recognised(monkeypatch, variables, expected):
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "KUBERNETES_", "JOB_COMPLETION")):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert has_scheduler() == expected


def test_good_values_are_accepted():
    check_values("[::1]:1234", 2, 1)
