"""Times the training step in several forms, in turn, in one process.

python -m experiments.benchmark --config configs/cifar10.py --forms FORMS
with FORMS as in "float32,unrolled,synthetic bfloat16,unrolled,device".

A form is precision, lowering of the networks, and input: "synthetic" is one random batch again and
again, "device" makes every batch inside the step. Every form is compiled first; then blocks of
steps take turns, so that a machine that slows down slows them all.
"""

import dataclasses
import json
import pathlib
import statistics
import time
from typing import Any

import jax
import numpy as np

from cls_jax.batch import BATCH_SPECS, RawBatch
from cls_jax.data.datasets import Dataset
from cls_jax.data.label_budget import choose_labeled_indices
from cls_jax.data.pipelines import create_pipeline
from cls_jax.data.stream import create_stream_spec
from cls_jax.methods import get_method
from cls_jax.networks import to_shardings
from cls_jax.program import create_program
from cls_jax.train_step import create_train_step
from experiments import grid

_NUM_IMAGES = 50_000
_NUM_CLASSES = 10
_FORMS = "float32,unrolled,synthetic float32,vmap,synthetic bfloat16,unrolled,synthetic"


@dataclasses.dataclass
class Form:
    """A compiled step and what was measured of it.

    Attributes:
        name: precision, lowering, input.
        step: compiled (state, input) → (state, monitors).
        state: the train state; every step replaces it.
        step_input: what the step takes.
        compile_seconds: of lowering and compiling.
        temporary_bytes: that the compiled step needs beside state and input, as the compiler says.
        flops: of one step, as the compiler counts them.
        seconds: per step, one value a block.
    """

    name: str
    step: Any
    state: Any
    step_input: Any
    compile_seconds: float
    temporary_bytes: int
    flops: float
    seconds: list[float] = dataclasses.field(default_factory=list)

    def run(self, num_steps: int) -> None:
        """Times a block of steps, the last of which is waited for."""
        started = time.perf_counter()
        for _ in range(num_steps):
            self.state, _ = self.step(self.state, self.step_input)
        jax.block_until_ready(self.state)
        self.seconds.append((time.perf_counter() - started) / num_steps)


def create_form(name: str, config) -> Form:
    """Compiles the step of a form on random images of the configuration's sizes."""
    dtype, lowering, source = name.split(",")
    config = config.copy_and_resolve_references()
    config.model.dtype, config.model.lowering = dtype, lowering
    dataset = create_random_dataset(config)
    program, state = create_program(config, dataset.shape)
    if source == "device":
        config.data.pipeline = "device"
        labeled = choose_labeled_indices(
            dataset.train_labels, config.num_labels, _NUM_CLASSES, config.seed
        )
        everything = np.arange(_NUM_IMAGES, dtype=np.int32)
        spec = create_stream_spec(config, program.method, labeled, everything)
        inputs, specs, create_batch = create_pipeline(spec, dataset, program.mesh, 0, 1)
        step_input = next(inputs)
        step = create_train_step(program, create_batch, specs)
    else:
        batch = create_random_batch(config)
        step_input = jax.device_put(batch, to_shardings(program.mesh, BATCH_SPECS))
        step = create_train_step(program)
    started = time.perf_counter()
    compiled = step.lower(state, step_input).compile()
    compile_seconds = time.perf_counter() - started
    memory = compiled.memory_analysis()
    costs = compiled.cost_analysis() or {}
    return Form(
        name,
        compiled,
        state,
        step_input,
        compile_seconds,
        memory.temp_size_in_bytes if memory else 0,
        costs.get("flops", 0.0),
    )


def create_random_dataset(config) -> Dataset:
    """As many images as CIFAR has, of noise."""
    rng = np.random.default_rng(0)
    size, channels = config.data.image_size, len(config.data.mean)
    shape = (size, size, channels)
    labels = (np.arange(_NUM_IMAGES) % _NUM_CLASSES).astype(np.int32)
    return Dataset(
        name="noise",
        class_names=tuple(map(str, range(_NUM_CLASSES))),
        train_images=rng.integers(0, 256, (_NUM_IMAGES, *shape), dtype=np.uint8),
        train_labels=labels,
        test_images=np.zeros((0, *shape), np.uint8),
        test_labels=labels[:0],
        image_shape=shape,
    )


def create_random_batch(config) -> RawBatch:
    """A batch of noise for the configuration's method."""
    rng = np.random.default_rng(0)
    num_views = len(get_method(config.method.name).unlabeled_views)
    size, channels = config.data.image_size, len(config.data.mean)
    b, u = config.batch_size, config.batch_size * config.mu if num_views else 0
    return RawBatch(
        x=rng.integers(0, 256, (b, size, size, channels), dtype=np.uint8),
        y=rng.integers(0, _NUM_CLASSES, b).astype(np.int32),
        u=rng.integers(0, 256, (num_views, u, size, size, channels), dtype=np.uint8),
        u_index=np.arange(u, dtype=np.int32),
        u_truth=np.zeros(u, np.int32),
    )


def describe_forms(forms: list[Form], config) -> str:
    """A Markdown table, the first form being what ratios refer to."""
    views = len(get_method(config.method.name).unlabeled_views)
    images = config.batch_size * (1 + views * config.mu)
    first = statistics.median(forms[0].seconds)
    lines = [
        "| form | ms a step | spread | steps/s | images/s | against the first | TFLOP/s |"
        " temporary memory | compiled in |",
        "|" + " --- |" * 9,
    ]
    for form in forms:
        seconds = statistics.median(form.seconds)
        lines.append(
            f"| {form.name} | {1e3 * seconds:.2f} "
            f"| {1e3 * min(form.seconds):.2f} – {1e3 * max(form.seconds):.2f} "
            f"| {1 / seconds:.1f} | {images / seconds:,.0f} | {first / seconds:.2f} "
            f"| {form.flops / seconds / 1e12:.2f} | {form.temporary_bytes / 2**30:.2f} GiB "
            f"| {form.compile_seconds:.1f} s |"
        )
    return "\n".join(lines)


def main() -> None:
    """Compiles all forms, times them in turn, prints the table and writes JSON beside it."""
    parser = grid.create_parser(__doc__, "250", "runs/benchmark.md")
    parser.add_argument("--forms", default=_FORMS, help="precision,lowering,input; by spaces")
    parser.add_argument("--method", default="cls", help="whose step")
    parser.add_argument("--blocks", type=int, default=5, help="turns of every form")
    parser.add_argument("--steps", type=int, default=20, help="steps in a block")
    arguments = grid.parse_arguments(parser)
    config = grid.create_cell(arguments, arguments.budgets[0], arguments.method, 0).config
    forms = [create_form(name, config) for name in arguments.forms.split()]
    for form in forms:
        form.run(2)
        form.seconds.clear()  # Warm-up.
    for _ in range(arguments.blocks):
        for form in forms:
            form.run(arguments.steps)
    text = f"# Step\n\n{grid.describe_provenance()}\n{describe_forms(forms, config)}\n"
    grid.write_output(arguments.output, text)
    measured = {form.name: form.seconds for form in forms}
    pathlib.Path(arguments.output).with_suffix(".json").write_text(json.dumps(measured, indent=1))


if __name__ == "__main__":
    grid.run_main(main)
