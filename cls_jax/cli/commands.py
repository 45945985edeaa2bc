"""What the modes of the command line do and print."""

import pathlib
import shlex

import jax

from cls_jax.config import validate_config
from cls_jax.errors import UserError
from cls_jax.parallel.distributed import is_main_process
from cls_jax.runs.result import describe_accuracies, describe_monitors


def train_run(config, workdir: str | None) -> None:
    """Trains or goes on, then says how well and where to look.

    Raises:
        UserError: if there is no configuration or something does not fit it.
    """
    from cls_jax.runs.folder import RESULT, get_default_workdir
    from cls_jax.training.loop import train

    if config is None:
        raise UserError("Training needs a configuration: add --config configs/digits.py:40.")
    validate_config(config)
    folder = pathlib.Path(workdir or get_default_workdir(config))
    result = train(config, folder)
    if not is_main_process():
        return
    has_test = result["test_accuracy"] is not None
    if has_test:
        print(f"\nTest accuracy after {result['step']:,} steps:")
        print(describe_accuracies(result), flush=True)
    else:
        print(f"\nWithout test images, after {result['step']:,} steps, over the last batches:")
        print(describe_monitors(result["monitors"]), flush=True)
    report = _write_report_after_training(folder)
    print()
    quoted = shlex.quote(str(folder))
    if report:
        print(f"The whole run:  {report}")
    print(f"Curves:         tensorboard --logdir {quoted}")
    if has_test:
        print(f"Evaluate again: python main.py --mode eval --workdir {quoted}")
    print(f"All numbers:    {folder / RESULT}")


def evaluate_run(workdir: str | None) -> None:
    """Evaluates the newest checkpoint of a run.

    Raises:
        UserError: if there is no run.
    """
    from cls_jax.inference import evaluate_run

    if workdir is None:
        raise UserError("Evaluation needs the folder of a run: add --workdir DIR.")
    step, accuracies = evaluate_run.evaluate_run(pathlib.Path(workdir))
    if is_main_process():
        print(f"Test accuracy after {step:,} steps:")
        print(describe_accuracies(accuracies))


def predict_images(
    workdir: str | None, images: str | None, output: str | None, num_suggestions: int
) -> None:
    """Labels image files with a run, and says which to label by hand.

    Raises:
        UserError: if there is no run or no image, or the output cannot be written.
    """
    from cls_jax.data.images.files import find_images
    from cls_jax.inference.classifier import load
    from cls_jax.inference.predict_files import get_suggestions_path, predict_files
    from cls_jax.inference.tables import check_path

    _check_single_process("predict")
    if workdir is None:
        raise UserError("Prediction needs the folder of a run: add --workdir DIR.")
    if images is None:
        raise UserError("Prediction needs images: add --images with a folder, a glob or a file.")
    if output is None:
        raise UserError("Prediction needs a file to write: add --output predictions.csv.")
    path = pathlib.Path(output).expanduser()
    check_path(path)
    files = find_images(images)
    outcome = predict_files(load(workdir), files, path, num_suggestions)
    print(
        f"{outcome.num_files:,} images in {outcome.seconds:.1f} s, {outcome.network_share:.0%} of "
        f"it in the networks: {path}"
    )
    if outcome.num_errors:
        print(f"{outcome.num_errors:,} of them could not be read: see the column error.")
    if num_suggestions:
        print(f"{outcome.num_suggested:,} images to label next: {get_suggestions_path(path)}")


def export_run(workdir: str | None, output: str | None) -> None:
    """Writes a run's networks as files that need nothing of this project.

    Raises:
        UserError: if there is no run, or the output cannot or must not be written.
    """
    from cls_jax.inference import export

    _check_single_process("export")
    if workdir is None:
        raise UserError("Export needs the folder of a run: add --workdir DIR.")
    if output is None:
        raise UserError("Export needs a folder to write: add --output DIR.")
    folder = pathlib.Path(output).expanduser()
    missing = export.export_run(pathlib.Path(workdir), folder)
    print(f"Exported, and checked against this run: {folder}")
    if missing:
        print(missing)
    print(f"Try it: python {folder / export.EXAMPLE} IMAGE")


def report_run(workdir: str | None) -> None:
    """Writes the page that shows a run.

    Raises:
        UserError: if there is no run or its folder cannot be written.
    """
    from cls_jax.report.page import write_report

    _check_single_process("report")
    if workdir is None:
        raise UserError("A report needs the folder of a run: add --workdir DIR.")
    print(f"Report: {write_report(pathlib.Path(workdir))}")


def _write_report_after_training(folder: pathlib.Path) -> pathlib.Path | None:
    """Writes the report of a finished run, if it has none of its end; never fails."""
    from cls_jax.report.page import REPORT, write_report
    from cls_jax.runs.folder import RESULT

    if jax.process_count() > 1:  # It takes one.
        print(f"\nThe whole run:  python main.py --mode report --workdir {folder} draws it.")
        return None
    path = folder / REPORT
    try:
        if path.exists() and path.stat().st_mtime >= (folder / RESULT).stat().st_mtime:
            return path
        return write_report(folder)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        print(
            f"The report could not be drawn ({reason}): python main.py --mode report --workdir "
            f"{folder} tries again."
        )
        return None


def _check_single_process(mode: str) -> None:
    if jax.process_count() > 1:
        raise UserError(f"--mode {mode} runs in one process: start it without the others.")
