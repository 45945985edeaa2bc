"""Renders the report from Jinja templates and writes it into the run's folder."""

import base64
import contextlib
import datetime
import functools
import hashlib
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jinja2

from cls_jax.errors import UserError, explain_writing
from cls_jax.io import make_printable, write_atomically
from cls_jax.photos.inference.run import Run
from cls_jax.photos.inference.scores import CLASSES, TAGS, format_percent, write_class_table
from cls_jax.photos.inference.suspects import write_suspects
from cls_jax.photos.report import sections
from cls_jax.photos.report.data import NUM_PICTURES, RunData, collect_run
from cls_jax.photos.report.outcome import describe_labelers

REPORT = "report.html"
_View = Callable[[RunData], Any]
# Section ID, also the template's name → title in the navigation, where {} is what is predicted, and
# the function that returns what the template shows, or None to omit the section.
_SECTIONS: dict[str, tuple[str, _View]] = {
    "next": ("What to do next", sections.view_next),
    "photos": ("Photos by {}", lambda run: run.label_counts if run.is_folder else None),
    "classes": ("Figures by {}", sections.view_classes),
    "tags": ("Photos of each tag", sections.view_tags),
    "answers": ("Mixed up", sections.view_answers),
    "mistakes": ("Mistakes", lambda run: None if run.tested is None else run.tested.mistakes),
    "suspects": (
        "Suspect labels",
        lambda run: run.suspects if run.dataset and run.suspects else None,
    ),
    "uncertain": ("Uncertain images", sections.view_uncertain),
    "labeled": ("Labeled images", sections.view_labeled),
}
# The same for what is folded on the page of a folder of photos.
_DETAILS: dict[str, tuple[str, _View]] = {
    "training": ("Training", sections.view_training),
    "calibration": ("Calibration", sections.view_calibration),
    "labelers": ("Labels of the other images", lambda run: describe_labelers(run.result or {})),
    "configuration": ("Configuration", sections.view_config),
    "sessions": ("Sessions", lambda run: run.sessions),
}
# Sections that show images, and those that say nothing where images have one class, or tags.
_OF_IMAGES = {"mistakes", "uncertain", "suspects", "tags", "labeled"}
_OTHERS = {
    CLASSES: {"tags"},
    TAGS: {"answers", "mistakes", "suspects", "uncertain", "calibration", "labelers"},
}
# Characters that no HTML document may contain, but file names can: control characters and halves
# of surrogate pairs.
_FORBIDDEN = {
    **dict.fromkeys({*range(0x20), *range(0x7F, 0xA0)} - {ord("\n"), ord("\t")}, " "),
    **dict.fromkeys([*range(0xD800, 0xE000), 0xFFFE, 0xFFFF], "\N{REPLACEMENT CHARACTER}"),
}


def write_report(
    workdir: pathlib.Path,
    data_dir: str | None = None,
    opened: Run | None = None,
    has_images: bool = True,
) -> pathlib.Path:
    """Writes `report.html`, `per_class.csv` and `suspects.csv` of a run. Returns the page's path.

    `data_dir` is the dataset's place if it is no longer the training's `config.data.data_dir`.
    `opened` is the same run, if its dataset and checkpoint may have been read already. Without
    images, the page has no image sections and no file names. A page is replaced only by one that
    lacks nothing more. Raises a UserError if it is not, or the folder is not the folder of a run or
    cannot be written to.
    """
    run = collect_run(workdir, data_dir, opened)
    path = workdir / REPORT
    _check_richer(path, run)
    text = render_page(run, has_images)  # Some of Jinja's errors are OSErrors, but not of writing.
    with explain_writing(path, "free disk space or allow writing there"):
        if run.tested is not None:
            write_class_table(workdir, run.tested.figures)
        are_judged = "suspects" not in _OTHERS[run.target]
        if run.predictions is not None and run.labeled is not None and are_judged:
            names = [run.name_image(row.position, row.is_test)[0] for row in run.suspects]
            write_suspects(workdir, run.suspects, run.class_names, names)
        write_atomically(path, text)
    return path


def _check_richer(path: pathlib.Path, run: RunData) -> None:
    """Raises a UserError if a page at the path has something that a new one would lack."""
    earlier = ""
    with contextlib.suppress(OSError):
        earlier = path.read_text(encoding="utf-8", errors="replace")
    lost = [note for note in run.notes if f"<li>{note.partition(':')[0]}:" not in earlier]
    if earlier and lost:
        raise UserError(
            f"{path} stays as it is, since a new page would have less. "
            f"{make_printable(lost[0]).rstrip('.')}. To write it anyway, delete {path.name} first."
        )


def render_page(run: RunData, has_images: bool = True) -> str:
    """The report as one HTML document without any external resource."""

    def view_all(all_sections: Mapping[str, tuple[str, _View]]) -> list[tuple[str, str, Any]]:
        shown = all_sections.keys() - (set() if has_images else _OF_IMAGES) - _OTHERS[run.target]
        views = [
            (id_, title.format(run.target.noun), view(run))
            for id_, (title, view) in all_sections.items()
            if id_ in shown
        ]
        return [entry for entry in views if entry[-1] is not None]

    page = create_environment().get_template("page.html.j2")
    text = page.render(
        run=run,
        config=run.config,
        header=sections.view_header(run),
        sections=view_all(_SECTIONS),
        details=view_all(_DETAILS),
        now=datetime.datetime.now(datetime.UTC),
    )
    return text.translate(_FORBIDDEN)


@functools.cache
def create_environment() -> jinja2.Environment:
    """A Jinja environment that escapes every value and refuses undefined names."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cls_jax.photos.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["num_pictures"] = NUM_PICTURES
    environment.filters |= {
        "percent": format_percent,
        # Anything else than an integer in a result stays as it is.
        "thousands": lambda value: f"{value:,}" if isinstance(value, int) else str(value),
        "sha256": lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode(),
        "data_uri": sections.encode_image,
        "overlay": sections.overlay_heat_map,
    }
    return environment
