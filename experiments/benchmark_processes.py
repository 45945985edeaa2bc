"""Training speed with several processes on this machine, each pinned to its own core.

python -m experiments.benchmark_processes --config configs/cifar10.py [--config.KEY=VALUE …]

Shows the gain from a second device: one network each (CLS), or half of a batch twice as large. On
random images, through the whole training loop.
"""

import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
from typing import NamedTuple

import numpy as np

from cls_jax.errors import UserError
from cls_jax.runs.metrics import read_metrics
from experiments import grid
from experiments.step_variants import create_random_dataset

_LOG_EVERY = 4


class Run(NamedTuple):
    """What is timed.

    Attributes:
        method: by its name in the configuration.
        num_processes: started at once, each on one core.
        mesh: devices of the axes network and data; None where each process trains alone.
        batch: in units of the configuration's.
    """

    method: str
    num_processes: int
    mesh: tuple[int, int] | None
    batch: int = 1


_ONE_NETWORK = "fixmatch_nl_rw"  # The loss of CLS for a single network that labels for itself.
_RUNS = {
    "one network on one core": Run(_ONE_NETWORK, 1, None),
    # The cost of sharing memory and caches between cores, whatever the program.
    "one network on each of two cores, apart": Run(_ONE_NETWORK, 2, None),
    "two networks on two cores, one each (CLS)": Run("cls", 2, (2, 1)),
    "two networks on one core (CLS)": Run("cls", 1, None),
    "one network on two cores, twice the batch": Run(_ONE_NETWORK, 2, (1, 2), batch=2),
}


def write_random_images(path: pathlib.Path, config) -> None:
    """Writes an .npz of noise with the configuration's sizes."""
    dataset = create_random_dataset(config)
    some = slice(0, 100)
    np.savez(
        path,
        train_images=dataset.train_images,
        train_labels=dataset.train_labels,
        test_images=dataset.train_images[some],
        test_labels=dataset.train_labels[some],
    )


def time_run(options: list[str], num_processes: int, joined: bool) -> float:
    """Median seconds per step of a run with several processes, each on one core.

    Args:
        options: of main.py.
        num_processes: to start at once.
        joined: whether they train together, else each alone; then the mean over them.

    Raises:
        UserError: if there are fewer cores, or a process fails.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < num_processes:
        raise UserError(
            f"{num_processes} processes need as many cores, but this machine has {len(cores)}."
        )
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as folder:
        processes, workdirs = [], []
        for i in range(num_processes):
            workdir = pathlib.Path(folder) / ("run" if joined else f"run{i}")
            command = [sys.executable, "main.py", *options, f"--workdir={workdir}"]
            if joined:
                command += [
                    f"--coordinator_address={address}",
                    f"--num_processes={num_processes}",
                    f"--process_id={i}",
                ]
            process = subprocess.Popen(
                ["taskset", "--cpu-list", str(cores[i]), *command],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            processes.append(process)
            workdirs.append(workdir)
        errors = [process.communicate()[1] for process in processes]
        if any(process.returncode for process in processes):
            raise UserError(f"A process failed: {errors[0].splitlines()[-1]}")
        return statistics.mean(read_step_seconds(workdir) for workdir in set(workdirs))


def read_step_seconds(workdir: pathlib.Path) -> float:
    """Median seconds per step of a finished run."""
    name = "perf/steps_per_second"
    return 1 / statistics.median(row[name] for row in read_metrics(workdir) if name in row)


def main() -> None:
    """Times all runs in turn and prints a table."""
    parser = grid.create_parser(__doc__, "250", "runs/benchmark_processes.md")
    parser.add_argument("--blocks", type=int, default=3, help="repetitions of every run")
    parser.add_argument("--steps", type=int, default=20, help="steps per run")
    arguments = grid.parse_arguments(parser)
    budget = arguments.budgets[0]
    config = grid.create_cell(arguments, budget, "cls", 0).config
    seconds = {name: [] for name in _RUNS}
    with tempfile.TemporaryDirectory() as folder:
        images = pathlib.Path(folder) / "noise.npz"
        write_random_images(images, config)
        for _ in range(arguments.blocks):
            for name, run in _RUNS.items():
                network, data = run.mesh or (1, 1)
                options = [f"--config={arguments.config}:{budget},{run.method}"]
                options += [f"--config.{k}={v}" for k, v in arguments.overrides.items()]
                options += [
                    f"--config.batch_size={config.batch_size * run.batch}",
                    f"--config.mu={config.mu}",
                    f"--config.mesh.network={network}",
                    f"--config.mesh.data={data}",
                    f"--config.data.data_dir={images}",
                    f"--config.num_steps={arguments.steps}",
                    f"--config.log_every={_LOG_EVERY}",
                ]
                seconds[name].append(time_run(options, run.num_processes, run.mesh is not None))
    first = statistics.median(next(iter(seconds.values())))
    lines = ["| run | s per step | min – max | times the first |", "| --- | --- | --- | --- |"]
    for name, values in seconds.items():
        middle, span = statistics.median(values), f"{min(values):.3f} – {max(values):.3f}"
        lines.append(f"| {name} | {middle:.3f} | {span} | {middle / first:.2f} |")
    table = "\n".join(lines)
    grid.write_output(arguments.output, f"# Processes\n\n{grid.describe_provenance()}\n{table}\n")
    pathlib.Path(arguments.output).with_suffix(".json").write_text(json.dumps(seconds, indent=1))


if __name__ == "__main__":
    grid.run_main(main)
