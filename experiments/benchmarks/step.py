"""Times the training step in several variants and of several methods, in turn, in one process.

python -m experiments.benchmarks.step --config configs/cifar10.py --variants VARIANTS [--peer PATH]
with VARIANTS as in "float32,unrolled,synthetic bfloat16,unrolled,device":
see experiments/benchmarks/variants.py.

All variants are compiled first, --threads at a time; then blocks of steps alternate, so that a
slowdown of the machine affects all. The table is rewritten after every block, and a variant that
fails is reported and left out, so that a stopped benchmark loses nothing. --peer names a checkout
of the authors' released PyTorch code, which is then timed too, if torch is installed.
"""

import concurrent.futures
import functools
import json
import pathlib
import statistics
import sys
import traceback
from collections.abc import Callable, Mapping

from cls_jax.errors import UserError
from experiments.benchmarks.variants import StepVariant, trace_variant
from experiments.paper import grid

_VARIANTS = "float32,unrolled,synthetic bfloat16,unrolled,synthetic"


def describe_variants(variants: list[StepVariant]) -> str:
    """A Markdown table. Ratios refer to its first row."""
    first = statistics.median(variants[0].seconds)
    header = ["variant", "ms per step", "min – max", "steps/s", "images/s"]
    header += ["times the first's speed", "TFLOP/s", "memory", "compiled in"]
    rows = []
    for variant in variants:
        seconds = statistics.median(variant.seconds)
        row = [variant.name, f"{1e3 * seconds:.2f}"]
        row += [f"{1e3 * min(variant.seconds):.2f} – {1e3 * max(variant.seconds):.2f}"]
        row += [f"{1 / seconds:.2f}", f"{variant.num_images / seconds:,.0f}"]
        row += [f"{first / seconds:.2f}"]
        row += [f"{variant.flops / seconds / 1e12:.2f}" if variant.flops else ""]
        row += [f"{variant.memory_bytes / 2**30:.2f} GiB" if variant.memory_bytes else ""]
        row += [f"{variant.compile_seconds:.1f} s" if variant.compile_seconds else ""]
        rows.append(row)
    return grid.format_table(header, rows)


# Traces a variant and returns what compiles it.
Trace = Callable[[], Callable[[], StepVariant]]


def list_variants(arguments, methods: list[str]) -> dict[str, Trace]:
    """Name → what traces it, for all variants of all methods and the peer."""
    found: dict[str, Trace] = {}
    for method in methods:
        config = grid.create_config(arguments, method)
        for variant in arguments.variants.split():
            name = f"{method} {variant}" if len(methods) > 1 else variant
            found[name] = functools.partial(trace_variant, variant, config, name)
    if arguments.peer:
        from experiments.paper.authors import create_peer_variant

        given = create_peer_variant, arguments.peer, grid.create_config(arguments)
        for name in arguments.peer_forms.split():
            # PyTorch traces and compiles in the first step, which is part of the warm-up.
            found[f"peer {name}"] = functools.partial(functools.partial, *given, name)
    return found


class Benchmark:
    """Measurements and failures so far.

    Attributes:
        output: The Markdown to write. The seconds of every block go into JSON beside it.
        variants: The variants that work.
        failures: Why others failed, by their names.
    """

    def __init__(self, output: str):
        """Starts with nothing measured."""
        self.output = pathlib.Path(output)
        self.variants: list[StepVariant] = []
        self.failures: dict[str, str] = {}

    def begin(self, traces: Mapping[str, Trace], num_steps: int, num_threads: int) -> None:
        """Traces all variants, compiles them, warms them up and times a first block of each."""
        with concurrent.futures.ThreadPoolExecutor(num_threads) as pool:
            compiling: dict[str, concurrent.futures.Future[StepVariant]] = {}

            def trace_and_submit(name: str, trace: Trace) -> None:
                compiling[name] = pool.submit(trace())

            for name, trace in traces.items():
                self._attempt(name, functools.partial(trace_and_submit, name, trace))
        for name, compiled in compiling.items():
            self._attempt(name, functools.partial(self._begin_variant, compiled, num_steps))

    def _begin_variant(self, compiled: concurrent.futures.Future, num_steps: int) -> None:
        variant = compiled.result()
        self.variants.append(variant)
        variant.run(max(2, num_steps // 4))
        variant.seconds.clear()  # Warm-up.
        variant.run(num_steps)

    def run(self, num_steps: int) -> None:
        """Times another block of each variant."""
        for variant in list(self.variants):
            self._attempt(variant.name, functools.partial(variant.run, num_steps))

    def _attempt(self, name: str, measure: Callable[[], None]) -> None:
        try:
            measure()
        except UserError:
            raise  # The command line is wrong: all variants would fail.
        except Exception as error:  # Out of memory, an unsupported operation, …
            traceback.print_exc()
            self.failures[name] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            self.variants = [variant for variant in self.variants if variant.name != name]
        self.write()

    def write(self) -> None:
        """Writes the table and the seconds of every block."""
        parts = [f"# Step\n\n{grid.describe_provenance()}"]
        if self.variants:
            parts.append(f"{describe_variants(self.variants)}\n")
        parts += [f"Failed: {name}: {reason}\n" for name, reason in self.failures.items()]
        self.output.parent.mkdir(parents=True, exist_ok=True)
        self.output.write_text("\n".join(parts))
        measured = {variant.name: variant.seconds for variant in self.variants}
        self.output.with_suffix(".json").write_text(json.dumps(measured, indent=1))


def main() -> None:
    """Compiles all variants, times them in turn, prints the table."""
    parser = grid.create_parser(__doc__, "250", "runs/benchmark.md")
    parser.add_argument("--variants", default=_VARIANTS, help="space-separated, see variants.py")
    parser.add_argument("--methods", default="cls", help="comma-separated methods")
    parser.add_argument("--blocks", type=int, default=5, help="turns of every variant")
    parser.add_argument("--steps", type=int, default=20, help="steps per block")
    parser.add_argument("--peer", help="a checkout of the authors' PyTorch code")
    parser.add_argument("--peer_forms", default="released", help="space-separated: released, tuned")
    parser.add_argument("--threads", type=int, default=1, help="variants to compile at a time")
    arguments = grid.parse_arguments(parser)
    benchmark = Benchmark(arguments.output)
    traces = list_variants(arguments, arguments.methods.split(","))
    benchmark.begin(traces, arguments.steps, arguments.threads)
    for _ in range(1, arguments.blocks):
        benchmark.run(arguments.steps)
    for variant in benchmark.variants:
        variant.close()
    grid.write_output(arguments.output, benchmark.output.read_text())
    if benchmark.failures:
        sys.exit(1)


if __name__ == "__main__":
    grid.run_main(main)
