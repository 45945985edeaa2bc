"""The plan of a run on a folder of images: configuration, run folder, dry run."""

import importlib.util
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import flags
from ml_collections import ConfigDict, config_flags

from cls_jax.config import flatten, read_config, to_json, validate_config
from cls_jax.errors import UserError
from cls_jax.io import make_printable
from cls_jax.methods import get_method
from cls_jax.models import resolve_stem
from cls_jax.models.weights.sources import is_installed
from cls_jax.parallel.cpus import get_device_memory
from cls_jax.parallel.distributed import check_same, from_main_process, is_main_process
from cls_jax.photos.folder.dataset import FolderSummary, list_layout, summarize_folder
from cls_jax.photos.folder.layout import Layout
from cls_jax.photos.inference.run import Run
from cls_jax.photos.plan.budget import fit_to_minutes, profile_folder
from cls_jax.photos.plan.rules import (
    PRETRAINED,
    RULES,
    Plan,
    Resources,
    apply_settings,
    choose_method,
    create_folder_config,
    fit_to_folder,
)
from cls_jax.process import USAGE_ERRORS, explain_usage_error
from cls_jax.runs.folder import CONFIG, choose_workdir, describe_other_data, get_default_workdir
from cls_jax.training.prepare import resolve_model
from cls_jax.training.setup import describe_model

_NUM_SHOWN_CLASSES = 20


def plan_run(
    folder: str | pathlib.Path,
    method: str | None = None,
    workdir: str | pathlib.Path | None = None,
    settings: Mapping[str, Any] | None = None,
    start_from: str | pathlib.Path | None = None,
    instant: bool = False,
    minutes: float | None = None,
    again: bool = False,
) -> Plan:
    """Chooses every setting that the user leaves open. An existing run keeps its settings.

    Without a `method`, the folder and the options choose one, see `from_folder.choose_method`.
    `workdir` is None for the default under runs/, `settings` are values by dotted key, and the run
    starts from the weights of `start_from`. An `instant` run takes no step and ends with a head for
    inferred labels. `minutes` is the training time, None for the default, see `fit_to_minutes`.
    With `again`, a finished run is not reused. Raises a UserError if the folder has no layout,
    there is no such method, key or value, or what was chosen contradicts what was set.
    """
    settings = _settings_from_run(start_from) | dict(settings or {})
    if instant:
        settings = {"model.init": PRETRAINED, **settings, "model.init_head": "graph"}
        settings["num_steps"] = 0
    if minutes is not None and not 0 < minutes < 1e6:
        raise UserError(f"--minutes must be positive and below 1,000,000, not {minutes:g}.")
    summary, budget = summarize_folder(folder), None
    # An absolute path, so that evaluation finds the images from anywhere.
    root, resources = str(summary.root.resolve()), find_resources()
    config = create_folder_config(root, method or "cls")
    if method is None and settings.keys() - flatten(config.to_dict()).keys():
        config = create_folder_config(root, method := "fixmatch")  # It may have these options.
    apply_settings(config, settings)
    if method is None:
        begun = pathlib.Path(workdir or ".") / CONFIG
        if workdir and begun.exists():
            method = read_config(begun).method.name
        else:
            method = choose_method(Plan(config, summary, resources, settings.keys()))
        config = create_folder_config(root, method)
        apply_settings(config, settings)
    validate_config(config, is_whole=False)  # The rules divide by the user's values.
    path = choose_run(config, workdir, summary.layout, again)
    plan = Plan(config, summary, resources, settings, path)
    if (path / CONFIG).exists():
        stored, own = flatten(read_config(path / CONFIG).to_dict()), flatten(config.to_dict())
        for key in RULES.keys() & stored.keys() & own.keys() - settings.keys():
            config.update_from_flattened_dict({key: stored[key]})
    else:
        fit_to_folder(plan)
        check_same(to_json(config), path)  # Before all processes measure a step together.
        budget = fit_to_minutes(plan, minutes)
    config = resolve_model(config)
    validate_config(config)
    return plan._replace(config=config, budget=budget)


def _settings_from_run(run: str | pathlib.Path | None) -> dict[str, Any]:
    """Settings to start from another run's weights, with its architecture."""
    if not run:
        return {}
    stored = flatten(read_config(pathlib.Path(run) / CONFIG).to_dict())
    kept = ["model.name", "model.depth", "model.width", "data.image_size", "data.channels"]
    stem = resolve_stem(stored["model.stem"], stored["data.image_size"])
    settings = {"model.init": str(pathlib.Path(run).resolve()), "model.stem": stem}
    return settings | {key: stored[key] for key in kept}


