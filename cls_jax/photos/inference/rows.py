"""Rows about predicted images: of classes, or of tags. Both forms have the same methods.

Shape suffixes: B images, K classes.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from cls_jax.errors import UserError
from cls_jax.photos.features.decide import rank_classes
from cls_jax.photos.folder.tags import SEPARATOR
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
    WITHOUT_ERRORS,
    Row,
)


class ClassRows:
    """Rows of `ALL_COLUMNS`. A table has some of these."""

    def __init__(self, classifier: Classifier, all_columns: bool = False):
        """With the networks' own labels if there are several networks, or with all columns."""
        self._workdir = classifier.workdir
        self._calibration = classifier.calibration
        self._columns = PREDICTION_COLUMNS if classifier.num_networks > 1 else SHORT_COLUMNS
        if all_columns:
            self._columns = ALL_COLUMNS

    def check(self, has_tags: bool, is_sorted: bool) -> None:
        """Raises a UserError if a user wants tags. Files can be sorted by their class."""
        if has_tags:
            raise UserError(f"The photos of {self._workdir} have one class each: remove --tags.")

    def choose_columns(self, has_errors: bool = True) -> dict[str, type]:
        """The columns of a table."""
        is_short = self._columns is SHORT_COLUMNS and not has_errors
        return WITHOUT_ERRORS if is_short else self._columns

    def shorten(self, row: Row, columns: Mapping[str, type]) -> dict[str, Any]:
        """The values of some columns. In `SHORT_COLUMNS`, the confidence is a calibrated one."""
        shortened = {name: row[name] for name in columns}
        if "calibrated_confidence" not in columns:
            shortened["confidence"] = self.get_confidence(row)
        return shortened

    def iterate(self, batch: ImageBatch, prediction: Prediction) -> Iterator[dict[str, Any]]:
        """A row for each file, mostly the fields of a `Prediction`."""
        columns = prediction._asdict() | {"network_1": prediction.network_labels[0]}
        if len(prediction.network_labels) > 1:
            columns["network_2"] = prediction.network_labels[1]
        else:
            del columns["agree"]
        columns |= self._find_second(prediction)
        known = {name: columns[name] for name in ALL_COLUMNS if columns.get(name) is not None}
        for row, i in _iterate_files(batch):
            row = dict.fromkeys(ALL_COLUMNS) | row
            if i is not None:
                row |= {name: values[i].item() for name, values in known.items()}
                row["top5"] = describe_top(prediction.probabilities[i], prediction.class_names)
            yield row

    def get_label(self, row: Row) -> str | None:
        """The class. None if the file is unreadable."""
        label: str | None = row["label"]
        return label

    def get_confidence(self, row: Row) -> float | None:
        """The confidence, calibrated where the run is. None if the file is unreadable."""
        calibrated: float | None = row["calibrated_confidence"]
        confidence: float | None = row["confidence"]
        return confidence if calibrated is None else calibrated

    def describe(self, row: Row) -> tuple[str, list[str]]:
        """The class of a readable file, with its confidence and doubts."""
        low = ["low confidence"] if row["abstain"] else []
        return row["label"], [f"{self.get_confidence(row):.2f}", *low]

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


class TagRows:
    """Rows of files, their tags, and the probabilities of all tags."""

    def __init__(self, classifier: Classifier, all_columns: bool = False):
        """Tables always have all columns."""
        self._names = classifier.class_names
        own, taken = list[str](), {*TAG_COLUMNS, *self._names}
        for name in self._names:
            column = name
            while column in (TAG_COLUMNS if column == name else taken):
                column = f"tag {column}"
            own.append(column)
        self._of_tags = tuple(own)

    def check(self, has_tags: bool, is_sorted: bool) -> None:
        """Raises a UserError if files are to be sorted, of which each has one place."""
        if is_sorted:
            raise UserError(
                "--sort-into is for photos of one class, and these have tags: remove it."
            )

    def choose_columns(self, has_errors: bool = True) -> dict[str, type]:
        """The columns of a table: a tag's name, or another one where `TAG_COLUMNS` have it."""
        first, last = list(TAG_COLUMNS.items())[:2], list(TAG_COLUMNS.items())[2:]
        return dict([*first, *((name, float) for name in self._of_tags), *last])

    def shorten(self, row: Row, columns: Mapping[str, type]) -> dict[str, Any]:
        """The values of columns."""
        p_T = row["probabilities"] or [None] * len(self._names)
        by_tag = dict(zip(self._of_tags, p_T, strict=True))
        return {name: by_tag[name] if name in by_tag else row[name] for name in columns}

    def iterate(self, batch: ImageBatch, prediction: TaggedPrediction) -> Iterator[dict[str, Any]]:
        """A row for each file."""
        unknown = prediction.unknown
        for row, i in _iterate_files(batch):
            row = {"tags": None, "probabilities": None, "unknown": None} | row
            if i is not None:
                row["tags"] = SEPARATOR.join(sorted(prediction.tags[i]))
                row["probabilities"] = prediction.probabilities[i].tolist()
                row["unknown"] = None if unknown is None else unknown[i].item()
            yield row

    def get_label(self, row: Row) -> str | None:
        """The tags. None if the file is unreadable."""
        label: str | None = row["tags"]
        return label

    def get_confidence(self, row: Row) -> float | None:
        """There is none for all tags together."""
        return None

    def describe(self, row: Row) -> tuple[str, list[str]]:
        """The tags of a readable file, likeliest first. Without one, the likeliest as a doubt."""
        pairs = zip(row["probabilities"], self._names, strict=True)
        likely = sorted(pairs, key=lambda pair: -pair[0])
        said = set(row["tags"].split(SEPARATOR))
        shown = [(f"{name} {p:.2f}", name in said) for p, name in likely]
        found = [text for text, is_said in shown if is_said]
        return (", ".join(found), []) if found else ("no tag", [shown[0][0]])


Rows = ClassRows | TagRows


def create_rows(classifier: Classifier, all_columns: bool = False) -> Any:
    """The form of a classifier's rows."""
    form = ClassRows if classifier.thresholds is None else TagRows
    return form(classifier, all_columns)


def _iterate_files(batch: ImageBatch) -> Iterator[tuple[dict[str, Any], int | None]]:
    """The file and the error of each row, and its place among the readable images, if it is one."""
    places = itertools.count()
    for file, error in zip(batch.files, batch.errors, strict=True):
        yield {"file": file, "error": error}, next(places) if error is None else None
