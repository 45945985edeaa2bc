"""What the modes of the command line do and print."""

import pathlib

from cls_jax.config import validate_config
from cls_jax.errors import UserError
from cls_jax.processes import is_first
from cls_jax.result import describe_accuracies


def train_run(config, workdir: str | None) -> None:
    """Trains or goes on, then says how well and where to look.

    Raises:
        UserError: if there is no configuration or something does not fit it.
    """
    from cls_jax.run_folder import RESULT, get_default_workdir
    from cls_jax.train import train

    if config is None:
        raise UserError("Training needs a configuration: add --config configs/digits.py:40.")
    validate_config(config)
    folder = pathlib.Path(workdir or get_default_workdir(config))
    result = train(config, folder)
    if not is_first():
        return
    print(f"\nTest accuracy after {result['step']:,} steps:")
    print(describe_accuracies(result), flush=True)
    report = _write_report_after_training(folder)
    print()
    if report:
        print(f"The whole run:  {report}")
    print(f"Curves:         tensorboard --logdir {folder}")
    print(f"Evaluate again: python main.py --mode eval --workdir {folder}")
    print(f"All numbers:    {folder / RESULT}")


def evaluate_run(workdir: str | None) -> None:
    """Evaluates the newest checkpoint of a run.

    Raises:
        UserError: if there is no run.
    """
    from cls_jax import evaluate_run

    if workdir is None:
        raise UserError("Evaluation needs the folder of a run: add --workdir DIR.")
    step, accuracies = evaluate_run.evaluate_run(pathlib.Path(workdir))
    if is_first():
        print(f"Test accuracy after {step:,} steps:")
        print(describe_accuracies(accuracies))


def report_run(workdir: str | None) -> None:
    """Writes the page that shows a run.

    Raises:
        UserError: if there is no run or its folder cannot be written.
    """
    from cls_jax.report.page import write_report

    if workdir is None:
        raise UserError("A report needs the folder of a run: add --workdir DIR.")
    if is_first():
        print(f"Report: {write_report(pathlib.Path(workdir))}")


def _write_report_after_training(folder: pathlib.Path) -> pathlib.Path | None:
    """Writes the report of a finished run, if it has none of its end; never fails."""
    from cls_jax.report.page import REPORT, write_report
    from cls_jax.run_folder import RESULT

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
