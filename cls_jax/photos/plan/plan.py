"""Plans a run on a folder of images: what a user asks for, its configuration and its folder.

To add an option, add a field to `Request` and its row in the parser of `console`, whose name is the
field's. `cls_jax.train` names each field as well, so that editors show it.
"""

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
from absl import flags
from ml_collections import ConfigDict, FrozenConfigDict, config_flags

from cls_jax.config import (
    check_channels,
    check_given,
    check_values,
    flatten,
    list_options,
    read_empty,
    to_json,
    validate_config,
    with_values,
)
from cls_jax.errors import UserError
from cls_jax.extras import check_extra, is_installed
from cls_jax.models import resolve_stem
from cls_jax.models.weights.backbones import BUILTIN, HUB
from cls_jax.parallel.distributed import check_same, from_main_process, is_main_process
from cls_jax.parallel.machine import get_device_memory
from cls_jax.photos.features.backbones import DEFAULT_BACKBONE, Backbones, has_weights
from cls_jax.photos.folder.catalog import Layout
from cls_jax.photos.folder.compare import choose_workdir, describe_other_data
from cls_jax.photos.folder.dataset import list_layout, summarize_folder
from cls_jax.photos.folder.instant_config import read_instant_config, read_run_config
from cls_jax.photos.folder.options import FolderOptions, find_labels_file, get_folder_options
from cls_jax.photos.inference.run import Run, create_run
from cls_jax.photos.plan.describe import list_notices
from cls_jax.photos.plan.measure import fit_to_time, gather_facts, start_in_time
from cls_jax.photos.plan.rules import (
    RULES,
    Plan,
    Resources,
    choose_method,
    create_folder_config,
    fit,
)
from cls_jax.process import USAGE_ERRORS, explain_usage_error
from cls_jax.runs.folder import CONFIG, get_default_workdir
from cls_jax.training.prepare import check_packages, resolve_model

# What draws from labels class by class, or fits something else than tags, with values that do not.
_ONLY_OF_CLASSES = {
    "num_labels": 0,
    "data.validation": 0.0,
    "data.imbalance": 1.0,
    "data.unlabeled_imbalance": 0.0,
    "model.inferred_by": "",
    "model.init_head": "inferred",
}


@dataclasses.dataclass(frozen=True)
class Request:
    """The options of a training. None where images and machine decide."""

    folder: str | pathlib.Path
    workdir: str | pathlib.Path | None = None  # The run's folder. None for one under runs/.
    method: str | None = None  # Of the table of methods, see `rules.choose_method`.
    start_from: str | pathlib.Path | None = None  # The run whose weights are the first ones.
    instant: bool = False  # Whether only the instant classifier is fitted.
    minutes: float | None = None  # Of training, see `fit_to_time`.
    again: bool = False  # Whether another run is started if a finished one exists.
    backbone: str | None = None  # Names of pretrained networks, with commas.
    # Values by dotted key.
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def read_settings(self) -> dict[str, Any]:
        """The settings with those that other options stand for.

        Raises a UserError if two options contradict each other, or a run, a network or the file
        with the labels does not exist.
        """
        values = dict(self.settings)
        if self.backbone is not None:
            if self.start_from:
                raise UserError(
                    "--from and --backbone both choose the weights: remove one of them."
                )
            values |= Backbones.read(self.backbone).to_settings()
        if self.minutes is not None and not 0 < self.minutes < 1e6:
            raise UserError(
                f"--minutes must be positive and below 1,000,000, not {self.minutes:g}."
            )
        values = _settings_from_run(self.start_from) | values
        if typed := values.get("data.labels"):
            values["data.labels"] = find_labels_file(self.folder, str(typed))
        return values


def plan_run(request: Request) -> Plan:
    """Chooses every setting that the user leaves open. An existing run keeps its settings.

    With `num_steps=0`, only the instant classifier is planned, too. A time that is too short for a
    training is not refused before `start_run`. Raises a UserError if the
    folder has no layout, there is no such method, key or value, or what was chosen contradicts what
    was set.
    """
    values = request.read_settings()
    instant, method = request.instant, request.method
    if instant or values.get("num_steps") == 0:
        if values.get("model.init_head") == "random":
            raise UserError(
                "An instant classifier is fitted to labels: remove model.init_head=random."
            )
        if "model.init" not in values:
            otherwise = "set --config.model.init to other weights"
            check_extra("pretrained", "An instant classifier", otherwise)
        values = {"model.init": DEFAULT_BACKBONE, "model.init_head": "inferred", **values}
        values.pop("num_steps", None)
        instant = True
    plan = Plan(
        method=None if instant else method or "cls",
        settings=values,
        set_by_user=frozenset(values),
        summary=summarize_folder(request.folder, find_options(values)),
        resources=find_resources(),
    )
    plan = _choose_method(plan, method, request.workdir)
    _check_alone(plan)
    path = choose_run(plan.config, request.workdir, plan.summary.layout, request.again)
    plan = dataclasses.replace(plan, workdir=path)
    is_new = not (path / CONFIG).exists()
    plan = fit(plan) if is_new else _take_over(plan)
    check_given(resolve_model(plan.create_draft()), request.settings)
    if is_new:
        check_same(to_json(plan.config), path)  # Before all processes measure a step together.
        if not instant:
            plan = fit_to_time(plan, request.minutes)
    config = resolve_model(plan.config)
    _check_channels(config)
    validate_config(resolve_model(plan.create_draft()))  # Two values may contradict each other.
    return plan.choose({"model.name": config.model.name})


