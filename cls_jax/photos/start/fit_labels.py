"""Labels from frozen features for the images of a run, and the instant classifier fitted to them.

Shape suffixes: B images.
"""

import csv
import itertools
import pathlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from cls_jax.data.types import Dataset, Split
from cls_jax.io import to_csv, write_atomically
from cls_jax.photos.features.accuracy import Estimate, NewSources
from cls_jax.photos.features.copies import find_copies, measure_without_copies
from cls_jax.photos.features.decide import decide
from cls_jax.photos.features.infer import Inferred, infer
from cls_jax.photos.features.instant import InstantClassifier, fit_classifier
from cls_jax.photos.features.marks import mark_labels
from cls_jax.photos.features.relations import Relations
from cls_jax.photos.start.frozen import RunFeatures
from cls_jax.runs.folder import write_pseudo_labels
from cls_jax.training.evaluate import Accuracies, compute_accuracies

NEAR_COPIES = "near_copies.csv"  # In the folder of a run.
_HEADER = ("file", "part", "copy_of")
# Names of what `fit_labels` measures that belong to a result.
BASELINES = (
    "test/accuracy_probe",
    "test/accuracy_instant",
    "test/accuracy_instant_without_copies",
    "test/images",
    "test/near_copies",
    "validation/accuracy_probe",
    "validation/accuracy_instant",
    "validation/images",
    "validation/near_copies",
    *(f"labels/{name}" for name in Estimate._fields),
    "labels/weight_graph",
    "labels/weight_stages",
    "labels/weight_others",
    "labels/near_copies",
    "labels/near_copy_groups",
)
# The same with tags, in addition. The second one is measured after the fit.
TAG_FIGURES = ("labels/tags", "test/mean_average_precision")
# The same of a dataset whose sources are known, where it is not too early to say.
SOURCE_FIGURES = tuple(f"labels/{name}" for name in NewSources._fields)


class FittedLabels(NamedTuple):
    """Labels from frozen features, for the images of a run."""

    rows: np.ndarray  # The training images that the run uses, int [B], sorted.
    is_labeled: np.ndarray  # bool [B].
    inferred: Inferred
    # "probe", fitted to given labels only, and "instant".
    classifiers: dict[str, InstantClassifier]
    # The same names: in percent, on the validation and test images, where there are any.
    accuracies: dict[str, Accuracies]
    # The image at `rows` that each of these is a near-copy of, int [n] by part, or -1.
    copies: dict[str, np.ndarray]

    @property
    def classifier(self) -> InstantClassifier:
        """The classifier of the run."""
        return self.classifiers["instant"]

    @property
    def figures(self) -> dict[str, float]:
        """All of `BASELINES` and `SOURCE_FIGURES` that are known."""
        known = {f"labels/{name}": value for name, value in self.inferred.figures.items()}
        return known | name_held_out(self.accuracies, self.copies)

    def write_labels(self, folder: pathlib.Path, dataset: Dataset) -> None:
        """Writes the labels of the unlabeled images with their weights, if they are files."""
        is_new, inferred = ~self.is_labeled, self.inferred
        write_pseudo_labels(
            folder, dataset, self.rows[is_new], inferred.labels[is_new], inferred.weights[is_new]
        )


def name_held_out(
    accuracies: Mapping[str, Accuracies], copies: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Those of `BASELINES` that are about validation and test images, see `FittedLabels`."""
    known = {
        figure.replace("accuracy", f"accuracy_{name}"): value
        for name, measured in accuracies.items()
        for figure, value in measured.items()
        if figure.endswith(("/accuracy", "/accuracy_without_copies"))
    }
    for part, rows in copies.items():
        known[f"{part}/images"] = len(rows)
        if count := int((rows >= 0).sum()):
            known[f"{part}/near_copies"] = count
    return known


def name_figures(known: Mapping[str, float]) -> dict[str, float | None]:
    """The figures of a result: `BASELINES`, and with sources or tags those of theirs."""
    more = [names for names in (SOURCE_FIGURES, TAG_FIGURES) if names[0] in known]
    names = itertools.chain(BASELINES, *more)
    return {name.replace("/", "_", 1): known.get(name) for name in names}


def fit_labels(dataset: Dataset, labeled: np.ndarray, features: RunFeatures) -> FittedLabels:
    """Infers the labels of a run's images, and fits the instant classifier to them.

    Args:
        dataset: The images. Its held-out splits only measure.
        labeled: Training images that count as labeled, int [num_labels].
        features: Those of the run's images.
    """
    network, rows, relations = features.network, features.rows, Relations(features.train)
    is_labeled = np.isin(rows, labeled)
    labels = np.where(is_labeled, dataset.train.labels[rows], -1)
    sources = dataset.train.sources
    marks = mark_labels(labels, dataset.num_classes)
    inferred = infer(relations, marks, None if sources is None else sources[rows])
    classifiers = {
        "probe": InstantClassifier(network, inferred.probe),
        "instant": fit_classifier(network, relations, inferred),
    }
    accuracies: dict[str, Accuracies] = {name: {} for name in classifiers}
    copies = find_held_out_copies(dataset, features, relations)
    for part, held_out in features.held_out.items():
        split = dataset.held_out[part]
        for name, classifier in classifiers.items():
            p_NBK, _ = classifier.predict_with_features(held_out)
            accuracies[name] |= compute_accuracies(p_NBK, split.labels, part)
            is_right, is_copy = decide(p_NBK[0]).is_right(split.labels), copies[part] >= 0
            accuracies[name] |= measure_without_copies(is_right, is_copy, part)
    return FittedLabels(rows, is_labeled, inferred, classifiers, accuracies, copies)


def find_held_out_copies(
    dataset: Dataset, features: RunFeatures, relations: Relations
) -> dict[str, np.ndarray]:
    """The training image that each held-out one is a near-copy of, see `FittedLabels`."""
    images = dataset.train.take(features.rows).images
    return {
        part: find_copies(relations, images, held_out, dataset.held_out[part].images.__getitem__)
        for part, held_out in features.held_out.items()
    }


def write_copies(
    folder: pathlib.Path, dataset: Dataset, rows: np.ndarray, copies: Mapping[str, np.ndarray]
) -> None:
    """Writes which held-out images are near-copies of which training images, if any are.

    By part, int [n]: the place among the training images at `rows`, or -1.
    """
    lines = [
        (_name(split, i), part, _name(dataset.train, int(rows[copies[part][i]])))
        for part, split in dataset.held_out.items()
        for i in np.flatnonzero(copies.get(part, np.zeros(0)) >= 0).tolist()
    ]
    if lines:
        write_atomically(folder / NEAR_COPIES, to_csv([_HEADER, *lines]))


def read_copies(folder: pathlib.Path, dataset: Dataset) -> dict[str, np.ndarray]:
    """Which images of each held-out part are near-copies of training images, bool [n]."""
    try:
        with (folder / NEAR_COPIES).open(
            newline="", encoding="utf-8", errors="surrogateescape"
        ) as file:
            found = {(row["part"], row["file"]) for row in csv.DictReader(file)}
    except (OSError, ValueError, KeyError, csv.Error):
        found = set()
    return {
        part: np.array([(part, _name(split, i)) in found for i in range(len(split))], bool)
        for part, split in dataset.held_out.items()
    }


def _name(split: Split, row: int) -> str:
    """The file of an image, or its number without files."""
    return split.files[row] if split.files else str(row)
