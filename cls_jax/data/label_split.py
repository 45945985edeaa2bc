"""Which training images we pretend to know the label of."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from cls_jax.errors import UserError
from cls_jax.io import describe_error, read_json


def choose_labeled_indices(
    labels: np.ndarray, num_labels: int, num_classes: int, seed: int
) -> np.ndarray:
    """Draws a balanced label budget: num_labels / K images of each class.

    Args:
        labels: int [n], true classes of all training images, -1 where unknown.
        num_labels: the budget.
        num_classes: K.
        seed: the same seed draws the same images.

    Returns:
        int32 [num_labels], indices into the training images, class by class, sorted within each.

    Raises:
        UserError: if the budget is not a multiple of K or more than a class has.
    """
    per_class, remainder = divmod(num_labels, num_classes)
    if remainder or per_class == 0:
        raise UserError(
            f"{num_labels} labels cannot be split evenly over {num_classes} classes: "
            f"choose a multiple of {num_classes}."
        )
    smallest = int(np.bincount(labels[labels >= 0], minlength=num_classes).min())
    if per_class > smallest:
        raise UserError(
            f"{num_labels} labels are {per_class} a class, but the smallest class has {smallest} "
            f"images: choose at most {smallest * num_classes}."
        )
    rng = np.random.default_rng(seed)
    chosen = [
        np.sort(rng.choice(np.flatnonzero(labels == k), per_class, replace=False))
        for k in range(num_classes)
    ]
    return np.concatenate(chosen).astype(np.int32)


def all_labeled_indices(labels: np.ndarray) -> np.ndarray:
    """All labels there are, however many each class has.

    Args:
        labels: int [n], classes of all training images, -1 where unknown.

    Returns:
        int32 [m], indices into the training images, class by class, sorted within each.
    """
    by_class = np.argsort(labels, kind="stable").astype(np.int32)
    return by_class[labels[by_class] >= 0]


def choose_unlabeled_indices(num_images: int, labeled: np.ndarray, which: str) -> np.ndarray:
    """Indices of the unlabelled set: "all" images (authors' code) or the "rest" (paper).

    Raises:
        UserError: if there is no rest.
    """
    everything = np.arange(num_images, dtype=np.int32)
    if which == "all":
        return everything
    rest = np.setdiff1d(everything, labeled)
    if not len(rest):
        raise UserError(
            "Every training image is labelled, so none is left for data.unlabeled=rest: choose "
            "--config.data.unlabeled=all, or a smaller --config.num_labels."
        )
    return rest


def labeled_indices_to_json(
    indices: np.ndarray, labels: np.ndarray, class_names: Sequence[str]
) -> str:
    """The budget as JSON: class name → indices."""
    by_class = {name: indices[labels[indices] == k].tolist() for k, name in enumerate(class_names)}
    return json.dumps(by_class, indent=1) + "\n"


def read_labeled_indices(path: pathlib.Path, class_names: Sequence[str]) -> np.ndarray:
    """Reads what `labeled_indices_to_json` made.

    Raises:
        UserError: if the file is damaged or of other classes.
    """
    try:
        by_class = read_json(path)
        indices = np.concatenate([_to_indices(by_class[name]) for name in class_names])
        if not len(indices):
            raise ValueError("there is none")
        return indices
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError) as error:
        raise UserError(
            f"{path} does not list labelled images of this dataset's classes "
            f"({describe_error(error)}): give --workdir another folder."
        ) from error


def _to_indices(values: Any) -> np.ndarray:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise ValueError("a class is no list of whole numbers")
    return np.asarray(values, np.int32)


def check_labeled_indices(
    path: pathlib.Path, indices: np.ndarray, num_labels: int, num_images: int
) -> None:
    """Makes sure that a stored budget is one of these images and of the size configured, if any.

    Raises:
        UserError: if it is not.
    """
    if num_labels and len(indices) != num_labels:
        raise UserError(
            f"{path} lists {len(indices)} labelled images and not {num_labels}: set "
            f"--config.num_labels={len(indices)}."
        )
    is_known = (indices >= 0) & (indices < num_images)
    if len(np.unique(indices)) != len(indices) or not is_known.all():
        raise UserError(
            f"{path} lists an image twice or one that is not among the {num_images:,} "
            "training images: correct it or delete it."
        )
