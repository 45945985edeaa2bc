"""A finished run in a few numbers: `result.json`."""

import pathlib
import statistics
from typing import Any

from cls_jax.runs.metrics import read_metrics

# Over as many written rows the monitors are averaged: one row is one batch.
_NUM_ROWS = 20


def create_result(
    config, workdir: pathlib.Path, num_labels: int, train_seconds: float
) -> dict[str, Any]:
    """Collects the result from the run's metrics; no accuracies where there was no test set.

    `test_accuracy` is the averaged network 1 at the last step, as the CLS authors evaluate;
    `test_accuracy_median_last_20` the median over the last 20 evaluations, as Google's FixMatch
    reports; `test_accuracy_best` is selected on the test set and no estimate of anything.
    All in percent. `monitors` are means over the last 20 rows written.

    Args:
        config: the run's configuration.
        workdir: the run's folder.
        num_labels: how many images were labelled.
        train_seconds: how long the steps took.
    """
    rows = read_metrics(workdir)
    evaluations = [row for row in rows if row.get("test/accuracy") is not None]
    last = evaluations[-1] if evaluations else {}
    history = [row["test/accuracy"] for row in evaluations]
    return {
        "step": config.num_steps,
        "dataset": config.data.name,
        "num_labels": num_labels,
        "method": config.method.name,
        "seed": config.seed,
        "test_accuracy": last.get("test/accuracy"),
        "test_accuracy_network_1": last.get("test/accuracy_network_1"),
        "test_accuracy_network_2": last.get("test/accuracy_network_2"),
        "test_accuracy_ensemble": last.get("test/accuracy_ensemble"),
        "test_accuracy_live_network_1": last.get("test/accuracy_live_network_1"),
        "test_accuracy_live_network_2": last.get("test/accuracy_live_network_2"),
        "test_accuracy_median_last_20": statistics.median(history[-20:]) if history else None,
        "test_accuracy_best": max(history, default=None),
        "test_accuracy_best_note": "selected on the test set: not a result to report",
        "monitors": _average_monitors(rows),
        "train_seconds": train_seconds,
    }


def _average_monitors(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Means by name, without "monitors/", over the last rows that have one."""
    prefix = "monitors/"
    last = [row for row in rows if any(name.startswith(prefix) for name in row)][-_NUM_ROWS:]
    values: dict[str, list[float]] = {}
    for row in last:
        for name, value in row.items():
            if name.startswith(prefix) and value is not None:
                values.setdefault(name.removeprefix(prefix), []).append(value)
    return {name: statistics.fmean(numbers) for name, numbers in values.items()}


def describe_accuracies(accuracies: dict[str, float]) -> str:
    """Accuracies, keyed as in `result.json` or as evaluation returns them, as aligned lines."""
    names = {
        "test_accuracy": "network 1, averaged (the figure to report)",
        "test_accuracy_network_2": "network 2, averaged",
        "test_accuracy_ensemble": "both, averaged, together",
        "test_accuracy_live_network_1": "network 1, not averaged",
        "test_accuracy_live_network_2": "network 2, not averaged",
    }
    by_name = {name.replace("/", "_"): value for name, value in accuracies.items()}
    return "\n".join(
        f"  {by_name[name]:6.2f} %  {meaning}"
        for name, meaning in names.items()
        if by_name.get(name) is not None
    )


def describe_monitors(monitors: dict[str, float]) -> str:
    """What can be known of a run without a test set, as aligned lines."""
    shares = {
        "pseudo_label_overlap": "of images: both networks say the same",
        "exchange_ratio": "of labels: sure enough to teach the other network",
        "mask_ratio": "of images: sure enough to teach",
        "confidence_weight": "mean weight of a label",
    }
    return "\n".join(
        f"  {100 * monitors[name]:6.2f} %  {meaning}"
        for name, meaning in shares.items()
        if name in monitors
    )
