"""Training, or fitting an instant classifier, followed by the assessment of the result."""

import contextlib
from typing import Any

from cls_jax.errors import UserError
from cls_jax.parallel.distributed import barrier, from_main_process, is_main_process
from cls_jax.photos.inference.calibration import read_calibration
from cls_jax.photos.inference.checks import measure_with_checks
from cls_jax.photos.inference.evaluate_run import assess_run
from cls_jax.photos.inference.predictor import choose_predictor
from cls_jax.photos.inference.run import Run
from cls_jax.photos.inference.unknown import read_unknown
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
