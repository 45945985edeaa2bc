"""Training, followed by calibration, per-class metrics, and a score for unknown images."""

from typing import Any

from cls_jax.parallel.distributed import from_main_process
from cls_jax.photos.inference.calibration import read_calibration
from cls_jax.photos.inference.evaluate_run import assess_run
from cls_jax.photos.inference.run import Run
from cls_jax.photos.inference.unknown import read_unknown
from cls_jax.runs.checkpoint import CHECKPOINTS
from cls_jax.runs.folder import INSTANT, find_predictor, find_trained, read_result
from cls_jax.training.loop import run_training


def train_and_assess(run: Run) -> dict[str, Any]:
    """Trains or resumes a run as `training.loop.run_training` does, then assesses its classifier.

    All processes compute, and process 0 writes. Returns the contents of `result.json`,
    and raises the same as `training.loop.run_training`.
    """

    def keep(*end: Any) -> None:
        run.end = end

    workdir = run.workdir
    result = run_training(run.config, workdir, lambda config: run.dataset, keep)
    readers = (read_calibration, read_unknown)
    is_assessed = any(read(workdir, result["step"]) for read in readers) or "per_class" in result
    # A finished run keeps its result even without checkpoints.
    is_there = find_trained(workdir) != workdir or any((workdir / CHECKPOINTS).glob("[0-9]*"))
    if from_main_process(is_assessed or not is_there):
        return result
    assess_run(run)
    if result.get("answer") == INSTANT:
        instant = Run(run.config, workdir, predictor=find_predictor(workdir))
        instant.dataset = run.dataset
        assess_run(instant)
    return read_result(workdir) or result
