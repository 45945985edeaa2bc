"""Tags from frozen features for the images of a run, and the instant classifier that has them.

Shape suffixes: B images, T tags.
"""

import dataclasses
import pathlib
from typing import NamedTuple

import numpy as np

from cls_jax.data.types import Dataset
from cls_jax.photos.features.accuracy import Estimate
from cls_jax.photos.features.copies import measure_without_copies
from cls_jax.photos.features.graph import compute_weight
from cls_jax.photos.features.marks import Marks
from cls_jax.photos.features.relations import Relations
from cls_jax.photos.features.tag_accuracy import estimate_tags
from cls_jax.photos.features.tagged import TaggedClassifier
from cls_jax.photos.features.tags import (
    InferredTags,
    choose_thresholds,
    find_right,
    group_tagged,
    infer_tags,
)
from cls_jax.photos.folder.kinds import join_tags, read_sets
from cls_jax.photos.start.fit_labels import find_held_out_copies, name_held_out
from cls_jax.photos.start.frozen import RunFeatures
from cls_jax.runs.folder import write_pseudo_labels
from cls_jax.training.evaluate import Accuracies


class FittedTags(NamedTuple):
    """Tags from frozen features, for the images of a run. It has what `FittedLabels` has."""

    rows: np.ndarray  # The training images that the run uses, int [B], sorted.
    is_labeled: np.ndarray  # bool [B].
    inferred: InferredTags
    classifiers: dict[str, TaggedClassifier]  # "instant".
    # The same name: shares of the validation and test images with all tags right, in percent.
    accuracies: dict[str, Accuracies]
    # The image at `rows` that each of these is a near-copy of, int [n] by part, or -1.
    copies: dict[str, np.ndarray]
    # What to expect of the tags of the images without a label. None if there is nothing to say.
    estimate: Estimate | None

    @property
    def classifier(self) -> TaggedClassifier:
        """The classifier of the run."""
        return self.classifiers["instant"]

    @property
    def figures(self) -> dict[str, float]:
        """All of `BASELINES` and `TAG_FIGURES` that are known."""
        found = self.estimate._asdict() if self.estimate else {}
        known = {f"labels/{name}": value for name, value in found.items() if value is not None}
        known |= {"labels/tags": len(self.classifier.names)}
        return known | name_held_out(self.accuracies, self.copies)

    def write_labels(self, folder: pathlib.Path, dataset: Dataset) -> None:
        """Writes the tags of the unlabeled images, with weights from 0 to 1, if they are files.

        A weight is the mean of those of the tags, each of which an image has or not.
        """
        is_new = ~self.is_labeled
        p_BT, names = self.inferred.probabilities[is_new], np.array(self.classifier.names)
        labels = [join_tags(names[has_T].tolist()) for has_T in p_BT >= self.classifier.thresholds]
        texts, numbers = np.unique(labels, return_inverse=True)
        weights = compute_weight(np.stack([p_BT, 1 - p_BT], axis=-1)).mean(axis=1)
        named = dataclasses.replace(dataset, class_names=tuple(texts.tolist()))
        write_pseudo_labels(folder, named, self.rows[is_new], numbers, weights)


def fit_tags(
    dataset: Dataset, labeled: np.ndarray, features: RunFeatures, precision: float = 0.0
) -> FittedTags:
    """Infers the tags of a run's images, and fits the instant classifier to them.

    Takes the same as `fit_labels`, and the `precision` of `choose_thresholds`. The classes of the
    dataset are labels with several tags. Near-copies are held out together, whatever their tags.
    """
    assert features.network is not None, "pixels have no tags"
    rows, relations = features.rows, Relations(features.train)
    sets, sources = read_sets(dataset.class_names), dataset.train.sources
    is_labeled = np.isin(rows, labeled)
    labels = np.where(is_labeled, dataset.train.labels[rows], -1)
    marks = Marks(sets.mark(labels), exclusive=False)
    groups_B = group_tagged(relations, marks, None if sources is None else sources[rows])
    inferred = infer_tags(relations, marks, groups_B)
    thresholds = choose_thresholds(inferred, precision)
    estimate = estimate_tags(
        inferred.probabilities, inferred.held_out, marks.values, groups_B, thresholds
    )
    classifier = TaggedClassifier(features.network, inferred.head, sets.names, thresholds)
    copies, measured = find_held_out_copies(dataset, features, relations), Accuracies()
    for part, held_out in features.held_out.items():
        (p_BT,), _ = classifier.predict_with_features(held_out)
        known_BT = sets.mark(dataset.held_out[part].labels)
        is_right = find_right(p_BT, known_BT, thresholds)
        measured[f"{part}/accuracy"] = 100 * float(is_right.mean())
        measured |= measure_without_copies(is_right, copies[part] >= 0, part)
    return FittedTags(
        rows=rows,
        is_labeled=is_labeled,
        inferred=inferred,
        classifiers={"instant": classifier},
        accuracies={"instant": measured},
        copies=copies,
        estimate=estimate,
    )
