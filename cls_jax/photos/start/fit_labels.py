"""Labels from frozen features for the images of a run, and the instant classifier fitted to them.

An image has one class (`fit_labels`) or several tags (`fit_tags`).

Shape suffixes: N networks, B images, K classes, T tags.
"""

import csv
import dataclasses
import itertools
import pathlib
from collections.abc import Mapping

import numpy as np

from cls_jax.data.types import Dataset, Split
from cls_jax.io import to_csv, write_atomically
from cls_jax.photos.features.accuracy import Estimate, NewSources
from cls_jax.photos.features.copies import find_copies, measure_without_copies
from cls_jax.photos.features.graph import compute_weight
from cls_jax.photos.features.infer import Inferred, infer
from cls_jax.photos.features.instant import (
    InstantClassifier,
    TaggedClassifier,
    fit_classifier,
)
from cls_jax.photos.features.relations import Relations
from cls_jax.photos.features.tag_accuracy import estimate_tags
from cls_jax.photos.features.tags import choose_thresholds, group_tagged, infer_tags
from cls_jax.photos.folder.kinds import join_tags, read_sets
from cls_jax.photos.start.frozen import (
    RunFeatures,
)
from cls_jax.photos.start.scores import Scoring
from cls_jax.runs.folder import write_pseudo_labels
from cls_jax.training.evaluate import Accuracies

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


@dataclasses.dataclass(frozen=True)
class Fitted:
    """Labels from frozen features for the images of a run, and classifiers fitted to them."""

    rows: np.ndarray  # The training images that the run uses, int [B], sorted.
    is_labeled: np.ndarray  # bool [B].
    texts: tuple[str, ...]  # The labels that images may have: classes, or several tags each.
    labels: np.ndarray  # Their numbers, int [B].
    weights: np.ndarray  # How sure they are, float [B] from 0 to 1.
    # "instant", and of classes also "probe", which is fitted to given labels only.
    classifiers: Mapping[str, InstantClassifier | TaggedClassifier]
    # The same names: in percent, on the validation and test images, where there are any.
    accuracies: dict[str, Accuracies]
    # The image at `rows` that each of these is a near-copy of, int [n] by part, or -1.
    copies: dict[str, np.ndarray]
    of_labels: dict[str, float]  # What is known of the labels, by name.

    @property
    def classifier(self) -> InstantClassifier | TaggedClassifier:
        """The classifier of the run."""
        return self.classifiers["instant"]

    @property
    def figures(self) -> dict[str, float]:
        """All of `BASELINES`, `SOURCE_FIGURES` and `TAG_FIGURES` that are known."""
        known = {f"labels/{name}": value for name, value in self.of_labels.items()}
        for name, measured in self.accuracies.items():
            for figure, value in measured.items():
                if figure.endswith(("/accuracy", "/accuracy_without_copies")):
                    known[figure.replace("accuracy", f"accuracy_{name}")] = value
        for part, rows in self.copies.items():
            known[f"{part}/images"] = len(rows)
            if count := int((rows >= 0).sum()):
                known[f"{part}/near_copies"] = count
        return known

    def write_labels(self, folder: pathlib.Path, dataset: Dataset) -> None:
        """Writes the labels of the unlabeled images with their weights, if they are files."""
        is_new, named = ~self.is_labeled, dataclasses.replace(dataset, class_names=self.texts)
        rows, labels, weights = self.rows[is_new], self.labels[is_new], self.weights[is_new]
        write_pseudo_labels(folder, named, rows, labels, weights)


@dataclasses.dataclass(frozen=True)
class FittedClasses(Fitted):
    """Those of images that have one class each."""

    inferred: Inferred


def name_figures(known: Mapping[str, float]) -> dict[str, float | None]:
    """The figures of a result: `BASELINES`, and with sources or tags those of theirs."""
    more = [names for names in (SOURCE_FIGURES, TAG_FIGURES) if names[0] in known]
    names = itertools.chain(BASELINES, *more)
    return {name.replace("/", "_", 1): known.get(name) for name in names}


