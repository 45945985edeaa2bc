"""Training, or fitting an instant classifier, followed by the assessment of the result."""

import contextlib
from typing import Any

from cls_jax.errors import UserError
from cls_jax.parallel.distributed import barrier, from_main_process, is_main_process
from cls_jax.photos.inference.calibration import read_calibration
from cls_jax.photos.inference.checks import measure_with_checks
from cls_jax.photos.inference.evaluate_run import assess_run
from cls_jax.photos.inference.predictor import choose_predictor, open_predictor
from cls_jax.photos.inference.run import Run
from cls_jax.photos.inference.unknown import read_unknown
from cls_jax.photos.start.fit_instant import fit_instant
from cls_jax.photos.start.stages import train_with_stages
from cls_jax.runs.checkpoint import CHECKPOINTS
from cls_jax.runs.folder import read_result, write_result


def train_and_assess(run: Run) -> dict[str, Any]:
    """Trains or resumes a run, or fits an instant classifier, then assesses it.

    A run that began with an instant classifier then chooses between the two, once. All processes
    compute, and process 0 writes. Returns the contents of `result.json`, and raises
    the same as `run_training` and `fit_instant`.
    """
    workdir = run.workdir
    if "method" not in run.config:  # It has no method, hence nothing to train.
        result = fit_instant(run.config, workdir, lambda config: run.dataset)
    else:
        result, end = train_with_stages(run.config, workdir, lambda config: run.dataset)
        if end is not None:
            run.end = end
    # A finished run keeps its result even without checkpoints.
    is_there = run.is_instant or any((workdir / CHECKPOINTS).glob("[0-9]*"))
    if from_main_process("predictor" not in result and is_there):
        chosen = choose_predictor(run, result)
        if chosen and is_main_process():
            write_result(workdir, result | chosen)
        barrier("chosen")
        result = read_result(workdir) or result
    readers = (read_calibration, read_unknown)
    is_assessed = any(read(workdir, result["step"]) for read in readers) or "per_class" in result
    if from_main_process(is_assessed or not is_there):
        return result
    if is_main_process():
        with contextlib.suppress(UserError):  # The table was damaged since.
            write_result(workdir, result | measure_with_checks(run.config, result))
    barrier("checked")
    assess_run(run)
    if (used := open_predictor(run)) is not run:
        assess_run(used)
    return read_result(workdir) or result
