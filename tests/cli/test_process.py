"""What users see in the terminal: results, or one line and exit code 2."""

import errno
import html
import importlib.metadata
import json
import os
import subprocess
import sys

import pytest

from cls_jax.cli import process
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
    headline = f"{result['test_accuracy']:6.2f}%  network 1 (EMA weights)"
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


DIGITS = ["--config", "configs/digits.py:40"]
RUN = ["--workdir", "tests"]  # A folder, but not that of a run.
MISTAKES = [
    ([], "add --config configs/digits.py:40"),
    (["--config", "configs/nothing.py"], "No such file or directory: 'configs/nothing.py'"),
    (["--config", "configs/digits.py:many"], "write the number of labels"),
    (["--config", "configs/digits.py:40,fixmatsch"], "choose one of"),
    (["--config", "configs/digits.py:45"], "choose a multiple of 10"),
    ([*DIGITS, "--config.sead=1"], 'Did you mean "seed" instead of "sead"?'),
    ([*DIGITS, "--config.model.zzzzzz=1"], "has no key zzzzzz: see --help and docs/configuration"),
    ([*DIGITS, "--config.seed=one"], "flag --config.seed=one"),
    ([*DIGITS, "--config.method=cls"], "flag --config.method=cls"),
    ([*DIGITS, "--config.mu=0"], "choose an integer from 1 to"),
    ([*DIGITS, "seed=1"], "'seed=1': options begin with --"),
    ([*DIGITS, "--data_dir=x"], "use --config.data.data_dir to train"),
    (["--confg", "configs/digits.py:40"], "Did you mean: config"),
    (["--mode", "predict"], "train|eval"),
    (["--mode", "eval"], "add --workdir DIR"),
    (["--mode", "eval", *RUN], "name the folder that training printed"),
    (["--mode", "eval", *RUN, *DIGITS], "remove --config"),
]
# Each command line in a process of its own, as it would be; importing JAX 17 times takes a minute.
FORK_EACH = """
import json, os, runpy, sys, tempfile
import cls_jax.cli.commands, cls_jax.data.datasets, ml_collections.config_flags
for line in sys.stdin:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        if (child := os.fork()) == 0:
            os.dup2(out.fileno(), 1), os.dup2(err.fileno(), 2)
            sys.argv = json.loads(line)
            runpy.run_path(sys.argv[0], run_name="__main__")
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        texts = [file.seek(0) or file.read() for file in (out, err)]
    print(json.dumps((status, *texts)), flush=True)
"""


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def outcomes(workdir):
    """Exit code, standard output and standard error of every mistake."""
    lines = []
    for arguments, _ in MISTAKES:
        if "--workdir" not in arguments and "--config" in arguments:
            arguments = [*arguments, "--workdir", str(workdir)]
        lines.append(json.dumps(["main.py", *arguments]) + "\n")
    # With this variable set, main.py does not start itself again, which would import it all again.
    environment = {
        **os.environ,
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=0",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", FORK_EACH],
        input="".join(lines),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("index", range(len(MISTAKES)), ids=lambda index: MISTAKES[index][1])
def test_user_errors_print_one_line(outcomes, workdir, index):
    status, out, err = outcomes[index]
    assert status == 2, err
    (line,) = err.strip().splitlines()
    assert line.startswith("Error: ")
    assert MISTAKES[index][1] in line
    assert out == ""
    assert not list(workdir.iterdir())


def test_help_names_every_option():
    outcome = run_main("--help")
    assert outcome.returncode == 0
    assert outcome.stderr == ""
    for option in ("config", "mode", "workdir", "data_dir", "coordinator_address"):
        assert f"--{option}:" in outcome.stdout


@pytest.mark.parametrize(
    ("platforms", "plugins", "has_driver", "expected"),
    [
        ("", ["xla_cuda12"], True, True),
        ("", ["xla_cuda13"], True, True),
        ("", ["xla_cuda12"], False, False),  # JAX falls back to the CPU.
        ("", [], True, False),
        ("cpu", ["xla_cuda12"], True, False),
        ("cuda", [], False, True),
        ("cuda,cpu", ["xla_cuda12"], True, True),
        ("cpu,cuda", ["xla_cuda12"], True, False),
    ],
)
def test_flags_for_cpus_are_left_out_where_jax_uses_a_gpu(
    monkeypatch, tmp_path, platforms, plugins, has_driver, expected
):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setenv("XLA_FLAGS", "--mine")
    found = [importlib.metadata.EntryPoint(name, "x", "jax_plugins") for name in plugins]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found)
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "0.10.2")
    device = tmp_path / "nvidia0"
    if has_driver:
        device.touch()
    monkeypatch.setattr(process, "_NVIDIA_DEVICES", (str(device),))
    assert process.will_use_gpu() == expected
    process.use_all_cores_for_convolutions()
    is_set = "xla_cpu_experimental_ynn_fusion_type" in os.environ["XLA_FLAGS"]
    assert is_set != expected
    assert os.environ["XLA_FLAGS"].startswith("--mine")


def test_flag_that_jaxlib_may_not_know_or_the_user_has_set_is_left_alone(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_experimental_ynn_fusion_type=X")
    process.use_all_cores_for_convolutions()
    assert os.environ["XLA_FLAGS"] == "--xla_cpu_experimental_ynn_fusion_type=X"
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "0.12.0")
    process.use_all_cores_for_convolutions()
    assert os.environ["XLA_FLAGS"] == ""


def test_light_start_loads_neither_jax_nor_tensorflow():
    """The process is set up before JAX is loaded, and --help is quick."""
    code = "import sys, cls_jax, cls_jax.cli.process; print({'jax', 'tensorflow'} & {*sys.modules})"
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert outcome.stdout == "set()\n"


def test_run_that_fails_half_way_ends_and_does_not_hang(tmp_path):
    """Threads of the input stream are still busy when the loss stops being finite."""
    options = [*TINY, "--config.num_steps=1000", "--config.optimizer.learning_rate=100"]
    options += ["--workdir", tmp_path / "run"]
    outcome = run_main("--config", "configs/digits.py:20,fixmatch", *options, timeout=600)
    assert outcome.returncode == 2
    assert "Training stopped at step" in outcome.stderr.splitlines()[-1]


def test_full_disk_is_named(capsys):
    def write() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "runs/mine/config.json")

    with pytest.raises(SystemExit) as end:
        run_to_end(write)
    assert end.value.code == 2
    assert "runs/mine/config.json cannot be written (No space" in capsys.readouterr().err
