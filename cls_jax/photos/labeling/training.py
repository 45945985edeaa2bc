"""Training started from the page, as a `cls-jax train` process, and the runs that come of it."""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

from cls_jax.config import read_values
from cls_jax.data.sampling import take_evenly
from cls_jax.errors import UserError, explain_writing
from cls_jax.io import make_printable
from cls_jax.parallel.preemption import FINISH
from cls_jax.photos.features.accuracy import MIN_CHECKS
from cls_jax.photos.features.backbones import DEFAULT_BACKBONES, Backbones
from cls_jax.photos.folder.catalog import read_catalog
from cls_jax.photos.folder.options import AUTOMATIC, FolderOptions
from cls_jax.photos.images.files import list_images
from cls_jax.photos.inference.list_runs import (
    RUNS,
    ListedRun,
    choose,
    find_images,
    find_used,
    list_runs,
)
from cls_jax.photos.inference.predictor import describe_choice
from cls_jax.photos.labeling.answers import RefusedError
from cls_jax.photos.labeling.classifier import find_free
from cls_jax.photos.labeling.known import Counts, write_missing
from cls_jax.photos.labeling.progress import describe_end, estimate_left, read_message
from cls_jax.photos.shell import write_command
from cls_jax.runs.folder import CHECKPOINTS, CONFIG, RESULT, read_result
from cls_jax.runs.metrics import METRICS, read_metrics
from cls_jax.runs.sessions import LOCK, is_held

INSTANT = "instant"
FINE_TUNE = "trained"
REPORT = "report.html"
_MAX_MINUTES = 100_000
_MAX_HELD_OUT = 0.5  # Of the labels.
_MAX_POINTS = 300  # Of the curve.
_MAX_RUNS = 50  # In the list.
_LONGEST_MESSAGE = 500
_LOSS, _ACCURACY = "train/loss", "validation/accuracy"
_FEWEST_POINTS = 2  # Of a curve. A short training is evaluated once.
_EARLIER = "A training that began in an earlier session is still running:"
_BUSY = ("planning", "running", "stopping")
_PLAN_SECONDS = 60.0  # Of the first plan (two busy cores). Later ones take as long as it did.


class FolderRuns:
    """Those in `runs/` whose images are in a folder. One predicts, as in a terminal."""

    def __init__(self, folder: pathlib.Path):
        """`folder` is resolved."""
        self._images = "folder", str(folder)

    def list_all(self) -> list[ListedRun]:
        """The runs, the most recently changed first, without damaged ones."""
        return [run for run in list_runs(RUNS) if find_images(run.workdir) == self._images]

    def find_used(self) -> pathlib.Path | None:
        """The run that predicts if no other one is named. None without any."""
        folders = [run.workdir for run in self.list_all()]
        return find_used(folders) if folders else None

    def find_held(self) -> pathlib.Path | None:
        """An unfinished run in which a process trains now. None without any."""
        folders = sorted(path.parent for path in RUNS.glob(f"*/{LOCK}"))
        unfinished = (one for one in folders if not (one / RESULT).exists())
        own = (one for one in unfinished if find_images(one) == self._images)
        return next((one for one in own if is_held(one)), None)

    def find(self, name: str) -> pathlib.Path:
        """The run of a name. Raises a RefusedError if there is none."""
        for run in self.list_all():
            if make_printable(str(run.workdir)) == name:
                return run.workdir
        raise RefusedError("There is no such run. It may have been deleted meanwhile.")

    def describe(self) -> list[dict[str, Any]]:
        """The runs for the page, without one that is being trained."""
        busy = self.find_held()
        runs = [run for run in self.list_all() if run.workdir != busy]
        used = find_used([run.workdir for run in runs]) if runs else None
        return [
            {
                "name": make_printable(str(run.workdir)),
                "method": run.method,
                "labels": run.num_labels,
                "accuracy": run.accuracy,
                "changed": run.changed,
                "megabytes": round(run.num_bytes / 1e6, 1),
                "has_report": (run.workdir / REPORT).is_file(),
                "is_used": run.workdir == used,
            }
            for run in runs[:_MAX_RUNS]
        ]


