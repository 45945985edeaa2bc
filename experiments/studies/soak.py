"""Stops training runs at random moments and compares their results with an uninterrupted run.

python -m experiments.studies.soak --stops 20 --steps 200 350 500 --config configs/digits.py:40

The same command is restarted after every stop until the run finishes. With several numbers of
steps, the finished run is then given more, and each number gets as many stops. Remaining stops go
to another run. Of four stops, one aims at the creation of the run's folder, two at a save, and one
at any time; the table shows what each one hit. Unlisted options go to main.py.
"""

import argparse
import collections
import itertools
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

from cls_jax.errors import UserError
from cls_jax.io import PARTIAL
from cls_jax.runs.folder import CONFIG, DATASET, LABELED_INDICES
from cls_jax.runs.sessions import LOCK
from experiments.paper import grid
from tests.outcomes import describe_difference, read_end

# The aims of stops, in turn.
AIMS = ("creation", "save", "any time", "save")
# Patterns for the files of a run's folder in the order in which every session writes them.
_FILES = (CONFIG, LABELED_INDICES, DATASET)
_CREATED = (LOCK, *(pattern for file in _FILES for pattern in (f"{file}*{PARTIAL}", file)))
_MARK_OF_A_SAVE = "*orbax-checkpoint-tmp*"


class Stop(NamedTuple):
    """One stop of a session."""

    aim: str  # An entry of `AIMS`.
    # "start" (imports, data), "creation" of the folder, "save" or "training" (everything else).
    hit: str
    code: int  # The exit code as Python counts it: -9 for SIGKILL.
    seconds: float  # Time from the signal to the end of the process.
    goal: str  # The last option of its command, such as the number of steps.


def start(options: list[str], workdir: pathlib.Path) -> subprocess.Popen:
    """Starts or resumes a run."""
    with workdir.with_suffix(".log").open("a") as log:
        command = [sys.executable, "main.py", *options, f"--workdir={workdir}"]
        return subprocess.Popen(command, stdout=log, stderr=log)


def list_saves(workdir: pathlib.Path, since: float) -> set[str]:
    """Saves in progress now, or when the session that began at `since` was killed."""
    folders = (workdir / "checkpoints").glob(_MARK_OF_A_SAVE)
    return {path.name for path in folders if _is_newer(path, since)}


def count_created(workdir: pathlib.Path, since: float) -> int:
    """The stages of the folder's creation reached by the session that began at `since`."""
    is_new = [any(_is_newer(path, since) for path in workdir.glob(each)) for each in _CREATED]
    return max((stage for stage, reached in enumerate(is_new, 1) if reached), default=0)


def _is_newer(path: pathlib.Path, since: float) -> bool:
    try:
        return path.stat().st_mtime > since
    except FileNotFoundError:  # Not yet there, or renamed in the meantime.
        return False


def locate(workdir: pathlib.Path, since: float) -> str:
    """The activity of the session that began at `since` when it was stopped, as in `Stop.hit`."""
    stage = count_created(workdir, since)
    if stage < len(_CREATED):
        return "creation" if stage else "start"
    return "save" if list_saves(workdir, since) else "training"


def wait_for_moment(
    aim: str, process: subprocess.Popen, workdir: pathlib.Path, since: float, longest: float
) -> None:
    """Returns at a random moment of the kind `aim`, or when the process has ended.

    A moment of "any time" is at most `longest` seconds after the session began at `since`.
    """
    stage, moment = random.randrange(1, len(_CREATED)), since + random.uniform(0.1, longest)
    saves_to_pass, seen, delay = random.randrange(3), set(), random.uniform(0, 0.1)

    def has_come() -> bool:
        if aim == "creation":
            return count_created(workdir, since) >= stage
        if aim == "any time":
            return time.time() >= moment
        seen.update(list_saves(workdir, since))
        return len(seen) > saves_to_pass

    while process.poll() is None and not has_come():
        time.sleep(0.0005)
    if aim == "save":
        time.sleep(delay)


