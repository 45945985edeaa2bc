"""Values for the header and for the sections on the run as a whole: curves and configuration."""

import dataclasses
from typing import Any

from cls_jax.config import create_config, flatten, show_value
from cls_jax.methods import get_method
from cls_jax.report.charts import draw_panel
from cls_jax.report.data import RunData
from cls_jax.report.scores import wilson_interval
from cls_jax.report.series import create_panels, find_last

_ACCURACY = "Test accuracy"
_MIN_ENLARGED = 3


def view_header(run: RunData) -> dict[str, Any]:
    """How far the run got, how good it is, and how long it took."""
    last_step = run.rows[-1]["step"] if run.rows else 0
    return {
        "step": run.result.get("step", "?") if run.result else last_step,
        "accuracy": _measure(run, "accuracy"),
        "accuracy_ensemble": _measure(run, "accuracy_ensemble"),
        "num_networks": get_method(run.config.method.name).num_networks,
        "duration": _format_duration(run.result.get("train_seconds") if run.result else None),
    }


def view_training(run: RunData) -> dict[str, Any] | None:
    """Charts of everything that was measured while training."""
    panels = create_panels(run.rows)
    if not panels:
        return None
    if panels[0].title == _ACCURACY and len(panels[0].curves[0].steps) >= 2 * _MIN_ENLARGED:
        late = create_panels([row for row in run.rows if 2 * row["step"] >= run.rows[-1]["step"]])
        title, caption = f"{_ACCURACY}, second half", "Enlarged."
        if late and late[0].title == _ACCURACY:
            panels.insert(1, dataclasses.replace(late[0], title=title, caption=caption))
    name = "monitors/pseudo_label_accuracy"
    is_measured = any(name in row for row in run.rows)
    return {
        "charts": [(panel, draw_panel(panel)) for panel in panels],
        "is_truth_unknown": is_measured and find_last(run.rows, name) is None,
    }


def view_config(run: RunData) -> dict[str, Any]:
    """The whole configuration, and the method's default for each key that differs from it."""
    default = create_config(f"{run.config.num_labels},{run.config.method.name}").to_dict()
    usual = {key: _format_value(value) for key, value in flatten(default).items()}
    ours = {key: _format_value(value) for key, value in flatten(run.config.to_dict()).items()}
    rows = [(k, v, None if usual.get(k) == v else usual.get(k, "–")) for k, v in ours.items()]
    return {"rows": rows}


def _measure(run: RunData, name: str) -> dict[str, Any] | None:
    """A test accuracy with its interval, as shares; None where it was not measured."""
    value = run.result.get(f"test_{name}") if run.result else find_last(run.rows, f"test/{name}")
    if not isinstance(value, int | float) or not 0 <= value <= 100:
        return None
    count = len(run.dataset.test_labels) if run.dataset else 0
    interval = wilson_interval(round(value / 100 * count), count) if count else None
    return {"share": value / 100, "interval": interval}


def _format_duration(seconds: Any) -> str:
    if not isinstance(seconds, int | float) or not 0 <= seconds < 1e9:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _format_value(value: Any) -> str:
    separator = ", " if isinstance(value, list | tuple) else ","
    return show_value(value).replace(",", separator) or "(empty)"
