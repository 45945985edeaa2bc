"""Traces a few steps with JAX's profiler and shows where the time goes.

python -m experiments.benchmarks.profile_step --config configs/cifar10.py \
  --variant float32,unrolled,synthetic

On a GPU its kernels are counted, elsewhere the operations of the compiled program. The trace stays
in --runs, for TensorBoard's profile plugin or https://ui.perfetto.dev.
"""

import collections
import pathlib
import re

import jax

from cls_jax.errors import UserError
from experiments.benchmarks.variants import create_variant
from experiments.paper import grid

# "add_multiply_fusion.12" is one of the kind "add_multiply_fusion".
_NUMBER = re.compile(r"[.\d]+$")
_GPU = "/device:GPU:"


def read_events(folder: pathlib.Path) -> dict[str, tuple[float, int]]:
    """Seconds and number of executions of every kind of operation or kernel in the newest trace.

    Raises:
        UserError: If the profiler wrote none.
    """
    files = sorted(folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    if not files:
        raise UserError(f"The profiler left no trace in {folder}: does this build of JAX have one?")
    events = collections.defaultdict(lambda: (0.0, 0))
    planes = list(jax.profiler.ProfileData.from_file(str(files[-1])).planes)
    is_gpu = any(plane.name.startswith(_GPU) for plane in planes)
    for plane in planes:
        for line in plane.lines:
            is_stream = plane.name.startswith(_GPU) and line.name.startswith("Stream")
            for event in line.events:
                # On a CPU, only compiled operations know which operation they are. The kernels of
                # a CUDA graph do not.
                if is_stream if is_gpu else "hlo_op" in dict(event.stats):
                    kind = _NUMBER.sub("", event.name)
                    seconds, count = events[kind]
                    events[kind] = seconds + event.duration_ns / 1e9, count + 1
    return dict(events)


def describe(events: dict[str, tuple[float, int]], num_steps: int) -> str:
    """A Markdown table of the longest operations, by the time of all threads or streams."""
    total = sum(seconds for seconds, _ in events.values())
    executions = sum(count for _, count in events.values())
    rows = sorted(events.items(), key=lambda item: -item[1][0])[:25]
    table = grid.format_table(
        ("operation", "ms per step", "share", "times per step"),
        (
            (name, f"{1e3 * s / num_steps:.2f}", f"{s / total:.1%}", f"{count / num_steps:.1f}")
            for name, (s, count) in rows
        ),
    )
    return (
        f"{1e3 * total / num_steps:.2f} ms and {executions / num_steps:,.0f} operations or kernels "
        f"per step.\n\n{table}"
    )


def main() -> None:
    """Traces, adds up, prints."""
    parser = grid.create_parser(__doc__, "250", "runs/profile.md")
    parser.add_argument(
        "--variant", default="float32,unrolled,synthetic", help="as in the benchmark"
    )
    parser.add_argument("--method", default="cls", help="the method whose step is traced")
    parser.add_argument("--steps", type=int, default=5, help="traced steps")
    arguments = grid.parse_arguments(parser)
    config = grid.create_config(arguments, arguments.method)
    variant = create_variant(arguments.variant, config)
    variant.run(3)
    folder = pathlib.Path(arguments.runs) / "profile"
    with jax.profiler.trace(str(folder)):
        variant.run(arguments.steps)
    variant.close()
    text = f"{1e3 * variant.seconds[-1]:.1f} ms per step while traced.\n\n"
    text += describe(read_events(folder), arguments.steps)
    grid.write_page(arguments.output, f"Profile of {arguments.variant}", text)


if __name__ == "__main__":
    grid.run_main(main)
