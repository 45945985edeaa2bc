"""Times the augmentation of weak and strong pairs on one core: tf.data and the device pipeline.

python -m experiments.benchmarks.input --config configs/cifar10.py

Both take turns in one process that is bound to one core.
"""

import contextlib
import os
import statistics
import time
from collections.abc import Callable

import jax

from cls_jax.data.types import Dataset
from cls_jax.training.setup import create_train_setup
from cls_jax.training.step import make_batch_fn
from experiments.benchmarks.variants import create_inputs, create_random_dataset, create_spec
from experiments.paper import grid


def create_tf_timer(config, dataset: Dataset) -> Callable[[int], float]:
    """Times batches of tf.data, from a new stream each time.

    A stream kept open would make batches ahead while others have their turns.
    """
    from cls_jax.data.pipelines.tfdata import create_stream

    spec = create_spec(config)

    def run(num_batches: int) -> float:
        with contextlib.closing(create_stream(spec, dataset, 0, num_batches + 1)) as stream:
            next(stream)
            started = time.perf_counter()
            for _ in stream:
                pass
            return time.perf_counter() - started

    return run


def create_device_timer(config, dataset: Dataset) -> Callable[[int], float]:
    """Times the device pipeline, one batch repeated."""
    setup = create_train_setup(config, dataset.shape)
    state = setup.init_state()
    inputs, specs, create_batch = create_inputs("device", config, setup, dataset)
    make, data = make_batch_fn(setup, create_batch, specs), next(inputs)

    def run(num_batches: int) -> float:
        started = time.perf_counter()
        for _ in range(num_batches):
            jax.block_until_ready(make(state, data))
        return time.perf_counter() - started

    return run


def main() -> None:
    """Times all in turn and prints a table."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # Threads made later inherit it.
    parser = grid.create_parser(__doc__, "250", "runs/benchmark_pipelines.md")
    parser.add_argument("--blocks", type=int, default=5, help="turns of every pipeline")
    parser.add_argument("--batches", type=int, default=20, help="batches per block")
    arguments = grid.parse_arguments(parser)
    config = grid.create_config(arguments)
    config.mesh.network = config.mesh.data = 1
    dataset = create_random_dataset(config)
    timers = {"tf.data": create_tf_timer(config, dataset)}
    timers["device, on this CPU"] = create_device_timer(config, dataset)
    pairs = arguments.batches * config.batch_size * config.mu
    rates: dict[str, list[float]] = {name: [] for name in timers}
    for block in range(1 + arguments.blocks):
        for name, run in timers.items():
            rate = pairs / run(arguments.batches)
            if block:  # The first is warm-up.
                rates[name].append(rate)
    rows = [
        (name, f"{statistics.median(each):,.0f}", f"{min(each):,.0f} – {max(each):,.0f}")
        for name, each in rates.items()
    ]
    table = grid.format_table(("pipeline", "pairs/s on one core", "min – max"), rows)
    grid.write_page(arguments.output, "Pipelines", table)


if __name__ == "__main__":
    grid.run_main(main)
