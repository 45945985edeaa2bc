"""Training started from the page, as a `cls-jax train` process."""

import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import Any

from cls_jax.errors import UserError
from cls_jax.io import make_printable
from cls_jax.photos.folder.label_table import LABELS_CSV, read_content
from cls_jax.photos.folder.layout import find_table
from cls_jax.photos.images.files import list_images
from cls_jax.photos.labeling.answers import RefusedError
from cls_jax.photos.labeling.classifier import find_free

INSTANT, FINE_TUNE = "instant", "trained"
RUNS = pathlib.Path("runs")
_MAX_MINUTES = 100_000
_MAX_POINTS = 300  # Of the curve.
_PROGRESS = re.compile(r"(?:(\w+): +)?\d+%\|.*?\| (\d+)/(\d+) \[")
_LOSS = re.compile(r"loss ([\d.]+)")
_STOPPED = {128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM}


class Training:
    """At most one training at a time. All methods may be called from any thread.

    It continues if the page is closed, and can be stopped and resumed.
    """

    def __init__(self, folder: pathlib.Path, arguments: Sequence[str] = ()):
        """`arguments` are further ones of `cls-jax train`, for fine-tuning."""
        self._folder, self._arguments = folder.resolve(), list(arguments)
        self._lock = threading.RLock()
        self.is_closing: Callable[[], bool] = lambda: False  # Whether the session ends.
        self._process: subprocess.Popen | None = None
        self._command: list[str] = []
        self._log, self._num_read = -1, 0  # An unnamed file, which outlives the session.
        self._last = ""  # The last line printed, without progress bars.
        self._run = RUNS
        self._data: tuple[list[str], list[str], bytes] = ([], [], b"")
        self._state: dict[str, Any] = {"phase": "none"}

    def start(self, kind: str, minutes: float = 0) -> None:
        """Begins a run: `INSTANT` saves the classifier, `FINE_TUNE` trains for some minutes.

        Raises a RefusedError if one is in progress, or an argument is invalid.
        """
        with self._lock:
            self._check_idle()
            if kind not in (INSTANT, FINE_TUNE):
                raise RefusedError("Unknown kind of training.")
            if kind == FINE_TUNE and not 0 < minutes <= _MAX_MINUTES:
                raise RefusedError(f"Minutes must be above 0 and at most {_MAX_MINUTES:,}.")
            self._run = find_free(RUNS / f"{make_printable(self._folder.name)}-{kind}")
            how = ["--minutes", f"{minutes:g}", *self._arguments]
            how = ["--instant"] if kind == INSTANT else how
            self._command = ["train", str(self._folder), "--workdir", str(self._run), *how]
            self._state = {"phase": "none", "kind": kind, "curve": []}
            self._data = _look(self._folder)
            self._launch()

    def resume(self) -> None:
        """Resumes what was stopped, with the same data. Raises a RefusedError if nothing was."""
        with self._lock:
            self._check_idle()
            if self._state["phase"] not in ("stopped", "failed"):
                raise RefusedError("There is no stopped training.")
            if _look(self._folder) != self._data:
                self._command[1] = str(self._link_data())
            self._launch()

    def _link_data(self) -> pathlib.Path:
        """A folder beside the run, with its labels and links to its photographs."""
        target = self._run.with_name(f"{self._run.name}-photos").resolve()
        folders, names, table = self._data
        for name in ("", *folders):
            (target / name).mkdir(parents=True, exist_ok=True)
        for name in names:
            if not os.path.lexists(target / name):
                (target / name).symlink_to(self._folder / name)
        if table:
            (target / LABELS_CSV).write_bytes(table)
        return target

    def _check_idle(self) -> None:
        if self.is_running():
            raise RefusedError("Training is in progress. Stop it or wait for it to finish.")

    def _launch(self) -> None:
        package = pathlib.Path(__file__).parents[3]
        paths = filter(None, (str(package), os.environ.get("PYTHONPATH")))
        if self._log < 0:
            self._log, path = tempfile.mkstemp()
            os.unlink(path)
        self._num_read, self._last = os.lseek(self._log, 0, os.SEEK_END), ""
        try:
            # Ctrl-C in the terminal goes to the session only, which asks.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "cls_jax", *self._command],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            )
        except OSError as error:
            raise UserError(f"Training cannot start: {error.strerror}.") from error
        self._state |= {"phase": "running", "message": "Starting", "step": 0, "steps": 0}

    def stop(self) -> None:
        """Asks the training to save and stop. Raises a RefusedError if there is none."""
        with self._lock:
            if not self.is_running() or self._process is None:
                raise RefusedError("There is no training to stop.")
            if self._state["phase"] != "stopping":  # A second signal would keep it from saving.
                self._process.terminate()
                self._state["phase"] = "stopping"

    def is_running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    def find_report(self) -> pathlib.Path | None:
        """The report of the last run, if there is one."""
        path = self._run / "report.html"
        return path if self._process and path.is_file() else None

    def describe(self) -> dict[str, Any]:
        """Its progress, or how it ended."""
        with self._lock:
            code = self._process.poll() if self._process else None
            last = self._read_log()
            if self._state["phase"] in ("running", "stopping") and code is not None:
                phase = "stopped" if code in _STOPPED else "failed" if code else "done"
                reason = last.removeprefix("Error: ") or "It ended early."
                self._state |= {"phase": phase, "message": reason if phase == "failed" else ""}
            command = make_printable(f"cls-jax {shlex.join(self._command)}")
            described = {"run": make_printable(str(self._run)), "command": command}
            return self._state | described | {"has_report": self.find_report() is not None}

    def _read_log(self) -> str:
        """Reads what was printed since the last call. Returns the last sentence."""
        if self._log < 0:
            return ""
        text = os.pread(self._log, os.fstat(self._log).st_size - self._num_read, self._num_read)
        text = text[: max(text.rfind(b"\n"), text.rfind(b"\r")) + 1]
        self._num_read += len(text)
        for part in re.split(r"[\r\n]+", text.decode("utf-8", "replace")):
            if not (found := _PROGRESS.search(part)):
                self._last = part.strip() or self._last
                continue
            what, done, total = found[1], int(found[2]), int(found[3])
            if what:
                self._state["message"] = f"{what}: {done:,} of {total:,}"
            else:
                self._state |= {"step": done, "steps": total, "message": ""}
                if loss := _LOSS.search(part):
                    curve = [row for row in self._state["curve"] if row[0] < done]
                    self._state["curve"] = curve = [*curve, (done, float(loss[1]))]
                    if len(curve) > _MAX_POINTS:
                        del curve[1::2]
        return make_printable(self._last)[:500]


def _look(folder: pathlib.Path) -> tuple[list[str], list[str], bytes]:
    """The folders, the images and the label table: everything that a run is trained on."""
    listing = list_images(folder)
    table = find_table(listing)
    names = [file.name for file in listing.files]
    return sorted(listing.folders), names, read_content(folder / table) if table else b""
