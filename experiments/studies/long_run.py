"""Watches the memory, open files and threads of a training run for an hour.

python -m experiments.studies.long_run --minutes 60 --config configs/digits.py:40 [--config.KEY=…]

Every option after --minutes, --settle and --output goes to main.py. The run is stopped at the end;
slopes are least squares over the samples after the first --settle minutes.
"""

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import numpy as np

from cls_jax.errors import UserError
from experiments.paper import grid

_SAMPLE_SECONDS = 10
_KB_PER_MB = 1024


class Sample(NamedTuple):
    """Measurements of a process at one moment.

    Attributes:
        minutes: since the start.
        resident_mb: of its memory, in RAM.
        open_files: file descriptors.
        threads: of it.
        folder_mb: what the run's folder holds.
    """

    minutes: float
    resident_mb: float
    open_files: int
    threads: int
    folder_mb: float


def take_sample(pid: int, workdir: pathlib.Path, minutes: float) -> Sample:
    """Measures a running process through /proc."""
    process = pathlib.Path("/proc") / str(pid)
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return Sample(
        minutes=minutes,
        resident_mb=int(status["VmRSS"].split()[0]) / _KB_PER_MB,
        open_files=len(os.listdir(process / "fd")),
        threads=int(status["Threads"]),
        folder_mb=_measure_folder(workdir),
    )


def compute_slopes(samples: list[Sample]) -> Sample:
    """Change per minute of every quantity, by least squares."""
    values = np.array(samples, float)
    minutes = values[:, 0]
    return Sample(1.0, *(float(np.polyfit(minutes, column, 1)[0]) for column in values.T[1:]))


def watch(options: list[str], minutes: float) -> tuple[list[Sample], int]:
    """Starts main.py, samples it for the given time and stops it.

    Returns:
        The samples and the number of steps the run made.

    Raises:
        UserError: if the run ends before.
    """
    with tempfile.TemporaryDirectory() as folder:
        workdir = pathlib.Path(folder) / "run"
        log = pathlib.Path(folder) / "log"
        with log.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "main.py", *options, f"--workdir={workdir}"],
                stdout=file,
                stderr=file,
            )
            started, samples = time.monotonic(), []
            while (elapsed := (time.monotonic() - started) / 60) < minutes:
                if process.poll() is not None:
                    raise UserError(f"The run ended: {log.read_text().splitlines()[-1]}")
                samples.append(take_sample(process.pid, workdir, elapsed))
                time.sleep(_SAMPLE_SECONDS)
            process.send_signal(signal.SIGTERM)
            process.wait()
        steps = (workdir / "metrics.jsonl").read_text().splitlines()[-1]
    return samples, int(steps.split('"step": ')[1].split(",")[0])


def main() -> None:
    """Samples a run and prints the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--settle", type=float, default=5, help="minutes excluded from the slopes")
    parser.add_argument("--output", default="runs/long_run.md")
    arguments, options = parser.parse_known_args()
    samples, steps = watch(options, arguments.minutes)
    settled = [sample for sample in samples if sample.minutes >= arguments.settle]
    slopes = compute_slopes(settled)
    lines = [
        f"{steps:,} steps; {len(settled)} samples after the first {arguments.settle:g} minutes.\n",
        "| quantity | first | last | min | max | per minute |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in Sample._fields[1:]:
        values = [getattr(sample, name) for sample in settled]
        numbers = (values[0], values[-1], min(values), max(values))
        shown = " | ".join(f"{number:,.1f}" for number in numbers)
        lines.append(f"| {name} | {shown} | {getattr(slopes, name):+.3f} |")
    table = "\n".join(lines)
    grid.write_output(arguments.output, f"# A long run\n\n{grid.describe_provenance()}\n{table}\n")


def _measure_folder(folder: pathlib.Path) -> float:
    sizes = 0
    for path in folder.rglob("*"):
        try:
            sizes += path.lstat().st_size
        except FileNotFoundError:  # A checkpoint that has just been renamed or removed.
            continue
    return sizes / _KB_PER_MB**2


if __name__ == "__main__":
    grid.run_main(main)
