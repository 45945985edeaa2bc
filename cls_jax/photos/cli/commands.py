"""What each verb of `cls-jax` does and prints. `main.py` trains and evaluates with these functions.

`console.run` calls the function with the name of the verb. Its parameters are the verb's options,
which `console.create_parser` describes. All raise a UserError if a run, images or an extra are
missing or do not fit, or if the output cannot be written or would replace something else.
"""

import difflib
import glob
import os
import pathlib
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from cls_jax.errors import UserError
from cls_jax.extras import check_extra, is_installed, write_install
from cls_jax.io import make_printable, write_count
from cls_jax.parallel.distributed import is_main_process
from cls_jax.photos.features.backbones import Backbones, format_backbones
from cls_jax.photos.folder.catalog import find_table, list_tables, read_catalog
from cls_jax.photos.folder.label_table import LABELS_CSV
from cls_jax.photos.folder.options import (
    AUTOMATIC,
    FolderOptions,
    find_folder,
    find_labels_file,
)
from cls_jax.photos.folder.sort import check_sorting, set_unsure_apart, sort_files
from cls_jax.photos.images.files import find_images, is_list, list_images, read_ahead
from cls_jax.photos.images.packed import pack_folder
from cls_jax.photos.images.store import Store, get_cache_folder
from cls_jax.photos.inference.classifier import Classifier
from cls_jax.photos.inference.list_runs import RUNS, find_newest, format_runs, is_run, list_runs
from cls_jax.photos.inference.run import Run, load
from cls_jax.photos.inference.tables import check_path, is_prediction_table, write_table
from cls_jax.photos.report.outcome import (
    count_copies,
    describe_accuracies,
    describe_monitors,
    describe_outcome,
)
from cls_jax.photos.shell import find_program, write_command
from cls_jax.runs.folder import CONFIG, RESULT

_PACKED_AT_ONCE = 256  # Images.


def train(
    folder: str, overrides: Sequence[str], method: str | None, dry_run: bool, **options: Any
) -> None:
    """Trains on a folder of images as `train_config` does, with defaults that fit the folder.

    `options` are further ones of a `Request`.
    """
    from cls_jax.photos.plan.describe import describe_dry_run
    from cls_jax.photos.plan.measure import try_plan
    from cls_jax.photos.plan.plan import Request, parse_overrides, plan_run, start_run

    settings = parse_overrides(overrides, method)
    plan = plan_run(Request(folder, method=method, settings=settings, **options))
    if dry_run:
        print(describe_dry_run(plan, try_plan(plan)))
        return
    _train_and_report(start_run(plan))


def train_config(config: ConfigDict, workdir: str | None, given: Iterable[str] = ()) -> None:
    """Trains in `workdir`, None for the default, and prints the accuracy and the next commands.

    `given` are the keys that the user has set.
    """
    from cls_jax.photos.plan.plan import plan_config

    _train_and_report(plan_config(config, workdir, given))


def _train_and_report(run: Run) -> None:
    from cls_jax.photos.inference.assessment import train_and_assess
    from cls_jax.photos.report.after_training import draw_report

    folder = run.workdir
    result = train_and_assess(run)
    if not is_main_process():
        return
    has_test = result["test_accuracy"] is not None
    evaluate, no_test = write_command(["evaluate", str(folder)]), "No test set. "
    if run.layout and run.layout.test:  # Added since, or result.json would have its accuracy.
        no_test = f"The run had no test set. To evaluate on the one now in the folder: {evaluate}\n"
    is_trained = result["step"] > 0
    if has_test or result.get("validation_accuracy") is not None:
        outcome = (
            f"{'Test' if has_test else 'Validation'} accuracy {_describe_moment(result['step'])}:\n"
            f"{describe_accuracies(result, is_trained)}"
        )
    elif monitors := describe_monitors(result.get("monitors", {})):
        outcome = (
            f"{no_test}Averages over the last logged batches (step {result['step']:,}):\n{monitors}"
        )
    else:
        outcome = f"{no_test}To measure the accuracy on labeled images: {evaluate} FOLDER"
    print(f"\n{outcome}", flush=True)
    for sentence in describe_outcome(result):
        print(sentence, flush=True)
    print("\nWriting the report…", flush=True)  # Which takes a minute on a busy machine.
    curves = f"{find_program('tensorboard')} --logdir {shlex.quote(str(folder))}"
    if not is_installed("tf"):
        curves = f"in the report (TensorBoard needs {write_install('tf')} before training)"
    used = find_newest(folder.parent)  # Where training did not help, an earlier one.
    rows = {
        "Report": draw_report(run),
        "Curves": curves if is_trained else None,
        "Evaluate again": evaluate if has_test else None,
        "Predict": f"{write_command(['predict', str(used)])} IMAGES"
        if run.config.data.name == "folder"
        else None,
        "Results": folder / RESULT,
    }
    print()
    for name, value in rows.items():
        if value is not None:
            print(f"{f'{name}:':16}{value}")


