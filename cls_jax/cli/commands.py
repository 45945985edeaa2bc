"""What each command does and prints, for main.py and `cls-jax` alike."""

import importlib.util
import pathlib
import shlex
import sys
from collections.abc import Sequence

import jax
from ml_collections import ConfigDict

from cls_jax.config import validate_config
from cls_jax.errors import UserError
from cls_jax.io import make_printable
from cls_jax.parallel.distributed import is_main_process
from cls_jax.runs.result import describe_accuracies, describe_monitors


def train_folder(
    folder: str,
    method: str,
    workdir: str | None,
    overrides: Sequence[str] = (),
    *,
    is_dry: bool = False,
) -> None:
    """Trains on a folder of images as `train_run` does, with defaults that fit it.

    Args:
        folder: of images, see docs/own_images.md.
        method: name of a method.
        workdir: the run's folder; None for the default under runs/.
        overrides: options such as "--config.num_steps=500".
        is_dry: whether to print what would be done, and the cost, and do nothing.

    Raises:
        UserError: as of `train_run`.
    """
    from cls_jax.cli.dry_run import describe_dry_run
    from cls_jax.cli.plan import describe_imbalance, parse_overrides, plan_run

    plan = plan_run(folder, method, workdir, parse_overrides(overrides, method))
    if is_dry:
        print(describe_dry_run(plan))
        return
    if is_main_process() and (sentence := describe_imbalance(plan.summary)):
        print(sentence, flush=True)
    train_run(plan.config, str(plan.workdir))


def train_run(config: ConfigDict | None, workdir: str | None) -> None:
    """Starts or resumes training, then prints the accuracy and where to read more.

    Args:
        config: the configuration, or None if the user gave none.
        workdir: the run's folder; None for the default under runs/.

    Raises:
        UserError: if there is no configuration, or the folder, the data or the devices do not fit.
    """
    from cls_jax.inference.evaluate_run import train_calibrated
    from cls_jax.runs.folder import RESULT, get_default_workdir

    if config is None:
        raise UserError("Training needs a configuration: add --config configs/digits.py:40.")
    validate_config(config)
    folder = pathlib.Path(workdir or get_default_workdir(config))
    result = train_calibrated(config, folder)
    if not is_main_process():
        return
    has_test = result["test_accuracy"] is not None
    if has_test:
        print(f"\nTest accuracy after {result['step']:,} steps:")
        print(describe_accuracies(result), flush=True)
    else:
        print(
            f"\nNo test set. Averages over the last logged batches (step {result['step']:,}):\n"
            f"{describe_monitors(result['monitors'])}",
            flush=True,
        )
    report = _write_report_after_training(folder)
    print()
    if report:
        print(f"The whole run:  {report}")
    if importlib.util.find_spec("tensorboard"):
        print(f"Curves:         tensorboard --logdir {shlex.quote(str(folder))}")
    if has_test:
        print(f"Evaluate again: {_write_command('evaluate', folder)}")
    if config.data.name == "folder":
        print(f"Label images:   {_write_command('predict', folder)}")
    print(f"All numbers:    {folder / RESULT}")


def evaluate_run(workdir: str | None, data_dir: str | None = None) -> None:
    """Prints the test accuracies of a run's newest checkpoint, and calibrates its confidences.

    Args:
        workdir: the run's folder.
        data_dir: where the dataset is now, if it has moved since the training.

    Raises:
        UserError: if there is no run, or its dataset is missing or has changed.
    """
    from cls_jax.inference import evaluate_run
    from cls_jax.inference.calibration import read_calibration

    folder = _get_run(workdir, "Evaluation")
    step, accuracies = evaluate_run.evaluate_run(folder, data_dir)
    if is_main_process():
        print(f"Test accuracy after {step:,} steps:")
        print(describe_accuracies(accuracies))
        if calibration := read_calibration(folder, step):
            print(
                f"Calibrated on {calibration.num_images:,} test images: temperature "
                f"{calibration.temperature:.2f}, uniform share {calibration.uniform_share:.2f}"
            )


def predict_images(
    workdir: str | None, images: str | None, output: str | None, num_suggestions: int = 0
) -> None:
    """Labels image files with a run's networks, and suggests which to label by hand.

    Args:
        workdir: the run's folder.
        images: a folder, a glob or a file.
        output: the .csv or .parquet to write.
        num_suggestions: how many images to suggest; 0 for none.

    Raises:
        UserError: if there is no run or no image, or the output cannot be written.
    """
    from cls_jax.data.images.files import find_images
    from cls_jax.inference.classifier import load
    from cls_jax.inference.predict_files import predict_files
    from cls_jax.inference.suggest_files import Files, suggest_from
    from cls_jax.inference.tables import check_path

    _check_single_process("predict")
    run = _get_run(workdir, "Prediction")
    if images is None:
        raise UserError("Prediction needs images: add --images with a folder, a glob or a file.")
    if output is None:
        raise UserError("Prediction needs a file to write: add --output predictions.csv.")
    path = pathlib.Path(output).expanduser()
    check_path(path)
    files = find_images(images)
    classifier = load(run)
    outcome = predict_files(classifier, files, path)
    print(
        f"{outcome.num_files:,} images in {outcome.seconds:.1f} s, {outcome.network_share:.0%} of "
        f"it in the networks: {path}"
    )
    if outcome.num_errors:
        print(f"{outcome.num_errors:,} of them could not be read: see the column error.")
    if num_suggestions:
        rows = suggest_from(Files(files, []), num_suggestions, classifier)
        _write_suggestions(rows, path.with_name(f"{path.stem}-suggestions{path.suffix}"))


