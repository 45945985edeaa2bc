"""A finished run in a few numbers: `result.json`."""

import pathlib
import statistics
from typing import Any

from cls_jax.metrics import read_metrics


def create_result(config, workdir: pathlib.Path, train_seconds: float) -> dict[str, Any]:
    """Collects the result from the run's metrics.

    `test_accuracy` is the averaged network 1 at the last step, as the CLS authors evaluate;
    `test_accuracy_median_last_20` the median over the last 20 evaluations, as Google's FixMatch
    reports; `test_accuracy_best` is selected on the test set and no estimate of anything.
    All in percent.
    """
    evaluations = [row for row in read_metrics(workdir) if "test/accuracy" in row]
    last = evaluations[-1]
    history = [row["test/accuracy"] for row in evaluations]
    return {
        "step": last["step"],
        "dataset": config.data.name,
        "num_labels": config.num_labels,
        "method": config.method.name,
        "seed": config.seed,
        "test_accuracy": last["test/accuracy"],
        "test_accuracy_network_1": last["test/accuracy_network_1"],
        "test_accuracy_network_2": last.get("test/accuracy_network_2"),
        "test_accuracy_ensemble": last["test/accuracy_ensemble"],
        "test_accuracy_live_network_1": last["test/accuracy_live_network_1"],
        "test_accuracy_live_network_2": last.get("test/accuracy_live_network_2"),
        "test_accuracy_median_last_20": statistics.median(history[-20:]),
        "test_accuracy_best": max(history),
        "test_accuracy_best_note": "selected on the test set: not a result to report",
        "train_seconds": train_seconds,
    }


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