def stop_once(
    options: list[str], workdir: pathlib.Path, number: signal.Signals, aim: str, longest: float
) -> Stop | None:
    """Starts or resumes a run and stops it. None if the run finished before.

    Raises:
        UserError: If the run failed before.
    """
    since = time.time()
    process = start(options, workdir)
    wait_for_moment(aim, process, workdir, since, longest)
    if process.poll():
        raise UserError(f"{workdir} ended by itself: see {workdir.with_suffix('.log')}.")
    process.send_signal(number)
    sent = time.monotonic()
    code = process.wait(300)
    if code == 0:
        return None
    return Stop(aim, locate(workdir, since), code, time.monotonic() - sent, options[-1])


def soak(
    commands: list[list[str]], folder: pathlib.Path, num_stops: int, number: signal.Signals
) -> tuple[list[Stop], list[str]]:
    """Stops runs `num_stops` times in all, lets each finish and compares it.

    The options of the commands differ in the number of steps, to which each continues the run.

    Returns:
        The stops, and for each run "equal" or what differs from the uninterrupted run.

    Raises:
        UserError: If a run does not finish.
    """
    reference = folder / "undisturbed"
    started = time.monotonic()
    for options in commands:
        start(options, reference).wait()
    longest = (time.monotonic() - started) / 3 / len(commands)
    expected = read_end(reference)
    # The next one also where a session has ended before: otherwise the same aim would miss the next
    # number of steps, too.
    aims = itertools.cycle(AIMS)
    stops: list[Stop] = []
    outcomes: list[str] = []
    while len(stops) < num_stops:
        workdir = folder / f"run{len(outcomes)}"
        for i, options in enumerate(commands, 1):
            while len(stops) < num_stops * i // len(commands):
                stop = stop_once(options, workdir, number, next(aims), longest)
                if stop is None:
                    break
                stops.append(stop)
                print(stop, flush=True)
            start(options, workdir).wait()
        outcomes.append(describe_difference(read_end(workdir), expected) or "equal")
        print(f"{workdir.name}: {outcomes[-1]}", flush=True)
    return stops, outcomes


def describe_stops(stops: list[Stop], outcomes: list[str], number: signal.Signals) -> str:
    """A summary and a row for each stop, as Markdown."""
    hits = collections.Counter(stop.hit for stop in stops)
    counts = ", ".join(f"{count} within {hit}" for hit, count in sorted(hits.items()))
    times = [stop.seconds for stop in stops]
    header = ("stop", "command", "aimed at", "hit", "exit code")
    rows = ((i, f"`{stop.goal}`", *stop[:3]) for i, stop in enumerate(stops, 1))
    lines = [
        f"- {len(stops)} times {number.name}: {counts}.",
        f"- {len(outcomes)} runs ended, {outcomes.count('equal')} of them with every row of "
        "metrics.jsonl but its timings, result.json but its seconds and every bit of the state as "
        "in the uninterrupted run.",
        f"- From the signal to the end: median {statistics.median(times):.2f} s, longest "
        f"{max(times):.2f} s.",
        *(f"- run {i} differs: {text}" for i, text in enumerate(outcomes) if text != "equal"),
        "",
        grid.format_table(header, rows),
    ]
    return "\n".join(lines)


def main() -> None:
    """Stops and compares runs, and writes the outcome."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stops", type=int, default=20)
    parser.add_argument("--signal", choices=["KILL", "TERM", "INT"], default="KILL")
    parser.add_argument(
        "--steps", type=int, nargs="+", help="num_steps, and more for a finished run"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed for the random stop times")
    parser.add_argument("--runs", default="runs/soak", help="a new folder for the runs")
    parser.add_argument("--output", default="runs/soak.md")
    arguments, options = parser.parse_known_args()
    random.seed(arguments.seed)
    folder = pathlib.Path(arguments.runs)
    if folder.exists():
        raise UserError(f"{folder} exists: pass a new folder as --runs.")
    folder.mkdir(parents=True)
    number = signal.Signals[f"SIG{arguments.signal}"]
    goals = [[f"--config.num_steps={steps}"] for steps in arguments.steps or ()] or [[]]
    commands = [options + goal for goal in goals]
    stops, outcomes = soak(commands, folder, arguments.stops, number)
    text = describe_stops(stops, outcomes, number)
    grid.write_page(arguments.output, "Runs stopped at random", text)
    if any(outcome != "equal" for outcome in outcomes):
        raise UserError(f"Runs differ: compare those in {folder}.")
    shutil.rmtree(folder)


if __name__ == "__main__":
    grid.run_main(main)
