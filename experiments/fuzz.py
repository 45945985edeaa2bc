"""Feeds damaged and hostile files to everything that reads files.

python -m experiments.fuzz [--images 20000] [--inputs 5000] [--seed 0] [--kinds image,config.json]

Hypothesis makes the inputs and shrinks one that fails. An input is read, or refused with one of the
project's own sentences; anything else is a failure: another exception, more than 5 s of CPU time,
more than 1 GB, a change outside the given folder, a process started, a connection, an object
unpickled, or the end of the process. Failures are saved under --failures; the exit code is then 1.
"""

import argparse
import contextlib
import faulthandler
import json
import os
import pathlib
import platform
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import hypothesis

from experiments.fuzz_inputs import BOMBS, create_inputs
from experiments.fuzz_readers import READERS, try_to_read

ROOT = pathlib.Path(__file__).parent.parent
MAX_SECONDS, MAX_BYTES = 5.0, 10**9
_HANG_SECONDS = 60
_LAST = "last_input"
# On top of the memory before an input is read, so that nothing can take the machine down.
_ADDRESS_SPACE = 4 * 2**30
_FORBIDDEN = ("os.exec", "os.posix_spawn", "os.system", "os.fork", "subprocess.Popen")
_FORBIDDEN += ("pickle.find_class", "socket.connect")
# What changes files → which arguments are its path and the folder from which that path leads.
_CHANGING = {"os.chmod": (0, 2), "os.link": (1, 3), "os.mkdir": (0, 2), "os.remove": (0, 1)}
_CHANGING |= {"os.rename": (1, 3), "os.rmdir": (0, 1), "os.symlink": (1, 2), "os.truncate": (0, 0)}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Guard:
    """Records what a program does to the world beyond one folder."""

    def __init__(self, folder: pathlib.Path):
        """Starts to listen, for the rest of the process."""
        self.folder, self.violations, self.is_active = str(folder), [], False
        sys.addaudithook(self._listen)

    def _listen(self, event: str, arguments: tuple) -> None:
        if not self.is_active:
            return
        if event in _FORBIDDEN:
            self.violations.append(event)
        elif event == "open" and _is_writing(arguments[2]):
            self._check(event, arguments[0])
        elif event in _CHANGING:
            place, folder = _CHANGING[event]
            head, tail = os.path.split(os.fsdecode(arguments[place]))  # The link, not its target.
            base = f"/proc/self/fd/{arguments[folder]}" if folder and arguments[folder] >= 0 else ""
            self._check(event, os.path.join(os.path.realpath(os.path.join(base, head)), tail))

    def _check(self, event: str, path: Any) -> None:
        if isinstance(path, int) or os.fsdecode(path) == os.devnull:
            return
        real = os.path.abspath(os.fsdecode(path))
        real = os.path.realpath(real) if event == "open" else real
        if os.path.commonpath([self.folder, real]) != self.folder:
            self.violations.append(f"{event} {real}")


def _is_writing(flags: Any) -> bool:
    return isinstance(flags, int) and bool(flags & _WRITING)


def check_input(read: Callable[[], str], guard: Guard | None = None) -> dict[str, Any]:
    """Reads one input and watches.

    Returns:
        outcome ("read", "refused" or "failed"), why it failed, seconds and bytes it took.
    """
    # CPU time, so that a busy machine makes no difference; a reader that waits forever is killed.
    before, started = _reset_peak(), time.process_time()
    why = ""
    if guard:
        guard.violations.clear()
        guard.is_active = True
    try:
        outcome = read()
    except BaseException as error:  # Including SystemExit.
        outcome, why = "failed", f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        if guard:
            guard.is_active = False
    seconds, num_bytes = time.process_time() - started, _read_peak() - before
    if guard and guard.violations:
        why = f"reached beyond its folder: {guard.violations[0]}"
    elif seconds > MAX_SECONDS:
        why = f"{seconds:.1f} s"
    elif num_bytes > MAX_BYTES:
        why = f"{num_bytes / 1e6:,.0f} MB"
    outcome = "failed" if why else outcome
    return {"outcome": outcome, "why": why, "seconds": seconds, "bytes": num_bytes}


