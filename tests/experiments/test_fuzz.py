"""A few hundred damaged inputs of every kind; `python -m experiments.fuzz` has many more."""

import pathlib
import signal
import subprocess
import warnings

import pytest

from experiments import fuzz
from experiments.fuzz_readers import READERS

pytestmark = pytest.mark.skipif(
    not pathlib.Path("/proc/self/clear_refs").exists(), reason="reads memory as Linux reports it"
)
COUNTS = {"image": 400, "names": 20, "config.json": 40}


@pytest.fixture(autouse=True)
def in_its_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(fuzz.ROOT)


def read_inputs(kind, seed, count, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of odd metadata.
        return fuzz.read_inputs(kind, seed, count, folder)


@pytest.mark.parametrize("kind", sorted(set(READERS) - {"bomb"}))
def test_damaged_input_is_read_or_refused(tmp_path, kind):
    count = COUNTS.get(kind, 40)
    found = read_inputs(kind, 1, count, tmp_path)
    assert not found["why"], f"{found['why']}: {(tmp_path / 'last_input').read_bytes()[:300]}"
    assert found["read"] + found["refused"] == count


def test_inputs_are_the_same_for_the_same_seed(tmp_path, monkeypatch):
    def collect(seed):
        inputs = []
        monkeypatch.setattr(
            fuzz, "try_to_read", lambda kind, content, folder: inputs.append(content) or "read"
        )
        read_inputs("image", seed, 20, tmp_path)
        return inputs

    assert collect(1) == collect(1) != collect(2)


def test_a_failure_is_made_as_simple_as_possible_and_kept(tmp_path, monkeypatch):
    def fail_on_seven(kind, content, folder):
        assert b"7" not in content
        return "read"

    monkeypatch.setattr(fuzz, "try_to_read", fail_on_seven)
    found = read_inputs("override", 0, 300, tmp_path)
    assert found["failed"] == 1
    assert found["why"].startswith("AssertionError")
    assert (tmp_path / "last_input").read_bytes().endswith(b"=7")


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
    def start_worker(kind, seed, count, folder):
        command = ["sh", "-c", f"printf hostile > {folder}/last_input; kill -SEGV $$"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(fuzz, "start_worker", start_worker)
    found = fuzz.run_kind("image", 0, 2, tmp_path)
    assert (found["read"], found["failed"]) == (0, 1)
    assert (tmp_path / "image-0").read_bytes() == b"hostile"
    assert f"code {-signal.SIGSEGV}" in capsys.readouterr().out


def test_guard_sees_what_is_written_elsewhere(tmp_path):
    guard = fuzz.Guard(tmp_path / "inside")

    def write(name):
        (tmp_path / name).write_text("x")
        return "read"

    (tmp_path / "inside").mkdir()
    assert fuzz.check_input(lambda: write("inside/a"), guard)["outcome"] == "read"
    assert "reached beyond" in fuzz.check_input(lambda: write("b"), guard)["why"]