def choose_run(
    config: ConfigDict,
    workdir: str | pathlib.Path | None,
    layout: Layout | None,
    again: bool = False,
) -> pathlib.Path:
    """The run's folder, without a run on other images. Prints if a default name is taken.

    `workdir` is None for the default under runs/, `layout` for other datasets than a folder.
    `again` chooses the next folder without a finished run. Raises a UserError if the folder that
    the user chose has a run on other images or labels.
    """
    if again and workdir is not None:
        raise UserError("--again chooses the run's folder itself. Remove --workdir.")
    if layout is None:
        return pathlib.Path(workdir or get_default_workdir(config))
    if workdir is None:
        path, sentence = choose_workdir(config, layout, again)
        if sentence and is_main_process() and not (path / CONFIG).exists():
            print(sentence, flush=True)
        return path
    path = pathlib.Path(workdir)
    if difference := describe_other_data(path, config, layout):
        raise UserError(
            f"{difference}: choose a new --workdir, and add --from {path} to start from its "
            "weights."
        )
    return path


def open_run(config: ConfigDict, workdir: str | pathlib.Path | None) -> Run:
    """The run of any configuration. Raises a UserError if it is invalid."""
    validate_config(config)
    root = pathlib.Path(config.data.data_dir).expanduser()
    has_layout = config.data.name == "folder" and config.data.data_dir and root.is_dir()
    layout = list_layout(root) if has_layout else None
    return Run(config, choose_run(config, workdir, layout), layout)


def parse_overrides(options: Sequence[str], method: str | None) -> dict[str, Any]:
    """Reads options such as "--config.data.image_size=64" as main.py does: dotted key → value.

    Without a `method`, they are those of CLS or FixMatch. Raises a UserError if there is no such
    method or key, or a value cannot be read.
    """
    if method is None:
        try:
            return parse_overrides(options, "fixmatch")
        except UserError:
            method = "cls"
    flag_values, arguments = flags.FlagValues(), ["", *options]
    config = create_folder_config("", method)
    try:
        config_flags.DEFINE_config_dict(
            "config", config, flag_values=flag_values, sys_argv=arguments
        )
        flag_values(arguments)
    except USAGE_ERRORS as error:
        raise UserError(explain_usage_error(error)) from error
    return config_flags.get_override_values(flag_values["config"])


def find_resources() -> Resources:
    """The machine of process 0. TensorFlow is looked for, but not imported."""
    found = Resources(
        has_accelerator=jax.default_backend() != "cpu",
        memory=get_device_memory(jax.local_devices()[0]),
        has_tensorflow=importlib.util.find_spec("tensorflow") is not None,
        has_pretrained=is_installed(PRETRAINED),
        num_devices=jax.device_count(),
    )
    return Resources(*from_main_process(found))  # All processes choose the same settings.


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


def describe_dry_run(plan: Plan) -> str:
    """Summarizes a plan and times a few steps. Writes no file of the run."""
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
    return "\n".join([*lines, "Dry run; nothing written."])


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
    lines += [
        *summary.layout.warnings,
        f"Short side:  {short.min():,} to {short.max():,} pixels, median {int(np.median(short)):,}",
    ]
    if summary.bit_depth < 16:
        largest = 2**summary.bit_depth - 1
        lines.append(f"Pixels:      16-bit images use values from 0 to {largest:,}")
    return lines


def _describe_training(plan: Plan) -> list[str]:
    """Lines about the training."""
    config, method = plan.config, get_method(plan.config.method.name)
    verb = "resumed in" if (plan.workdir / CONFIG).exists() else "written to"
    labels = f"{config.num_labels:,} of the labels" if config.num_labels else "all labels"
    if config.data.validation:
        labels += f", after {config.data.validation:.0%} of them are held out for validation"
    name, num_networks = "instant classifier", 1
    steps = "none: linear classifier of frozen features"
    if config.num_steps:
        kinds = f"{config.batch_size} labeled"
        if method.unlabeled_views:
            kinds += f" and {config.batch_size * config.mu} unlabeled"
        steps = f"{config.num_steps:,} with {kinds} images each"
        name, num_networks = config.method.name, method.num_networks
    return [
        f"Method:      {name}, {num_networks} x {describe_model(config)} at "
        f"{config.data.image_size} pixels, with {labels}",
        f"Steps:       {steps}",
        *([f"Time:        {plan.budget}"] if plan.budget else []),
        f"Run:         {verb} {plan.workdir}",
    ]


def _describe_duration(seconds: float) -> str:
    """A duration in the largest unit that gives at least 2."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
