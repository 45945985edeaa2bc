"""The console command `cls-jax`: its arguments, and which command they call.

JAX is imported only after the arguments have been read and the process has been set up.
"""

import argparse
from collections.abc import Sequence
from typing import NoReturn

from cls_jax.cli.process import exit_with_error, prepare_process, run_to_end

_EPILOG = """\
From images to predictions:
  cls-jax suggest photos                 which images to label first
  cls-jax train photos --dry-run         what training would do, how long, in how much memory
  cls-jax train photos
  cls-jax predict runs/photos-all-cls-seed0 more_photos --output predictions.csv
"""


class _Parser(argparse.ArgumentParser):
    """Reports wrong arguments in one line."""

    def error(self, message: str) -> NoReturn:
        """Ends the program with exit code 2."""
        exit_with_error(f"{message[:1].upper()}{message[1:]}: see {self.prog} --help.")


def create_parser() -> argparse.ArgumentParser:
    """The verbs and their arguments."""
    parser = _Parser(
        prog="cls-jax",
        description="Image classifiers from few labels and many images.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    train = verbs.add_parser(
        "train",
        help="train on a folder of images",
        usage="%(prog)s FOLDER [--workdir RUN] [--method NAME] [--dry-run] [--config.KEY=VALUE …]",
        epilog="--config.KEY=VALUE sets any key of docs/configuration.md, as in "
        "--config.num_steps=2000. The same command again resumes the run.",
        allow_abbrev=False,
    )
    train.add_argument("folder", metavar="FOLDER", help="images, see docs/own_images.md")
    train.add_argument("--workdir", metavar="RUN", help="folder of the run (default: under runs/)")
    train.add_argument(
        "--method", default="cls", metavar="NAME", help="see docs/methods.md (default: cls)"
    )
    train.add_argument(
        "--dry-run", action="store_true", help="print what it would do and the cost, then stop"
    )

    predict = verbs.add_parser("predict", help="label images with a trained run")
    _add_run(predict)
    predict.add_argument("images", metavar="IMAGES", help="a folder, a quoted pattern or a file")
    predict.add_argument(
        "--output",
        metavar="FILE",
        default="predictions.csv",
        help="a .csv or .parquet to write (default: %(default)s)",
    )

    evaluate = verbs.add_parser("evaluate", help="measure a run's test accuracy")
    _add_run(evaluate)
    _add_data_dir(evaluate)

    report = verbs.add_parser("report", help="write the run's report.html")
    _add_run(report)
    _add_data_dir(report)

    export = verbs.add_parser("export", help="write files that work without this project")
    _add_run(export)
    export.add_argument("output", metavar="DIR", help="folder to write")

    suggest = verbs.add_parser("suggest", help="list the images to label next")
    suggest.add_argument(
        "folder", metavar="FOLDER_OR_RUN", help="images, labeled or not; or a run on such a folder"
    )
    suggest.add_argument(
        "--count", type=int, default=20, metavar="N", help="images to list (default: %(default)s)"
    )
    suggest.add_argument("--output", metavar="FILE", help="a .csv or .parquet instead of a list")
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="folder of the run")


def _add_data_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data_dir", metavar="PATH", help="where moved images are now")


def parse_arguments(arguments: Sequence[str] | None = None) -> tuple[argparse.Namespace, list[str]]:
    """Parses the command line; the second part are the --config.KEY=VALUE options.

    Wrong arguments end the program with one line and exit code 2.
    """
    parser = create_parser()
    parsed, rest = parser.parse_known_args(arguments)
    for argument in rest:
        if parsed.verb != "train" or not argument.startswith("--config."):
            parser.error(f"unexpected argument {argument!r}")
        if "=" not in argument:
            parser.error(f"{argument} needs a value, as in {argument}=VALUE")
    return parsed, rest


def main() -> None:
    """Runs the command."""
    arguments, overrides = parse_arguments()
    prepare_process()
    run_to_end(lambda: run(arguments, overrides))


def run(arguments: argparse.Namespace, overrides: Sequence[str]) -> None:
    """Joins the other processes, if a scheduler started any, and calls the verb's command."""
    from cls_jax.cli import commands
    from cls_jax.parallel import distributed

    distributed.initialize_distributed(None, None, None)
    match arguments.verb:
        case "train":
            commands.train_folder(
                arguments.folder,
                arguments.method,
                arguments.workdir,
                overrides,
                is_dry=arguments.dry_run,
            )
        case "predict":
            commands.predict_images(arguments.run, arguments.images, arguments.output)
        case "evaluate":
            commands.evaluate_run(arguments.run, arguments.data_dir)
        case "report":
            commands.report_run(arguments.run, arguments.data_dir)
        case "export":
            commands.export_run(arguments.run, arguments.output)
        case "suggest":
            commands.suggest_images(arguments.folder, arguments.count, arguments.output)
