"""The console command `cls-jax`: its verbs and their options.

An option of `train` is a row here and a field of `plan.plan.Request`, and an option of a folder
a row here and a field of `folder.options.FolderOptions`, under the same name. To add a verb, add
its row to `_VERBS` and a function of the same name to `commands.py`, with the options as
parameters. JAX is imported only after the arguments have been read and the process has been set up.
"""

import argparse
import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

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


_Option = tuple[str, dict[str, Any]]  # A name, and the arguments of `add_argument`.


def _option(name: str, value: str, meaning: str, **more: Any) -> _Option:
    """An option with a value or, without dashes, a word."""
    # Shells do not expand the ~ of --workdir=~/runs.
    kind = os.path.expanduser if value in _PATHS else str
    return name, {"metavar": value, "help": meaning, "type": kind, **more}


def _switch(name: str, meaning: str, **more: Any) -> _Option:
    return name, {"action": "store_true", "help": meaning} | more


def _spell(name: str) -> str:
    """A field's option, as in --file-column."""
    return f"--{name.replace('_', '-')}"


def _list_keys(rows: Iterable[tuple[str, str, str, str]]) -> Iterator[_Option]:
    """Options that stand for keys of the configuration: option, value, key and meaning."""
    for name, value, key, meaning in rows:
        as_written_in_full = f"--config.{key}={{}}".format
        collected = {"dest": "overrides", "action": "append", "default": []}
        yield _option(
            name, value, f"{meaning} (--config.{key})", type=as_written_in_full, **collected
        )


_CHOICES = {"layout": {"choices": ("classes", "splits"), "metavar": None}}
_READING, _SOURCES = (
    [
        _option(_spell(name), value, meaning, default="", **_CHOICES.get(name, {}))
        for name, (value, meaning) in rows.items()
    ]
    for rows in (_FOLDER_OPTIONS, _SOURCE_OPTIONS)
)
_TAGS = "images may have several classes, their tags (with --instant)"
_READING.append(_switch("--tags", _TAGS))
_DEVICE = "device to use (default: the best)"
_RUN = _option("run", "RUN", "folder of the run (default: the newest in runs/)", nargs="?")
_PLACE_OF_PHOTOS = [
    _option("--photos", "DIR", "new place of the run's images", dest="data_dir"),
    _option("--data_dir", "PATH", argparse.SUPPRESS),  # As for arrays.
]
_STEP = _option("--step", "N|best", "checkpoint to use: its step, or best on validation images")


class _Verb(NamedTuple):
    """What the parser knows of a verb."""

    meaning: str
    options: Sequence[_Option] = ()
    alternatives: Sequence[_Option] = ()  # Of which one is needed.
    texts: Mapping[str, Any] = MappingProxyType({})  # Further arguments of `add_parser`.


