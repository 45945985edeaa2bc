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

from tests.fuzz.inputs import create_inputs
from tests.fuzz.readers import READERS, try_to_read

pytestmark = pytest.mark.skipif(
    not pathlib.Path("/proc/self/clear_refs").exists(), reason="reads memory as Linux reports it"
)
# Images have the most code behind them. Pages cost the most.
COUNTS = {"image": 200, "bomb": 8, "metrics.jsonl": 20}
MAX_SECONDS, MAX_BYTES = 5.0, 10**9
FORBIDDEN = {"os.exec", "os.posix_spawn", "os.system", "os.fork", "subprocess.Popen"}
FORBIDDEN |= {"pickle.find_class", "socket.connect"}
FORBIDDEN |= {"os.chmod", "os.link", "os.remove", "os.rename", "os.rmdir", "os.symlink"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Guard:
    """Fails if what happens while it is entered reaches beyond a folder, or takes too much."""

    def __init__(self, folder):
        self.folder, self.violations, self.is_active = str(folder), [], False
        sys.addaudithook(self._listen)  # For the rest of the process.

    def __enter__(self):
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # The peak is counted from now on.
        # CPU time, so that a busy machine makes no difference.
        self.before, self.started, self.is_active = read_peak(), time.process_time(), True

    def __exit__(self, *_):
        self.is_active = False
        violations, self.violations = self.violations, []
        assert not violations
        assert time.process_time() - self.started < MAX_SECONDS
        assert read_peak() - self.before < MAX_BYTES, "bytes"

    def _listen(self, event, arguments):
        if not self.is_active:
            return
        if event in FORBIDDEN:
            self.violations.append(event)
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            path = arguments[0]
            if not isinstance(path, int) and os.fsdecode(path) != os.devnull:
                real = os.path.realpath(os.fsdecode(path))
                if os.path.commonpath([self.folder, real]) != self.folder:
                    self.violations.append(f"{event} {real}")


def read_peak():
    """The most resident memory so far, in bytes."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


@pytest.mark.parametrize("kind", sorted(READERS))
def test_damaged_input_is_read_or_refused(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
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
        with guard:
            try_to_read(kind, content, tmp_path)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of odd metadata.
        try_to_read(kind, b"", tmp_path)  # Imports do not count.
        read()


def test_what_must_not_happen_is_noticed(tmp_path):
    (tmp_path / "inside").mkdir()
    guard = Guard(tmp_path / "inside")
    with guard:
        (tmp_path / "inside" / "a").write_text("x")
    with pytest.raises(AssertionError, match=r"open .*/b"), guard:
        (tmp_path / "b").write_text("x")
    with pytest.raises(AssertionError, match="bytes"), guard:
        assert len(b"x" * 15 * 10**8)
