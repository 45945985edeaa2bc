"""Stops training runs at random moments and compares their results with an uninterrupted run.

python -m experiments.soak --stops 50 --signal KILL --config configs/digits.py:20 [--config.KEY=…]

Every run is stopped several times. Every other stop waits for a save to begin and comes a moment
later; the others come at any time after the start. Options that are not listed go to main.py.
"""

import argparse
import dataclasses
import json
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from typing import Any

import jax
import numpy as np

from cls_jax.errors import UserError
from cls_jax.inference.restore import restore_run
from cls_jax.runs.folder import read_result
from cls_jax.runs.metrics import read_metrics
from experiments import grid

_STOPS_PER_RUN = 5
_POLL_SECONDS = 0.002
_GIVE_UP_SECONDS = 300
_MARK_OF_A_SAVE = "*orbax-checkpoint-tmp*"


@dataclasses.dataclass
class Outcome:
    """Counts so far."""

    stops: int = 0
    inside_saves: int = 0
    codes: dict[int, int] = dataclasses.field(default_factory=dict)
    seconds_to_leave: list[float] = dataclasses.field(default_factory=list)
    runs: int = 0
    different: list[str] = dataclasses.field(default_factory=list)


def start(options: list[str], workdir: pathlib.Path) -> subprocess.Popen:
    """Starts or resumes a run."""
    with workdir.with_suffix(".log").open("a") as log:
        command = [sys.executable, "main.py", *options, f"--workdir={workdir}"]
        return subprocess.Popen(command, stdout=log, stderr=log)


def is_saving(workdir: pathlib.Path) -> bool:
    """Whether a save is under way, or was when the run was killed."""
    return any((workdir / "checkpoints").glob(_MARK_OF_A_SAVE))


def stop_once(
    process: subprocess.Popen,
    workdir: pathlib.Path,
    number: signal.Signals,
    in_save: bool,
    longest: float,
    outcome: Outcome,
) -> bool:
    """Waits for a moment, sends the signal and waits for the end; False if the run was faster."""
    if in_save:
        # What an earlier kill left goes when the new session opens the checkpoints.
        has_begun = time.time()
        while process.poll() is None and not _is_new_save(workdir, has_begun):
            time.sleep(_POLL_SECONDS)
        time.sleep(random.uniform(0, 0.02))
    else:
        moment = time.monotonic() + random.uniform(0.1, longest)
        while process.poll() is None and time.monotonic() < moment:
            time.sleep(_POLL_SECONDS)
    if process.poll() is not None:
        return False
    process.send_signal(number)
    sent = time.monotonic()
    code = process.wait(_GIVE_UP_SECONDS)
    if code == 0:
        return False
    outcome.stops += 1
    outcome.codes[code] = outcome.codes.get(code, 0) + 1
    outcome.seconds_to_leave.append(time.monotonic() - sent)
    outcome.inside_saves += in_save and is_saving(workdir)
    return True


def _is_new_save(workdir: pathlib.Path, since: float) -> bool:
    for path in (workdir / "checkpoints").glob(_MARK_OF_A_SAVE):
        try:
            if path.stat().st_mtime > since:
                return True
        except FileNotFoundError:  # Completed in the meantime.
            continue
    return False


def read_end(workdir: pathlib.Path) -> dict[str, Any]:
    """The outcome of a run, without its timings."""
    result = read_result(workdir)
    if result is None:
        raise UserError(f"{workdir} did not end: see {workdir.with_suffix('.log')}.")
    rows = [
        {key: value for key, value in row.items() if not key.startswith("perf/")}
        for row in read_metrics(workdir)
    ]
    _, state, _ = restore_run(workdir)
    return {
        "result": {key: value for key, value in result.items() if key != "train_seconds"},
        "metrics": rows,
        "state": [np.asarray(leaf) for leaf in jax.tree.leaves(jax.device_get(state))],
    }


def describe_difference(end: dict[str, Any], expected: dict[str, Any]) -> str | None:
    """The first difference between two outcomes, or None."""
    for key in ("result", "metrics"):
        if json.dumps(end[key]) != json.dumps(expected[key]):
            return key
    pairs = zip(end["state"], expected["state"], strict=True)
    if any(a.tobytes() != b.tobytes() for a, b in pairs):
        return "state"
    return None


def soak(
    options: list[str], folder: pathlib.Path, num_stops: int, number: signal.Signals
) -> Outcome:
    """Stops runs `num_stops` times in all, lets each finish and compares it.

    Raises:
        UserError: if a run does not end.
    """
    reference = folder / "undisturbed"
    started = time.monotonic()
    start(options, reference).wait()
    longest = 0.8 * (time.monotonic() - started)
    expected = read_end(reference)
    outcome = Outcome()
    while outcome.stops < num_stops:
        workdir = folder / f"run{outcome.runs}"
        until = min(num_stops, outcome.stops + _STOPS_PER_RUN)
        was_stopped = True
        while was_stopped and outcome.stops < until:
            in_save = outcome.stops % 2 == 0
            process = start(options, workdir)
            was_stopped = stop_once(process, workdir, number, in_save, longest, outcome)
        start(options, workdir).wait()
        difference = describe_difference(read_end(workdir), expected)
        if difference:
            outcome.different.append(f"{workdir.name}: {difference}")
        else:
            shutil.rmtree(workdir)
        outcome.runs += 1
        print(
            f"{outcome.stops} stops, {outcome.inside_saves} inside a save, {outcome.runs} runs, "
            f"{len(outcome.different)} differ",
            flush=True,
        )
    return outcome


def describe_outcome(outcome: Outcome, number: signal.Signals) -> str:
    """A few lines of Markdown."""
    codes = ", ".join(f"{code} ({count})" for code, count in sorted(outcome.codes.items()))
    times = outcome.seconds_to_leave
    lines = [
        f"- {outcome.stops} times {number.name}, {outcome.inside_saves} of them inside a save.",
        f"- {outcome.runs} runs finished, {outcome.runs - len(outcome.different)} with "
        "every row of metrics.jsonl but its timings, result.json but its seconds and every bit of "
        "the state as in the uninterrupted run.",
        f"- Exit codes as Python counts them: {codes}.",
        f"- From the signal to the end: median {statistics.median(times):.2f} s, longest "
        f"{max(times):.2f} s.",
    ]
    lines += [f"- Differs: {difference}" for difference in outcome.different]
    return "\n".join(lines)


def main() -> None:
    """Stops and compares runs, and writes the outcome."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stops", type=int, default=50)
    parser.add_argument("--signal", choices=["KILL", "TERM", "INT"], default="KILL")
    parser.add_argument("--seed", type=int, default=0, help="seed for the random stop times")
    parser.add_argument("--runs", default="runs/soak", help="a new folder for the runs")
    parser.add_argument("--output", default="runs/soak.md")
    arguments, options = parser.parse_known_args()
    random.seed(arguments.seed)
    folder = pathlib.Path(arguments.runs)
    if folder.exists():
        raise UserError(f"{folder} exists: give --runs a new folder.")
    folder.mkdir(parents=True)
    number = signal.Signals[f"SIG{arguments.signal}"]
    outcome = soak(options, folder, arguments.stops, number)
    text = f"{grid.describe_provenance()}\n{describe_outcome(outcome, number)}\n"
    grid.write_output(arguments.output, f"# Runs stopped at random\n\n{text}")
    if outcome.different:
        raise UserError(f"{len(outcome.different)} runs differ: see {folder}.")


if __name__ == "__main__":
    grid.run_main(main)
