"""Trains a configuration so that its last step falls at a given time, as where a device is lent.

python -m experiments.paper.timed_run --config configs/cifar10.py --budgets 250 --method cls \
    --workdir RUN --until SECONDS_SINCE_1970

The step is compiled and timed first. The run then has as many steps as fit, is evaluated and saved
after every tenth of them, and its learning rate ends with the last one. A run that the folder has
already is resumed with its own length. Any --config.KEY=VALUE of main.py is accepted.
"""

import contextlib
import pathlib
import time
from typing import NamedTuple

import jax
from ml_collections import ConfigDict

from cls_jax.config import read_config, with_values
from cls_jax.data.datasets import load_dataset
from cls_jax.data.pipelines import create_pipeline
from cls_jax.runs.folder import CONFIG
from cls_jax.training.evaluate import create_evaluate
from cls_jax.training.loop import run_training
from cls_jax.training.prepare import WEIGHT_READERS, prepare_run, resolve_model
from cls_jax.training.step import compile_step, create_train_step
from experiments.paper import grid

_NUM_STEPS = 200
_NUM_EVALUATIONS = 10
_NUM_ROWS = 300  # Of the metrics.
_SHARE = 0.97  # Of the time that is left for steps: metrics and checkpoints take some.


class Times(NamedTuple):
    """Seconds that the parts of a run take."""

    start: float  # Loading the data, and compiling what has been compiled before.
    compiling: float  # The step, for the first time.
    step: float
    evaluation: float


def measure(config: ConfigDict, workdir: pathlib.Path, num_steps: int = _NUM_STEPS) -> Times:
    """Compiles the step and the evaluation of a run, and takes a few steps. Writes nothing.

    The run finds the programs in the cache of compiled programs.
    """
    began = time.perf_counter()
    prepared = prepare_run(config, workdir, load_dataset, WEIGHT_READERS)
    setup, dataset, spec, _ = prepared
    inputs, specs, create_batch = create_pipeline(spec, dataset, setup.mesh, 0, num_steps + 1)
    with contextlib.closing(inputs):
        state, schedule, found = setup.init_state(), setup.put_schedule(), next(inputs)
        device, compiling = jax.local_devices()[0], list[float]()
        loading = time.perf_counter() - began
        for _ in range(2):
            step = create_train_step(setup, create_batch, specs)
            compiled, seconds, _ = compile_step(step, state, found, schedule, device)
            compiling.append(seconds)
        state, metrics = compiled(state, found, schedule)
        jax.block_until_ready((state, metrics))
        began = time.perf_counter()
        for _ in range(num_steps):
            state, metrics = compiled(state, next(inputs), schedule)
        jax.block_until_ready((state, metrics))
        stepping = (time.perf_counter() - began) / num_steps
    evaluate, seconds = create_evaluate(setup, [len(dataset.test)]), []
    for _ in range(2):
        began = time.perf_counter()
        evaluate(state, dataset.test.images, dataset.test.labels)
        seconds.append(time.perf_counter() - began)
    return Times(loading + compiling[1], compiling[0], stepping, seconds[1])


def choose_length(seconds: float, times: Times) -> int:
    """The number of steps with which the last one ends in so many seconds.

    A multiple of the number of evaluations, the last of which follows the last step.
    """
    left = seconds - times.start - (_NUM_EVALUATIONS - 1) * times.evaluation
    return max(int(_SHARE * left / times.step) // _NUM_EVALUATIONS, 1) * _NUM_EVALUATIONS


def choose_config(config: ConfigDict, workdir: pathlib.Path, until: float) -> ConfigDict:
    """The configuration of the run in a folder, or of one that ends at a time, in epoch seconds."""
    if (workdir / CONFIG).exists():
        stored = read_config(workdir / CONFIG)
        every = {name: stored[name] for name in ("eval_every", "checkpoint_every", "log_every")}
        return with_values(config, {"num_steps": stored.num_steps, **every})
    times = measure(config, workdir)
    num_steps = choose_length(until - time.time(), times)
    every = num_steps // _NUM_EVALUATIONS
    print(
        f"{num_steps:,} steps: {1e3 * times.step:.2f} ms each, {times.evaluation:.1f} s per "
        f"evaluation, {times.compiling:.0f} s to compile.",
        flush=True,
    )
    lengths = {"num_steps": num_steps, "eval_every": every, "checkpoint_every": every}
    return with_values(config, {**lengths, "log_every": max(num_steps // _NUM_ROWS, 1)})


def main() -> None:
    """Trains one run."""
    parser = grid.create_parser(__doc__, budgets="250", output="")
    parser.add_argument("--method", default="cls", help="its name")
    parser.add_argument("--workdir", required=True, help="the run's folder")
    parser.add_argument("--until", type=float, required=True, help="seconds since 1970")
    arguments = grid.parse_arguments(parser)
    (budget, *_), (seed, *_) = arguments.budgets, arguments.seeds
    config = resolve_model(grid.create_cell(arguments, budget, arguments.method, seed).config)
    workdir = pathlib.Path(arguments.workdir)
    config = choose_config(config, workdir, arguments.until)
    result, _ = run_training(config, workdir)
    left = arguments.until - time.time()
    print(f"{result['test_accuracy']:.2f}% after {result['step']:,} steps, {left:.0f} s to spare.")


if __name__ == "__main__":
    grid.run_main(main)
