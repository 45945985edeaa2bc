"""Opens a run, or creates a new one. This is the only place that asks which form it has."""

import copyreg
import os
import pathlib
from typing import Any

from ml_collections import ConfigDict

from cls_jax.config import validate_config, with_values
from cls_jax.errors import UserError
from cls_jax.photos.folder.instant_config import read_run_config
from cls_jax.photos.folder.layout import Layout
from cls_jax.photos.inference.classifier import Classifier, refuse_forked_child
from cls_jax.photos.inference.run import InstantRun, Run, TrainedRun


def create_run(
    config: ConfigDict,
    workdir: pathlib.Path,
    layout: Layout | None = None,
    step: int | str | None = None,
) -> Run:
    """The run of a configuration, which is an instant classifier if it has no section `method`.

    The folder need not exist. `layout` is that of the folder of images, if it has been listed
    already. `step` is for `open_run`.
    """
    if "method" in config:
        return TrainedRun(config, workdir, layout, step)
    if step is not None:
        raise UserError(
            f"{workdir} has an instant classifier, which has no steps: leave out the step."
        )
    return InstantRun(config, workdir, layout)


def open_run(
    workdir: pathlib.Path,
    data_dir: str | None = None,
    eval_batch_size: int | None = None,
    step: int | str | None = None,
) -> Run:
    """The run in a folder.

    `data_dir` is the dataset's place if it is no longer the training's `config.data.data_dir`, and
    `eval_batch_size` replaces the training's for networks. `step` is that of another checkpoint
    than the newest, or "best", on the validation images. Raises a UserError if there is no run, it
    is damaged, or an instant classifier is asked for a step.
    """
    config = read_run_config(workdir)
    if data_dir is not None:
        config = with_values(config, {"data.data_dir": data_dir})
    if eval_batch_size is not None and "eval_batch_size" in config:
        config = with_values(config, {"eval_batch_size": eval_batch_size})
        validate_config(config)
    return create_run(config, workdir, step=step)


def check_photos(run: Run, remedy: str) -> None:
    """Raises a UserError with a remedy if a run's folder of photos is no longer there."""
    root = pathlib.Path(run.config.data.data_dir).expanduser()
    if run.config.data.name == "folder" and not root.is_dir():
        raise UserError(f"The run's photos are no longer in {root}: {remedy}.")


def load(
    run: str | os.PathLike, trained: bool = False, step: int | str | None = None
) -> Classifier:
    """Opens a run's classifier: its newest checkpoint, or its instant classifier.

    `run` is its folder, or what `cls_jax.train` returned. If `trained`, the checkpoint is opened
    even where the run chose its instant classifier. `step` is that of another checkpoint, or
    "best", on the validation images. Raises a UserError if there is no run, no such checkpoint,
    or a damaged file, or the process was forked from one that had used JAX.
    """
    refuse_forked_child()
    opened = open_run(pathlib.Path(run).expanduser(), step=step)
    return (opened if trained else opened.predictor).classifier


def _reduce(classifier: Classifier) -> tuple[Any, ...]:
    """How a classifier is pickled: by its own folder, its step and its fingerprint."""
    fingerprint = classifier.compute_fingerprint()
    return _reopen, (os.fspath(classifier.workdir), classifier.step, fingerprint)


def _reopen(workdir: str, step: int, fingerprint: str) -> Classifier:
    """The pickled classifier of a folder. Raises a UserError if the folder has another one now."""
    # An instant classifier has no step.
    classifier = load(workdir, trained=True, step=step or None)
    if classifier.compute_fingerprint() != fingerprint:
        raise UserError(
            f"The classifier in {workdir} has changed since it was pickled: open it with "
            "cls_jax.load and pickle it again."
        )
    return classifier


copyreg.pickle(Classifier, _reduce)