def evaluate(
    run: str | None,
    folder: str | None = None,
    data_dir: str | None = None,
    options: FolderOptions = AUTOMATIC,
    step: str | None = None,
) -> None:
    """Evaluates the run that is named, or the newest one, as `evaluate_workdir` does."""
    workdir, folders = _choose_run([run, folder])
    if any(options) and not folders:
        raise UserError("A run's own images are read as in training: pass another folder, too.")
    if folders:
        options = options._replace(labels=find_labels_file(folders[0], options.labels))
    evaluate_workdir(workdir, folders[0] if folders else None, data_dir, options=options, step=step)


def evaluate_workdir(
    workdir: pathlib.Path,
    folder: str | None = None,
    data_dir: str | None = None,
    eval_batch_size: int | None = None,
    options: FolderOptions = AUTOMATIC,
    step: str | None = None,
) -> None:
    """Prints the test accuracies of a run's newest checkpoint, and calibrates its confidences.

    With a `step`, those of another checkpoint, see `load`, and it only prints.
    """
    from cls_jax.photos.inference.assessment import evaluate_folder, evaluate_run
    from cls_jax.photos.start.scores import describe_figures

    if folder is None:
        found = evaluate_run(workdir, data_dir, eval_batch_size, step)
        title = f"Test accuracy {_describe_moment(found.step)}:"
    else:
        if jax.process_count() > 1:
            raise UserError("evaluate FOLDER runs in a single process. Start only one.")
        found = evaluate_folder(workdir, folder, options, step)
        unreadable = found.num_unreadable
        left_out = f" ({unreadable:,} more cannot be read)" if unreadable else ""
        title = f"Accuracy on {found.num_images:,} labeled images in {folder}{left_out}:"
    if not is_main_process():
        return
    print(title)
    print(describe_accuracies(found.accuracies, found.step > 0, is_fair=not found.num_copies))
    if found.num_copies is None:
        print("Near-copies of training images were not looked for: the run's were moved.")
    elif found.num_copies:
        copies = count_copies(found.num_copies, found.num_images)
        print(f"{copies}, so the accuracy with them is not to be reported.")
    if found.figures:
        low, high = found.figures.interval
        whose = " of network 1" if found.step else found.figures.target.whose
        print(f"95% interval{whose}: {100 * low:.1f}%–{100 * high:.1f}%\n")
        print(describe_figures(found.figures))
    if calibration := found.calibration:
        print(
            f"Calibrated on {calibration.num_images:,} {calibration.fitted_on} images: temperature "
            f"{calibration.temperature:.2f}, uniform share {calibration.uniform_share:.2f}"
        )


def _describe_moment(step: int) -> str:
    """When or of what an accuracy was measured. An instant classifier has no steps."""
    return f"after {step:,} steps" if step else "of the instant classifier"


