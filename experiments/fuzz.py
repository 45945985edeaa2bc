"""Feeds damaged and hostile files to everything that reads files.

python -m experiments.fuzz [--images 20000] [--inputs 5000] [--seed 0] [--kinds image,config.json]

An input is a function of its kind, the seed and its number. It is read, or refused with one of the
project's own sentences; anything else is a failure: another exception, more than 5 s of the
processor, more than 1 GB, a change outside the given folder, a process started, a connection, an
object unpickled, or the end of the process. Failures are saved under --failures; the exit code is
then 1.
"""

import argparse
import collections
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

from experiments.fuzz_inputs import BOMBS, create_input
from experiments.fuzz_readers import READERS, try_to_read

ROOT = pathlib.Path(__file__).parent.parent
MAX_SECONDS, MAX_BYTES = 5.0, 10**9
_HANG_SECONDS = 60
_CHUNK = 2500  # Inputs a process.
# Beside what there is before an input is read, so that nothing can take the machine down.
_ADDRESS_SPACE = 4 * 2**30
_FORBIDDEN = ("os.exec", "os.posix_spawn", "os.system", "os.fork", "subprocess.Popen")
_FORBIDDEN += ("pickle.find_class", "socket.connect")
# What changes files → which arguments are its path and the folder from which that path leads.
_CHANGING = {"os.chmod": (0, 2), "os.link": (1, 3), "os.mkdir": (0, 2), "os.remove": (0, 1)}
_CHANGING |= {"os.rename": (1, 3), "os.rmdir": (0, 1), "os.symlink": (1, 2), "os.truncate": (0, 0)}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Guard:
    """Notes what a program does to the world beyond one folder."""

    def __init__(self, folder: pathlib.Path):
        """Begins to listen, for the rest of the process."""
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
    # Of the processor, so that a busy machine makes no difference; who waits for ever is ended.
    before, started = _reset_peak(), time.process_time()
    why = ""
    if guard:
        guard.violations.clear()
        guard.is_active = True
    try:
        outcome = read()
    except BaseException as error:  # Also what is no Exception, such as the end of the program.
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
    """Resident memory now, in bytes; from now on the peak counts anew."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return _read_peak()


def _read_peak() -> int:
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM"))


def work(kind: str, seed: int, first: int, stop: int) -> None:
    """Reads some inputs of a kind and prints a line of JSON about each: a process of its own."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    sys.dont_write_bytecode = True
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder).resolve()
        try_once(kind, create_input(kind, seed, 0), path)  # Imports count for nothing.
        size = 4096 * int(pathlib.Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (size + _ADDRESS_SPACE,) * 2)
        guard = Guard(path)
        for number in range(first, stop):
            content = create_input(kind, seed, number)
            faulthandler.dump_traceback_later(_HANG_SECONDS, exit=True)
            found = check_input(lambda: try_to_read(kind, content, path), guard)  # noqa: B023
            faulthandler.cancel_dump_traceback_later()
            answers.write(json.dumps({"number": number, **found}) + "\n")


def try_once(kind: str, content: bytes, folder: pathlib.Path) -> None:
    """Reads an input for what reading imports; whether it can be read is looked at later."""
    try:
        try_to_read(kind, content, folder)
    except Exception:
        return


def run_kind(kind: str, seed: int, count: int, failures: pathlib.Path) -> dict[str, Any]:
    """Reads all inputs of a kind, a process for every few thousand or until one ends.

    Returns:
        How many had which outcome, and the largest seconds and bytes.
    """
    counts = collections.Counter({"read": 0, "refused": 0, "failed": 0})
    slowest, largest, number = 0.0, 0, 0
    while number < count:
        stop = min(number + _CHUNK, count)
        with start_worker(kind, seed, number, stop) as process:
            for line in process.stdout:
                found = json.loads(line)
                counts[found["outcome"]] += 1
                slowest, largest = max(slowest, found["seconds"]), max(largest, found["bytes"])
                if found["outcome"] == "failed":
                    _save(kind, seed, number, found["why"], failures)
                number += 1
        if number < stop:  # It ended in the middle: at the input that it said nothing of.
            counts["failed"] += 1
            _save(kind, seed, number, f"the process ended with code {process.returncode}", failures)
            number += 1
    return {**counts, "seconds": slowest, "bytes": largest}


def start_worker(kind: str, seed: int, first: int, stop: int) -> subprocess.Popen:
    """Starts a process that reads some inputs of a kind; see `work`."""
    command = [sys.executable, "-m", "experiments.fuzz", "--worker", kind]
    command += ["--seed", str(seed), "--first", str(first), "--stop", str(stop)]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def _save(kind: str, seed: int, number: int, why: str, failures: pathlib.Path) -> None:
    failures.mkdir(parents=True, exist_ok=True)
    path = failures / f"{kind.replace('/', '-')}-{seed}-{number}"
    path.write_bytes(create_input(kind, seed, number))
    print(f"failed: {path}: {why}", flush=True)


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
    parser.add_argument("--images", type=int, default=20_000, help="mutated images")
    parser.add_argument("--inputs", type=int, default=5_000, help="of every other kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(READERS))
    parser.add_argument("--failures", type=pathlib.Path, default=pathlib.Path("runs/fuzz"))
    for name in ("--first", "--stop", "--worker"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker, arguments.seed, int(arguments.first), int(arguments.stop))
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
