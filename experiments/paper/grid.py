"""Trains a grid of configurations, one after another, and collects their results.

Each cell is a run folder: finished runs are skipped, interrupted ones resume. The options and the
provenance of every program in experiments/ come from here, too.
"""

import argparse
import ast
import contextlib
import dataclasses
import datetime
import importlib.util
import os
import pathlib
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import jax
from tqdm import tqdm

from cls_jax.config import validate_config
from cls_jax.errors import UserError
from cls_jax.photos.start.stages import train_with_stages
from cls_jax.process import exit_with_error, prepare_process
from cls_jax.runs.folder import check_run_folder, get_default_workdir
from cls_jax.runs.sessions import describe_hardware


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run of a grid."""

    config: Any  # The run's configuration.
    workdir: pathlib.Path  # The run's folder.


def create_parser(description: str, budgets: str, output: str) -> argparse.ArgumentParser:
    """Creates a parser with the options that all programs share."""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Every --config.KEY=VALUE of main.py is accepted and applies to all runs.",
    )
    parser.add_argument("--config", default="configs/digits.py", help="a file of configs/")
    parser.add_argument("--budgets", default=budgets, help="comma-separated label budgets")
    parser.add_argument("--seeds", default="0,1,2,3", help="comma-separated seeds")
    parser.add_argument("--runs", default="runs/grid", help="folder for the runs")
    parser.add_argument("--output", default=output, help="Markdown or image file to write")
    return parser


def parse_arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parses the command line; `overrides` holds the --config.KEY=VALUE options."""
    arguments, rest = parser.parse_known_args()
    for option in rest:
        if not option.startswith("--config.") or "=" not in option:
            exit_with_error(f"Unknown option {option!r}: see --help.")
    arguments.overrides = dict(option.removeprefix("--config.").split("=", 1) for option in rest)
    try:
        arguments.budgets = [int(budget) for budget in arguments.budgets.split(",")]
        arguments.seeds = [int(seed) for seed in arguments.seeds.split(",")]
    except ValueError:
        exit_with_error("Budgets and seeds must be integers, as in 20,40.")
    return arguments


def create_cell(
    arguments: argparse.Namespace, budget: int, method: str, seed: int, **changes: Any
) -> Cell:
    """Builds one run; changes (keys with "__" for ".") become part of the folder's name.

    Raises:
        UserError: If the configuration has no such key or value.
    """
    config = load_config(arguments.config, f"{budget},{method}")
    config.seed = seed
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    for key, text in arguments.overrides.items():
        set_value(config, key, text)
    for key, value in changes.items():
        set_value(config, key, str(value))
    validate_config(config)
    name = "-".join([get_default_workdir(config).name, *(f"{k}={v}" for k, v in changes.items())])
    return Cell(config, pathlib.Path(arguments.runs) / name)


def create_cells(
    arguments: argparse.Namespace, budget: int, method: str, **changes: Any
) -> list[Cell]:
    """One run for each seed."""
    return [create_cell(arguments, budget, method, seed, **changes) for seed in arguments.seeds]


def create_config(arguments: argparse.Namespace, method: str = "cls"):
    """The configuration for programs without training: the first budget, seed 0."""
    return create_cell(arguments, arguments.budgets[0], method, 0).config


def load_config(path: str, argument: str):
    """Builds a configuration from a file of configs/.

    Raises:
        UserError: If there is no such file.
    """
    if not pathlib.Path(path).is_file():
        raise UserError(f"There is no configuration {path}: choose a file of configs/.")
    spec = importlib.util.spec_from_file_location("config", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config(argument)


def set_value(config, key: str, text: str) -> None:
    """Sets a dotted key of a locked configuration from text, keeping the value's type.

    Raises:
        UserError: If the key does not exist or the text is not a value of its type.
    """
    *parents, leaf = key.split(".")
    try:
        for parent in parents:
            config = config[parent]
        value = text if isinstance(config[leaf], str) else ast.literal_eval(text)
        config[leaf] = value
    except (KeyError, AttributeError) as error:
        raise UserError(f"There is no --config.{key}: see docs/configuration.md.") from error
    except (TypeError, ValueError, SyntaxError) as error:
        raise UserError(f"--config.{key} cannot be {text!r}: see docs/configuration.md.") from error


def run_grid(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Trains unfinished runs and returns all results in order.

    All folders are checked before the first run starts.

    Raises:
        UserError: If a folder has a run of another configuration, or a run fails.
    """
    for cell in cells:
        check_run_folder(cell.workdir, cell.config)
    results = []
    for cell in tqdm(cells, unit="run", desc="grid", dynamic_ncols=True):
        results.append(train_with_stages(cell.config, cell.workdir)[0])
        jax.clear_caches()  # Compiled programs of finished runs would accumulate.
    return results


def run_groups(groups: Mapping[Any, Sequence[Cell]]) -> dict[Any, list[dict[str, Any]]]:
    """The results of `run_grid` by the keys of the groups."""
    results = iter(run_grid([cell for group in groups.values() for cell in group]))
    return {key: [next(results) for _ in group] for key, group in groups.items()}


def run_main(main: Callable[[], None]) -> None:
    """Runs a program. User errors end with one sentence and exit code 2."""
    prepare_process()
    try:
        main()
    except UserError as error:
        exit_with_error(error)


def describe_provenance() -> str:
    """The command, date, versions and hardware behind a result, as Markdown."""
    spec = sys.modules["__main__"].__spec__  # None where a test or a script calls this.
    command = " ".join(["python -m", spec.name if spec else sys.argv[0], *sys.argv[1:]])
    return (
        f"`{command}`\\\n"
        f"{datetime.date.today()}, {describe_hardware()}, Python {platform.python_version()}, "
        f"JAX {jax.__version__}, commit {_read_commit()}.\n"
    )


def _read_commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    with contextlib.suppress(OSError):  # Git is not installed.
        outcome = subprocess.run(command, capture_output=True, text=True, check=False)
        return outcome.stdout.strip() or "unknown"
    return "unknown"


def describe_mean(values: Iterable[float]) -> str:
    """Mean ± standard deviation (of the sample) as in the paper's tables."""
    values = list(values)
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


def format_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table as mdformat has it."""
    lines = [header, ["--"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def write_page(path: str, title: str, text: str) -> None:
    """Writes and prints a result with its title and provenance."""
    write_output(path, f"# {title}\n\n{describe_provenance()}\n{text}\n")


def write_output(path: str, text: str) -> None:
    """Writes a result and prints it."""
    file = pathlib.Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    print(f"\n{text}\nWritten to {path}.")