def fit_labels(dataset: Dataset, labeled: np.ndarray, features: RunFeatures) -> FittedClasses:
    """Infers the labels of a run's images, and fits the instant classifier to them.

    Args:
        dataset: The images. Its held-out splits only measure.
        labeled: Training images that count as labeled, int [num_labels].
        features: Those of the run's images.
    """
    network, relations = features.network, Relations(features.train)
    is_labeled, labels, sources = _take_given(dataset, labeled, features.rows)
    inferred = infer(relations, labels, dataset.num_classes, sources)
    classifiers = {
        "probe": InstantClassifier(network, inferred.probe),
        "instant": fit_classifier(network, relations, inferred),
    }

    scoring = Scoring(dataset.class_names)
    accuracies, copies = _measure(dataset, features, relations, classifiers, scoring)
    return FittedClasses(
        rows=features.rows,
        is_labeled=is_labeled,
        texts=dataset.class_names,
        labels=inferred.labels,
        weights=inferred.weights,
        classifiers=classifiers,
        accuracies=accuracies,
        copies=copies,
        of_labels=inferred.figures,
        inferred=inferred,
    )


def fit_tags(
    dataset: Dataset, labeled: np.ndarray, features: RunFeatures, precision: float = 0.0
) -> Fitted:
    """Infers the tags of a run's images, and fits the instant classifier to them.

    Takes the same as `fit_labels`, and the `precision` of `choose_thresholds`. The classes of the
    dataset are labels with several tags. Near-copies are held out together, whatever their tags.
    The weight of a label is the mean of those of its tags, each of which an image has or not.
    """
    assert features.network is not None, "pixels have no tags"
    relations, sets = Relations(features.train), read_sets(dataset.class_names)
    is_labeled, labels, sources = _take_given(dataset, labeled, features.rows)
    given_BT = sets.mark(labels)
    groups_B = group_tagged(relations, given_BT, sources)
    inferred = infer_tags(relations, given_BT, groups_B)
    p_BT, thresholds = inferred.probabilities, choose_thresholds(inferred, precision)
    estimate = estimate_tags(p_BT, inferred.held_out, given_BT, groups_B, thresholds)
    classifier = TaggedClassifier(features.network, inferred.head, sets.names, thresholds)

    classifiers, scoring = {"instant": classifier}, Scoring(sets.names, thresholds)
    accuracies, copies = _measure(dataset, features, relations, classifiers, scoring)
    names = np.array(sets.names)
    found = [join_tags(names[has_T].tolist()) for has_T in p_BT >= thresholds]
    texts, numbers = np.unique(found, return_inverse=True)
    known = estimate._asdict() if estimate else {}
    return Fitted(
        rows=features.rows,
        is_labeled=is_labeled,
        texts=tuple(texts.tolist()),
        labels=numbers,
        weights=compute_weight(np.stack([p_BT, 1 - p_BT], axis=-1)).mean(axis=1),
        classifiers=classifiers,
        accuracies=accuracies,
        copies=copies,
        of_labels={name: value for name, value in known.items() if value is not None}
        | {"tags": len(names)},
    )


def _take_given(
    dataset: Dataset, labeled: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Of the images at `rows`: which are labeled, their labels or else -1, and any sources."""
    is_labeled, sources = np.isin(rows, labeled), dataset.train.sources
    labels = np.where(is_labeled, dataset.train.labels[rows], -1)
    return is_labeled, labels, None if sources is None else sources[rows]


def _measure(
    dataset: Dataset,
    features: RunFeatures,
    relations: Relations,
    classifiers: Mapping[str, InstantClassifier | TaggedClassifier],
    scoring: Scoring,
) -> tuple[dict[str, Accuracies], dict[str, np.ndarray]]:
    """The accuracies and near-copies of a `Fitted`, on the validation and test images."""
    accuracies, copies = {name: Accuracies() for name in classifiers}, dict[str, np.ndarray]()
    images = dataset.train.take(features.rows).images
    for part, held_out in features.held_out.items():
        split = dataset.held_out[part]
        known = scoring.number(split.labels, dataset.class_names)
        copies[part] = find_copies(relations, images, held_out, split.images.__getitem__)
        for name, classifier in classifiers.items():
            p_NBK, _ = classifier.predict_with_features(held_out)
            accuracies[name] |= scoring.measure(p_NBK, known, part)
            is_right = scoring.find_right(p_NBK[0], known)
            accuracies[name] |= measure_without_copies(is_right, copies[part] >= 0, part)
    return accuracies, copies


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
