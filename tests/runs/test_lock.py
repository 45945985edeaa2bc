"""One session at a time in a run's folder."""

import os
import subprocess
import sys

import pytest

from cls_jax.errors import UserError
from cls_jax.runs.lock import LOCK, lock_run_folder
from cls_jax.training.loop import train
from tests.conftest import ROOT, create_tiny_config

HOLD = """
import pathlib, sys
from cls_jax.runs.lock import lock_run_folder
with lock_run_folder(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def held(tmp_path):
    """A folder in which another process trains."""
    workdir = tmp_path / "run"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, workdir],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert holder.stdout.readline() == b"held\n"
    yield workdir, holder
    holder.kill()
    holder.communicate()


def test_a_second_session_is_refused_and_changes_nothing(held):
    workdir, holder = held
    with pytest.raises(UserError, match=f"in use: process {holder.pid} on .* trains there"):
        train(create_tiny_config(), workdir)
    assert [path.name for path in workdir.iterdir()] == [LOCK]


def test_a_killed_session_leaves_the_folder_free(held):
    workdir, holder = held
    holder.kill()
    holder.wait()
    with lock_run_folder(workdir):
        assert str(os.getpid()) in (workdir / LOCK).read_text()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    lock = lock_run_folder(tmp_path / "file" / "run")
    with pytest.raises(UserError, match=r"cannot be written .*another folder"):
        lock.__enter__()
