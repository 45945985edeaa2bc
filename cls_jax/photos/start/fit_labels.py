"""Labels from frozen features for the images of a run, and the instant classifier fitted to them.

Shape suffixes: B images.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cls_jax.data.sampling import take_rows
from cls_jax.data.types import Dataset
from cls_jax.photos.features.accuracy import Estimate
from cls_jax.photos.features.instant import InstantClassifier, fit_classifier
from cls_jax.photos.features.labels import InferredLabels, label_images
from cls_jax.photos.features.network import FrozenNetwork
from cls_jax.photos.start.frozen import compute_frozen
from cls_jax.training.evaluate import Accuracies, compute_accuracies

# Names of what `fit_labels` measures that belong to a result.
BASELINES = (
    "test/accuracy_probe",
    "test/accuracy_instant",
    "validation/accuracy_probe",
    "validation/accuracy_instant",
    *(f"labels/{name}" for name in Estimate._fields),
    "labels/weight_graph",
    "labels/weight_stages",
    "labels/weight_others",
    "labels/near_copies",
    "labels/near_copy_groups",
)


class FittedLabels(NamedTuple):
    """Labels from frozen features, for the images of a run."""

    rows: np.ndarray  # The training images that the run uses, int [B], sorted.
    is_labeled: np.ndarray  # bool [B].
    inferred: InferredLabels
    classifier: InstantClassifier
    # In percent, on the validation and test images, where there are any. "probe" is fitted to the
    # given labels only, and "instant" is the classifier.
    accuracies: dict[str, Accuracies]

    @property
    def figures(self) -> dict[str, float]:
        """All of `BASELINES` that are known."""
        known = {f"labels/{name}": value for name, value in self.inferred.figures.items()}
        for name, accuracies in self.accuracies.items():
            for part in ("validation", "test"):
                if f"{part}/accuracy" in accuracies:
                    known[f"{part}/accuracy_{name}"] = accuracies[f"{part}/accuracy"]
        return known


def choose_rows(labeled: np.ndarray, unlabeled: np.ndarray, max_unlabeled: int) -> np.ndarray:
    """The training images whose features are used, int [B], sorted. Arguments: see `fit_labels`.

    All, unless `data.imbalance` or `model.inferred_images` leaves some out.
    """
    others = np.setdiff1d(unlabeled, labeled)
    others = take_rows(others, max_unlabeled or len(others))
    return np.union1d(labeled, others)


def fit_labels(
    dataset: Dataset,
    labeled: np.ndarray,
    unlabeled: np.ndarray,
    networks: Sequence[FrozenNetwork],
    data_dir: str,
    max_unlabeled: int = 0,
) -> FittedLabels:
    """Infers the labels of a run's images, and fits the instant classifier to them.

    Args:
        dataset: The images. Its held-out splits only measure.
        labeled: Training images that count as labeled, int [num_labels].
        unlabeled: Those of the unlabeled set, int.
        networks: Whose features are used. The first one is the classifier's, and the others only
            infer labels. Without any, the features are pixels.
        data_dir: The folder of the images' files.
        max_unlabeled: Use at most so many of the unlabeled images, evenly spaced. 0 for all.

    Raises:
        UserError: If the weights do not fit the network.
    """
    rows = choose_rows(labeled, unlabeled, max_unlabeled)
    train = compute_frozen(dataset, dataset.train.take(rows), data_dir, networks)
    network = networks[0] if networks else None
    is_labeled = np.isin(rows, labeled)
    labels = np.where(is_labeled, dataset.train.labels[rows], -1)
    inferred = label_images(train, labels, dataset.num_classes)
    classifiers = {
        "probe": InstantClassifier(network, inferred.probe),
        "instant": fit_classifier(network, train, inferred),
    }
    accuracies: dict[str, Accuracies] = {name: {} for name in classifiers}
    for part, split in dataset.held_out.items():
        if not len(split):
            continue
        features = compute_frozen(dataset, split, data_dir, networks[:1])
        for name, classifier in classifiers.items():
            p_NBK, _ = classifier.predict_with_features(features)
            accuracies[name] |= compute_accuracies(p_NBK, split.labels, part)
    return FittedLabels(rows, is_labeled, inferred, classifiers["instant"], accuracies)
