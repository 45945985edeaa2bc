"""The outcome of a finished run: `result.json`, and the same numbers as text."""

import math
import pathlib
import statistics
from typing import Any

from ml_collections import ConfigDict

from cls_jax.runs.metrics import read_metrics

# A row of monitors describes a single batch, so the result averages several.
_NUM_ROWS = 20
_QUANTILE = statistics.NormalDist().inv_cdf(0.975)  # Of 95% intervals.
# Figures of the last evaluation, and those from before the first step.
_LAST = (
    *("test_accuracy", "test_balanced_accuracy", "test_accuracy_network_1"),
    *("test_accuracy_network_2", "test_accuracy_ensemble"),
    *("test_accuracy_live_network_1", "test_accuracy_live_network_2"),
)
_BASELINES = (
    *("test_accuracy_probe", "test_accuracy_instant"),
    *("validation_accuracy_probe", "validation_accuracy_instant"),
    *("labels_accuracy_graph", "labels_accuracy_probe", "labels_accuracy_instant"),
    *("labels_weight_graph", "labels_weight_stages"),
)


def create_result(
    config: ConfigDict, workdir: pathlib.Path, num_labels: int, train_seconds: float
) -> dict[str, Any]:
    """Collects the result from the run's metrics. Accuracies are None if there was no test set.

    `test_accuracy` belongs to network 1's EMA weights at the last step, as the CLS authors
    evaluate. `test_balanced_accuracy` is the mean of its accuracies within each class, which counts
    small classes as much as large ones. `test_accuracy_median_last_20` is the median over the last
    20 evaluations, as Google's FixMatch reports. `test_accuracy_best` is selected on the test set,
    so it must not be reported. `test_accuracy_at_best_validation`, at the first step with the
    highest validation accuracy, may be, because no test image decided. All are in percent.
    `monitors` are means over the last 20 rows that have any. A run that began with the instant
    classifier also has what `choose_predictor` returns.
    """
    rows = read_metrics(workdir)
    evaluations = [row for row in rows if row.get("test/accuracy") is not None]
    last = evaluations[-1] if evaluations else {}
    history = [row["test/accuracy"] for row in evaluations]
    validated = [row for row in rows if row.get("validation/accuracy") is not None]
    best = max(validated, key=lambda row: row["validation/accuracy"], default={})
    result = {
        "step": config.num_steps,
        "dataset": config.data.name,
        "num_labels": num_labels,
        "method": config.method.name if config.num_steps else "instant",
        "seed": config.seed,
        **{name: last.get(name.replace("_", "/", 1)) for name in _LAST},
        **{name: _find_first(rows, name.replace("_", "/", 1)) for name in _BASELINES},
        "test_accuracy_median_last_20": statistics.median(history[-20:]) if history else None,
        "test_accuracy_best": max(history, default=None),
        "test_accuracy_best_note": "selected on the test set: not a result to report",
        "test_accuracy_at_best_validation": best.get("test/accuracy"),
        "validation_accuracy": validated[-1]["validation/accuracy"] if validated else None,
        "validation_accuracy_ensemble": (
            validated[-1].get("validation/accuracy_ensemble") if validated else None
        ),
        "validation_accuracy_best": best.get("validation/accuracy"),
        "validation_best_step": best.get("step"),
        "monitors": _average_monitors(rows),
        "train_seconds": train_seconds,
    }
    begins_instant = config.num_steps and config.model.init_head == "graph"
    return result | (choose_predictor(result) if begins_instant else {})


def _find_first(rows: list[dict[str, Any]], name: str) -> float | None:
    return next((row[name] for row in rows if row.get(name) is not None), None)


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


def wilson_interval(num_correct: int, num_images: int) -> tuple[float, float]:
    """The 95% Wilson score interval of a share, between 0 and 1, which is (0, 1) without images."""
    if not num_images:
        return 0.0, 1.0
    share, scale = num_correct / num_images, 2 * (num_images + _QUANTILE**2)
    center = (2 * num_correct + _QUANTILE**2) / scale
    variance = 4 * num_correct * (1 - share) + _QUANTILE**2
    margin = _QUANTILE * math.sqrt(variance) / scale
    return (center - margin if num_correct else 0.0), (center + margin if share < 1 else 1.0)