def predict(
    run: str | None,
    images: Sequence[str],
    output: str | None = None,
    overwrite: bool = False,
    as_json: bool = False,
    all_columns: bool = False,
    sort_into: str | None = None,
    unsure_below: float | None = None,
    has_tags: bool = False,
    step: str | None = None,
) -> None:
    """Labels image files with a run's networks. If `has_tags`, only a run with tags does it."""
    from cls_jax.photos.inference import predict_files as lib

    workdir, images = _choose_run([run, *images])
    if not images:  # If there is no such run, images are misspelled.
        usage = "Pass images, too: cls-jax predict RUN IMAGE_OR_FOLDER …"
        raise UserError(usage if workdir.exists() else _describe_missing(str(workdir)))
    target = _check_sorting(sort_into, unsure_below)
    path = _choose_table(images, output, as_json, overwrite, target is not None)
    files = list(dict.fromkeys(file for pattern in images for file in find_images(pattern)))
    classifier = load(workdir, step=step)
    _check_tags(classifier, has_tags, is_sorted=target is not None)
    if path is None:
        found = lib.print_files(classifier, files, as_json, all_columns)
    else:
        started = time.monotonic()
        found = lib.predict_files(classifier, files, path, all_columns)
        images = write_count(len(found), "image", "images")
        print(f"{images} in {time.monotonic() - started:.1f} s: {path}")
    labels, are_foreign = zip(*found, strict=True)
    num_read = sum(label is not None for _, label, _ in labels)
    if not num_read:
        raise UserError("None of these images could be read: convert them to JPEG or PNG.")
    if path is not None and num_read < len(found):
        print(f"{len(found) - num_read:,} of them could not be read: see the column error.")
    if warning := lib.describe_foreign(sum(are_foreign), num_read):
        print(warning, file=sys.stderr)
    if target:
        sort_files(set_unsure_apart(labels, unsure_below or 0.0), target)
        if not as_json:
            print(f"Copied by class into {target}")


def _check_tags(classifier: Classifier, has_tags: bool, is_sorted: bool) -> None:
    """Raises a UserError if options are for classes, and a classifier for tags, or the reverse."""
    if has_tags and classifier.thresholds is None:
        raise UserError(f"The photos of {classifier.workdir} have one class each: remove --tags.")
    if is_sorted and classifier.thresholds is not None:
        raise UserError("--sort-into is for photos of one class, and these have tags: remove it.")


def _choose_table(
    images: Sequence[str], output: str | None, as_json: bool, overwrite: bool, is_sorted: bool
) -> pathlib.Path | None:
    """The table to write, or None if predictions are printed. Raises a UserError if it cannot be.

    They are printed as JSON, and for single images: no folder, pattern or list is among them.
    """
    if as_json and output:
        raise UserError("--json prints the predictions. Remove --output.")
    paths = map(os.path.expanduser, images)
    are_single = all(os.path.isfile(path) and not is_list(path) for path in paths)
    if as_json or (are_single and not output and not is_sorted):
        return None
    path = pathlib.Path(output or "predictions.csv").expanduser()
    check_path(path, is_prediction_table, overwrite)
    return path


def _check_sorting(sort_into: str | None, unsure_below: float | None) -> pathlib.Path | None:
    """The folder to sort into, if any. Raises a UserError if the options do not fit together."""
    if unsure_below is not None and not sort_into:
        raise UserError("--unsure-below needs a folder: add --sort-into DIR.")
    if unsure_below is not None and not 0 <= unsure_below <= 1:
        raise UserError(f"--unsure-below must be a confidence from 0 to 1, not {unsure_below:g}.")
    if not sort_into:
        return None
    target = pathlib.Path(sort_into).expanduser()
    check_sorting(target)
    return target


