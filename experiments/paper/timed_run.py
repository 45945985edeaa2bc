"""Trains a configuration so that its last step falls at a given time, as where a device is lent.

python -m experiments.paper.timed_run --config configs/cifar10.py --budgets 250 --method cls \
    --workdir RUN --until SECONDS_SINCE_1970

A short run is made twice, the first time to compile. The long one then has as many steps as fit, is
evaluated and saved after every tenth of them, and its learning rate ends with the last one. A run
that the folder has already is resumed with its own length. Any --config.KEY=VALUE of main.py is
accepted.
"""

import pathlib
import tempfile
import time
from collections.abc import Callable
from unittest import mock

from ml_collections import ConfigDict

from cls_jax.config import read_config, with_values
from cls_jax.data.datasets import load_dataset
from cls_jax.data.types import Dataset
from cls_jax.parallel import compilation
from cls_jax.runs.folder import CONFIG
from cls_jax.training.loop import run_training
from cls_jax.training.prepare import resolve_model
from experiments.paper import grid

_NUM_EVALUATIONS = 10
_NUM_ROWS = 300  # Of the metrics.


def choose_length(seconds: float, fixed: float, step: float) -> int:
    """The number of steps with which a run takes so many seconds, `fixed` ones without its steps.

    A multiple of the number of evaluations, the last of which follows the last step.
    """
    return max(int((seconds - fixed) / step) // _NUM_EVALUATIONS, 1) * _NUM_EVALUATIONS


def set_length(config: ConfigDict, num_steps: int) -> ConfigDict:
    """The configuration with so many steps."""
    every = num_steps // _NUM_EVALUATIONS
    lengths = {"num_steps": num_steps, "eval_every": every, "checkpoint_every": every}
    return with_values(config, {**lengths, "log_every": max(num_steps // _NUM_ROWS, 1)})


def time_run(
    config: ConfigDict, num_steps: int, load: Callable[[ConfigDict], Dataset]
) -> tuple[float, float]:
    """The seconds that a run of so many steps takes without its steps, and a step.

    It is compiled as a long one is.
    """
    began = time.perf_counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(compilation, "_MIN_TUNED_RUNS", num_steps),
    ):
        result, _ = run_training(set_length(config, num_steps), pathlib.Path(folder) / "run", load)
    seconds = result["train_seconds"]
    return time.perf_counter() - began - seconds, seconds / num_steps


def choose_config(
    config: ConfigDict,
    workdir: pathlib.Path,
    until: float,
    num_timed: int,
    load: Callable[[ConfigDict], Dataset],
) -> ConfigDict:
    """The configuration of the run in a folder, or of one that ends at a time, in epoch seconds."""
    if (workdir / CONFIG).exists():
        stored = read_config(workdir / CONFIG)
        kept = ("num_steps", "eval_every", "checkpoint_every", "log_every")
        return with_values(config, {name: stored[name] for name in kept})
    compiling, _ = time_run(config, num_timed, load)
    fixed, step = time_run(config, num_timed, load)
    num_steps = choose_length(until - time.time(), fixed, step)
    print(
        f"{num_steps:,} steps of {1e3 * step:.2f} ms, {fixed:.0f} s for everything else, and "
        f"{compiling - fixed:.0f} s to compile.",
        flush=True,
    )
    return set_length(config, num_steps)


def main() -> None:
    """Trains one run."""
    parser = grid.create_parser(__doc__, budgets="250", output="")
    parser.add_argument("--method", default="cls", help="its name")
    parser.add_argument("--workdir", required=True, help="the run's folder")
    parser.add_argument("--until", type=float, required=True, help="seconds since 1970")
    parser.add_argument("--timed", type=int, default=200, help="steps of the short run")
    arguments = grid.parse_arguments(parser)
    (budget, *_), (seed, *_) = arguments.budgets, arguments.seeds
    config = resolve_model(grid.create_cell(arguments, budget, arguments.method, seed).config)
    workdir, dataset = pathlib.Path(arguments.workdir), load_dataset(config)

    def load(_: ConfigDict) -> Dataset:
        return dataset  # Only the number of steps changes.

    config = choose_config(config, workdir, arguments.until, arguments.timed, load)
    result, _ = run_training(config, workdir, load)
    left = arguments.until - time.time()
    print(f"{result['test_accuracy']:.2f}% after {result['step']:,} steps, {left:.0f} s to spare.")


if __name__ == "__main__":
    grid.run_main(main)
