"""Times training over several processes on this machine, each bound to one core of its own.

python -m experiments.benchmark_processes --config configs/cifar10.py [--config.KEY=VALUE …]

Says what a second device gives: one network each (CLS), or half of a batch twice as large. On
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

import numpy as np

from cls_jax.errors import UserError
from cls_jax.metrics import read_metrics
from experiments import grid
from experiments.forms import create_random_dataset

# What is timed → method, processes, mesh of networks and data, batch in units of --config's.
_RUNS = {
    "one network on one core": ("fixmatch_nl_rw", 1, (1, 1), 1),
    "two networks on one core (CLS)": ("cls", 1, (1, 1), 1),
    "two networks on two cores, one each (CLS)": ("cls", 2, (2, 1), 1),
    "one network on two cores, twice the batch": ("fixmatch_nl_rw", 2, (1, 2), 2),
}


def write_random_images(path: pathlib.Path, config) -> None:
    """An .npz of noise of the configuration's sizes."""
    dataset = create_random_dataset(config)
    some = slice(0, 100)
    np.savez(
        path,
        train_images=dataset.train_images,
        train_labels=dataset.train_labels,
        test_images=dataset.train_images[some],
        test_labels=dataset.train_labels[some],
    )


def time_run(options: list[str], num_processes: int) -> float:
    """Median seconds a step of a run over so many processes, each on one core.

    Raises:
        UserError: if there are fewer cores, or a process fails.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < num_processes:
        raise UserError(f"{num_processes} processes need as many cores, here are {len(cores)}.")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as folder:
        workdir = pathlib.Path(folder) / "run"
        command = [sys.executable, "main.py", *options, f"--workdir={workdir}"]
        if num_processes > 1:
            command += [f"--coordinator_address={address}", f"--num_processes={num_processes}"]
        processes = []
        for i in range(num_processes):
            mine = [f"--process_id={i}"] if num_processes > 1 else []
            process = subprocess.Popen(
                ["taskset", "--cpu-list", str(cores[i]), *command, *mine],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            processes.append(process)
        errors = [process.communicate()[1] for process in processes]
        if any(process.returncode for process in processes):
            raise UserError(f"A process failed: {errors[0].splitlines()[-1]}")
        name = "perf/steps_per_second"
        rates = [row[name] for row in read_metrics(workdir) if name in row]
    return 1 / statistics.median(rates)


def main() -> None:
    """Times all runs in turn and prints a table."""
    parser = grid.create_parser(__doc__, "250", "runs/benchmark_processes.md")
    parser.add_argument("--blocks", type=int, default=3, help="turns of every run")
    parser.add_argument("--steps", type=int, default=20, help="steps of a run")
    arguments = grid.parse_arguments(parser)
    budget = arguments.budgets[0]
    config = grid.create_cell(arguments, budget, "cls", 0).config
    seconds = {name: [] for name in _RUNS}
    with tempfile.TemporaryDirectory() as folder:
        images = pathlib.Path(folder) / "noise.npz"
        write_random_images(images, config)
        for _ in range(arguments.blocks):
            for name, (method, num_processes, (network, data), scale) in _RUNS.items():
                options = [f"--config={arguments.config}:{budget},{method}"]
                options += [f"--config.{k}={v}" for k, v in arguments.overrides.items()]
                options += [
                    f"--config.batch_size={config.batch_size * scale}",
                    f"--config.mu={config.mu}",
                    f"--config.mesh.network={network}",
                    f"--config.mesh.data={data}",
                    f"--config.data.data_dir={images}",
                    f"--config.num_steps={arguments.steps}",
                    "--config.log_every=1",
                ]
                seconds[name].append(time_run(options, num_processes))
    first = statistics.median(next(iter(seconds.values())))
    lines = ["| run | s a step | least – most | times the first |", "| --- | --- | --- | --- |"]
    for name, values in seconds.items():
        middle, span = statistics.median(values), f"{min(values):.3f} – {max(values):.3f}"
        lines.append(f"| {name} | {middle:.3f} | {span} | {middle / first:.2f} |")
    table = "\n".join(lines)
    grid.write_output(arguments.output, f"# Processes\n\n{grid.describe_provenance()}\n{table}\n")
    pathlib.Path(arguments.output).with_suffix(".json").write_text(json.dumps(seconds, indent=1))


if __name__ == "__main__":
    grid.run_main(main)