def suggest(
    folder: str,
    count: int,
    output: str | None = None,
    options: FolderOptions = AUTOMATIC,
    backbone: str = "",
) -> None:
    """Lists images to label next."""
    from cls_jax.photos.inference.suggest import SUGGESTION_COLUMNS, suggest_files

    if count < 1:
        raise UserError(f"--count must be at least 1, not {count}.")
    path = pathlib.Path(output).expanduser() if output is not None else None
    if path:
        check_path(path)
    options = options._replace(labels=find_labels_file(folder, options.labels))
    backbones = Backbones.read(backbone)
    rows = suggest_files(folder, count, options, backbones.first if backbones.is_chosen else "")
    if path is None:
        print("\n".join(make_printable(row["file"]) for row in rows), flush=True)
    else:
        write_table(path, SUGGESTION_COLUMNS, rows)
        print(f"{len(rows):,} images to label next: {path}")
    root = pathlib.Path(folder)
    if not (root / CONFIG).exists():
        places = f"{root / 'labeled'}/<class>/ and all others into {root / 'unlabeled'}/"
        way = f"Move each one into {make_printable(places)}"
        if table := find_table(list_images(root)):
            way = f"Add a row for each one to {make_printable(str(root / table))}"
        networks = backbones.to_arguments()
        command = write_command(["label", str(root), *networks, *options.to_arguments(root)])
        way += f", or label them in the browser: {command}"
        print(way, file=sys.stderr)
    if sentence := backbones.describe_chooser():
        print(sentence, file=sys.stderr)


def label(
    folder: str,
    classes: str | None,
    port: int,
    no_browser: bool,
    options: FolderOptions = AUTOMATIC,
    backbone: str = "",
) -> None:
    """Serves a page to label images in the browser, until it is interrupted."""
    check_extra("label,pretrained", "Labeling in the browser")
    from cls_jax.photos.labeling.start import label_folder

    names = [name for name in (classes or "").split(",") if name.strip()]
    options = options._replace(labels=find_labels_file(folder, options.labels))
    backbones = Backbones.read(backbone)
    label_folder(
        folder, names, port, opens_browser=not no_browser, options=options, backbones=backbones
    )


def labels(
    folder: str,
    source: Sequence[str] | None,
    target: Sequence[str] | None,
    options: FolderOptions = AUTOMATIC,
) -> None:
    """Reads labels of another program into a folder's table, or writes them for one."""
    from cls_jax.photos.folder import exchange

    root = find_folder(folder, "a folder of images")
    *formats, file = source or target or []
    option = "--from" if source else "--to"
    if formats and (len(formats) > 1 or formats[0] not in exchange.WRITERS):
        raise UserError(
            f"{option} takes a file, and before it one of {', '.join(exchange.WRITERS)}."
        )
    name = formats[0] if formats else ""
    options = options._replace(labels=find_labels_file(root, options.labels))
    if target:
        count = exchange.export_labels(root, pathlib.Path(file), name, options)
        print(f"{count:,} labels: {file}")
        return
    found = exchange.import_labels(root, pathlib.Path(file), name, options)
    for sentence in (found.sentence, *found.warnings):
        print(make_printable(sentence))
    known = f" ({found.num_known:,} were there already)" if found.num_known else ""
    print(f"{found.num_added:,} labels added to {make_printable(str(found.table))}{known}.")


def cache(clear: bool = False) -> None:
    """Shows the size of cached images, features and compiled programs, or deletes them.

    Runs in progress decode again what they still need.
    """
    store = Store(get_cache_folder())
    folder = store.folder.parent  # Also of compiled programs, unless JAX's own variable is set.
    programs = [path for path in folder.glob("*") if path != store.folder]
    files = [file for path in programs for file in (path, *path.rglob("*")) if file.is_file()]
    try:
        kinds = {name: (store.measure(name), store.folder) for name in ("images", "features")}
        kinds["programs"] = sum(file.stat().st_size for file in files), folder
        if clear:
            store.delete()
            for path in programs:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    except OSError as error:
        raise UserError(
            f"{error.filename} cannot be deleted ({error.strerror}): check its permissions."
        ) from error
    for name, (num_bytes, place) in kinds.items():
        done = "deleted from" if clear else "in"
        print(f"{name.capitalize() + ':':10} {num_bytes / 1e9:.2f} GB {done} {place}")


