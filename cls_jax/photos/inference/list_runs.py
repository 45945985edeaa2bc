"""The runs below a folder, the newest first."""

import contextlib
import datetime
import os
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from cls_jax.errors import UserError
from cls_jax.io import make_printable
from cls_jax.photos.features.accuracy import read_new_sources
from cls_jax.photos.folder.instant_config import get_method_name, read_run_config
from cls_jax.photos.inference.predictor import VALIDATION, expect_accuracy
from cls_jax.photos.start.fit_instant import INSTANT
from cls_jax.runs.folder import CONFIG, RESULT, read_result
from cls_jax.runs.metrics import METRICS

# Files that change as a run advances, but not with its reports and exports.
_STATES = (CONFIG, RESULT, METRICS)
RUNS = pathlib.Path("runs")  # Where runs are by default, below the current folder.


class ListedRun(NamedTuple):
    """What a list says of a run. Fields that are not known are empty."""

    workdir: pathlib.Path
    dataset: str
    method: str
    num_labels: int | None
    accuracy: str  # With its images, such as "96.9% (test)" or "about 98% (expected)".
    changed: float  # Seconds since 1970.
    num_bytes: int


def is_run(folder: str | os.PathLike) -> bool:
    """Whether a folder has a run or an instant classifier: unfinished and damaged ones count."""
    path = pathlib.Path(folder).expanduser()
    return any((path / name).is_file() for name in _STATES)


def list_runs(root: pathlib.Path = RUNS) -> list[ListedRun]:
    """The runs in a folder, the most recently changed first. Damaged ones are included.

    Not those within other runs, such as the instant classifier that a run began with.
    """
    return [_describe(folder) for folder in _sort_by_change(root)]


def find_newest(root: pathlib.Path = RUNS) -> pathlib.Path:
    """The run that was changed last, or the one that predicts in its place, see `find_used`.

    Raises a UserError if there is none.
    """
    if folders := _sort_by_change(root):
        newest = find_images(folders[0])
        return find_used([one for one in folders if find_images(one) == newest])
    raise UserError(
        f"There is no run in {root.resolve()}: train one, or pass the folder of a run first."
    )


def find_used(folders: Sequence[pathlib.Path]) -> pathlib.Path:
    """The run that predicts, of those on the same images. `folders` has the newest one first.

    It is the newest finished one, or the one that `choose` has named since. A training that did not
    help never takes the place of a classifier that has learned as many labels: its own instant
    classifier has learned fewer, since some were held out.
    """
    results = [_read_result(folder) for folder in folders]
    changes = [[_find_change(folder, [name]) for name in _STATES] for folder in folders]
    are_chosen = [0 < max(others) < own for own, *others in changes]  # After they had last changed.
    found = list(zip(folders, results, are_chosen, strict=True))
    newest, result, is_chosen = next((one for one in found if one[1] or one[2]), found[0])
    if is_chosen or not _is_in_vain(result):
        return newest
    most = result.get("num_labels") or 0
    others = (
        folder
        for folder, other, _ in found
        if other and not _is_in_vain(other) and (other.get("num_labels") or 0) >= most
    )
    return next(others, newest)


def _read_result(workdir: pathlib.Path) -> dict[str, Any]:
    """The result of a run. Empty if it is not finished or damaged."""
    with contextlib.suppress(UserError):
        return read_result(workdir) or {}
    return {}


def _is_in_vain(result: dict[str, Any]) -> bool:
    """Whether networks were trained, and the instant classifier was better."""
    return result.get("predictor") == INSTANT


def choose(workdir: pathlib.Path) -> None:
    """Lets a run predict from now on. Raises an OSError if the system refuses."""
    os.utime(workdir / CONFIG)


def format_runs(runs: Sequence[ListedRun]) -> str:
    """An aligned table for the terminal."""
    header = ("run", "dataset", "method", "labels", "accuracy", "changed", "size")
    rows = [header] + [
        (
            make_printable(str(run.workdir)),
            run.dataset,
            run.method,
            "" if run.num_labels is None else f"{run.num_labels:,}",
            run.accuracy,
            f"{datetime.datetime.fromtimestamp(run.changed):%Y-%m-%d %H:%M}",
            f"{run.num_bytes / 1e6:,.1f} MB",
        )
        for run in runs
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _sort_by_change(root: pathlib.Path) -> list[pathlib.Path]:
    folders = [path for path in root.iterdir() if is_run(path)] if root.is_dir() else []
    return sorted(folders, key=_find_change, reverse=True)


def find_images(workdir: pathlib.Path) -> tuple[str, str] | None:
    """A run's dataset, and its resolved folder. None if its configuration cannot be read."""
    with contextlib.suppress(UserError):
        data = read_run_config(workdir).data
        return data.name, os.path.realpath(os.path.expanduser(data.data_dir))
    return None


def _find_change(workdir: pathlib.Path, names: Sequence[str] = _STATES) -> float:
    """When a run advanced last, in seconds since 1970."""
    times = [0.0]
    for name in names:
        with contextlib.suppress(OSError):
            times.append((workdir / name).stat().st_mtime)
    return max(times)


def _measure(workdir: pathlib.Path) -> int:
    """The size in bytes of a folder's files, some of which a training may delete meanwhile."""
    num_bytes = 0
    for folder, _, names in os.walk(workdir):
        for name in names:
            with contextlib.suppress(OSError):
                num_bytes += os.lstat(os.path.join(folder, name)).st_size
    return num_bytes


def _describe(workdir: pathlib.Path) -> ListedRun:
    changed, num_bytes = _find_change(workdir), _measure(workdir)
    try:
        config = read_run_config(workdir)
        result = read_result(workdir)
    except UserError:
        return ListedRun(workdir, "", "", None, "damaged", changed, num_bytes)
    num_labels = (result or {}).get("num_labels", config.get("num_labels") or None)
    return ListedRun(
        workdir,
        config.data.name,
        get_method_name(config),
        num_labels,
        _format(result),
        changed,
        num_bytes,
    )


def _format(result: dict[str, Any] | None) -> str:
    """The accuracy of the classifier that predicts: one figure, with what it was measured on.

    Without test images, it is the one to expect on the unlabeled images, as the other commands say
    it. Validation images come last, since they may be harder than the rest of the folder. While
    nothing is known of trained networks, it is that of the instant classifier they began with.
    """
    if result is None:
        return "not finished"
    used = "_instant" if _is_in_vain(result) else ""
    right = " all tags right" if result.get("labels_tags") else ""
    if (accuracy := result.get(f"test_accuracy{used}")) is not None:
        precision = result.get("test_mean_average_precision")
        mean = "" if precision is None else f", mean AP {precision:.1f}%"
        return f"{accuracy:.1f}%{right}{mean} (test)"
    expected, new = expect_accuracy(result), read_new_sources(result)
    of_new = ""
    if new is not None and new.accuracy_new_sources is not None:
        of_new = f"; on new sources about {new.accuracy_new_sources:.0f}%"
    if expected is not None and expected.images != VALIDATION and not expected.is_before:
        shown = of_new if expected.images is None else ""
        return f"about {expected.accuracy:.0f}%{right} (expected{shown})"
    if (accuracy := result.get(f"validation_accuracy{used}")) is not None:
        return f"{accuracy:.1f}%{right} (validation)"
    return f"about {expected.accuracy:.0f}% (expected before training{of_new})" if expected else ""
