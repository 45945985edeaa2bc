"""The outcome of a finished run, `result.json`, in numbers."""

import pathlib
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

from cls_jax.runs.folder import read_weights
from cls_jax.runs.metrics import read_metrics

# A row of monitors describes a single batch, so the result averages several.
_NUM_ROWS = 20
# Figures of the last evaluation.
_LAST = (
    "test_accuracy",
    "test_balanced_accuracy",
    "test_accuracy_network_1",
    "test_accuracy_network_2",
    "test_accuracy_ensemble",
    "test_accuracy_live_network_1",
    "test_accuracy_live_network_2",
)


def create_result(
    config: ConfigDict,
    workdir: pathlib.Path,
    num_labels: int,
    train_seconds: float,
    name_baselines: Callable[[Mapping[str, float]], Mapping[str, float | None]] = lambda known: {},
) -> dict[str, Any]:
    """Collects the result from the run's metrics. Accuracies are None without a test set.

    `test_accuracy` belongs to network 1's EMA weights at the last step, as the CLS authors
    evaluate. `test_balanced_accuracy` is the mean of its accuracies within each class, which counts
    small classes as much as large ones. `test_accuracy_median_last_20` is the median over the last
    20 evaluations, as Google's FixMatch reports. `test_accuracy_best` is selected on the test set,
    so it must not be reported. `test_accuracy_at_best_validation`, at the first step with the
    highest validation accuracy, may be, because no test image decided. All are in percent.
    `monitors` are means over the last 20 rows that have any. `name_baselines` chooses from all
    metrics those measured before the first step, such as "test/accuracy_probe".
    """
    rows = read_metrics(workdir)
    first = {k: value for row in rows[::-1] for k, value in row.items() if value is not None}
    evaluations = [row for row in rows if row.get("test/accuracy") is not None]
    last = evaluations[-1] if evaluations else {}
    history = [row["test/accuracy"] for row in evaluations]
    validated = [row for row in rows if row.get("validation/accuracy") is not None]
    best = max(validated, key=lambda row: row["validation/accuracy"], default={})
    final = validated[-1] if validated else {}
    return {
        "step": config.num_steps,
        "dataset": config.data.name,
        "num_labels": num_labels,
        "method": config.method.name,
        "seed": config.seed,
        **{name: last.get(name.replace("_", "/", 1)) for name in _LAST},
        **name_baselines(first),
        "test_accuracy_median_last_20": statistics.median(history[-20:]) if history else None,
        "test_accuracy_best": max(history, default=None),
        "test_accuracy_best_note": "selected on the test set: not a result to report",
        "test_accuracy_at_best_validation": best.get("test/accuracy"),
        "validation_accuracy": final.get("validation/accuracy"),
        "validation_accuracy_ensemble": final.get("validation/accuracy_ensemble"),
        "validation_accuracy_best": best.get("validation/accuracy"),
        "validation_best_step": best.get("step"),
        "monitors": _average_monitors(rows),
        "train_seconds": train_seconds,
        **read_weights(workdir),
    }


def _average_monitors(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Means over the last rows that have monitors, by name without "monitors/"."""
    prefix = "monitors/"
    last = [row for row in rows if any(name.startswith(prefix) for name in row)][-_NUM_ROWS:]
    values: dict[str, list[float]] = {}
    for row in last:
        for name, value in row.items():
            if name.startswith(prefix) and value is not None:
                values.setdefault(name.removeprefix(prefix), []).append(value)
    return {name: statistics.fmean(numbers) for name, numbers in values.items()}
