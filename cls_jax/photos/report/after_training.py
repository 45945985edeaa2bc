"""The report of a run that has just ended, which must not take the run's own outcome away."""

import pathlib

import jax

from cls_jax.photos.inference.run import Run
from cls_jax.photos.shell import write_command
from cls_jax.runs.folder import RESULT


def draw_report(run: Run) -> pathlib.Path | None:
    """Writes the report of a finished run unless it is up to date. Prints why if there is none.

    Never raises: whatever breaks here, an import included, the run itself is finished.
    """
    again = write_command(["report", str(run.workdir)])
    if jax.process_count() > 1:  # A report needs a single process.
        print(f"\nTo write a report: {again}")
        return None
    try:
        from cls_jax.photos.report.page import REPORT, write_report

        path = run.workdir / REPORT
        if path.exists() and path.stat().st_mtime >= (run.workdir / RESULT).stat().st_mtime:
            return path
        return write_report(run.workdir, opened=run)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        print(f"The report could not be drawn ({reason}). To try again: {again}")
        return None
