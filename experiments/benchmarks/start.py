"""Time from the command to the first finished step, cold and warm.

python -m experiments.benchmarks.start --config configs/cifar10.py [--config.KEY=VALUE …]

Cold: with an empty compilation cache. Warm: with the cache of the cold start.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

from cls_jax.errors import UserError
from cls_jax.runs.metrics import METRICS
from experiments.paper import grid


def time_first_step(options: list[str], cache: pathlib.Path) -> float:
    """Seconds from starting main.py until its first step has been written.

    Raises:
        UserError: If it ends before.
    """
    with tempfile.TemporaryDirectory() as folder:
        workdir = pathlib.Path(folder) / "run"
        command = [sys.executable, "main.py", *options, f"--workdir={workdir}"]
        started = time.perf_counter()
        process = subprocess.Popen(
            [*command, "--config.num_steps=1", "--config.log_every=1"],
            env=os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        metrics = workdir / METRICS
        while not (metrics.exists() and metrics.stat().st_size):
            if process.poll() is not None:
                raise UserError(process.stderr.read().strip().removeprefix("Error: "))
            time.sleep(0.02)
        seconds = time.perf_counter() - started
        process.kill()
        process.communicate()
    return seconds


def main() -> None:
    """Starts once cold and a few times warm, and prints both."""
    parser = grid.create_parser(__doc__, "250", "runs/benchmark_startup.md")
    parser.add_argument("--starts", type=int, default=3, help="warm starts")
    arguments = grid.parse_arguments(parser)
    grid.create_config(arguments)  # User errors show here.
    options = [f"--config={arguments.config}:{arguments.budgets[0]}"]
    options += [f"--config.{key}={value}" for key, value in arguments.overrides.items()]
    with tempfile.TemporaryDirectory() as cache:
        cold = time_first_step(options, pathlib.Path(cache))
        warm = [time_first_step(options, pathlib.Path(cache)) for _ in range(arguments.starts)]
    text = f"Cold {cold:.1f} s; warm {', '.join(f'{seconds:.1f}' for seconds in warm)} s."
    grid.write_page(arguments.output, "From the command to the first step", text)


if __name__ == "__main__":
    grid.run_main(main)