def _reset_peak() -> int:
    """Resident memory now, in bytes; the peak is counted from now on."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return _read_peak()


def _read_peak() -> int:
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM"))


def read_inputs(
    kind: str, seed: int, count: int, folder: pathlib.Path, guard: Guard | None = None
) -> dict[str, Any]:
    """Reads inputs of a kind until one fails.

    Args:
        kind: of `READERS`.
        seed: the same one gives the same inputs.
        count: how many, at most.
        folder: for the files to read, and the last input.
        guard: records changes beyond the folder.

    Returns:
        How many were read, refused and failed (0 or 1), the largest seconds and bytes, and why the
        last input failed, which hypothesis has made as simple as it can; else "".
    """
    found: dict[str, Any] = {"read": 0, "refused": 0, "failed": 0, "seconds": 0.0, "bytes": 0}
    found["why"] = ""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
        report_multiple_bugs=False,
    )
    @hypothesis.given(create_inputs(kind))
    def read(content: bytes) -> None:
        (folder / _LAST).write_bytes(content)
        faulthandler.dump_traceback_later(_HANG_SECONDS, exit=True)
        outcome = check_input(lambda: try_to_read(kind, content, folder), guard)
        faulthandler.cancel_dump_traceback_later()
        found["seconds"] = max(found["seconds"], outcome["seconds"])
        found["bytes"] = max(found["bytes"], outcome["bytes"])
        if outcome["why"]:
            found["why"] = outcome["why"]
            raise AssertionError
        found[outcome["outcome"]] += 1

    # Flaky: such as one that took too long the first time only.
    with contextlib.suppress(AssertionError, hypothesis.errors.Flaky):
        read()
    return {**found, "failed": int(bool(found["why"]))}


def work(kind: str, seed: int, count: int, folder: pathlib.Path) -> None:
    """Reads inputs in a process of its own and prints the outcome as a line of JSON."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    sys.dont_write_bytecode = True
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    # Without limits: imports do not count.
    read_inputs(kind, seed, 3, folder)
    size = 4096 * int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (size + _ADDRESS_SPACE,) * 2)
    answers.write(json.dumps(read_inputs(kind, seed, count, folder, Guard(folder))) + "\n")
    answers.close()


def run_kind(kind: str, seed: int, count: int, failures: pathlib.Path) -> dict[str, Any]:
    """Reads inputs of a kind in another process and saves the one that fails, if any.

    Returns:
        As `read_inputs`; without counts if the process ended.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve()
        with start_worker(kind, seed, count, folder) as process:
            answer = process.stdout.read()
        found: dict[str, Any] = {"read": 0, "refused": 0, "failed": 1, "seconds": 0.0, "bytes": 0}
        found["why"] = f"the process ended with code {process.returncode}"
        found |= json.loads(answer or "{}")
        if found["failed"]:
            failures.mkdir(parents=True, exist_ok=True)
            path = failures / f"{kind.replace('/', '-')}-{seed}"
            path.write_bytes((folder / _LAST).read_bytes())
            print(f"failed: {path}: {found['why']}", flush=True)
    return found


def start_worker(kind: str, seed: int, count: int, folder: pathlib.Path) -> subprocess.Popen:
    """Starts a process that reads some inputs of a kind; see `work`."""
    command = [sys.executable, "-m", "experiments.fuzz", "--worker", kind, "--folder", str(folder)]
    command += ["--seed", str(seed), "--inputs", str(count)]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def describe(found: dict[str, dict[str, Any]]) -> str:
    """A table of the counts by kind."""
    lines = ["| kind | inputs | read | refused | failed | slowest, s | most memory, MB |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|")
    for kind, row in found.items():
        count = row["read"] + row["refused"] + row["failed"]
        lines.append(
            f"| {kind} | {count:,} | {row['read']:,} | {row['refused']:,} | {row['failed']:,} | "
            f"{row['seconds']:.2f} | {row['bytes'] / 1e6:,.0f} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Reads everything and prints the table; 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=20_000, help="number of damaged images")
    parser.add_argument("--inputs", type=int, default=5_000, help="number of every other kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(READERS))
    parser.add_argument("--failures", type=pathlib.Path, default=pathlib.Path("runs/fuzz"))
    for name in ("--worker", "--folder"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        folder = pathlib.Path(arguments.folder)
        work(arguments.worker, arguments.seed, arguments.inputs, folder)
        return 0
    found = {}
    started = time.perf_counter()
    for kind in arguments.kinds.split(","):
        counts = {"image": arguments.images, "bomb": len(BOMBS)}
        count = counts.get(kind, arguments.inputs)
        found[kind] = run_kind(kind, arguments.seed, count, arguments.failures)
        print(f"{kind}: {found[kind]}", flush=True)
    print(f"\n{describe(found)}\n")
    num_failed = sum(row["failed"] for row in found.values())
    print(f"{num_failed} failed; {time.perf_counter() - started:.0f} s, Python {_describe()}")
    return 1 if num_failed else 0


def _describe() -> str:
    import numpy
    import PIL

    return f"{platform.python_version()}, Pillow {PIL.__version__}, NumPy {numpy.__version__}"


if __name__ == "__main__":
    sys.exit(main())