class Training:
    """At most one training at a time. All methods may be called from any thread.

    It is planned first: what is not possible on this machine in the time is not started. It
    continues if the page is closed, and can be ended early.

    Attributes:
        runs: Those of the folder.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        arguments: Sequence[str] = (),
        options: FolderOptions = AUTOMATIC,
        backbones: Backbones = DEFAULT_BACKBONES,
    ):
        """`arguments` are further ones of `cls-jax train`, for fine-tuning.

        `backbones` are the session's networks.
        """
        self._folder = folder.resolve()
        self._options = options
        self._backbones = backbones
        self._arguments = list(arguments)
        self._lock = threading.RLock()
        self._process: subprocess.Popen | None = None
        self._command: list[str] = []
        self._log = -1  # An unnamed file, which outlives the session.
        self._begin = 0  # Of what the process prints there.
        self._start_time = 0.0
        self._plan_seconds = _PLAN_SECONDS  # That the last plan took.
        self._run = RUNS
        self._metrics: list[dict[str, Any]] = []
        self._num_bytes = 0  # Of the file that these are from.
        self._is_planning = False
        self._has_learned = True  # Unless it was stopped before it had.
        self._state: dict[str, Any] = {"phase": "none"}
        self.runs = FolderRuns(self._folder)
        self._used: pathlib.Path | None = None
        self._is_used_known = False

    def plan(self, counts: Counts, minutes: float) -> None:
        """Finds out what fine-tuning for some minutes would do on this machine now.

        Nothing is trained. Raises the same as `start`.
        """
        with self._lock:
            self._prepare(FINE_TUNE, counts, minutes)
            self._launch("planning", "--dry-run")

    def start(self, kind: str, counts: Counts, minutes: float = 0) -> pathlib.Path:
        """Begins a run: `INSTANT` saves the classifier, `FINE_TUNE` trains for some minutes.

        Random photos that were checked are kept out of fine-tuning, at most half of all labels, to
        compare its result with the instant classifier. Returns its folder. Raises a RefusedError if
        there are not two classes, too few such photos although more could be checked, a training is
        in progress, or an argument is invalid.
        """
        with self._lock:
            self._prepare(kind, counts, minutes)
            self._launch("running")
            return self._run

    def _prepare(self, kind: str, counts: Counts, minutes: float) -> None:
        """Chooses the command and the folder. Raises the same as `start`."""
        self._check_idle()
        if counts.classes < 2:
            raise RefusedError(f"Label photos of two {self._options.kind.word} first.")
        if kind not in (INSTANT, FINE_TUNE):
            raise RefusedError("Unknown kind of training.")
        if kind == FINE_TUNE and not 0 < minutes <= _MAX_MINUTES:
            raise RefusedError(f"Minutes must be above 0 and at most {_MAX_MINUTES:,}.")
        run = find_free(RUNS / f"{make_printable(self._folder.name)}-{kind}")
        backbones = self._backbones
        if kind == INSTANT:  # The page's own classifier, by default labeled by one network.
            how, backbones = ["--instant"], dataclasses.replace(backbones, is_chosen=True)
        else:
            how = ["--minutes", f"{minutes:g}", *self._arguments, *self._hold_out(counts)]
        how += [*backbones.to_arguments(), *self._options.to_arguments(self._folder)]
        # Nothing was refused: only now does the state of the last training give way.
        self._run, self._command = run, ["train", str(self._folder), "--workdir", str(run), *how]
        self._state = {"phase": "none", "kind": kind, "minutes": minutes, "curve": []}

    def _hold_out(self, counts: Counts) -> list[str]:
        """The argument that keeps the checked photos out, see `start` and `hold_out`."""
        catalog = read_catalog(self._folder, list_images(self._folder), self._options)
        if any(mark.part == "validation" for mark in catalog.marks.files.values()):
            return []
        if counts.checks >= MIN_CHECKS:
            share = min(counts.checks / counts.labels, _MAX_HELD_OUT)
            return [f"--config.data.validation={share:.4g}"]
        if counts.checks + counts.open >= MIN_CHECKS:
            raise RefusedError(
                f"Check {write_missing(counts.checks)} first: without them, nothing tells whether "
                "training helps."
            )
        return []

    def _check_idle(self) -> None:
        if self.is_running():
            raise RefusedError("Training is in progress. Stop it or wait for it to finish.")
        if (run := self.runs.find_held()) is not None:
            raise RefusedError(f"{_EARLIER} {make_printable(str(run))}")

    def _launch(self, phase: str, *options: str) -> None:
        self.find_used_run()
        if self._log < 0:
            self._log, path = tempfile.mkstemp()
            os.unlink(path)
        self._is_used_known, self._is_planning = False, phase == "planning"
        self._begin = os.lseek(self._log, 0, os.SEEK_END)
        self._metrics, self._has_learned = [], True
        try:
            # Ctrl-C in the terminal goes to the session only, which asks.
            self._process = subprocess.Popen(
                _write_arguments([*self._command, *options]),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
                env=_create_environment(),
            )
        except OSError as error:
            raise UserError(f"Training cannot start: {error.strerror}.") from error
        self._start_time = time.monotonic()
        message = "Measuring what this machine can do" if phase == "planning" else "Starting"
        self._state |= {"phase": phase, "message": message, "step": 0, "steps": 0}

    def stop(self, *, finishes: bool = True) -> None:
        """Asks the training to end with this step, and to compare what it has learned by then.

        Before the first step, it stops at once and leaves nothing. Unless it `finishes`, it stops
        as soon, and the same command resumes it. Raises a RefusedError if there is none.
        """
        with self._lock:
            if not self.is_running() or self._process is None:
                raise RefusedError("There is no training to stop.")
            if self._state["phase"] != "stopping":  # A second signal would keep it from saving.
                self._has_learned = self._state["step"] > 0
                self._process.send_signal(
                    (finishes and self._has_learned and FINISH) or signal.SIGTERM
                )
                self._state["phase"] = "stopping"

    def wait(self) -> None:
        """Waits for the process to end, if there is one."""
        if self._process is not None:
            self._process.wait()

    def is_running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    def find_used_run(self) -> pathlib.Path | None:
        """The run that predicts for this folder, see `FolderRuns`. None without any.

        While a training is running, it is the one that did before.
        """
        with self._lock:
            if not self._is_used_known and not self.is_running():
                self._used, self._is_used_known = self.runs.find_used(), True
            return self._used

    def find_report(self, name: str = "") -> pathlib.Path | None:
        """The report of a run by its name, by default the last one, if there is one."""
        if not (name or self._process):
            return None
        path = (self.runs.find(name) if name else self._run) / REPORT
        return path if path.is_file() else None

    def use(self, name: str) -> None:
        """Lets a run predict from now on, on the page and in a terminal.

        Raises a RefusedError if there is none, or a training is in progress.
        """
        with self._lock:
            self._check_idle()
            workdir = self.runs.find(name)
            with explain_writing(workdir, "allow writing there"):
                choose(workdir)
            self._is_used_known = False

    def delete(self, name: str) -> None:
        """Deletes a run's folder. Raises the same as `use`."""
        with self._lock:
            self._check_idle()
            workdir = self.runs.find(name)
            with explain_writing(workdir, "allow writing there"):
                shutil.rmtree(workdir)
            self._is_used_known = False
            if self._process is not None and workdir == self._run:
                self._process = None
                self._state = {"phase": "none"}

    def describe(self) -> dict[str, Any]:
        """Its progress, or how it ended."""
        with self._lock:
            code = self._process.poll() if self._process else None
            if self._state["phase"] in _BUSY:
                with contextlib.suppress(UserError, OSError, ValueError):  # Not written yet.
                    self._read_metrics()
                if code is not None:
                    self._end(code)
            if self._state["phase"] in _BUSY:
                seconds = time.monotonic() - self._start_time
                planned = self._plan_seconds if self._is_planning else 60 * self._state["minutes"]
                left = estimate_left(self._metrics, self._state["steps"], seconds, planned)
                self._state |= {"seconds": int(seconds), "left": left}
            elif (run := self.runs.find_held()) is not None:
                self._is_used_known = False  # It may be once it ends.
                return {"phase": "elsewhere", "message": f"{_EARLIER} {make_printable(str(run))}"}
            return self._state | {
                "run": make_printable(str(self._run)),
                "command": make_printable(write_command(self._command)),
                "used": make_printable(str(self.find_used_run() or "")),
                "has_folder": (self._run / CONFIG).exists(),
                "has_report": self.find_report() is not None,
            }

    def _end(self, code: int) -> None:
        """Notes how the process has ended. What has learned nothing leaves no folder."""
        has_saved = self._has_learned and any((self._run / CHECKPOINTS).glob("[0-9]*"))
        choice = ""
        if code == 0 and self._is_planning:
            self._plan_seconds = time.monotonic() - self._start_time
        if code == 0 and self._state["kind"] == FINE_TUNE:
            with contextlib.suppress(UserError):  # It was damaged since.
                choice = describe_choice(read_result(self._run) or {}) or ""
        ended = describe_end(code, self._read_log(), has_saved, choice, self._is_planning)
        if ended["phase"] == "stopped" and not has_saved and not (self._run / RESULT).exists():
            shutil.rmtree(self._run, ignore_errors=True)
        self._state |= ended | {"message": _shorten(ended["message"])}

    def _read_metrics(self) -> None:
        """Reads the step and the curve so far. Before the first step, says what is printed last."""
        path = self._run / METRICS
        num_bytes = path.stat().st_size if path.exists() else 0
        if self._metrics and num_bytes == self._num_bytes:
            return
        if not (rows := read_metrics(self._run)):
            if self._state["phase"] == "running" and (said := read_message(self._read_log())):
                self._state["message"] = _shorten(said)
            return
        of, key = "Accuracy on the held-out photos", _ACCURACY
        if sum(row.get(key) is not None for row in rows) < _FEWEST_POINTS:
            of, key = "Loss", _LOSS
        values = {row["step"]: row[key] for row in rows if row.get(key) is not None}
        points = [(step, round(value, 3)) for step, value in sorted(values.items())]
        self._state |= {
            "curve_of": of,
            "step": max(row["step"] for row in rows),
            "steps": read_values(self._run / CONFIG).get("num_steps", 0),
            "curve": take_evenly(points, _MAX_POINTS),
            "message": "",
        }
        self._metrics, self._num_bytes = rows, num_bytes

    def _read_log(self) -> str:
        """What the process has printed."""
        if self._log < 0:
            return ""
        size = os.fstat(self._log).st_size - self._begin
        return os.pread(self._log, size, self._begin).decode("utf-8", "replace")


def _write_arguments(words: Sequence[str]) -> list[str]:
    """The command of this package that a person would type."""
    return [sys.executable, "-m", "cls_jax", *words]


def _create_environment() -> dict[str, str]:
    """The environment of such a command, where the package need not be installed."""
    package = pathlib.Path(__file__).parents[3]
    paths = filter(None, (str(package), os.environ.get("PYTHONPATH")))
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def _shorten(line: str) -> str:
    return make_printable(line)[:_LONGEST_MESSAGE]
