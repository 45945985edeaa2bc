"""Training from Python. `cls_jax.load` opens the result."""

import pathlib
from typing import Any

from ml_collections import ConfigDict

from cls_jax.errors import UserError
from cls_jax.parallel.distributed import is_main_process
from cls_jax.photos.inference.assessment import train_and_assess
from cls_jax.photos.inference.classifier import refuse_forked_child
from cls_jax.photos.inference.run import Run, create_run
from cls_jax.photos.plan.plan import Request, plan_config, plan_run, start_run
from cls_jax.photos.plan.rules import apply_settings
from cls_jax.photos.report.after_training import draw_report
from cls_jax.process import (
    enable_compilation_cache,
    use_all_cores_for_convolutions,
)


def train(
    folder_or_config: str | pathlib.Path | ConfigDict,
    workdir: str | pathlib.Path | None = None,
    *,
    method: str | None = None,
    start_from: str | pathlib.Path | None = None,
    instant: bool = False,
    minutes: float | None = None,
    again: bool = False,
    backbone: str | None = None,
    **settings: Any,
) -> Run:
    """Trains a classifier, or resumes an interrupted run, as `cls-jax train` does, with its report.

    Options that are not set are chosen for the images and the machine. Call it before anything else
    computes with JAX, so that XLA uses all CPU cores for convolutions.

    Args:
        folder_or_config: A folder of images, see docs/own_images.md, or a configuration such as
            `configs/digits.py` builds.
        workdir: The run's folder. None for the default under runs/.
        method: The name of a method, for a folder of images. A configuration has its own. None for
            "fixmatch" on photos with one of the pretrained networks of `cls-jax backbones`, and
            otherwise "cls".
        start_from: The folder of another run to start from, for a folder of images.
        instant: Whether to fit only the instant classifier, without training, for a folder of
            images.
        minutes: How long training should take, for a folder of images. None for the default: 10 for
            pretrained networks, 30 with an accelerator.
        again: Whether to start another run if a finished one exists, for a folder of images.
        backbone: Names of pretrained networks of `cls-jax backbones`, with commas, for a folder of
            images. The first one is trained, and all infer labels. None for the default.
        **settings: Keys of docs/configuration.md with "__" for ".", as in data__image_size=64.

    Raises:
        UserError: If the folder, the settings or the devices do not fit, a loss is not finite, or
            the process was forked from one that had used JAX.
        StoppedError: If the user or the system stops the run. The same call resumes it.
    """
    refuse_forked_child()
    use_all_cores_for_convolutions()
    enable_compilation_cache()
    workdir = pathlib.Path(workdir).expanduser() if workdir is not None else None
    start_from = pathlib.Path(start_from).expanduser() if start_from is not None else None
    values = {key.replace("__", "."): value for key, value in settings.items()}
    if isinstance(folder_or_config, ConfigDict):
        for name, value, instead in (
            ("method", method, "Build the configuration of another method instead."),
            ("start_from", start_from, "Set model__init instead."),
            ("instant", instant, "Pass the folder instead."),
            ("minutes", minutes, "Set num_steps instead."),
            ("again", again, "Pass another workdir instead."),
            ("backbone", backbone, "Set model__init instead."),
        ):
            if value is not None and value is not False:
                raise UserError(f"{name} is for folders of images. {instead}")
        run = _plan_configuration(folder_or_config, values, workdir)
    else:
        request = Request(
            folder_or_config,
            workdir=workdir,
            method=method,
            start_from=start_from,
            instant=instant,
            minutes=minutes,
            again=again,
            backbone=backbone,
            settings=values,
        )
        run = start_run(plan_run(request))
    train_and_assess(run)
    if is_main_process():
        draw_report(run)
    return create_run(run.config, run.workdir)  # Without the images and networks in memory.


def _plan_configuration(
    config: ConfigDict, settings: dict[str, Any], workdir: pathlib.Path | None
) -> Run:
    """The run of a configuration with some keys set, which is not changed itself."""
    config = ConfigDict(config.to_dict())  # Not frozen, as that of a `Run` is.
    config.lock()
    apply_settings(config, settings)
    return plan_config(config, workdir, settings)
