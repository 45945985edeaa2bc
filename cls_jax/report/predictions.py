"""Values for the sections on predictions: confusions, calibration, mistakes, disagreements."""

from typing import Any

import numpy as np
from sklearn.metrics import confusion_matrix

from cls_jax.report.charts import draw_reliability
from cls_jax.report.data import RunData
from cls_jax.report.scores import (
    compute_calibration,
    find_confused_pairs,
    find_disagreements,
    find_mistakes,
)

# Up to this number of classes, every count of the confusion matrix is written out.
MAX_WRITTEN_CLASSES = 20
_NUM_PAIRS = 20
_NUM_PICTURES = 24
_RIGHT_COLOR, _WRONG_COLOR = (26, 127, 55), (207, 70, 20)  # As in style.css.


def view_classes(run: RunData) -> dict[str, Any] | None:
    """The confusion matrix of network 1 and its accuracy by class."""
    if not _has_known_test_images(run):
        return None
    labels, predicted = run.predictions.labels, run.predictions.predicted[0]
    num_classes = len(run.class_names)
    is_known = labels >= 0
    confusions = confusion_matrix(labels[is_known], predicted[is_known], labels=range(num_classes))
    totals, right = confusions.sum(axis=1), np.diag(confusions)
    mistakes = confusions - np.diag(right)
    is_written = num_classes <= MAX_WRITTEN_CLASSES
    # Classes without images come last.
    recall = np.where(totals > 0, right / np.maximum(totals, 1), 2.0)
    return {
        "confusions": confusions.tolist(),
        "totals": totals.tolist(),
        "right": right.tolist(),
        "worst": mistakes.argmax(axis=1).tolist(),
        "order": range(num_classes) if is_written else np.argsort(recall, kind="stable").tolist(),
        "heat_map": None if is_written else color_confusions(confusions),
        "pairs": find_confused_pairs(confusions, _NUM_PAIRS),
    }


def view_calibration(run: RunData) -> dict[str, Any] | None:
    """Reliability diagrams of network 1 and, if there are several, of their ensemble."""
    if not _has_known_test_images(run):
        return None
    is_known = run.predictions.labels >= 0
    probabilities, labels = run.predictions.probabilities[:, is_known], run.predictions.labels
    of_all = {"Network 1": probabilities[0]}
    if len(probabilities) > 1:
        of_all["Ensemble"] = probabilities.mean(axis=0)
    calibrations = {name: compute_calibration(p, labels[is_known]) for name, p in of_all.items()}
    return {"diagrams": [(name, c, draw_reliability(c)) for name, c in calibrations.items()]}


def view_mistakes(run: RunData) -> dict[str, Any] | None:
    """The test images that network 1 misclassifies most confidently."""
    if run.predictions is None or not run.predictions.is_test:
        return None
    wrong = find_mistakes(run.predictions.probabilities[0], run.predictions.labels)
    return {"num_wrong": len(wrong), "shown": wrong[:_NUM_PICTURES].tolist()}


def view_disagreements(run: RunData) -> dict[str, Any] | None:
    """Images that the two networks classify differently."""
    predictions = run.predictions
    if predictions is None or len(predictions.probabilities) != 2:
        return None
    differ = find_disagreements(predictions.probabilities)
    labels = predictions.labels[differ]
    first, second = predictions.predicted[:, differ] == labels
    return {
        "num_differ": len(differ),
        "is_known": len(differ) > 0 and bool((labels >= 0).all()),
        "num_right": [int(np.sum(x)) for x in (first, second, ~first & ~second)],
        "shown": differ[:_NUM_PICTURES].tolist(),
    }


def color_confusions(confusions: np.ndarray) -> np.ndarray:
    """The confusion matrix as a picture: right is green, wrong orange, no images transparent.

    Args:
        confusions: int [K, K], true classes by row.

    Returns:
        uint8 [K, K, 4], RGBA; opacity is the square root of the share of the true class.
    """
    shares = confusions / np.maximum(confusions.sum(axis=1, keepdims=True), 1)
    is_right = np.eye(len(confusions), dtype=bool)[..., None]
    colors = np.where(is_right, _RIGHT_COLOR, _WRONG_COLOR)
    opacity = np.rint(255 * np.sqrt(shares))[..., None]
    return np.concatenate([colors, opacity], axis=-1).astype(np.uint8)


def _has_known_test_images(run: RunData) -> bool:
    predictions = run.predictions
    return predictions is not None and predictions.is_test and bool((predictions.labels >= 0).any())
