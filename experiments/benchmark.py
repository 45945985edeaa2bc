"""Times the training step in several forms and of several methods, in turn, in one process.

python -m experiments.benchmark --config configs/cifar10.py --variants VARIANTS [--peer PATH]
with VARIANTS as in "float32,unrolled,synthetic bfloat16,unrolled,device":
see experiments/step_variants.py.

Every form is compiled first; then blocks of steps take turns, so that a machine that slows down
slows them all. --peer names a checkout of the authors' released PyTorch code, which then takes its
turns too, where torch is installed.
"""

import contextlib
import json
import pathlib
import statistics

from experiments import grid
from experiments.step_variants import StepVariant, create_variant

_FORMS = "float32,unrolled,synthetic float32,vmap,synthetic bfloat16,unrolled,synthetic"


def describe_variants(forms: list[StepVariant]) -> str:
    """A Markdown table, the first form being what ratios refer to."""
    first = statistics.median(forms[0].seconds)
    header = (
        "form",
        "ms a step",
        "least – most",
        "steps/s",
        "images/s",
        "times the first's speed",
        "TFLOP/s",
        "memory",
        "compiled in",
    )
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    for form in forms:
        seconds = statistics.median(form.seconds)
        cells = (
            form.name,
            f"{1e3 * seconds:.2f}",
            f"{1e3 * min(form.seconds):.2f} – {1e3 * max(form.seconds):.2f}",
            f"{1 / seconds:.2f}",
            f"{form.num_images / seconds:,.0f}",
            f"{first / seconds:.2f}",
            f"{form.flops / seconds / 1e12:.2f}" if form.flops else "",
            f"{form.memory_bytes / 2**30:.2f} GiB" if form.memory_bytes else "",
            f"{form.compile_seconds:.1f} s" if form.compile_seconds else "",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def create_variants(arguments, methods: list[str]) -> list[StepVariant]:
    """All forms of all methods, and the peer's."""
    forms = []
    for method in methods:
        config = grid.create_cell(arguments, arguments.budgets[0], method, 0).config
        for name in arguments.variants.split():
            form = create_variant(name, config)
            form.name = f"{method} {name}" if len(methods) > 1 else name
            forms.append(form)
    if arguments.peer:
        from experiments.peer import create_peer_variant

        config = grid.create_cell(arguments, arguments.budgets[0], "cls", 0).config
        forms += [
            create_peer_variant(arguments.peer, config, name)
            for name in arguments.peer_forms.split()
        ]
    return forms


def main() -> None:
    """Compiles all forms, times them in turn, prints the table and writes JSON beside it."""
    parser = grid.create_parser(__doc__, "250", "runs/benchmark.md")
    parser.add_argument(
        "--variants", default=_FORMS, help="see experiments/step_variants.py; by spaces"
    )
    parser.add_argument("--methods", default="cls", help="whose steps, by commas")
    parser.add_argument("--blocks", type=int, default=5, help="turns of every form")
    parser.add_argument("--steps", type=int, default=20, help="steps in a block")
    parser.add_argument("--peer", help="a checkout of the authors' PyTorch code")
    parser.add_argument("--peer_forms", default="released", help="released or tuned; by spaces")
    arguments = grid.parse_arguments(parser)
    forms = create_variants(arguments, arguments.methods.split(","))
    with contextlib.ExitStack() as stack:
        for form in forms:
            stack.callback(form.close)
            form.run(max(2, arguments.steps // 4))
            form.seconds.clear()  # Warm-up.
        for _ in range(arguments.blocks):
            for form in forms:
                form.run(arguments.steps)
    text = f"# Step\n\n{grid.describe_provenance()}\n{describe_variants(forms)}\n"
    grid.write_output(arguments.output, text)
    measured = {form.name: form.seconds for form in forms}
    pathlib.Path(arguments.output).with_suffix(".json").write_text(json.dumps(measured, indent=1))


if __name__ == "__main__":
    grid.run_main(main)
