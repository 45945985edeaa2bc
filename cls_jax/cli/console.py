"""The console command `cls-jax`: its verbs and their options.

To add a verb, add its parser to `create_parser` and a function of the same name to `commands.py`,
whose parameters are the names of the options. JAX is imported only after the arguments have been
read and the process has been set up.
"""

import argparse
import importlib.metadata
import os
from collections.abc import Sequence
from typing import NoReturn

from cls_jax.cli.process import exit_with_error, prepare_process, run_to_end

_EPILOG = """\
From images to predictions:
  cls-jax label photos                   label the most helpful images in the browser
  cls-jax suggest photos                 list them instead
  cls-jax train photos --dry-run         what training would do, how long, in how much memory
  cls-jax train photos
  cls-jax predict runs/photos-all-cls-seed0 photo.jpg
"""
# The command's name of a platform → JAX's name.
_PLATFORMS = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}


class _Parser(argparse.ArgumentParser):
    """Reports wrong arguments in one line."""

    def error(self, message: str) -> NoReturn:
        """Ends the program with exit code 2."""
        exit_with_error(f"{message[:1].upper()}{message[1:]}: see {self.prog} --help.")


def create_parser() -> argparse.ArgumentParser:
    """Returns the parser of all verbs and their options."""
    parser = _Parser(
        prog="cls-jax",
        description="Image classifiers from few labels and many images.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    try:
        version = importlib.metadata.version("cls-jax")
    except importlib.metadata.PackageNotFoundError:
        version = "(not installed)"
    parser.add_argument("--version", action="version", version=f"cls-jax {version}")
    common = _Parser(add_help=False)
    common.add_argument("--device", choices=_PLATFORMS, help="compute on this (default: the best)")
    on_run = _Parser(add_help=False, parents=[common])
    on_run.add_argument("run", metavar="RUN", help="folder of the run")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    train = verbs.add_parser(
        "train",
        parents=[common],
        help="train on a folder of images",
        usage="%(prog)s FOLDER [--workdir RUN] [--method NAME] [--instant] [--dry-run] "
        "[--minutes M] [--config.KEY=VALUE …]",
        epilog="--config.KEY=VALUE sets any key of docs/configuration.md, as in "
        "--config.batch_size=16. Rerun the same command to resume the run.",
        allow_abbrev=False,
    )
    train.add_argument("folder", metavar="FOLDER", help="images, see docs/own_images.md")
    train.add_argument("--workdir", metavar="RUN", help="folder of the run (default: under runs/)")
    train.add_argument(
        "--method", default="cls", metavar="NAME", help="see docs/methods.md (default: cls)"
    )
    train.add_argument(
        "--from", metavar="RUN", dest="start_from", help="begin with the weights of another run"
    )
    for option, value, key, help_ in [
        ("--steps", "N", "num_steps", "training steps"),
        ("--size", "N", "data.image_size", "height and width in pixels to which images are scaled"),
        ("--profile", "FIRST:LAST", "profile", "trace these steps into the run's folder"),
    ]:
        train.add_argument(
            option,
            metavar=value,
            dest="overrides",
            action="append",
            default=[],
            type=f"--config.{key}={{}}".format,  # As if it had been written in full.
            help=f"{help_} (--config.{key})",
        )
    train.add_argument(
        "--instant",
        action="store_true",
        help="fit a classifier to frozen features and train no network",
    )
    train.add_argument(
        "--dry-run", action="store_true", help="print what it would do and the cost, then stop"
    )
    train.add_argument(
        "--minutes",
        type=float,
        metavar="M",
        help="how long training should take, unless --steps is given (default for pretrained "
        "networks: 10, with an accelerator 30)",
    )

    predict = verbs.add_parser("predict", parents=[on_run], help="label images with a trained run")
    predict.add_argument(
        "images", metavar="IMAGE_OR_FOLDER", nargs="+", help="files, folders or quoted patterns"
    )
    predict.add_argument(
        "--output",
        metavar="FILE",
        help="a .csv or .parquet to write (default: predictions.csv for folders and patterns, "
        "no file for single images, which are printed)",
    )
    predict.add_argument(
        "--overwrite", action="store_true", help="write FILE even if it is not such a table"
    )
    evaluate = verbs.add_parser("evaluate", parents=[on_run], help="measure a run's test accuracy")
    evaluate.add_argument(
        "folder", metavar="FOLDER", nargs="?", help="other labeled images of the same classes"
    )
    report = verbs.add_parser("report", parents=[on_run], help="write the run's report.html")
    for verb in (evaluate, report):
        verb.add_argument("--data_dir", metavar="PATH", help="where moved images are now")
    export = verbs.add_parser(
        "export", parents=[on_run], help="write files that work without this project"
    )
    export.add_argument("output", metavar="DIR", help="folder to write")

    cache = verbs.add_parser(
        "cache",
        parents=[common],
        help="show how much disk space decoded images and features take, or delete them",
    )
    cache.add_argument("--clear", action="store_true", help="delete all of them")
    suggest = verbs.add_parser("suggest", parents=[common], help="list the images to label next")
    suggest.add_argument(
        "folder", metavar="FOLDER_OR_RUN", help="images, labeled or not, or a run on such a folder"
    )
    suggest.add_argument(
        "--count", type=int, default=20, metavar="N", help="images to list (default: %(default)s)"
    )
    suggest.add_argument("--output", metavar="FILE", help="a .csv or .parquet instead of a list")
    label = verbs.add_parser("label", parents=[common], help="label images in the browser")
    label.add_argument("folder", metavar="FOLDER", help="images, labeled or not")
    label.add_argument("--classes", metavar="A,B,C", help="classes to offer from the start")
    label.add_argument(
        "--port", type=int, default=0, metavar="P", help="port of the page (default: a free one)"
    )
    label.add_argument("--no-browser", action="store_true", help="only print the address")
    return parser


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line. Options such as --config.KEY=VALUE end up in `overrides`.

    Wrong arguments end the program with one line and exit code 2.
    """
    parser = create_parser()
    parsed, rest = parser.parse_known_args(arguments)
    for argument in rest:
        if "overrides" not in parsed or not argument.startswith("--config."):
            parser.error(f"unexpected argument {argument!r}")
        if "=" not in argument:
            parser.error(f"{argument} needs a value, as in {argument}=VALUE")
        parsed.overrides.append(argument)
    return parsed


def main() -> None:
    """Runs the command."""
    arguments = parse_arguments()
    if arguments.device:
        os.environ["JAX_PLATFORMS"] = _PLATFORMS[arguments.device]
    prepare_process()
    run_to_end(lambda: run(arguments))


def run(arguments: argparse.Namespace) -> None:
    """Joins the other processes, if a scheduler started any, and calls the verb's command."""
    from cls_jax.cli import commands
    from cls_jax.parallel import distributed

    distributed.initialize_distributed(None, None, None)
    options = vars(arguments)
    verb, _ = options.pop("verb"), options.pop("device")
    getattr(commands, verb)(**options)
