"""What users see in the terminal, and what a process loads and hides before it works."""

import errno
import functools
import html
import importlib.metadata
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import unittest.mock

import joblib
import pytest
import threadpoolctl
from absl.testing import flagsaver

import main
from cls_jax import process
from cls_jax.config import read_config
from cls_jax.process import run_to_end
from cls_jax.runs.folder import CONFIG
from cls_jax.runs.sessions import read_sessions
from tests.conftest import ROOT
from tests.outcomes import describe_difference, read_end
from tests.processes import TINY


def test_train_then_eval(start_program, tmp_path):
    config = f"{ROOT}/configs/digits.py:20,supervised"
    options = ["--config", config, *TINY, "--config.num_steps=2", "--config.data.pipeline=device"]
    code, output, error = start_program(*options, cwd=tmp_path).finish()
    assert code == 0, error
    workdir = tmp_path / "runs" / "digits-20-supervised-seed0"
    result = json.loads((workdir / "result.json").read_text())
    headline = f"{result['test_accuracy']:6.2f}%  network 1 (EMA weights)"
    assert headline in output
    assert "tensorboard --logdir runs/digits-20-supervised-seed0" in output
    assert "Report:         runs/digits-20-supervised-seed0/report.html" in output
    report = html.unescape((workdir / "report.html").read_text())
    assert "main.py --config digits.py:20,supervised" in report
    assert str(ROOT) not in report
    assert str(tmp_path) not in report
    evaluate = ["--mode", "eval", "--workdir", workdir, "--eval_batch_size=100"]
    code, output, error = start_program(*evaluate).finish()
    assert code == 0, error
    assert headline in output


DIGITS = ["--config", "configs/digits.py:40"]
RUN = ["--workdir", "tests"]  # A folder, but not that of a run.
MISTAKES = [
    ([], "add --config configs/digits.py:40"),
    (["--config", "configs/nothing.py"], "No such file or directory: 'configs/nothing.py'"),
    (["--config", "configs/digits.py:45"], "choose a multiple of 10"),
    ([*DIGITS, "--config.sead=1"], 'Did you mean "seed" instead of "sead"? See --help'),
    (
        [*DIGITS, "--config.model.zzzzzz=1"],
        "has no key zzzzzz: see --help and cls-jax help configuration",
    ),
    ([*DIGITS, "--seed=1"], "flag 'seed': did you mean --config.seed? See --help"),
    ([*DIGITS, "--config.optimizer.lr=1"], "no key lr: did you mean --config.optimizer.learning"),
    ([*DIGITS, "--config.data.resize=pad"], "of this dataset has no key resize: see --help"),
    ([*DIGITS, "--config.seed=one"], "flag --config.seed=one"),
    ([*DIGITS, "--config.method.name=fixmatch"], "choose the method after the config's colon"),
    (
        [*DIGITS, "--config.model.name=vit_tiny", "--config.model.depth=10"],
        "model.depth does nothing with model.name=vit_tiny: remove it, or choose",
    ),
    (
        [*DIGITS, "--config.data.mean=0.5,0.5,0.5", "--config.data.std=0.2,0.2,0.2"],
        "data.mean has 3 numbers, and the images of digits have one channel: set",
    ),
    ([*DIGITS, "seed=1"], "'seed=1': options begin with --"),
    ([*DIGITS, "--eval_batch_size=9"], "use --config.eval_batch_size to train"),
    ([*DIGITS, "--data_dir=x"], "use --config.data.data_dir to train"),
    (["--confg", "configs/digits.py:40"], "Did you mean: config"),
    (["--mode", "predict"], "train|eval"),
    (["--mode", "eval"], "add --workdir DIR"),
    (["--mode", "eval", *RUN], "pass the folder that training printed"),
    (["--mode", "eval", *RUN, *DIGITS], "remove --config"),
]


@pytest.mark.filterwarnings("ignore:the load_module")  # By which ml_collections reads a file.
@pytest.mark.parametrize(("arguments", "remedy"), MISTAKES, ids=[text for _, text in MISTAKES])
def test_user_errors_print_one_line(tmp_path, monkeypatch, capsys, arguments, remedy):
    if "--workdir" not in arguments and "--config" in arguments:
        arguments = [*arguments, "--workdir", str(tmp_path)]
    command = ["main.py", *arguments]
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", command)  # Where ml_collections looks for keys.
    monkeypatch.setattr(main, "prepare_process", lambda: None)
    with flagsaver.flagsaver(), pytest.raises(SystemExit) as end:
        main.main(main.parse_flags(command))
    output, error = capsys.readouterr()
    assert end.value.code == 2, error
    (line,) = error.strip().splitlines()
    assert line.startswith("Error: ")
    assert remedy in line
    assert output == ""
    assert not list(tmp_path.iterdir())


