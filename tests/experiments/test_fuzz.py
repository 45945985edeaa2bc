"""A few hundred damaged inputs of every kind; `python -m experiments.fuzz` has many more."""

import pathlib
import signal
import subprocess
import warnings

import pytest

from experiments import fuzz
from experiments.fuzz_inputs import create_input
from experiments.fuzz_readers import READERS, try_to_read

pytestmark = pytest.mark.skipif(
    not pathlib.Path("/proc/self/clear_refs").exists(), reason="memory is watched as on Linux"
)
COUNTS = {"bomb": 0, "image": 400, "names": 20, "config.json": 40}


@pytest.mark.parametrize("kind", READERS)
def test_damaged_input_is_read_or_refused(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(fuzz.ROOT)
    for number in range(COUNTS.get(kind, 40)):
        content = create_input(kind, 1, number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow notes odd metadata.
            found = fuzz.check_input(lambda: try_to_read(kind, content, tmp_path))  # noqa: B023
        assert not found["why"], f"{kind} {number}: {found['why']}"


def test_inputs_are_the_same_for_the_same_seed():
    for kind in set(READERS) - {"bomb"}:
        assert create_input(kind, 1, 0) == create_input(kind, 1, 0)
    assert create_input("image", 1, 3) != create_input("image", 2, 3)


def test_failures_are_found(monkeypatch):
    def fail():
        raise KeyError("x")

    assert fuzz.check_input(fail)["why"] == "KeyError: 'x'"
    assert fuzz.check_input(lambda: "read")["outcome"] == "read"
    monkeypatch.setattr(fuzz, "MAX_BYTES", 10**7)
    assert fuzz.check_input(lambda: str(len(bytearray(10**8))))["why"].endswith("MB")
    monkeypatch.setattr(fuzz, "MAX_SECONDS", 1e-5)
    assert fuzz.check_input(lambda: str(sum(range(10**6))))["why"].endswith(" s")


def test_process_that_ends_is_a_failure_of_its_input(tmp_path, monkeypatch, capsys):
    answer = '{"number": 0, "outcome": "read", "why": "", "seconds": 0, "bytes": 0}'
    command = ["sh", "-c", f"echo '{answer}'; kill -SEGV $$"]
    monkeypatch.setattr(
        fuzz,
        "start_worker",
        lambda *_: subprocess.Popen(command, stdout=subprocess.PIPE, text=True),
    )
    found = fuzz.run_kind("image", 0, 2, tmp_path)
    assert (found["read"], found["failed"]) == (1, 1)
    assert (tmp_path / "image-0-1").read_bytes() == create_input("image", 0, 1)
    assert f"code {-signal.SIGSEGV}" in capsys.readouterr().out


def test_guard_sees_what_is_written_elsewhere(tmp_path):
    guard = fuzz.Guard(tmp_path / "inside")

    def write(name):
        (tmp_path / name).write_text("x")
        return "read"

    (tmp_path / "inside").mkdir()
    assert fuzz.check_input(lambda: write("inside/a"), guard)["outcome"] == "read"
    assert "reached beyond" in fuzz.check_input(lambda: write("b"), guard)["why"]
