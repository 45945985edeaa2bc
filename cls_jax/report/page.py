"""The whole page, and its file in the run's folder."""

import base64
import datetime
import hashlib
import importlib.resources
import pathlib
from collections.abc import Callable

from cls_jax.errors import UserError
from cls_jax.io import write_atomically
from cls_jax.report import examples, overview, testing
from cls_jax.report.data import RunData, collect_run
from cls_jax.report.markup import Html, tag

REPORT = "report.html"
_SECTIONS: dict[str, tuple[str, Callable[[RunData], Html | None]]] = {
    "training": ("Training", overview.draw_curves),
    "classes": ("Classes", testing.draw_classes),
    "calibration": ("Calibration", testing.draw_calibration),
    "mistakes": ("Mistakes", examples.draw_mistakes),
    "disagreements": ("Disagreements", examples.draw_disagreements),
    "views": ("Views", examples.draw_views),
    "labelled": ("Labelled images", examples.draw_labeled),
    "configuration": ("Configuration", overview.draw_config),
    "made": ("How it was made", overview.draw_sessions),
}


def write_report(workdir: pathlib.Path, data_dir: str | None = None) -> pathlib.Path:
    """Writes `report.html` of a run, finished or not, and returns its path.

    Args:
        workdir: the run's folder.
        data_dir: where the dataset is now, if not in the `config.data.data_dir` of the training.

    Raises:
        UserError: if the folder is not that of a run or cannot be written.
    """
    page = draw_page(collect_run(workdir, data_dir))
    path = workdir / REPORT
    try:
        write_atomically(path, page)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}): make room or allow writing there."
        ) from error
    return path


def draw_page(run: RunData) -> str:
    """The report as one HTML document without any external resource."""
    drawn = {id_: section(run) for id_, (_, section) in _SECTIONS.items()}
    shown = {id_: section for id_, section in drawn.items() if section is not None}
    links = (tag("a", _SECTIONS[id_][0], href=f"#{id_}") for id_ in shown)
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    body = tag(
        "body",
        overview.draw_headline(run),
        tag("nav", *links, aria_label="Sections"),
        tag("main", overview.draw_notes(run), *shown.values()),
        tag("footer", f"Written by cls_jax on {now}."),
        tag("script", _read_asset("script.js")),
    )
    return f"<!DOCTYPE html>\n{tag('html', _draw_head(run), body, lang='en')}\n"


def _draw_head(run: RunData) -> Html:
    title = f"{run.config.method.name} on {run.config.data.name}, {run.config.num_labels} labels"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        # The browser itself refuses whatever is not on the page, and any other script.
        tag("meta", http_equiv="Content-Security-Policy", content=_describe_policy()),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", _read_asset("style.css")),
    )


def _describe_policy() -> str:
    digest = base64.b64encode(hashlib.sha256(_read_asset("script.js").encode()).digest()).decode()
    return (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


def _read_asset(name: str) -> Html:
    """A file of this package, which is ours and needs no escaping."""
    return Html(importlib.resources.files("cls_jax.report").joinpath(name).read_text("utf-8"))
