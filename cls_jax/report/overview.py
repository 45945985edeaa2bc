"""The sections on how a run was made and how it went: headline, curves, configuration."""

import dataclasses
from typing import Any

from cls_jax.config import create_config, flatten, show_value
from cls_jax.methods import get_method
from cls_jax.report.charts import draw_panel
from cls_jax.report.data import RunData
from cls_jax.report.markup import Html, join, tag
from cls_jax.report.scores import wilson_interval
from cls_jax.report.series import ACCURACY, Panel, create_panels, find_last

_MIN_ENLARGED = 3


def draw_headline(run: RunData) -> Html:
    """What was trained, how far, and how good it is."""
    config = run.config
    step = run.result.get("step", "?") if run.result else (run.rows[-1]["step"] if run.rows else 0)
    state = "finished" if run.result else f"unfinished: {step:,} of {config.num_steps:,} steps"
    tiles = [
        ("Test accuracy", *_describe_accuracy(run, "accuracy", "network 1, averaged")),
        ("Together", *_describe_accuracy(run, "accuracy_ensemble", "both networks, averaged")),
        ("Labels", f"{config.num_labels:,}", _describe_unlabeled(run)),
        ("Steps", f"{step:,}" if isinstance(step, int) else step, f"of {config.num_steps:,}"),
        ("Training", _describe_seconds(run), "without compilation and evaluation"),
    ]
    if get_method(config.method.name).num_networks == 1:
        del tiles[1]
    return tag(
        "header",
        tag("p", f"{config.method.name} · {state}", class_="kicker"),
        tag("h1", f"{config.data.name} with {config.num_labels:,} labels"),
        tag("p", f"{run.workdir} · seed {config.seed}", class_="path"),
        tag("dl", *(_draw_tile(*tile) for tile in tiles), class_="tiles"),
    )


def draw_notes(run: RunData) -> Html | None:
    """What this page could not show, and why."""
    if not run.notes:
        return None
    return tag(
        "aside",
        tag("h2", "Not on this page"),
        tag("ul", *(tag("li", note) for note in run.notes)),
        class_="notes",
    )


def draw_curves(run: RunData) -> Html | None:
    """Everything that was measured while training."""
    panels = create_panels(run.rows)
    if not panels:
        return None
    note = None
    if _is_unknown(run, "monitors/pseudo_label_accuracy"):
        note = tag("p", "No true classes: whether pseudo labels were right is not known.")
    charts = map(draw_panel, _enlarge_end(panels, run))
    return tag(
        "section",
        tag("h2", "Training"),
        note,
        tag("div", *charts, class_="grid"),
        id="training",
    )


def draw_config(run: RunData) -> Html:
    """The whole configuration beside the method's defaults."""
    config = run.config
    default = flatten(create_config(f"{config.num_labels},{config.method.name}").to_dict())
    ours = flatten(config.to_dict())
    rows = []
    for key, value in ours.items():
        text, usual = _describe_value(value), _describe_value(default.get(key))
        differs = text != usual
        cells = (tag("th", key, scope="row"), tag("td", text), tag("td", usual if differs else ""))
        rows.append(tag("tr", *cells, class_="differs" if differs else None))
    return tag(
        "section",
        tag("h2", "Configuration"),
        tag(
            "p",
            "Marked: what differs from the default of this method in ",
            tag("code", "docs/configuration.md"),
            ".",
        ),
        scrollable(
            "Configuration",
            tag(
                "table",
                tag("thead", tag("tr", *(_column(n) for n in ("key", "value", "default")))),
                tag("tbody", *rows),
                class_="config",
            ),
        ),
        id="configuration",
    )


def draw_sessions(run: RunData) -> Html:
    """The commands that made the run, when, and with what."""
    sessions = [_draw_session(session) for session in run.sessions]
    if not sessions:
        sessions = [tag("p", "The run does not say how it was made.")]
    return tag("section", tag("h2", "How it was made"), *sessions, id="made")


def scrollable(label: str, content: Html, class_: str = "scroll") -> Html:
    """Content that may be wider than a phone; reachable with the keyboard."""
    return tag("div", content, class_=class_, role="region", aria_label=label, tabindex=0)


def format_percent(value: float) -> str:
    """A share between 0 and 100 with two digits."""
    return f"{value:.2f} %"


def _describe_accuracy(run: RunData, name: str, meaning: str) -> tuple[str, str]:
    value = run.result.get(f"test_{name}") if run.result else find_last(run.rows, f"test/{name}")
    if not isinstance(value, int | float) or not 0 <= value <= 100:
        return "–", "no test images" if run.result else "not measured yet"
    num_images = len(run.dataset.test_labels) if run.dataset else 0
    if num_images == 0:
        return format_percent(value), meaning
    low, high = wilson_interval(round(value / 100 * num_images), num_images)
    interval = f"{100 * low:.2f} – {100 * high:.2f} %".replace(" ", "\N{NO-BREAK SPACE}")
    return format_percent(value), f"{meaning}; 95\N{NO-BREAK SPACE}% interval {interval}"


def _describe_unlabeled(run: RunData) -> str:
    if run.dataset is None:
        return f"of {len(run.class_names)} classes" if run.class_names else ""
    return f"of {len(run.dataset.train_images):,} training images, {len(run.class_names)} classes"


def _describe_seconds(run: RunData) -> str:
    seconds = run.result.get("train_seconds") if run.result else None
    if not isinstance(seconds, int | float) or not 0 <= seconds < 1e9:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _enlarge_end(panels: list[Panel], run: RunData) -> list[Panel]:
    """The panels, and the second half of the accuracies again if there are enough."""
    title = panels[0].title
    if title != ACCURACY or len(panels[0].curves[0].steps) < 2 * _MIN_ENLARGED:
        return panels
    late = [row for row in run.rows if 2 * row["step"] >= run.rows[-1]["step"]]
    again = [panel for panel in create_panels(late) if panel.title == title]
    if not again:
        return panels
    return [
        panels[0],
        dataclasses.replace(again[0], title=f"{title}, second half", caption="Enlarged."),
        *panels[1:],
    ]


def _is_unknown(run: RunData, name: str) -> bool:
    return any(name in row for row in run.rows) and find_last(run.rows, name) is None


def _draw_tile(name: str, value: Any, meaning: str) -> Html:
    return tag("div", tag("dt", name), tag("dd", tag("b", value), tag("span", meaning)))


def _describe_value(value: Any) -> str:
    separator = ", " if isinstance(value, list | tuple) else ","
    return show_value(value).replace(",", separator) or "(empty)"


def _column(name: str) -> Html:
    return tag("th", name, scope="col")


def _draw_session(session: dict[str, Any]) -> Html:
    versions = session.get("versions")
    versions = versions if isinstance(versions, dict) else {}
    facts = [
        f"started {session.get('started', 'at an unknown time')}",
        f"at step {session.get('first_step', '?')}",
        session.get("hardware", "unknown hardware"),
        *(f"{name} {version}" for name, version in versions.items()),
    ]
    return join(
        tag("pre", tag("code", session.get("command", "unknown command"))),
        tag("p", " · ".join(map(str, facts)), class_="facts"),
    )
