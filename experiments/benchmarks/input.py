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
import numpy as np

from cls_jax.data.sampling import create_stream_spec
from cls_jax.data.types import Dataset
from cls_jax.methods import get_method
from cls_jax.training.setup import create_train_setup
from cls_jax.training.step import make_batch_fn
from experiments.benchmarks.variants import create_inputs, create_random_dataset
from experiments.paper import grid


def create_tf_timer(config, dataset: Dataset) -> Callable[[int], float]:
    """Times batches of tf.data, from a new stream each time.

    A stream kept open would make batches ahead while others have their turns.
    """
    from cls_jax.data.pipelines.tfdata import create_stream

    spec = _create_spec(config)

    def run(num_batches: int) -> float:
        with contextlib.closing(create_stream(spec, dataset, 0, num_batches + 1)) as stream:
            next(stream)
            started = time.perf_counter()
            for _ in stream:
                pass
            return time.perf_counter() - started

    return run


def create_device_timer(config, dataset: Dataset) -> Callable[[int], float]:
    """Times the device pipeline, on the same batch again and again."""
    setup = create_train_setup(config, dataset.shape)
    state = setup.init_state()
    inputs, specs, create_batch = create_inputs("device", config, setup, dataset)
    make, data = make_batch_fn(setup, create_batch, specs), next(inputs)
    return lambda num_batches: _time(lambda: jax.block_until_ready(make(state, data)), num_batches)


def _time(make: Callable[[], None], num_batches: int) -> float:
    started = time.perf_counter()
    for _ in range(num_batches):
        make()
    return time.perf_counter() - started


def _create_spec(config):
    labeled = np.arange(config.num_labels, dtype=np.int32)
    everything = np.arange(50_000, dtype=np.int32)
    method = get_method(config.method.name)
    return create_stream_spec(
        config, method.labeled_view, method.unlabeled_views, labeled, everything
    )


def main() -> None:
    """Times all in turn and prints a table."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # Threads made later inherit it.
    parser = grid.create_parser(__doc__, "250", "runs/benchmark_pipelines.md")
    parser.add_argument("--blocks", type=int, default=5, help="turns of every pipeline")
    parser.add_argument("--batches", type=int, default=20, help="batches per block")
    arguments = grid.parse_arguments(parser)
    config = grid.create_cell(arguments, arguments.budgets[0], "cls", 0).config
    config.mesh.network = config.mesh.data = 1
    dataset = create_random_dataset(config)
    timers = {"tf.data": create_tf_timer(config, dataset)}
    timers["device, on this CPU"] = create_device_timer(config, dataset)
    rates = time_in_turn(timers, arguments.blocks, arguments.batches)
    pairs = config.batch_size * config.mu
    rows = []
    for name, batches_per_second in rates.items():
        values = [pairs * rate for rate in batches_per_second]
        middle = statistics.median(values)
        rows.append((name, f"{middle:,.0f}", f"{min(values):,.0f} – {max(values):,.0f}"))
    table = grid.format_table(("pipeline", "pairs/s on one core", "min – max"), rows)
    grid.write_output(arguments.output, f"# Pipelines\n\n{grid.describe_provenance()}\n{table}\n")


def time_in_turn(
    timers: dict[str, Callable[[int], float]], num_blocks: int, num_batches: int
) -> dict[str, list[float]]:
    """Batches per second of each pipeline, one value per block."""
    rates = {name: [] for name in timers}
    for block in range(1 + num_blocks):
        for name, run in timers.items():
            seconds = run(num_batches)
            if block:  # The first is warm-up.
                rates[name].append(num_batches / seconds)
    return rates


if __name__ == "__main__":
    grid.run_main(main)
