"""The runs that were trained on a folder: to look at, to predict with, and to delete."""

import contextlib
import pathlib
import shutil
from typing import Any

from cls_jax.errors import UserError, explain_writing
from cls_jax.io import make_printable
from cls_jax.photos.folder.instant_config import read_run_config
from cls_jax.photos.inference.list_runs import (
    RUNS,
    ListedRun,
    choose,
    find_used,
    list_runs,
)
from cls_jax.photos.labeling.answers import RefusedError
from cls_jax.runs.folder import RESULT
from cls_jax.runs.sessions import LOCK, is_held

REPORT = "report.html"
_NUM_SHOWN = 50


class FolderRuns:
    """Those in `runs/` whose images are in a folder. One predicts, as in a terminal."""

    def __init__(self, folder: pathlib.Path):
        """`folder` is resolved."""
        self._folder = folder

    def list_all(self) -> list[ListedRun]:
        """The runs, the most recently changed first, without damaged ones."""
        return [run for run in list_runs(RUNS) if self._is_here(run.workdir)]

    def _is_here(self, workdir: pathlib.Path) -> bool:
        with contextlib.suppress(UserError):
            place = read_run_config(workdir).data.data_dir
            return bool(place) and pathlib.Path(place).expanduser().resolve() == self._folder
        return False

    def find_used(self) -> pathlib.Path | None:
        """The run that predicts if no other one is named. None without any."""
        folders = [run.workdir for run in self.list_all()]
        return find_used(folders) if folders else None

    def find_held(self) -> pathlib.Path | None:
        """An unfinished run in which a process trains now. None without any."""
        folders = sorted(path.parent for path in RUNS.glob(f"*/{LOCK}"))
        unfinished = (one for one in folders if not (one / RESULT).exists())
        return next((one for one in unfinished if self._is_here(one) and is_held(one)), None)

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
            for run in runs[:_NUM_SHOWN]
        ]

    def use(self, name: str) -> None:
        """Lets a run predict from now on, on the page and in a terminal."""
        workdir = self.find(name)
        with explain_writing(workdir, "allow writing there"):
            choose(workdir)

    def delete(self, name: str) -> None:
        """Deletes a run's folder."""
        workdir = self.find(name)
        with explain_writing(workdir, "allow writing there"):
            shutil.rmtree(workdir)
