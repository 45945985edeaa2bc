"""Rows about predicted images: of classes, or of tags.

Shape suffixes: B images, K classes.
"""

import abc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cls_jax.photos.features.decide import rank_classes
from cls_jax.photos.folder.kinds import SEPARATOR
from cls_jax.photos.images.files import ImageBatch
from cls_jax.photos.inference.calibration import apply_calibration
from cls_jax.photos.inference.classifier import (
    Classifier,
    Prediction,
    TaggedPrediction,
    describe_top,
)
from cls_jax.photos.inference.tables import (
    ALL_COLUMNS,
    PREDICTION_COLUMNS,
    SHORT_COLUMNS,
    TAG_COLUMNS,
    Row,
)


class Rows(abc.ABC):
    """Rows of files, for a table and for people."""

    columns: Mapping[str, type]  # Of a table. A row may have more.
    label: str  # The column with the class or the tags.

    def iterate(self, batch: ImageBatch, prediction: Any) -> Iterator[dict[str, Any]]:
        """A row for each file. That of an unreadable one has nothing but its error."""
        values = self._list_values(prediction)
        readable = (
            dict(zip(values, each, strict=True)) for each in zip(*values.values(), strict=True)
        )
        for file, error in zip(batch.files, batch.errors, strict=True):
            known = next(readable) if error is None else {}
            yield dict.fromkeys(self.columns) | {"file": file, "error": error} | known

    @abc.abstractmethod
    def _list_values(self, prediction: Any) -> dict[str, Sequence[Any]]:
        """The values of B images by column, as far as they are known."""

    @abc.abstractmethod
    def describe(self, row: Row) -> tuple[str, list[str]]:
        """What a readable file shows, with its confidence and doubts."""


class ClassRows(Rows):
    """Rows of `ALL_COLUMNS`. In `SHORT_COLUMNS`, the confidence is a calibrated one."""

    label = "label"

    def __init__(self, classifier: Classifier, all_columns: bool = False):
        """With the networks' own labels if there are several networks, or with all columns."""
        self._calibration = classifier.calibration
        self.columns = PREDICTION_COLUMNS if classifier.num_networks > 1 else SHORT_COLUMNS
        if all_columns:
            self.columns = ALL_COLUMNS

    def _list_values(self, prediction: Prediction) -> dict[str, Sequence[Any]]:
        p_BK, names = prediction.probabilities, prediction.class_names
        values = prediction._asdict() | self._find_second(prediction)
        values |= {f"network_{i}": label for i, label in enumerate(prediction.network_labels, 1)}
        if len(prediction.network_labels) == 1:
            del values["agree"]
        if self.columns is SHORT_COLUMNS and self._calibration is not None:
            values["confidence"] = prediction.calibrated_confidence
        known = {name: values[name] for name in ALL_COLUMNS if values.get(name) is not None}
        listed = {name: value.tolist() for name, value in known.items()}
        return listed | {"top5": [describe_top(p_K, names) for p_K in p_BK]}

    def describe(self, row: Row) -> tuple[str, list[str]]:
        """The class, with its confidence."""
        low = ["low confidence"] if row.get("abstain") else []
        return row["label"], [f"{get_confidence(row):.2f}", *low]

    def _find_second(self, prediction: Prediction) -> dict[str, np.ndarray]:
        """The runners-up of B images, str [B], with probabilities, calibrated if they can be."""
        p_BK, calibration = prediction.probabilities, self._calibration
        if p_BK.shape[1] < 2:
            return {}
        second = rank_classes(p_BK, 2)[:, 1]
        if calibration is not None:
            p_BK = apply_calibration(p_BK, calibration.temperature, calibration.uniform_share)
        confidence = np.take_along_axis(p_BK, second[:, None], axis=1)[:, 0]
        return {
            "second_label": prediction.class_names[second],
            "second_confidence": confidence.astype(np.float32),
        }


class TagRows(Rows):
    """Rows of files, their tags, and the probabilities of all tags."""

    label = "tags"

    def __init__(self, classifier: Classifier, all_columns: bool = False):
        """A tag's column has its name, or another one if `TAG_COLUMNS` have it."""
        taken, self._names = {*TAG_COLUMNS, *classifier.class_names}, dict[str, str]()
        for name in classifier.class_names:
            column = name
            while column in (TAG_COLUMNS if column == name else taken):
                column = f"tag {column}"
            self._names[column] = name
        first, last = list(TAG_COLUMNS.items())[:2], list(TAG_COLUMNS.items())[2:]
        self.columns = dict([*first, *((column, float) for column in self._names), *last])

    def _list_values(self, prediction: TaggedPrediction) -> dict[str, Sequence[Any]]:
        values: dict[str, Sequence[Any]] = {
            "tags": [SEPARATOR.join(sorted(tags)) for tags in prediction.tags]
        }
        values |= zip(self._names, prediction.probabilities.T.tolist(), strict=True)
        if prediction.unknown is not None:
            values["unknown"] = prediction.unknown.tolist()
        return values

    def describe(self, row: Row) -> tuple[str, list[str]]:
        """The tags, likeliest first. Without one, the likeliest as a doubt."""
        likely = sorted(self._names, key=lambda column: -row[column])
        said = set(row["tags"].split(SEPARATOR))
        shown = [(f"{self._names[c]} {row[c]:.2f}", self._names[c] in said) for c in likely]
        found = [text for text, is_said in shown if is_said]
        return (", ".join(found), []) if found else ("no tag", [shown[0][0]])


def create_rows(classifier: Classifier, all_columns: bool = False) -> Rows:
    """The form of a classifier's rows."""
    form = ClassRows if classifier.thresholds is None else TagRows
    return form(classifier, all_columns)


def get_confidence(row: Row) -> float | None:
    """The confidence, calibrated where the run is. None of tags, and if the file is unreadable."""
    calibrated: float | None = row.get("calibrated_confidence")
    return row.get("confidence") if calibrated is None else calibrated
