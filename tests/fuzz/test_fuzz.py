"""Damaged and hostile files are read, or refused with one of the project's own sentences.

Anything else is a failure: another exception, more than 5 s of CPU time, more than 1 GB, a change
outside the given folder, a process started, a connection, an object unpickled. Hypothesis makes the
inputs and shrinks one that fails. FUZZ_EXAMPLES=5000 reads that many of every kind.
"""

import os
import pathlib
import sys
import time
import warnings

import hypothesis
import pytest

from tests.conftest import ROOT
from tests.fuzz.inputs import create_inputs
from tests.fuzz.readers import READERS, try_to_read

pytestmark = pytest.mark.skipif(
    not pathlib.Path("/proc/self/clear_refs").exists(), reason="reads memory as Linux reports it"
)
# Images have the most code behind them. Folders and pages cost the most.
COUNTS = {"image": 200, "names": 10, "bomb": 8, "metrics.jsonl": 20}
MAX_SECONDS, MAX_BYTES = 5.0, 10**9
FORBIDDEN = {"os.exec", "os.posix_spawn", "os.system", "os.fork", "subprocess.Popen"}
FORBIDDEN |= {"pickle.find_class", "socket.connect"}
# What changes files → which arguments are its path and the folder from which that path leads.
CHANGING = {"os.chmod": (0, 2), "os.link": (1, 3), "os.mkdir": (0, 2), "os.remove": (0, 1)}
CHANGING |= {"os.rename": (1, 3), "os.rmdir": (0, 1), "os.symlink": (1, 2), "os.truncate": (0, 0)}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Guard:
    """Records what happens beyond one folder while it is entered."""

    def __init__(self, folder):
        self.folder, self.violations, self.is_active = str(folder), [], False
        sys.addaudithook(self._listen)  # For the rest of the process.

    def __enter__(self):
        self.is_active = True
        return self

    def __exit__(self, *_):
        self.is_active = False

    def _listen(self, event, arguments):
        if not self.is_active:
            return
        if event in FORBIDDEN:
            self.violations.append(event)
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            self._check(event, arguments[0])
        elif event in CHANGING:
            place, folder = CHANGING[event]
            head, tail = os.path.split(os.fsdecode(arguments[place]))  # The link, not its target.
            base = f"/proc/self/fd/{arguments[folder]}" if folder and arguments[folder] >= 0 else ""
            self._check(event, os.path.join(os.path.realpath(os.path.join(base, head)), tail))

    def _check(self, event, path):
        if isinstance(path, int) or os.fsdecode(path) == os.devnull:
            return
        real = os.path.abspath(os.fsdecode(path))
        real = os.path.realpath(real) if event == "open" else real
        if os.path.commonpath([self.folder, real]) != self.folder:
            self.violations.append(f"{event} {real}")


def check_input(read, guard):
    """Reads one input. Fails if it takes too much or reaches beyond its folder."""
    # CPU time, so that a busy machine makes no difference.
    before, started = reset_peak(), time.process_time()
    with guard:
        read()
    seconds, num_bytes = time.process_time() - started, read_peak() - before
    violations, guard.violations = guard.violations, []
    assert not violations
    assert seconds < MAX_SECONDS
    assert num_bytes < MAX_BYTES


def reset_peak():
    """Resident memory now, in bytes. The peak is counted from now on."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return read_peak()


def read_peak():
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM"))


@pytest.mark.parametrize("kind", sorted(READERS))
def test_damaged_input_is_read_or_refused(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(ROOT)
    guard = Guard(tmp_path.resolve())

    @hypothesis.seed(1)
    @hypothesis.settings(
        max_examples=int(os.environ.get("FUZZ_EXAMPLES", COUNTS.get(kind, 40))),
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
    )
    @hypothesis.given(create_inputs(kind))
    def read(content):
        check_input(lambda: try_to_read(kind, content, tmp_path), guard)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of odd metadata.
        try_to_read(kind, b"", tmp_path)  # Imports do not count.
        read()


def test_what_must_not_happen_is_noticed(tmp_path, monkeypatch):
    (tmp_path / "inside").mkdir()
    guard = Guard(tmp_path / "inside")
    check_input(lambda: (tmp_path / "inside" / "a").write_text("x"), guard)
    with pytest.raises(AssertionError, match=r"open .*/b"):
        check_input(lambda: (tmp_path / "b").write_text("x"), guard)
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[__name__], "MAX_BYTES", 10**7)
        with pytest.raises(AssertionError):
            # Far more than what another thread may give back meanwhile.
            check_input(lambda: len(b"x" * 5 * 10**8), guard)
    monkeypatch.setattr(sys.modules[__name__], "MAX_SECONDS", 1e-5)
    with pytest.raises(AssertionError):
        check_input(lambda: sum(range(10**6)), guard)
