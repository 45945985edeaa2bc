"""`cls-jax train FOLDER --dry-run`: what a training would do, how long, and in how much memory."""

import numpy as np

from cls_jax.cli.budget import profile_folder
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
    lines = [*describe_folder(plan.summary), *_describe_training(plan)]
    if plan.config.num_steps:
        measured = profile_folder(plan.config, plan.summary)
        seconds = plan.config.num_steps * measured.step_seconds + measured.compile_seconds
        lines += [
            f"Memory:      {measured.memory}",
            f"Duration:    about {_describe_duration(seconds)} without evaluations: "
            f"{measured.step_seconds:.3f} s per step, the median of a few, and "
            f"{measured.compile_seconds:.0f} s to compile",
        ]
    return "\n".join([*lines, "Nothing was written: rerun without --dry-run to train."])


def describe_folder(summary: FolderSummary) -> list[str]:
    """Lines about the images."""
    counts, short = summary.class_counts, summary.sizes.min(axis=1)
    width = min(max(map(len, counts)), 40)
    validation = f", {summary.num_validation:,} validation" if summary.num_validation else ""
    lines = [
        f"Images:      {summary.num_labeled:,} labeled, {summary.num_unlabeled:,} unlabeled"
        f"{validation} and {summary.num_test:,} test images; {len(counts):,} classes with labels:",
    ]
    for name, count in list(counts.items())[:_NUM_SHOWN_CLASSES]:
        lines.append(f"  {make_printable(name):{width}}  {count:,}")
    if len(counts) > _NUM_SHOWN_CLASSES:
        lines.append(f"  and {len(counts) - _NUM_SHOWN_CLASSES:,} more")
    if imbalance := describe_imbalance(summary):
        lines.append(imbalance)
    lines += [
        *summary.layout.warnings,
        f"Short side:  {short.min():,} to {short.max():,} pixels, median {int(np.median(short)):,}",
    ]
    if summary.channels not in (1, 3):
        lines.append(f"Channels:    {summary.channels}")
    if summary.bit_depth < 16:
        largest = 2**summary.bit_depth - 1
        lines.append(f"Pixels:      16-bit images are scaled from 0 to {largest:,}, which they use")
    return lines


def _describe_training(plan: Plan) -> list[str]:
    """Lines about what would be trained."""
    config, method = plan.config, get_method(plan.config.method.name)
    verb = "resumed in" if (plan.workdir / CONFIG).exists() else "written to"
    labels = f"{config.num_labels:,} of the labels" if config.num_labels else "all labels"
    if config.data.validation:
        labels += f", after {config.data.validation:.0%} of them are held out for validation"
    steps = "none: labels spread along a graph of similar images, and linear heads learn from them"
    if config.num_steps:
        kinds = f"{config.batch_size} labeled"
        if method.unlabeled_views:
            kinds += f" and {config.batch_size * config.mu} unlabeled"
        steps = f"{config.num_steps:,} with {kinds} images each"
    return [
        f"Method:      {config.method.name}, {method.num_networks} x {describe_model(config)} at "
        f"{config.data.image_size} pixels, with {labels}",
        f"Steps:       {steps}",
        *([f"Time:        {plan.budget}"] if plan.budget else []),
        f"Run:         {verb} {plan.workdir}",
    ]


def _describe_duration(seconds: float) -> str:
    """A duration in the largest unit of which it has at least two."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
