"""The report of a run that has just ended, which must not take the run's own outcome away."""

import pathlib

from cls_jax.photos.inference.run import Run
from cls_jax.runs.folder import RESULT


def draw_report(run: Run) -> tuple[pathlib.Path | None, str | None]:
    """Writes the report of a finished run unless it is up to date. Needs a single process.

    Never raises: whatever breaks here, an import included, the run itself is finished. Returns the
    path of the report and None, or None and the reason why there is none.
    """
    try:
        from cls_jax.photos.report.page import REPORT, write_report

        path = run.workdir / REPORT
        if path.exists() and path.stat().st_mtime >= (run.workdir / RESULT).stat().st_mtime:
            return path, None
        return write_report(run.workdir, opened=run), None
    except Exception as error:
        return None, (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
