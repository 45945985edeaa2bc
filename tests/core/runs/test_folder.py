"""A run's folder: created again after any interruption, and used by one session at a time."""

import errno
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from cls_jax.config import with_values
from cls_jax.data.types import Dataset, Split
from cls_jax.errors import UserError
from cls_jax.runs import folder
from cls_jax.runs.sessions import LOCK, SESSIONS, lock_run_folder, read_sessions, record_session
from cls_jax.training.loop import run_training
from tests.conftest import ROOT, create_tiny_config

_LABELS = np.repeat(np.arange(10, dtype=np.int32), 4)
_BUDGET = np.array([0, 1, 2, *range(8, 40, 2)])  # Unequal and 19: no draw gives it.
_IMAGES = np.zeros((40, 8, 8, 1), np.uint8)
_DATASET = Dataset(
    name="tiny",
    class_names=tuple("abcdefghij"),
    train=Split(_IMAGES, _LABELS),
    test=Split(_IMAGES[:2], _LABELS[:2]),
    image_shape=(8, 8, 1),
    mean=(0.5,),
    std=(0.2,),
    fingerprint="0" * 32,
    skipped_files=(("a.png", "empty"),),
)


def start_run(workdir, config):
    """What training does before its first step. Returns the labeled images."""
    folder.check_run_folder(workdir, config)
    labeled = folder.load_labeled_indices(workdir, _DATASET, config.num_labels, config.seed)
    with lock_run_folder(workdir):
        folder.check_run_folder(workdir, config)
        folder.create_run_folder(workdir, config, labeled, _DATASET)
    return labeled


@pytest.fixture(scope="module")
def interrupt():
    """Calls a function of a folder: allows so many changes there, then raises the error.

    Returns whether it came to that.
    """
    running = {}

    def listen(event, arguments):
        if not running:
            return
        is_writing = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        is_change = is_writing or event in ("os.mkdir", "os.rename")
        if is_change and str(arguments[0]).startswith(running["folder"]):
            running["left"] -= 1
            if running["left"] < 0:
                raise running["error"]

    def run(allowed, error, function, folder, *arguments):
        running.update(folder=str(folder), left=allowed, error=error)
        try:
            function(folder, *arguments)
        finally:
            left = running["left"]
            running.clear()
        return left < 0

    sys.addaudithook(listen)  # For the rest of the process.
    return run


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")]
)
@pytest.mark.parametrize("is_budget_given", [False, True])
def test_a_start_resumes_after_any_stop(tmp_path, interrupt, error, is_budget_given):
    config = create_tiny_config(num_labels=len(_BUDGET) if is_budget_given else 20)

    def prepare(workdir):
        if is_budget_given:
            folder.write_labeled_indices(workdir, _BUDGET, _DATASET)
        return workdir

    undisturbed = prepare(tmp_path / "undisturbed")
    expected = start_run(undisturbed, config)
    assert np.array_equal(np.sort(expected), _BUDGET) == is_budget_given
    with pytest.raises(UserError, match=f"lists {len(expected)} labeled images and not 10"):
        folder.load_labeled_indices(undisturbed, _DATASET, 10, config.seed)
    for allowed in range(100):
        workdir = prepare(tmp_path / str(allowed))
        try:
            if not interrupt(allowed, error, start_run, workdir, config):
                break
        except (KeyboardInterrupt, UserError):
            pass
        np.testing.assert_array_equal(start_run(workdir, config), expected)
        for file in undisturbed.iterdir():
            if file.name != LOCK:
                assert (workdir / file.name).read_bytes() == file.read_bytes()
    assert allowed >= 10  # The folder, its lock, and two operations for each of four files.


def test_an_interrupted_start_never_passes_its_labels_to_another_seed(tmp_path, interrupt):
    """Labels drawn by one seed must not look like a budget that the user supplied."""
    config, other = create_tiny_config(), create_tiny_config(seed=1)
    expected = start_run(tmp_path / "other", other)
    for allowed in range(1, 10):
        workdir = tmp_path / str(allowed)
        with pytest.raises(KeyboardInterrupt):
            interrupt(allowed, KeyboardInterrupt(), start_run, workdir, config)
        try:
            labeled = start_run(workdir, other)
        except UserError as refused:
            assert "another configuration (seed" in str(refused)  # noqa: PT017
        else:
            np.testing.assert_array_equal(labeled, expected)


def test_a_run_with_rounds_is_not_given_more_steps(tmp_path):
    """They are shares of all steps: the rate that is logged would not be the one that is used."""
    config = create_tiny_config("20,ups", num_steps=6)
    start_run(tmp_path, config)
    folder.write_result(tmp_path, {"step": 6, "test_accuracy": None})
    (tmp_path / "checkpoints" / "6").mkdir(parents=True)
    assert folder.check_run_folder(tmp_path, config) == 6
    with pytest.raises(UserError, match="the rounds of ups are shares of all steps: train a new"):
        folder.check_run_folder(tmp_path, with_values(config, {"num_steps": 8}))


def test_default_folder_has_the_names_of_the_images_and_of_the_method():
    config = create_tiny_config(data__name="folder", data__data_dir="/photos/pets, all", seed=3)
    for num_labels, method, name in ((0, None, "all-cls"), (9, "instant", "9-instant")):
        config.num_labels, path = num_labels, pathlib.Path(f"runs/pets, all-{name}-seed3")
        assert folder.get_default_workdir(config, method) == path


HOLD = """
import pathlib, sys
from cls_jax.runs.sessions import lock_run_folder
with lock_run_folder(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_session_is_refused_until_the_first_ends_or_is_killed(tmp_path):
    workdir, pipe = tmp_path / "run", subprocess.PIPE
    command = [sys.executable, "-c", HOLD, workdir]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match=f"in use by process {holder.pid} on "):
            run_training(create_tiny_config(), workdir)
        assert [path.name for path in workdir.iterdir()] == [LOCK]
        holder.kill()
    with lock_run_folder(workdir):
        assert str(os.getpid()) in (workdir / LOCK).read_text()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    lock = lock_run_folder(tmp_path / "file" / "run")
    with pytest.raises(UserError, match=r"cannot be written .*choose another --workdir"):
        lock.__enter__()


def test_sessions_add_up_and_damaged_lines_do_not_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python3", "main.py", "--workdir", "a b"])
    deep = "[" * 100_000
    (tmp_path / SESSIONS).write_text(f'{deep}\n{{"command": "a"}}\n[1]\n{{"comm')
    record_session(tmp_path, 0)
    record_session(tmp_path, 100)
    old, first, second = read_sessions(tmp_path)
    assert old == {"command": "a"}
    assert first["command"] == "python main.py --workdir 'a b'"
    assert (first["first_step"], second["first_step"]) == (0, 100)
    assert first["versions"]["jax"] == jax.__version__
    assert len((tmp_path / SESSIONS).read_text().splitlines()) == 3
    (tmp_path / SESSIONS).write_bytes(b"\xff\xfe")
    assert read_sessions(tmp_path) == []