def suggest_images(folder_or_run: str, num_images: int, output: str | None) -> None:
    """Lists images to label next.

    Args:
        folder_or_run: a folder of images, labeled or not, or a run on such a folder.
        num_images: how many to list.
        output: a .csv or .parquet to write; None to print the list.

    Raises:
        UserError: if there is no unlabeled image, or the output cannot be written.
    """
    from cls_jax.inference.suggest_files import suggest_files
    from cls_jax.inference.tables import check_path

    _check_single_process("suggest")
    if num_images < 1:
        raise UserError(f"There is nothing to suggest with --count {num_images}: choose 1 or more.")
    path = pathlib.Path(output).expanduser() if output is not None else None
    if path:
        check_path(path)
    rows = suggest_files(folder_or_run, num_images)
    if path:
        _write_suggestions(rows, path)
    else:
        print("\n".join(make_printable(row["file"]) for row in rows))


def _write_suggestions(rows: Sequence[dict], path: pathlib.Path) -> None:
    from cls_jax.inference.suggest_files import SUGGESTION_COLUMNS
    from cls_jax.inference.tables import create_table

    with create_table(path, SUGGESTION_COLUMNS) as table:
        table.write(rows)
    print(f"{len(rows):,} images to label next: {path}")


def export_run(workdir: str | None, output: str | None) -> None:
    """Writes a run's networks as files that work without this project.

    Args:
        workdir: the run's folder.
        output: the folder to write.

    Raises:
        UserError: if there is no run, or the output cannot be written or would be overwritten.
    """
    from cls_jax.inference import export

    _check_single_process("export")
    run = _get_run(workdir, "Export")
    if output is None:
        raise UserError("Export needs a folder to write: add --output DIR.")
    folder = pathlib.Path(output).expanduser()
    missing = export.export_run(run, folder)
    print(f"Exported, and checked against this run: {folder}")
    if missing:
        print(missing)
    print(f"Try it: python {folder / export.EXAMPLE} IMAGE")


def report_run(workdir: str | None, data_dir: str | None = None) -> None:
    """Writes `report.html`, the page about a run; arguments as for `evaluate_run`.

    Raises:
        UserError: if there is no run or its folder cannot be written.
    """
    from cls_jax.report.page import write_report

    _check_single_process("report")
    print(f"Report: {write_report(_get_run(workdir, 'A report'), data_dir)}")


def _write_report_after_training(folder: pathlib.Path) -> pathlib.Path | None:
    """Writes the report of a finished run unless it is up to date; never fails."""
    from cls_jax.report.page import REPORT, write_report
    from cls_jax.runs.folder import RESULT

    again = _write_command("report", folder)
    if jax.process_count() > 1:  # A report takes one process.
        print(f"\nFor a report of the whole run: {again}")
        return None
    path = folder / REPORT
    try:
        if path.exists() and path.stat().st_mtime >= (folder / RESULT).stat().st_mtime:
            return path
        return write_report(folder)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        print(f"The report could not be drawn ({reason}). To try again: {again}")
        return None


# Verb → its options after the run's folder, for `cls-jax` and for main.py.
_EXAMPLES = {
    "evaluate": ("", ""),
    "report": ("", ""),
    "predict": (" IMAGES", " --images IMAGES --output predictions.csv"),
}


def _write_command(verb: str, folder: pathlib.Path) -> str:
    """A command on a run, in the form of the command that started this process."""
    program, quoted = pathlib.Path(sys.argv[0]), shlex.quote(str(folder))
    positional, named = _EXAMPLES[verb]
    if program.name == "main.py":
        mode = verb.removesuffix("uate")  # main.py calls it eval.
        return f"python main.py --mode {mode} --workdir {quoted}{named}"
    start = "python -m cls_jax" if program.match("cls_jax/__main__.py") else "cls-jax"
    return f"{start} {verb} {quoted}{positional}"


def _get_run(workdir: str | None, what: str) -> pathlib.Path:
    if workdir is None:
        raise UserError(f"{what} needs the folder of a run: add --workdir DIR.")
    return pathlib.Path(workdir)


def _check_single_process(verb: str) -> None:
    if jax.process_count() > 1:
        raise UserError(f"{verb} runs in one process: start it without the others.")
