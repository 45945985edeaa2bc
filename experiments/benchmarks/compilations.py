"""Runs a command of cls-jax and writes what its programs took to compile.

python -m experiments.benchmarks.compilations OUTPUT train FOLDER --instant
"""

import collections
import sys
import time

import jax

from cls_jax.photos.cli import console
from experiments.paper import grid

_EVENTS = {  # The end of an event's name → column.
    "jaxpr_trace_duration": "traced",
    "jaxpr_to_mlir_module_duration": "lowered",
    "backend_compile_duration": "compiled",
}


def main() -> None:
    """Runs the command of the arguments, and writes the table however it ends."""
    output, *sys.argv[1:] = sys.argv[1:]
    sys.argv[0] = "cls-jax"
    began = time.perf_counter()
    seconds: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    counts: collections.Counter[str] = collections.Counter()

    def note(event: str, duration: float, fun_name: str = "", **_: object) -> None:
        name = fun_name.removeprefix("jit(").removesuffix(")")
        for end, column in _EVENTS.items():
            if event.endswith(end):
                seconds[name][column] += duration
                counts[name] += column == "compiled"

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        console.main()
    finally:
        took = time.perf_counter() - began
        columns = list(_EVENTS.values())
        names = sorted(seconds, key=lambda name: -sum(seconds[name].values()))
        total = [f"{sum(seconds[name][column] for name in names):.2f} s" for column in columns]
        rows = [["all", str(counts.total()), *total]]
        for name in filter(counts.__getitem__, names):
            times = [f"{seconds[name][column]:.2f} s" for column in columns]
            rows.append([f"`{name}`", str(counts[name]), *times])
        table = grid.format_table(["program", "number", *columns], rows)
        text = f"`cls-jax {' '.join(sys.argv[1:])}`: {took:.1f} s\n\n{table}"
        grid.write_page(output, "What was compiled", text)


if __name__ == "__main__":
    main()
