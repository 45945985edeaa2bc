"""The outcome of a finished run, and comparisons of two outcomes."""

import collections
import contextlib
import csv
import functools
import json
import pathlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import numpy as np

from cls_jax.errors import UserError
from cls_jax.io import read_bytes
from cls_jax.runs.folder import read_result
from cls_jax.runs.metrics import read_metrics
from cls_jax.training.prepare import restore_run


def read_end(workdir: pathlib.Path) -> dict[str, Any]:
    """The outcome of a run, without its timings."""
    result = read_result(workdir)
    if result is None:
        raise UserError(f"{workdir} did not end: see {workdir.with_suffix('.log')}.")
    rows = [
        {key: value for key, value in row.items() if not key.startswith("perf/")}
        for row in read_metrics(workdir)
    ]
    _, state, _ = restore_run(workdir)
    return {
        "result": {key: value for key, value in result.items() if key != "train_seconds"},
        "metrics": rows,
        "state": [np.asarray(leaf) for leaf in jax.tree.leaves(jax.device_get(state))],
    }


def read_table(path: pathlib.Path) -> list[dict[str, str]]:
    """The rows of a CSV, by column."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def describe_difference(end: dict[str, Any], expected: dict[str, Any]) -> str | None:
    """The first difference between two outcomes, or None."""
    for key in ("result", "metrics"):
        if json.dumps(end[key]) != json.dumps(expected[key]):
            return key
    pairs = zip(end["state"], expected["state"], strict=True)
    if any(a.tobytes() != b.tobytes() for a, b in pairs):
        return "state"
    return None


def assert_close(ours: Any, theirs: Any, **tolerances) -> None:
    """Asserts that two trees have the same structure and `np.testing.assert_allclose` leaves."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerances), ours, theirs)


@contextlib.contextmanager
def count_calls(*functions: Callable) -> Iterator[collections.Counter[str]]:
    """Counts by name the calls of some functions, whichever module has imported them.

    A profiler would count, too, but be called for each of millions of calls while JAX traces.
    """
    counts: collections.Counter[str] = collections.Counter()

    def add_counter(function: Callable) -> Callable:
        @functools.wraps(function)
        def count(*args: Any, **options: Any) -> Any:
            counts[function.__name__] += 1
            return function(*args, **options)

        return count

    counted = {function: add_counter(function) for function in functions}
    _replace(counted)
    try:
        yield counts
    finally:
        _replace({count: function for function, count in counted.items()})


def _replace(others: dict[Callable, Callable]) -> None:
    """Puts functions in the place of others in the modules of this project."""
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith(("cls_jax", "tests")):
            for name, value in list(vars(module).items()):
                if isinstance(value, types.FunctionType) and value in others:
                    setattr(module, name, others[value])


@contextlib.contextmanager
def count_reads() -> Iterator[collections.Counter[str]]:
    """Counts by name how often JSON files that exist are read, in whichever folder."""
    counts: collections.Counter[str] = collections.Counter()

    def read(path: pathlib.Path, max_bytes: int) -> bytes:
        content = read_bytes(path, max_bytes)
        counts[pathlib.Path(path).name] += 1
        return content

    with mock.patch("cls_jax.io.read_bytes", read):  # As `read_json` calls it.
        yield counts
