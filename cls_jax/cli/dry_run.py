"""`cls-jax train FOLDER --dry-run`: what a training would do, how long, and in how much memory."""

import contextlib
import dataclasses
import statistics
import time
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from cls_jax.cli.plan import Plan, describe_imbalance
from cls_jax.data.datasets import compute_mean_and_std
from cls_jax.data.images.decode import get_decode_options, get_image_shape
from cls_jax.data.pipelines import create_pipeline
from cls_jax.data.sources.folder import FolderSummary, load_sample
from cls_jax.data.types import Dataset
from cls_jax.io import make_printable
from cls_jax.methods import get_method
from cls_jax.runs.folder import CONFIG
from cls_jax.training.setup import describe_model
from cls_jax.training.start import create_setup
from cls_jax.training.step import compile_step, create_train_step

_NUM_STEPS = 5
_NUM_SAMPLED = 64
_NUM_SHOWN_CLASSES = 20


class Rehearsal(NamedTuple):
    """What a few real steps took.

    Attributes:
        compile_seconds: the time to compile the step.
        step_seconds: the median of the steps after the first.
        memory: a sentence that compares what a step needs with what the device has.
    """

    compile_seconds: float
    step_seconds: float
    memory: str


def describe_dry_run(plan: Plan) -> str:
    """Summarizes the plan of a run and times a few of its steps. Writes no file of the run.

    Raises:
        UserError: if no labeled image can be read or a step does not fit into memory.
    """
    options, shape = get_decode_options(plan.config.data), get_image_shape(plan.config.data)
    if not plan.config.num_steps:
        lines = [*describe_folder(plan.summary), *describe_training(plan)]
        return "\n".join([*lines, "Nothing was written: leave out --dry-run to train."])
    sample = load_sample(plan.summary, shape, _NUM_SAMPLED, options)
    num_images = plan.summary.num_labeled + plan.summary.num_unlabeled
    rehearsal = profile_steps(plan.config, sample, num_images)
    return "\n".join(
        [
            *describe_folder(plan.summary),
            *describe_training(plan),
            *describe_costs(plan, rehearsal),
            "Nothing was written: leave out --dry-run to train.",
        ]
    )


def describe_folder(summary: FolderSummary) -> list[str]:
    """Lines about the images."""
    counts = list(summary.class_counts.items())
    width = min(max(len(name) for name in summary.class_counts), 40)
    classes = [
        f"  {make_printable(name):{width}}  {count:,}"
        for name, count in counts[:_NUM_SHOWN_CLASSES]
    ]
    if len(counts) > _NUM_SHOWN_CLASSES:
        classes.append(f"  and {len(counts) - _NUM_SHOWN_CLASSES:,} more")
    short = summary.sizes.min(axis=1)
    imbalance = describe_imbalance(summary)
    bit_depth = []
    if summary.bit_depth < 16:
        largest = 2**summary.bit_depth - 1
        bit_depth = [f"Pixels:      16-bit images are scaled from 0 to {largest:,}, which they use"]
    validation = f", {summary.num_validation:,} validation" if summary.num_validation else ""
    return [
        f"Images:      {summary.num_labeled:,} labeled, {summary.num_unlabeled:,} unlabeled"
        f"{validation} and {summary.num_test:,} test images; {len(counts):,} classes with labels:",
        *classes,
        *([imbalance] if imbalance else []),
        *summary.layout.warnings,
        f"Short side:  {short.min():,} to {short.max():,} pixels, median {int(np.median(short)):,}",
        *bit_depth,
    ]


def describe_training(plan: Plan) -> list[str]:
    """Lines about what would be trained."""
    config = plan.config
    method = get_method(config.method.name)
    num_unlabeled = config.batch_size * config.mu if method.unlabeled_views else 0
    unlabeled = f" and {num_unlabeled} unlabeled" if num_unlabeled else ""
    verb = "resumed in" if (plan.workdir / CONFIG).exists() else "written to"
    labels = f"{config.num_labels:,} of the labels" if config.num_labels else "all labels"
    if config.data.validation:
        labels += f", after {config.data.validation:.0%} of them are held out for validation"
    steps = (
        f"{config.num_steps:,} with {config.batch_size} labeled{unlabeled} images each"
        if config.num_steps
        else "none: labels spread along a graph of similar images, and linear heads learn from them"
    )
    return [
        f"Method:      {config.method.name}, {method.num_networks} x {describe_model(config)} at "
        f"{config.data.image_size} pixels, with {labels}",
        f"Steps:       {steps}",
        f"Run:         {verb} {plan.workdir}",
    ]


def describe_costs(plan: Plan, rehearsal: Rehearsal) -> list[str]:
    """Lines about time and memory."""
    steps = plan.config.num_steps * rehearsal.step_seconds
    return [
        f"Memory:      {rehearsal.memory}",
        f"Time:        about {describe_duration(steps + rehearsal.compile_seconds)} without "
        f"evaluations: {rehearsal.step_seconds:.3f} s per step, the median of a few, and "
        f"{rehearsal.compile_seconds:.0f} s to compile",
    ]


def describe_duration(seconds: float) -> str:
    """A duration in the largest unit of which it has at least two."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def profile_steps(config: ConfigDict, dataset: Dataset, num_images: int) -> Rehearsal:
    """Compiles the step of a run and takes five of them on a sample of its images. Writes nothing.

    `num_images` are the training images of the whole dataset, which some methods keep a state for.

    Raises:
        UserError: if pretrained weights cannot be read, the step does not fit into the device's
            memory, or the devices cannot be arranged as `config.mesh` says.
    """
    mean, std = compute_mean_and_std(dataset.train_images)
    dataset = dataclasses.replace(dataset, mean=mean, std=std)
    labeled = np.flatnonzero(dataset.train_labels >= 0).astype(np.int32)
    everything = np.arange(len(dataset.train_images), dtype=np.int32)
    setup, stream = create_setup(config, dataset, labeled, everything, num_images)
    pipeline = create_pipeline(stream, dataset, setup.mesh, 0, _NUM_STEPS)
    step: Any = create_train_step(setup, pipeline.create_batch, pipeline.input_specs)
    with contextlib.closing(pipeline.inputs):
        state, step_input = setup.init_state(), next(pipeline.inputs)
        device = jax.local_devices()[0]
        compiled, compile_seconds, memory = compile_step(step, state, step_input, device)
        seconds = []
        for i in range(_NUM_STEPS):
            started = time.perf_counter()
            if i:
                step_input = next(pipeline.inputs)
            state, metrics = compiled(state, step_input)
            jax.block_until_ready((state, metrics))
            seconds.append(time.perf_counter() - started)
    return Rehearsal(compile_seconds, statistics.median(seconds[1:]), memory)