def pack(folder: str, output: str) -> None:
    """Packs a folder of images into a few large files, which every command accepts."""
    check_extra("shards", "Packing images")
    root, target = find_folder(folder, "a folder of images"), pathlib.Path(output).expanduser()
    listing = list_images(root)
    names = list(listing.files.names())
    # Decoding at a small size is cheap, and spares training the check.
    batches = read_ahead([root / name for name in names], (32, 32, 3), _PACKED_AT_ONCE)
    errors = [error for batch in batches for error in batch.errors]
    failures = {i: error for i, error in enumerate(errors) if error is not None}
    num_shards = pack_folder(
        root, names, failures=failures, copied=list_tables(listing), output=target
    )
    images, files = len(names), write_count(num_shards, "file", "files")
    print(f"{write_count(images, 'image', 'images')} in {files}: {target}")
    if failures:
        i, error = next(iter(failures.items()))
        print(f"{len(failures):,} of them cannot be read, such as {names[i]!r}: {error}.")
    if sentence := _describe_lost_labels(root, target):
        print(sentence, file=sys.stderr)


def _describe_lost_labels(root: pathlib.Path, packed: pathlib.Path) -> str | None:
    """A sentence about labels of a folder that its packed images do not have, if there are any.

    Packed are class folders and the files at the top.
    """

    def count_labels(folder: pathlib.Path) -> int:
        return sum(map(bool, read_catalog(folder, list_images(folder)).labelable().values()))

    try:
        num_lost = count_labels(root) - count_labels(packed)
    except UserError:  # The labels are unclear, which training says.
        return None
    if num_lost <= 0:
        return None
    command = write_command(["labels", str(root), "--to", str(root / LABELS_CSV)])
    return (
        f"{write_count(num_lost, 'label is', 'labels are')} in files that are not packed: write "
        f"all of them into one table with {command}, and pack again."
    )


def export(run: str | None, output: str | None, step: str | None = None) -> None:
    """Exports a run as files that work without this package."""
    from cls_jax.photos.inference.export import EXAMPLE, export_run

    words = [word for word in (run, output) if word is not None]
    if not words or (len(words) == 1 and is_run(words[0])):
        raise UserError("Pass the folder to write, too: cls-jax export RUN DIR.")
    workdir, _ = _choose_run(words[:-1])
    folder = pathlib.Path(words[-1]).expanduser()
    missing = export_run(workdir, folder, step)
    print(f"Exported, and checked against this run: {folder}")
    for sentence in missing:
        print(sentence)
    print(f"Try it: {find_program('python')} {shlex.quote(str(folder / EXAMPLE))} IMAGE")


def runs(folder: str) -> None:
    """Lists the runs in a folder, the newest first."""
    root = pathlib.Path(folder).expanduser()
    if not root.exists() and root != RUNS:
        raise UserError(_describe_missing(folder))
    found = list_runs(root)
    print(format_runs(found) if found else f"There is no run in {root.resolve()}.")


def backbones() -> None:
    """Lists the pretrained networks for photos."""
    print(format_backbones())


def help(page: str | None) -> None:
    """Prints a page of the documentation, or the names of all pages."""
    from cls_jax.photos.cli.pages import find_pages, read_page

    print(read_page(page) if page else "\n".join(find_pages()))


def report(run: str | None, data_dir: str | None = None, no_images: bool = False) -> None:
    """Writes a run's `report.html`."""
    from cls_jax.photos.report.page import write_report

    workdir, _ = _choose_run([run])
    print(f"Report: {write_report(workdir, data_dir, has_images=not no_images)}")


def _choose_run(words: Sequence[str | None]) -> tuple[pathlib.Path, list[str]]:
    """The run that the first word names, or else the newest one, and the words that remain.

    A first word that is a file, a folder without a run, or a pattern is not meant as a run.
    Raises a UserError if there is no run to choose from.
    """
    given = [word for word in words if word is not None]
    if given:
        first = os.path.expanduser(given[0])
        is_other = os.path.exists(first) or glob.has_magic(first)
        if is_run(first) or not is_other:
            return pathlib.Path(first), given[1:]
    newest = find_newest()
    if is_main_process():
        print(f"Run: {newest}", file=sys.stderr, flush=True)
    return newest, given


def _describe_missing(word: str) -> str:
    """A sentence about a path that does not exist, with one beside it that may be meant."""
    path = pathlib.Path(word).expanduser()
    names = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1)
    guess = f"did you mean {path.parent / close[0]}?" if close else "check its spelling."
    return f"There is no file or folder {word:.500}: {guess}"