def _choose_method(plan: Plan, method: str | None, workdir: str | pathlib.Path | None) -> Plan:
    """The plan with the method that the user has chosen, or the run begun before, or the folder."""
    if method is not None or plan.method is None:
        return plan
    begun = pathlib.Path(workdir or ".")
    if workdir and (begun / CONFIG).exists() and "method" in (stored := read_run_config(begun)):
        return dataclasses.replace(plan, method=stored.method.name)
    defaults = create_folder_config("", "cls")
    if plan.settings.keys() - flatten(defaults.to_dict()).keys():
        plan = dataclasses.replace(plan, method="fixmatch")  # It may have these options.
    return dataclasses.replace(plan, method=choose_method(plan))


def _check_alone(plan: Plan) -> None:
    """Raises a UserError unless each value is valid by itself and has the packages it needs.

    The rules divide by these values.
    """
    _check_tags(plan.config)
    validate_config(plan.create_draft(), is_whole=False)
    check_packages(plan.config)
    Backbones.of(plan.config.model).check()


def _check_tags(config: ConfigDict) -> None:
    """Raises a UserError for what only photos with tags have, or only those without."""
    if not config.data.tags:
        if config.model.tag_precision:
            raise UserError("--precision is for photos with tags: add --tags, or remove it.")
        return
    if "method" in config:
        raise UserError(
            "Only the instant classifier learns several tags per photo: add --instant, or remove "
            "--tags."
        )
    values = flatten(config.to_dict())
    for key, value in _ONLY_OF_CLASSES.items():
        if values[key] != value:
            raise UserError(f"{key} is for photos that have one class each: remove it, or --tags.")


def _take_over(plan: Plan) -> Plan:
    """The plan with the choices of the run that its folder has.

    Raises a UserError if one is an instant classifier and the other a run.
    """
    config = read_run_config(plan.workdir)
    if ("method" in config) != ("method" in plan.config):
        what = "a trained run" if "method" in config else "an instant classifier"
        raise UserError(f"{plan.workdir} already has {what}: choose another --workdir.")
    stored, planned = flatten(config.to_dict()), flatten(plan.config.to_dict())
    keys = RULES.keys() & stored.keys() & planned.keys() - plan.set_by_user
    return plan.choose({key: stored[key] for key in keys})


def _check_channels(config: ConfigDict) -> None:
    """Raises a UserError if the mean, or pretrained weights, are for images of other channels."""
    init, channels = config.model.init, config.data.channels
    check_channels(config, "the folder", channels)
    if channels != 3 and init.startswith((BUILTIN, HUB)):
        raise UserError(
            f"The weights {init:.100} are for images of 3 channels, and data.channels is "
            f"{channels}: remove data.channels, or train from random weights with "
            "--config.model.init= and without --instant."
        )


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


def start_run(plan: Plan) -> Run:
    """The run of a plan. Prints what people should read, and spends its time, if it is given.

    See `start_in_time`. Raises a UserError if that is too short for a training worth having.
    """
    if plan.needed_minutes is not None:
        raise UserError(
            f"{plan.reason} Pass --minutes {plan.needed_minutes}, or --instant for a classifier "
            "without training."
        )
    if is_main_process():
        for notice in list_notices(plan, gather_facts(plan)):
            print(notice, flush=True)
    started, dataset = start_in_time(plan)
    if started.reason and dataset is not None and is_main_process():
        print(started.reason, flush=True)
    run = create_run(started.config, plan.workdir, plan.summary.layout)
    if dataset is not None:
        run.dataset = dataset
    return run


def plan_config(
    config: ConfigDict, workdir: str | pathlib.Path | None, given: Iterable[str] = ()
) -> Run:
    """The run of any configuration, of which a user has `given` these keys.

    Raises a UserError if it is invalid, or nothing reads one of them.
    """
    config = with_values(config, read_empty(flatten(config.to_dict())))
    validate_config(config)
    check_packages(config)
    Backbones.of(config.model).check()
    layout = None
    if config.data.name == "folder":
        _check_tags(config)
        _check_channels(config)
        root = pathlib.Path(config.data.data_dir).expanduser()
        if config.data.data_dir and root.is_dir():
            layout = list_layout(root, get_folder_options(config.data))
    config = resolve_model(config.copy_and_resolve_references())
    check_given(config, given)
    return create_run(FrozenConfigDict(config), choose_run(config, workdir, layout), layout)


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
    values = config_flags.get_override_values(flag_values["config"])
    return {**values, **read_empty(values)}


def find_resources() -> Resources:
    """The machine of process 0. TensorFlow is looked for, but not imported."""
    found = Resources(
        has_accelerator=jax.default_backend() != "cpu",
        memory=get_device_memory(jax.local_devices()[0]),
        has_tensorflow=is_installed("tf"),
        has_pretrained=has_weights(DEFAULT_BACKBONE),
        num_devices=jax.device_count(),
    )
    # All processes choose the same settings.
    return Resources(**from_main_process(found._asdict()))


def find_options(values: Mapping[str, Any]) -> FolderOptions:
    """How settings say to read the folder. Raises a UserError if a value is invalid."""
    known = list_options()
    keys = {f"data.{name}": known[f"data.{name}"] for name in FolderOptions._fields}
    chosen = {key: values.get(key, row.default) for key, row in keys.items()}
    check_values(chosen, keys)
    return FolderOptions(**{key.removeprefix("data."): value for key, value in chosen.items()})


def _settings_from_run(run: str | pathlib.Path | None) -> dict[str, Any]:
    """Settings to start from another run's weights, with its architecture."""
    if not run:
        return {}
    stored = flatten(read_instant_config(pathlib.Path(run)).to_dict())
    kept = ["model.name", "model.depth", "model.width", "data.image_size", "data.channels"]
    stem = resolve_stem(stored["model.stem"], stored["data.image_size"])
    settings = {"model.init": str(pathlib.Path(run).resolve()), "model.stem": stem}
    return settings | {key: stored[key] for key in kept}