def test_the_program_explains_itself_and_ends_with_one_line(start_program):
    code, output, error = start_program("--help").finish()
    assert (code, error) == (0, "")
    assert all(f"--{name}:" in output for name in ("config", "mode", "coordinator_address"))
    code, output, error = start_program("--mode", "eval", *RUN).finish()
    assert (code, output) == (2, "")
    assert error.startswith("Error: ")
    assert len(error.splitlines()) == 1


MINE, OURS = "--mine", "--xla_cpu_experimental_ynn_fusion_type"


@pytest.mark.parametrize(
    ("platforms", "plugins", "driver", "version", "flags", "added"),
    [
        ("", ["xla_cuda13"], True, "0.10.2", MINE, False),
        ("", ["xla_cuda12"], False, "0.10.2", MINE, True),  # JAX falls back to the CPU.
        ("", [], True, "0.11.0", MINE, True),
        ("cpu", ["xla_cuda12"], True, "0.10.2", "", True),
        ("cuda,cpu", ["xla_cuda12"], True, "0.10.2", MINE, False),
        ("cpu,cuda", ["xla_cuda12"], True, "0.10.2", MINE, True),
        ("cpu", [], False, "0.10.2", f"{OURS}=X", False),  # The user has set it.
        ("cpu", [], False, "0.12.0", "", False),  # jaxlib may not know it.
    ],
)
def test_flags_for_cpus(monkeypatch, tmp_path, platforms, plugins, driver, version, flags, added):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setenv("XLA_FLAGS", flags)
    found = [importlib.metadata.EntryPoint(name, "x", "jax_plugins") for name in plugins]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found)
    monkeypatch.setattr(importlib.metadata, "version", lambda package: version)
    device = tmp_path if driver else tmp_path / "nvidia0"
    monkeypatch.setattr(process, "_NVIDIA_DEVICES", (str(device),))
    process.use_all_cores_for_convolutions()
    assert os.environ["XLA_FLAGS"].startswith(flags)
    assert (OURS in os.environ["XLA_FLAGS"].removeprefix(flags)) == added


@pytest.mark.parametrize(("given", "count"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "3"}, "3")])
def test_a_command_leaves_cores_to_others(monkeypatch, given, count):
    """Unless the environment says otherwise. A quota of two of 64 cores counts for XLA, too."""
    monkeypatch.setattr(os, "environ", dict(given))
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(joblib, "cpu_count", lambda: 2)
    with threadpoolctl.threadpool_limits(2, "blas"):
        process.share_cores()
        libraries = threadpoolctl.threadpool_info()  # Of other kinds, too.
    in_use = {row["num_threads"] for row in libraries if row["user_api"] == "blas"}
    assert os.environ["OPENBLAS_NUM_THREADS"] == count
    assert os.environ["NPROC"] == "2"
    assert (in_use == {1}) == (not given)


def test_what_is_quick_loads_neither_jax_nor_tensorflow_and_only_reports_load_jinja():
    """The process is set up before JAX is loaded, and --help is quick. So are predictions."""
    code = """
import sys
import cls_jax, cls_jax.photos.cli.console, cls_jax.process
cls_jax.UserError, cls_jax.photos.cli.console.create_parser().print_help()
assert not {"jax", "tensorflow", "filelock"} & {*sys.modules}
import cls_jax.photos.cli.commands
import cls_jax.photos.inference.export, cls_jax.photos.inference.predict_files
slow = {"tensorflow", "jinja2", "orbax", "scipy.optimize", "scipy.stats", "sklearn"}
assert not slow & {*sys.modules}, slow & {*sys.modules}
import cls_jax.photos.labeling.start
assert not {"tensorflow", "jinja2", "sklearn", "scipy.stats"} & {*sys.modules}
"""
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert outcome.returncode == 0, outcome.stderr
    for verb in ("train", "predict", "evaluate", "report", "export", "suggest", "label"):
        assert f"  {verb}" in outcome.stdout


def test_run_that_fails_half_way_ends_and_does_not_hang(start_program, tmp_path):
    """Threads of the input stream are still busy when the loss stops being finite."""
    options = [*TINY, "--config.num_steps=1000", "--config.optimizer.learning_rate=100"]
    options += ["--workdir", tmp_path / "run"]
    config = "configs/digits.py:20,supervised"
    code, _, error = start_program("--config", config, *options).finish()
    assert code == 2
    assert "Training stopped at step" in error.splitlines()[-1]


