"""The console command `cls-jax`: its verbs and their options.

An option of `train` is a row here and a field of `plan.request.Request`, and an option of a folder
a row here and a field of `folder.options.FolderOptions`, under the same name. To add a verb, add
its parser to `create_parser` and a function of the same name to `commands.py`,
with the options as parameters. JAX is imported only after the arguments have been read and the
process has been set up.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from cls_jax.errors import UserError
from cls_jax.photos.shell import find_version
from cls_jax.process import (
    exit_with_error,
    prepare_process,
    run_to_end,
)

_EPILOG = """\
From images to predictions:
  cls-jax label photos                   label the most helpful images in the browser
  cls-jax suggest photos                 list them instead
  cls-jax train photos --dry-run         show the plan, its time and memory
  cls-jax train photos
  cls-jax runs                           list what was trained
  cls-jax predict photo.jpg              with the newest run
"""
# Choices of --device → JAX's platforms.
_PLATFORMS = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}

# Verbs whose run may be left out → their places for a word each, in order.
_PLACES = {
    "predict": ("run",),
    "evaluate": ("run", "folder"),
    "report": ("run",),
    "export": ("run", "output"),
}
_COMPUTING = ("train", "predict", "evaluate", "report", "export", "suggest", "label")
# Verbs that several processes may run, together or each for itself.
_PARALLEL = ("train", "evaluate", "cache", "runs", "backbones", "help")
_PATHS = ("RUN", "DIR", "FILE", "PATH", "FOLDER", "FOLDER_OR_RUN", "IMAGE_OR_FOLDER")

_NETWORKS = "pretrained networks, see cls-jax backbones"
# Fields of `FolderOptions` → the value in a command's help, and the meaning.
_FOLDER_OPTIONS = {
    "file_column": ("C", "column of labels.csv with the files, if it is not found"),
    "label_column": ("C", "column of labels.csv with the classes"),
    "layout": (
        "L",
        "classes if folders called train, val or test are classes, splits if they hold class "
        "folders",
    ),
    "labels": ("FILE", "file with the labels, wherever it lies"),
    "label_pattern": ("P", "regular expression of file names, with a group for the class"),
}
_SOURCE_OPTIONS = {
    "source_column": ("C", "column of labels.csv with what images come from, such as patient"),
    "source_pattern": (
        "P",
        "regular expression of file names, with a group for what images come from",
    ),
}


class _Parser(argparse.ArgumentParser):
    """Reports wrong arguments in one line."""

    def error(self, message: str) -> NoReturn:
        """Ends the program with exit code 2."""
        exit_with_error(f"{message[:1].upper()}{message[1:]}: see {self.prog} --help.")


def _add(
    parser: argparse.ArgumentParser, name: str, metavar: str, help: str, **options: Any
) -> None:
    # Shells do not expand the ~ of --workdir=~/runs.
    kind = os.path.expanduser if metavar in _PATHS else str
    parser.add_argument(name, metavar=metavar, help=help, **{"type": kind, **options})


def _add_switch(
    parser: argparse.ArgumentParser, name: str, help: str, dest: str | None = None
) -> None:
    parser.add_argument(name, action="store_true", help=help, dest=dest)


def create_parser() -> argparse.ArgumentParser:
    """Returns the parser of all verbs and their options."""
    parser = _Parser(
        prog="cls-jax",
        description="Image classifiers from few labels and many images.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"cls-jax {find_version()}")
    common = _Parser(add_help=False)
    common.add_argument("--device", choices=_PLATFORMS, help="device to use (default: the best)")
    on_run = _Parser(add_help=False, parents=[common])
    newest = "folder of the run (default: the newest in runs/)"
    _add(on_run, "run", "RUN", newest, nargs="?")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    _add_train(verbs, common)
    _add_verbs_on_runs(verbs, on_run)
    _add_verbs_on_images(verbs, common)
    _add_labels(verbs, common)
    _add_lists(verbs, common)
    return parser


def _add_train(verbs: Any, common: argparse.ArgumentParser) -> None:
    train = verbs.add_parser(
        "train",
        parents=[common],
        help="train on a folder of images",
        usage="%(prog)s FOLDER [--workdir RUN] [--method NAME] [--instant] [--again] "
        "[--dry-run] [--minutes M] [--config.KEY=VALUE …]",
        epilog="--config.KEY=VALUE sets any key of `cls-jax help configuration`, as in "
        "--config.batch_size=16. Rerun the same command to resume the run.",
        allow_abbrev=False,
    )
    _add(train, "folder", "FOLDER", "images, see cls-jax help own_images")
    _add(train, "--workdir", "RUN", "folder of the run (default: under runs/)")
    by_default = "fixmatch for photos and pretrained networks, else cls"
    _add(train, "--method", "NAME", f"see cls-jax help methods (default: {by_default})")
    does = "the first is trained, and all infer labels"
    _add(train, "--backbone", "NAME[,NAME]", f"{_NETWORKS}: {does}")
    _add(train, "--from", "RUN", "start from another run's weights", dest="start_from")
    for option, value, key, meaning in [
        ("--steps", "N", "num_steps", "training steps"),
        ("--size", "N", "data.image_size", "scale images to N x N pixels"),
        ("--profile", "FIRST:LAST", "profile", "trace these steps into the run's folder"),
        *(
            (_spell(name), value, f"data.{name}", meaning)
            for name, (value, meaning) in (_FOLDER_OPTIONS | _SOURCE_OPTIONS).items()
        ),
    ]:
        as_written_in_full = f"--config.{key}={{}}".format
        collected = {"dest": "overrides", "action": "append", "default": []}
        help_ = f"{meaning} (--config.{key})"
        _add(train, option, value, help_, type=as_written_in_full, **collected)
    _add_switch(train, "--instant", "fit a linear classifier on frozen features, without training")
    _add_switch(train, "--again", "start a new run even if a finished one exists")
    _add_switch(train, "--dry-run", "print the plan and its cost, then exit")
    _add(
        train,
        "--minutes",
        "M",
        "training time, if --steps is not given (default for pretrained networks: 10, "
        "or 30 with an accelerator)",
        type=float,
    )
    _add(train, "--coordinator_address", "HOST:PORT", "address of process 0, if there are several")
    _add(train, "--num_processes", "N", "number of processes", type=int)
    _add(train, "--process_id", "I", "index of this process, from 0", type=int)


def _add_lists(verbs: Any, common: argparse.ArgumentParser) -> None:
    runs = verbs.add_parser("runs", parents=[common], help="list the runs, the newest first")
    _add(runs, "folder", "DIR", "folder that has them (default: runs)", nargs="?", default="runs")
    about = "list the pretrained networks for photos"
    verbs.add_parser("backbones", parents=[common], help=about)
    pages = verbs.add_parser("help", parents=[common], help="print a page of the documentation")
    _add(pages, "page", "PAGE", "its name (default: list the names)", nargs="?")


def _add_verbs_on_runs(verbs: Any, on_run: argparse.ArgumentParser) -> None:
    predict = verbs.add_parser("predict", parents=[on_run], help="label images with a trained run")
    images = "files, folders, quoted patterns or a .txt with a path in each line"
    _add(predict, "images", "IMAGE_OR_FOLDER", images, nargs="*")
    _add(
        predict,
        "--output",
        "FILE",
        "write this .csv or .parquet file (default: predictions.csv for folders and patterns; "
        "single images are printed)",
    )
    _add_switch(predict, "--overwrite", "overwrite FILE even if it is not a table of predictions")
    _add_switch(predict, "--json", "print one JSON object per image instead", dest="as_json")
    about = "also the columns that a table of one network leaves out (see cls-jax help predict)"
    _add_switch(predict, "--all-columns", about)
    _add(predict, "--sort-into", "DIR", "copy the images into a new folder, by class")
    about = "with --sort-into: images with a lower confidence go into DIR/unsure (from 0 to 1)"
    _add(predict, "--unsure-below", "P", about, type=float)
    evaluate = verbs.add_parser("evaluate", parents=[on_run], help="measure a run's test accuracy")
    _add(evaluate, "folder", "FOLDER", "other labeled images of the same classes", nargs="?")
    _add_folder_options(evaluate)
    report = verbs.add_parser("report", parents=[on_run], help="write the run's report.html")
    _add_switch(report, "--no-images", "leave out all images and the names of their files")
    for verb in (evaluate, report):
        _add(verb, "--photos", "DIR", "new place of the run's images", dest="data_dir")
        _add(verb, "--data_dir", "PATH", argparse.SUPPRESS)  # As for arrays.
    export = verbs.add_parser(
        "export", parents=[on_run], help="write a model that runs without cls_jax"
    )
    _add(export, "output", "DIR", "folder to write", nargs="?")
    for verb in (predict, evaluate, export):
        _add(verb, "--step", "N|best", "checkpoint to use: its step, or best on validation images")


def _add_verbs_on_images(verbs: Any, common: argparse.ArgumentParser) -> None:
    cache = verbs.add_parser(
        "cache",
        parents=[common],
        help="show or clear the cache of images, features and compiled programs",
    )
    _add_switch(cache, "--clear", "delete everything in it")
    pack = verbs.add_parser(
        "pack", parents=[common], help="pack a folder of many images into a few large files"
    )
    _add(pack, "folder", "FOLDER", "images, labeled or not")
    _add(pack, "output", "OUT", "folder to write; use it in place of FOLDER")
    suggest = verbs.add_parser("suggest", parents=[common], help="list the images to label next")
    _add(suggest, "folder", "FOLDER_OR_RUN", "images, labeled or not, or a run on such a folder")
    _add(suggest, "--count", "N", "images to list (default: %(default)s)", type=int, default=20)
    _add(suggest, "--output", "FILE", "write a .csv or .parquet file instead of printing a list")
    compares = "the first of several compares the images"
    _add(suggest, "--backbone", "NAME[,NAME]", f"{_NETWORKS}: {compares}", default="")
    _add_folder_options(suggest)
    _add_folder_options(suggest, _SOURCE_OPTIONS)
    label = verbs.add_parser("label", parents=[common], help="label images in the browser")
    _add(label, "folder", "FOLDER", "images, labeled or not")
    _add(label, "--classes", "A,B,C", "classes to offer from the start")
    _add(label, "--port", "P", "port of the page (default: a free one)", type=int, default=0)
    _add_switch(label, "--no-browser", "only print the address")
    does = "the first classifies, and all infer labels (default: efficientnet_lite0)"
    _add(label, "--backbone", "NAME[,NAME]", f"{_NETWORKS}: {does}", default="")
    _add_folder_options(label)
    _add_folder_options(label, _SOURCE_OPTIONS)


def _add_labels(verbs: Any, common: argparse.ArgumentParser) -> None:
    labels = verbs.add_parser(
        "labels",
        parents=[common],
        help="read or write labels of other programs",
        usage="%(prog)s FOLDER (--from [FORMAT] FILE | --to [FORMAT] FILE)",
        epilog="FORMAT is label-studio, cvat, fiftyone, csv, coco or json-lines. It may be left "
        "out where the content or the name of FILE tells it.",
    )
    _add(labels, "folder", "FOLDER", "images, labeled or not")
    way = labels.add_mutually_exclusive_group(required=True)
    for option, target, meaning in [
        ("--from", "source", "add the labels of FILE to labels.csv"),
        ("--to", "target", "write the labels of the folder to a new FILE"),
    ]:
        way.add_argument(
            option,
            dest=target,
            nargs="+",
            type=os.path.expanduser,
            metavar=("[FORMAT]", "FILE"),
            help=meaning,
        )
    _add_folder_options(labels)


def _add_folder_options(
    verb: argparse.ArgumentParser, rows: Mapping[str, tuple[str, str]] = _FOLDER_OPTIONS
) -> None:
    for name, (value, meaning) in rows.items():
        if name == "layout":
            choices = ("classes", "splits")
            verb.add_argument(_spell(name), choices=choices, help=meaning, default="")
        else:
            _add(verb, _spell(name), value, meaning, default="")


def _spell(name: str) -> str:
    """A field's option, as in --file-column."""
    return f"--{name.replace('_', '-')}"


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line, --config.… into `overrides`. Ends with code 2 if it is wrong."""
    parser = create_parser()
    parsed, rest = parser.parse_known_args(arguments)
    if names := _PLACES.get(parsed.verb):
        rest = _take_late(parsed, names, rest)
    for argument in rest:
        if "overrides" not in parsed or not argument.startswith("--config."):
            meant = _suggest_option(argument) if "overrides" in parsed else ""
            parser.error(f"unexpected argument {argument!r}{meant}")
        if "=" not in argument:
            parser.error(f"{argument} needs a value, as in {argument}=VALUE")
        parsed.overrides.append(argument)
    return parsed


def _suggest_option(option: str) -> str:
    """What an unknown option such as "--lr=0.1" probably means, as a question, or nothing."""
    from cls_jax.config import find_key  # Imports JAX.

    name, equals, value = option.removeprefix("--").partition("=")
    key = find_key(name) if option.startswith("--") else None
    return f" (did you mean --config.{key}{equals or '='}{value or 'VALUE'}?)" if key else ""


def _take_late(parsed: argparse.Namespace, names: Sequence[str], rest: Sequence[str]) -> list[str]:
    """Gives the places of a verb what follows an option, and returns what remains of `rest`.

    A place that may be empty is empty for argparse if an option comes first. Images take all.
    """
    words = [word for word in (getattr(parsed, name) for name in names) if isinstance(word, str)]
    words += getattr(parsed, "images", [])
    words += [argument for argument in rest if not argument.startswith("-")]
    for name in names:
        setattr(parsed, name, words.pop(0) if words else None)
    if parsed.verb == "predict":
        parsed.images, words = words, []
    return [*words, *(argument for argument in rest if argument.startswith("-"))]


def main() -> None:
    """Runs the command."""
    arguments = parse_arguments()
    if arguments.device:
        os.environ["JAX_PLATFORMS"] = _PLATFORMS[arguments.device]
    run_to_end(prepare_process, lambda: run(arguments))


def run(arguments: argparse.Namespace) -> None:
    """Joins the other processes, if a scheduler started any, and calls the verb's command."""
    from cls_jax.parallel import distributed

    options = vars(arguments)
    distributed.initialize_distributed(
        coordinator_address=options.pop("coordinator_address", None),
        num_processes=options.pop("num_processes", None),
        process_id=options.pop("process_id", None),
    )
    verb = options.pop("verb")
    del options["device"]  # `main` has chosen it.
    if verb in _COMPUTING:
        distributed.start_devices()  # While the next lines import.
    from cls_jax.photos.cli import commands
    from cls_jax.photos.folder.options import FolderOptions

    if verb not in _PARALLEL and distributed.has_others():
        raise UserError(f"{verb} runs in a single process. Start only one.")
    of_folder = options.keys() & set(FolderOptions._fields)
    if of_folder:
        options["options"] = FolderOptions(**{name: options.pop(name) for name in of_folder})
    command = getattr(commands, verb)  # Its parameters are named after the verb's options.
    command(**options)
