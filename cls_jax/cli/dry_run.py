"""`cls-jax train FOLDER --dry-run`: what a training would do, how long, and in how much memory."""

import numpy as np

from cls_jax.cli.budget import Rehearsal, profile_folder
from cls_jax.cli.plan import Plan, describe_imbalance
from cls_jax.data.sources.folder import FolderSummary
from cls_jax.io import make_printable
from cls_jax.methods import get_method
from cls_jax.runs.folder import CONFIG
from cls_jax.training.setup import describe_model

_NUM_SHOWN_CLASSES = 20


def describe_dry_run(plan: Plan) -> str:
    """Summarizes the plan of a run and times a few of its steps. Writes no file of the run.

    Raises:
        UserError: If no labeled image can be read or a step does not fit into memory.
    """
    lines = [*describe_folder(plan.summary), *describe_training(plan)]
    if plan.config.num_steps:
        lines += describe_costs(plan, profile_folder(plan.config, plan.summary))
    return "\n".join([*lines, "Nothing was written: rerun without --dry-run to train."])


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
    pixels = []
    if summary.channels not in (1, 3):
        pixels = [f"Channels:    {summary.channels}"]
    if summary.bit_depth < 16:
        largest = 2**summary.bit_depth - 1
        pixels += [f"Pixels:      16-bit images are scaled from 0 to {largest:,}, which they use"]
    validation = f", {summary.num_validation:,} validation" if summary.num_validation else ""
    return [
        f"Images:      {summary.num_labeled:,} labeled, {summary.num_unlabeled:,} unlabeled"
        f"{validation} and {summary.num_test:,} test images; {len(counts):,} classes with labels:",
        *classes,
        *([imbalance] if imbalance else []),
        *summary.layout.warnings,
        f"Short side:  {short.min():,} to {short.max():,} pixels, median {int(np.median(short)):,}",
        *pixels,
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
        *([f"Time:        {plan.budget}"] if plan.budget else []),
        f"Run:         {verb} {plan.workdir}",
    ]


def describe_costs(plan: Plan, rehearsal: Rehearsal) -> list[str]:
    """Lines about time and memory."""
    steps = plan.config.num_steps * rehearsal.step_seconds
    return [
        f"Memory:      {rehearsal.memory}",
        f"Duration:    about {describe_duration(steps + rehearsal.compile_seconds)} without "
        f"evaluations: {rehearsal.step_seconds:.3f} s per step, the median of a few, and "
        f"{rehearsal.compile_seconds:.0f} s to compile",
    ]


def describe_duration(seconds: float) -> str:
    """A duration in the largest unit of which it has at least two."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