@pytest.mark.slow
def test_a_run_that_is_stopped_and_then_killed_ends_with_the_same_bits(start_program, tmp_path):
    """Stopped, it saves the current step. Killed, it resumes from a checkpoint.

    With convolutions and all of XLA's optimizations, as users have. `make trust` kills CLS.
    """
    options = ["--config=configs/digits.py:20,fixmatch", *TINY, "--config.num_steps=80"]
    options += ["--config.checkpoint_every=4", "--config.eval_every=40", "--config.log_every=1"]
    whole, workdir, printed = tmp_path / "whole", tmp_path / "run", []

    def start(workdir, *others):
        return start_program(*options, *others, f"--workdir={workdir}", is_tiny=False)

    def has_saved(first_step, num_sessions):
        """Whether this session has begun, too: the one before may have come as far."""
        is_saved = any((workdir / f"checkpoints/{i}").exists() for i in range(first_step, 80, 4))
        return is_saved and len(read_sessions(workdir)) == num_sessions

    assert start(whole).finish()[0] == 0
    for first_step, number, code in ((4, signal.SIGINT, 130), (12, signal.SIGKILL, -9)):
        process = start(workdir)
        process.wait_until(functools.partial(has_saved, first_step, len(printed) + 1))
        process.kill(number)
        end, output, error = process.finish()
        assert end == code, error
        assert not (workdir / "result.json").exists()
        printed.append(error)
    assert re.search(r"before step (\d+), and the newest checkpoint is from step \1:", printed[0])
    # These do not change what is trained.
    others = "--config.keep_checkpoints=1", "--config.eval_batch_size=100"
    end, output, error = start(workdir, *others).finish()
    assert end == 0, error
    assert "Training: from step " in output
    assert [row["first_step"] > 0 for row in read_sessions(workdir)] == [False, True, True]
    assert read_config(workdir / CONFIG).eval_batch_size == 100
    assert [path.name for path in (workdir / "checkpoints").iterdir()] == ["80"]
    assert describe_difference(read_end(workdir), read_end(whole)) is None


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (OSError(errno.ENOSPC, "No space", "a.json"), 2, "a.json cannot be written (No space)"),
        (OSError(errno.EACCES, "Denied", "a/b"), 2, "a/b cannot be used (Denied): allow"),
        (OSError(errno.EROFS, "Read-only", "a"), 2, "a cannot be used (Read-only)"),
        (KeyboardInterrupt(), 130, "Stopped."),
    ],
)
def test_what_the_system_refuses_is_one_sentence(capsys, error, code, sentence):
    with pytest.raises(SystemExit) as end:
        run_to_end(unittest.mock.Mock(side_effect=error))
    assert end.value.code == code
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("flush", [True, False])
def test_output_is_cut_short_without_a_traceback_and_needs_no_unicode(flush):
    code = f"""
from cls_jax.process import prepare_process, run_to_end
prepare_process()
run_to_end(lambda: [print("猫.jpg", i, flush={flush}) for i in range(50_000)])
"""
    command = [sys.executable, "-c", code]
    environment = os.environ | {"PYTHONIOENCODING": "cp1252"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) as running:
        assert running.stdout.readline().strip() == rb"\u732b.jpg 0"
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 141


# Notes which devices are hidden when TensorFlow first starts them up.
NOTE = """
import sys, tensorflow as tf
from tensorflow.python.eager import context
hidden, start = [], context.Context.ensure_initialized
tf.config.set_visible_devices = lambda devices, kind: hidden.append((devices, kind))
def check_and_start(self):
    assert ([], "GPU") in hidden, hidden
    start(self)
context.Context.ensure_initialized = check_and_start
"""
AUGMENTATION = """
from cls_jax.data.augment import tf_augment
tf_augment.tf.zeros([2]) + 1
"""
TFDS = """
from cls_jax.data.sources import benchmarks
from configs.cifar10 import get_config
class Builder:
    data_dir = ""
    def is_prepared(self):
        tf.zeros([2]) + 1
        sys.exit()
import tensorflow_datasets as tfds
tfds.builder = lambda *args, **kwargs: Builder()
benchmarks.read_tfds(get_config("40").data)
sys.exit("not asked")
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", [AUGMENTATION, TFDS], ids=["augmentation", "TFDS"])
def test_accelerators_are_hidden_before_the_first_operation(start_program, tmp_path, way):
    if not all(map(importlib.util.find_spec, ("tensorflow", "tensorflow_datasets"))):
        pytest.skip("without TensorFlow")
    (program := tmp_path / "program.py").write_text(NOTE + way)
    code, _, error = start_program(program=program).finish()
    assert code == 0, error


def test_package_needs_nothing_that_only_unix_has():
    """No module imports `fcntl` and the like, without which Windows could not even load a run."""
    # The first two are programs, and the others import TensorFlow, which takes seconds.
    left_out = {"__main__", "export_example", "host_tensorflow", "tf_augment", "tfdata"}
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sorted((ROOT / "cls_jax").rglob("*.py"))
        if path.stem not in left_out
    ]
    code = (
        "import sys, os, importlib; names = ['fcntl', 'pwd', 'grp', 'resource', 'termios', "
        "'pty'];import jax, scipy, sklearn, orbax.checkpoint, starlette, "
        "uvicorn;sys.modules.update(dict.fromkeys(names));[delattr(os, name) for name in "
        "('O_NONBLOCK', 'O_NOFOLLOW', 'preadv', 'sysconf')];[importlib.import_module(name) for "
        f"name in {names}];importlib.import_module('cls_jax.io').read_bytes('pyproject.toml', "
        "10**6)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
