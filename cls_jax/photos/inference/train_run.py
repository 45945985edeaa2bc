"""Training, or fitting an instant classifier, followed by the assessment of the result."""

import contextlib
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from cls_jax.config import with_values
from cls_jax.errors import UserError
from cls_jax.io import PARTIAL
from cls_jax.parallel.distributed import barrier, from_main_process, is_main_process
from cls_jax.photos.features.accuracy import correct_estimate, read_estimate
from cls_jax.photos.folder.catalog import read_checked
from cls_jax.photos.folder.log import compare_checks
from cls_jax.photos.folder.options import get_folder_options
from cls_jax.photos.inference.calibration import read_calibration
from cls_jax.photos.inference.evaluate_run import assess_run
from cls_jax.photos.inference.predictor import RANDOM, choose_predictor
from cls_jax.photos.inference.run import InstantRun, Run
from cls_jax.photos.inference.unknown import read_unknown
from cls_jax.photos.start.fit_instant import INSTANT
from cls_jax.runs.folder import read_result, write_result


def train_and_assess(run: Run) -> dict[str, Any]:
    """Trains or resumes a run, or fits an instant classifier, then assesses it.

    A run that began with an instant classifier then chooses between the two, once. All processes
    compute, and process 0 writes. Returns the contents of `result.json`, and raises the same as
    `Run.train`.
    """
    workdir = run.workdir
    run.train()
    if from_main_process("predictor" not in run.result and run.has_classifier):
        chosen = from_main_process(choose_predictor(run))
        if chosen.get("predictor") == INSTANT and chosen.get("predictor_images") == RANDOM:
            chosen |= _give_back_labels(run)
        run.result = run.result | chosen
        if chosen and is_main_process():
            write_result(workdir, run.result)
    step = run.result["step"]
    is_assessed = "per_class" in run.result
    is_assessed |= any(read(workdir, step) for read in (read_calibration, read_unknown))
    if from_main_process(is_assessed or not run.has_classifier):
        return run.result
    if is_main_process():
        with contextlib.suppress(UserError):  # The table was damaged since.
            write_result(workdir, run.result | measure_with_checks(run.config, run.result))
    barrier("checked")
    assess_run(run)
    if run.predictor is not run:
        assess_run(run.predictor)
    run.result = read_result(workdir) or run.result
    return run.result


def _give_back_labels(run: Run) -> dict[str, Any]:
    """Fits the instant classifier of a run again, with the labels that were held out, too.

    They have done what they were held out for: training was in vain. Returns the number of labels
    and the figures about them, for the result.
    """
    begun = run.begun_with
    if begun is None or not run.config.data.validation:
        return {}
    partial = begun.workdir.with_name(f"{INSTANT}{PARTIAL}")
    again = InstantRun(with_values(begun.config, {"data.validation": 0.0}), partial, run.layout)
    again.train()
    if is_main_process():
        shutil.rmtree(begun.workdir)
        partial.rename(begun.workdir)
    barrier("given back")
    del run.begun_with
    names = [key for key in again.result if key.startswith("labels_")]
    return {name: again.result[name] for name in ("num_labels", *names)}


def measure_with_checks(config: ConfigDict, result: Mapping[str, Any]) -> dict[str, Any]:
    """The figures `labels_*` of a result that the checks in the folder's label table change.

    Empty without an estimate or without enough checks, or if only some labels are used. Raises a
    UserError if the table cannot be read.
    """
    estimate = read_estimate(result)
    if estimate is None or config.data.name != "folder" or config.num_labels:
        return {}
    root = pathlib.Path(config.data.data_dir).expanduser()
    checked = compare_checks(read_checked(root, get_folder_options(config.data)))
    corrected = correct_estimate(estimate, checked.is_right, checked.confidences)
    if corrected == estimate:
        return {}
    return {f"labels_{name}": value for name, value in corrected._asdict().items()}
