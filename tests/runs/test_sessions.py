"""One session at a time in a run's folder, and the commands that made the run."""

import os
import subprocess
import sys

import jax
import pytest

from cls_jax.errors import UserError
from cls_jax.runs.sessions import LOCK, SESSIONS, lock_run_folder, read_sessions, record_session
from cls_jax.training.loop import train
from tests.conftest import ROOT, create_tiny_config

HOLD = """
import pathlib, sys
from cls_jax.runs.sessions import lock_run_folder
with lock_run_folder(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def held(tmp_path):
    """A folder in which another process trains."""
    workdir = tmp_path / "run"
    pipe, command = subprocess.PIPE, [sys.executable, "-c", HOLD, workdir]
    holder = subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT)
    assert holder.stdout.readline() == b"held\n"
    yield workdir, holder
    holder.kill()
    holder.communicate()


def test_a_second_session_is_refused_until_the_first_ends_or_is_killed(held):
    workdir, holder = held
    with pytest.raises(UserError, match=f"in use by process {holder.pid} on "):
        train(create_tiny_config(), workdir)
    assert [path.name for path in workdir.iterdir()] == [LOCK]
    holder.kill()
    holder.wait()
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