def describe_accuracies(accuracies: dict[str, float]) -> str:
    """Accuracies, keyed as in `result.json` or as evaluation returns them, as aligned lines."""
    names = {
        "test_accuracy": "network 1 (EMA weights), the figure to report",
        "test_accuracy_network_2": "network 2 (EMA weights)",
        "test_accuracy_ensemble": "ensemble (EMA weights)",
        "test_accuracy_live_network_1": "network 1 (raw weights)",
        "test_accuracy_live_network_2": "network 2 (raw weights)",
        "test_accuracy_at_best_validation": "network 1 at the step of the best validation accuracy",
        "validation_accuracy": "network 1 on the validation images",
        "validation_accuracy_best": "network 1 on the validation images, at its best step",
        "test_accuracy_instant": "instant classifier, before training",
        "test_accuracy_probe": "linear probe on the labels only",
    }
    by_name = {name.replace("/", "_"): value for name, value in accuracies.items()}
    return _format_percentages(by_name, names)


def choose_predictor(result: dict[str, Any]) -> dict[str, Any]:
    """Chooses the classifier used for prediction: the run's networks or its instant classifier.

    The networks, unless they are worse on the validation images. Test images are not used for the
    choice, so that test accuracy stays unbiased.

    Returns:
        Additions to the run's result: `answer` ("trained" or "instant"), and with validation images
        `answer_gain` (the points that training gained) and `answer_images` ("validation").
    """
    trained, start = _get_accuracy(result, "validation"), result.get("validation_accuracy_instant")
    if trained is None or start is None:
        return {"answer": "trained"}
    gain = trained - start
    chosen = "trained" if gain >= 0 else "instant"
    return {"answer": chosen, "answer_gain": gain, "answer_images": "validation"}


def _get_accuracy(result: dict[str, Any], part: str) -> float | None:
    """The accuracy of the ensemble, or of a single network."""
    ensemble = result.get(f"{part}_accuracy_ensemble")
    return result.get(f"{part}_accuracy") if ensemble is None else ensemble


def describe_labelers(result: dict[str, Any]) -> str | None:
    """How much graph, probe and earlier layers count in a run's labels. None if unknown."""
    weights: list[Any] = [result.get(f"labels_weight_{name}") for name in ("graph", "stages")]
    if not all(isinstance(weight, int | float) for weight in weights):
        return None
    sentence = (
        f"Weights chosen by held-out labels: graph of similar images {weights[0]:.0f}%, linear "
        f"probe {100 - weights[0]:.0f}%. Earlier layers count for {weights[1]:.0f}%"
    )
    names = ("graph", "probe", "instant")
    right: list[Any] = [result.get(f"labels_accuracy_{name}") for name in names]
    if not all(isinstance(value, int | float) for value in right):
        return f"{sentence}. Accuracy on held-out labels: unknown, since a class has one label."
    return (
        f"{sentence}. Accuracy on held-out labels: graph {right[0]:.0f}%, probe {right[1]:.0f}%, "
        f"combined {right[2]:.0f}%."
    )


def describe_gain(result: dict[str, Any]) -> str | None:
    """What the run gained over a linear probe on frozen features, or None if not measured."""
    final, probe = _get_accuracy(result, "test"), result.get("test_accuracy_probe")
    if result.get("answer") == "instant":
        final = result.get("test_accuracy_instant")
    if final is None or probe is None:
        return None
    return (
        f"On the test images, the classifier used for prediction is {abs(final - probe):.1f} "
        "points "
        f"{'above' if final >= probe else 'below'} a linear probe on frozen features."
    )


def describe_predictor(result: dict[str, Any]) -> str | None:
    """A sentence about the chosen classifier, of a run that started from an instant one."""
    chosen, gain = str(result.get("answer")), result.get("answer_gain")
    predictor = {"trained": "fine-tuned networks", "instant": "instant classifier"}.get(chosen)
    if predictor is None:
        return None
    use = f"`predict`, `evaluate` and `export` will use the {predictor}."
    if gain is None:
        return f"{use} No validation images compare them with the instant classifier."
    verb = "gained" if gain >= 0 else "lost"
    return (
        f"On the {result.get('answer_images')} images, fine-tuning {verb} {abs(gain):.1f} points "
        "over "
        f"the instant classifier. {use}"
    )


def describe_monitors(monitors: dict[str, float]) -> str:
    """The indications of quality that a run without a test set has, as aligned lines."""
    shares = {
        "pseudo_label_overlap": "of images: both networks predict the same class",
        "exchange_ratio": "of pseudo-labels: confident enough to train the other network",
        "mask_ratio": "of images: pseudo-label confident enough to train on",
        "confidence_weight": "mean weight of a pseudo-label",
    }
    return _format_percentages({name: 100 * share for name, share in monitors.items()}, shares)


def _format_percentages(values: dict[str, Any], meanings: dict[str, str]) -> str:
    """One line for each value that is known, in the order of the meanings."""
    return "\n".join(
        f"  {values[name]:6.2f}%  {meaning}"
        for name, meaning in meanings.items()
        if values.get(name) is not None
    )
