"""Depthwise convolutions on this device: lowered as grouped ones, or as sums of shifted products.

python -m experiments.benchmarks.depthwise --images 128 --types "float32 bfloat16"

For some layers of EfficientNet-Lite0 at 224 pixels: milliseconds of the forward pass and of both
gradients by each lowering, and the seconds that it takes to compile it.
"""

import argparse
import concurrent.futures
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cls_jax.models import convolutions
from cls_jax.parallel import compilation
from experiments.paper import grid

# Pixels, channels, size of the filters, stride.
LAYERS = ((112, 32, 3, 1), (112, 96, 3, 2), (28, 240, 5, 1), (14, 672, 5, 1), (7, 1152, 5, 1))
_BLOCKS = 3


class Program(NamedTuple):
    """A program of one pass through one layer by one lowering."""

    layer: tuple[int, int, int, int]
    dtype: str
    part: str  # Forward, or the gradient of the images or of the filters.
    lowering: str
    function: Callable[..., Any]
    arguments: tuple[jax.Array, ...]


def list_programs(num_images: int, dtypes: list[str]) -> Iterator[Program]:
    """All programs, with random arguments."""
    for layer in LAYERS:
        for dtype in dtypes:
            size, channels, k, stride = layer
            keys = jax.random.split(jax.random.key(0), 3)
            images = jax.random.normal(keys[0], (num_images, size, size, channels), dtype)
            filters = jax.random.normal(keys[1], (k, k, 1, channels), dtype)
            out = -(-size // stride)
            y_bar = jax.random.normal(keys[2], (num_images, out, out, channels), dtype)
            for part, lowering, function in list_functions(stride):
                arguments = (images, filters) if part == "forward" else (images, filters, y_bar)
                yield Program(layer, dtype, part, lowering, function, arguments)


def list_functions(stride: int) -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """The part, the platform, and a function of images, filters and the result's gradient.

    Each lowering of a part comes once, with the first platform that has it.
    """
    options = {"stride": stride, "is_centered": False}
    seen: set[Callable[..., Any]] = set()
    for name, lowering in convolutions.LOWERINGS.items():
        if lowering.forward not in seen:
            yield "forward", name, functools.partial(lowering.forward, **options)
        if lowering.backward not in seen:
            pull = functools.partial(lowering.backward, **options)
            # What is not returned is not computed.
            yield "images", name, lambda *given, pull=pull: pull(*given)[0]
            yield "filters", name, lambda *given, pull=pull: pull(*given)[1]
        seen |= {lowering.forward, lowering.backward}


def compile_program(program: Program, is_tuned: bool) -> tuple[Any, float]:
    """The compiled program, and the seconds that it took."""
    lowered = jax.jit(program.function).lower(*program.arguments)
    started = time.perf_counter()
    compiled = lowered.compile(None if is_tuned else compilation.choose_options(runs=1) or None)
    return compiled, time.perf_counter() - started


def time_program(compiled: Any, arguments: tuple[jax.Array, ...], repeat: int) -> float:
    """Seconds of a run, in the fastest of a few blocks."""
    jax.block_until_ready(compiled(*arguments))
    blocks = []
    for _ in range(_BLOCKS):
        started = time.perf_counter()
        for _ in range(repeat):
            result = compiled(*arguments)
        jax.block_until_ready(result)
        blocks.append((time.perf_counter() - started) / repeat)
    return min(blocks)


def main() -> None:
    """Compiles all programs in threads, times one after another, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--types", default="float32 bfloat16", help="space-separated")
    parser.add_argument("--repeat", type=int, default=20, help="runs of a block")
    parser.add_argument("--threads", type=int, default=8, help="programs to compile at a time")
    parser.add_argument("--tuned", action="store_true", help="compile as for many runs")
    parser.add_argument("--output", default="runs/depthwise.md")
    arguments = parser.parse_args()
    programs = list(list_programs(arguments.images, arguments.types.split()))
    with concurrent.futures.ThreadPoolExecutor(arguments.threads) as pool:
        compiled = list(pool.map(lambda p: compile_program(p, arguments.tuned), programs))
    header = ["layer", "type", "pass", "lowered as for", "ms", "GB/s", "compiled in"]
    rows = []
    for program, (executable, seconds) in zip(programs, compiled, strict=True):
        took = time_program(executable, program.arguments, arguments.repeat)
        size, channels, k, stride = program.layer
        # Of the images and of the result or its gradient, read or written once each.
        out = -(-size // stride)
        values = arguments.images * channels * (size**2 + out**2)
        moved = values * jnp.dtype(program.dtype).itemsize
        name = f"{size} pixels, {channels} channels, {k} x {k}, stride {stride}"
        row = [name, program.dtype, program.part, program.lowering]
        rows.append([*row, f"{1e3 * took:.3f}", f"{moved / took / 1e9:.0f}", f"{seconds:.1f} s"])
    text = f"{arguments.images} images.\n\n{grid.format_table(header, rows)}"
    grid.write_page(arguments.output, "Depthwise convolutions", text)


if __name__ == "__main__":
    grid.run_main(main)