_VERBS = {
    "train": _Verb(
        "train on a folder of images",
        [
            _option("folder", "FOLDER", "images, see cls-jax help own_images"),
            _option("--workdir", "RUN", "folder of the run (default: under runs/)"),
            _option(
                "--method",
                "NAME",
                "see cls-jax help methods (default: fixmatch for photos and pretrained networks, "
                "else cls)",
            ),
            _option(
                "--backbone",
                "NAME[,NAME]",
                f"{_NETWORKS}: the first is trained, and all infer labels",
            ),
            _option("--from", "RUN", "start from another run's weights", dest="start_from"),
            *_list_keys(
                [
                    ("--steps", "N", "num_steps", "training steps"),
                    ("--size", "N", "data.image_size", "scale images to N x N pixels"),
                    (
                        "--profile",
                        "FIRST:LAST",
                        "profile",
                        "trace these steps into the run's folder",
                    ),
                    (
                        "--precision",
                        "P",
                        "model.tag_precision",
                        "with --tags: precision to aim for, which sets the thresholds",
                    ),
                ]
            ),
            *_list_keys(
                (_spell(name), value, f"data.{name}", meaning)
                for name, (value, meaning) in (_FOLDER_OPTIONS | _SOURCE_OPTIONS).items()
            ),
            _switch(
                "--tags",
                _TAGS,
                action="append_const",
                const="--config.data.tags=True",
                dest="overrides",
                default=[],
            ),
            _switch("--instant", "fit a linear classifier on frozen features, without training"),
            _switch("--again", "start a new run even if a finished one exists"),
            _switch("--dry-run", "print the plan and its cost, then exit"),
            _option(
                "--minutes",
                "M",
                "training time, if --steps is not given (default for pretrained networks: 10, or "
                "30 with an accelerator)",
                type=float,
            ),
            _option(
                "--coordinator_address", "HOST:PORT", "address of process 0, if there are several"
            ),
            _option("--num_processes", "N", "number of processes", type=int),
            _option("--process_id", "I", "index of this process, from 0", type=int),
        ],
        texts={
            "usage": "%(prog)s FOLDER [--workdir RUN] [--method NAME] [--instant] [--again] "
            "[--dry-run] [--minutes M] [--config.KEY=VALUE …]",
            "epilog": "--config.KEY=VALUE sets any key of `cls-jax help configuration`, as in "
            "--config.batch_size=16. Rerun the same command to resume the run.",
            "allow_abbrev": False,
        },
    ),
    "predict": _Verb(
        "label images with a trained run",
        [
            _RUN,
            _option(
                "images",
                "IMAGE_OR_FOLDER",
                "files, folders, quoted patterns or a .txt with a path in each line",
                nargs="*",
            ),
            _option(
                "--output",
                "FILE",
                "write this .csv or .parquet file (default: predictions.csv for folders and "
                "patterns; single images are printed)",
            ),
            _switch("--overwrite", "overwrite FILE even if it is not a table of predictions"),
            _switch("--json", "print one JSON object per image instead", dest="as_json"),
            _switch(
                "--all-columns",
                "also the columns that a table of one network leaves out (see cls-jax help "
                "predict)",
            ),
            _option("--sort-into", "DIR", "copy the images into a new folder, by class"),
            _option(
                "--unsure-below",
                "P",
                "with --sort-into: images with a lower confidence go into DIR/unsure (from 0 to 1)",
                type=float,
            ),
            _switch("--tags", "for a run with --tags only", dest="has_tags"),
            _STEP,
        ],
    ),
    "evaluate": _Verb(
        "measure a run's test accuracy",
        [
            _RUN,
            _option("folder", "FOLDER", "other labeled images of the same classes", nargs="?"),
            *_READING,
            *_PLACE_OF_PHOTOS,
            _STEP,
        ],
    ),
    "report": _Verb(
        "write the run's report.html",
        [
            _RUN,
            _switch("--no-images", "leave out all images and the names of their files"),
            *_PLACE_OF_PHOTOS,
        ],
    ),
    "export": _Verb(
        "write a model that runs without cls_jax",
        [_RUN, _option("output", "DIR", "folder to write", nargs="?"), _STEP],
    ),
    "cache": _Verb(
        "show or clear the cache of images, features and compiled programs",
        [_switch("--clear", "delete everything in it")],
    ),
    "pack": _Verb(
        "pack a folder of many images into a few large files",
        [
            _option("folder", "FOLDER", "images, labeled or not"),
            _option("output", "OUT", "folder to write; use it in place of FOLDER"),
        ],
    ),
    "suggest": _Verb(
        "list the images to label next",
        [
            _option("folder", "FOLDER_OR_RUN", "images, labeled or not, or a run on such a folder"),
            _option("--count", "N", "images to list (default: %(default)s)", type=int, default=20),
            _option("--output", "FILE", "write a .csv or .parquet file instead of printing a list"),
            _option(
                "--backbone",
                "NAME[,NAME]",
                f"{_NETWORKS}: the first of several compares the images",
                default="",
            ),
            *_READING,
            *_SOURCES,
        ],
    ),
    "label": _Verb(
        "label images in the browser",
        [
            _option("folder", "FOLDER", "images, labeled or not"),
            _option("--classes", "A,B,C", "classes to offer from the start"),
            _option("--port", "P", "port of the page (default: a free one)", type=int, default=0),
            _switch("--no-browser", "only print the address"),
            _option(
                "--backbone",
                "NAME[,NAME]",
                f"{_NETWORKS}: the first classifies, and all infer labels (default: "
                "efficientnet_lite0)",
                default="",
            ),
            *_READING,
            *_SOURCES,
        ],
    ),
    "labels": _Verb(
        "read or write labels of other programs",
        [_option("folder", "FOLDER", "images, labeled or not"), *_READING],
        alternatives=[
            _option(name, "FILE", meaning, dest=dest, nargs="+", metavar=("[FORMAT]", "FILE"))
            for name, dest, meaning in [
                ("--from", "source", "add the labels of FILE to labels.csv"),
                ("--to", "target", "write the labels of the folder to a new FILE"),
            ]
        ],
        texts={
            "usage": "%(prog)s FOLDER (--from [FORMAT] FILE | --to [FORMAT] FILE)",
            "epilog": "FORMAT is label-studio, cvat, fiftyone, csv, coco or json-lines. It may be "
            "left out where the content or the name of FILE tells it.",
        },
    ),
    "runs": _Verb(
        "list the runs, the newest first",
        [
            _option(
                "folder",
                "DIR",
                "folder that has them (default: runs)",
                nargs="?",
                default="runs",
            )
        ],
    ),
    "backbones": _Verb("list the pretrained networks for photos"),
    "help": _Verb(
        "print a page of the documentation",
        [_option("page", "PAGE", "its name (default: list the names)", nargs="?")],
    ),
}


def create_parser() -> argparse.ArgumentParser:
    """Returns the parser of all verbs and their options."""
    parser = _Parser(
        prog="cls-jax",
        description="Image classifiers from few labels and many images.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"cls-jax {find_version()}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, verb in _VERBS.items():
        added = verbs.add_parser(name, help=verb.meaning, **verb.texts)
        added.add_argument("--device", choices=_PLATFORMS, help=_DEVICE)
        one_of = added.add_mutually_exclusive_group(required=True) if verb.alternatives else added
        for option, how in verb.alternatives:
            one_of.add_argument(option, **how)
        for option, how in verb.options:
            added.add_argument(option, **how)
    return parser


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
        parsed.overrides = [*parsed.overrides, argument]
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


def _start_devices() -> None:
    """Starts this process's devices in a thread, which takes a GPU two seconds.

    If they cannot be started, what uses them first will raise the error.
    """
    import jax

    def start() -> None:
        with contextlib.suppress(RuntimeError):
            jax.block_until_ready([jax.device_put(0, device) for device in jax.local_devices()])

    threading.Thread(target=start).start()


def _has_others() -> bool:
    """Whether this is one of several processes. Starts the devices only if they were connected."""
    import jax

    return jax.distributed.is_initialized() and jax.process_count() > 1


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
        _start_devices()  # While the next lines import.
    from cls_jax.photos.cli import commands
    from cls_jax.photos.folder.options import FolderOptions

    if verb not in _PARALLEL and _has_others():
        raise UserError(f"{verb} runs in a single process. Start only one.")
    of_folder = options.keys() & set(FolderOptions._fields)
    if of_folder:
        options["options"] = FolderOptions(**{name: options.pop(name) for name in of_folder})
    command = getattr(commands, verb)  # Its parameters are named after the verb's options.
    command(**options)
