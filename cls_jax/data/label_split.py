"""Splits the training images into labeled, unlabeled and validation images, and long tails.

All functions are pure functions of labels, settings and seed. Only the labeled images are stored,
so that people can read and edit them.
"""

import json
import pathlib
from collections.abc import Collection, Sequence

import numpy as np

from cls_jax.errors import UserError
from cls_jax.io import describe_error, read_json, write_count


def choose_labeled_indices(
    labels: np.ndarray, num_labels: int, num_classes: int, seed: int, imbalance: float = 1.0
) -> np.ndarray:
    """Draws the label budget: equally many images of each class, or a long tail.

    The labels are the true classes of all training images, int [n], -1 where unknown. A budget of 0
    takes all labels. With an `imbalance` (see `choose_long_tail`, which here chooses among the
    images of known class), each class keeps at least one.
    Returns training images, int32 [num_labels], class by class, sorted within each. Raises a
    UserError if the budget cannot be split over the classes or is more than a class has, or no
    image has a label.
    """
    known = np.flatnonzero(labels >= 0).astype(np.int32)
    if not len(known):
        raise UserError(
            f"None of the {len(labels):,} training images has a label (all are -1): label some."
        )
    pool: np.ndarray = known[choose_long_tail(labels[known], num_classes, imbalance, seed)]
    pool = pool[np.argsort(labels[pool], kind="stable")]
    if num_labels == 0:
        return pool
    counts = _split_budget(num_labels, np.bincount(labels[pool], minlength=num_classes), imbalance)
    chosen = _draw(pool, labels, counts, seed)
    return np.concatenate([np.sort(rows) for rows in chosen])


def _draw(
    pool: np.ndarray, labels: np.ndarray, counts: np.ndarray, seed: int | list[int]
) -> list[np.ndarray]:
    """Draws counts int [K] of images of each class from the indices of a pool."""
    rng = np.random.default_rng(seed)
    by_class = (pool[labels[pool] == k] for k in range(len(counts)))
    return [rng.choice(rows, n, replace=False) for rows, n in zip(by_class, counts, strict=True)]


def choose_long_tail(
    labels: np.ndarray, num_classes: int, imbalance: float, seed: int
) -> np.ndarray:
    """Makes classes unequal: the training images, int32 and sorted, that a run may use.

    Class k keeps a share of imbalance^(-k / (K - 1)) of what class 0 keeps, the exponential profile
    of long-tailed recognition (Cui et al., CVPR 2019, section 5), and the largest class as many as
    possible. Below 1, the last class is the largest. With 1 all images are kept. Labels are int
    [n]. Raises a UserError if classes are to be made unequal, and a label is -1, unknown, or a
    class has no image.
    """
    if imbalance == 1:
        return np.arange(len(labels), dtype=np.int32)
    if (labels < 0).any():
        raise UserError(
            f"Unlabeled images with an imbalance of {imbalance:g} need the class of every training "
            f"image, and {(labels < 0).sum():,} have none: set "
            "--config.data.unlabeled_imbalance=1, which takes them as they are."
        )
    profile = _create_profile(num_classes, imbalance)
    sizes = np.bincount(labels, minlength=num_classes)
    if not sizes.all():
        raise UserError(
            f"An imbalance of {imbalance:g} needs images of all {num_classes:,} classes, and "
            f"{write_count(np.sum(sizes == 0), 'class has', 'classes have')} none: remove "
            "--config.data.imbalance and --config.data.unlabeled_imbalance."
        )
    largest = (sizes / profile).min()
    # Rounded down, with a margin for floating-point errors.
    counts = np.maximum(np.floor(profile * largest + 1e-6), 1).astype(int)
    everything = np.arange(len(labels), dtype=np.int32)
    # A different stream than that of the labels.
    return np.sort(np.concatenate(_draw(everything, labels, counts, [seed, 1])))


def _create_profile(num_classes: int, imbalance: float) -> np.ndarray:
    profile: np.ndarray = imbalance ** -np.linspace(0, 1, num_classes)
    profile /= profile.max()
    return profile


def _split_budget(num_labels: int, available: np.ndarray, imbalance: float) -> np.ndarray:
    """Labels of each class, int [K], at least one. `available`, int [K], are its images.

    Raises a UserError if they cannot be divided equally, or a class has too few images.
    """
    num_classes = len(available)
    per_class, remainder = divmod(num_labels, num_classes)
    if per_class == 0 or (imbalance == 1 and remainder):
        raise UserError(
            f"{num_labels} labels cannot be split evenly over {num_classes} classes: "
            f"choose a multiple of {num_classes}."
        )
    if imbalance == 1:
        if per_class > (smallest := available.min()):
            raise UserError(
                f"{num_labels} labels are {per_class} per class, but the smallest class has "
                f"{smallest} images: choose at most {smallest * num_classes}."
            )
        return np.full(num_classes, per_class)
    if num_labels > (num_images := available.sum()):
        raise UserError(
            f"{num_labels} labels are more than the {num_images} images that "
            f"data.imbalance={imbalance:g} leaves: choose at most {num_images}."
        )
    profile = _create_profile(num_classes, imbalance)
    shares = num_labels * profile / profile.sum()
    return _distribute(num_labels, shares, available, np.ones(num_classes, int))


def _distribute(
    total: int, shares: np.ndarray, available: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """Raises counts, int [K], to this total, each time where it is furthest below its share."""
    for _ in range(total - counts.sum()):
        counts[np.argmax(np.where(counts < available, shares - counts, -np.inf))] += 1
    return counts


def choose_validation_indices(
    labels: np.ndarray,
    num_classes: int,
    share: float,
    seed: int,
    groups: np.ndarray | None = None,
) -> np.ndarray:
    """Draws a share of the images of known class for validation, in the classes' proportions.

    Every class keeps at least one image for training. Images of a group are drawn together. Groups
    of several classes stay in training.

    Args:
        labels: int [n], -1 where unknown.
        num_classes: K.
        share: Of the images of known class.
        seed: Decides the draw.
        groups: The group of each image, such as copies of each other, int [n]. None for none.

    Returns:
        Sorted training images, int64.

    Raises:
        UserError: If the share is less than one image, or no group is small enough.
    """
    sizes = np.bincount(labels[labels >= 0], minlength=num_classes)
    available = np.maximum(sizes - 1, 0)
    total = min(round(share * sizes.sum()), available.sum())
    if not total:
        raise UserError(
            f"data.validation={share:g} of {sizes.sum():,} labeled images holds out none: choose a "
            "larger share, or add labels."
        )
    counts = _distribute(total, share * sizes, available, np.zeros(num_classes, int))
    # A different stream than those of the labels and the long tail.
    stream = [seed, 2]
    known = np.flatnonzero(labels >= 0)
    if groups is None or len(np.unique(groups[known])) == len(known):
        return np.sort(np.concatenate(_draw(np.arange(len(labels)), labels, counts, stream)))
    drawn = _draw_groups(known, labels, groups, counts, stream)
    if not len(drawn):
        raise UserError(
            f"data.validation={share:g} holds out none of {sizes.sum():,} labeled images, since "
            "near-copies are held out together: choose a larger share, add labels, or put "
            "validation images into val/."
        )
    return drawn


def _draw_groups(
    known: np.ndarray, labels: np.ndarray, groups: np.ndarray, counts: np.ndarray, seed: list[int]
) -> np.ndarray:
    """Draws groups of the `known` images until there are counts, int [K], of each class, sorted.

    A group that would be too many is passed over.
    """
    rng = np.random.default_rng(seed)
    _, places, sizes = np.unique(groups[known], return_inverse=True, return_counts=True)
    lowest = np.full(len(sizes), len(counts))
    highest = np.full(len(sizes), -1)
    np.minimum.at(lowest, places, labels[known])
    np.maximum.at(highest, places, labels[known])
    is_drawn = np.zeros(len(sizes), bool)
    for k, count in enumerate(counts):
        left = count
        for group in rng.permutation(np.flatnonzero((lowest == k) & (highest == k))):
            if sizes[group] <= left:
                is_drawn[group] = True
                left -= sizes[group]
    return known[is_drawn[places]]


def choose_unlabeled_indices(
    candidates: np.ndarray, labeled: np.ndarray, includes_labeled: bool
) -> np.ndarray:
    """All candidates (authors' code) or those without labels (paper), int [n].

    Raises a UserError if no image is left.
    """
    if includes_labeled:
        return candidates
    rest = np.setdiff1d(candidates, labeled)
    if not len(rest):
        raise UserError(
            "Every training image is labeled, so no unlabeled images remain: set "
            "--config.data.unlabeled_includes_labeled=True or a smaller --config.num_labels."
        )
    return rest


def labeled_indices_to_json(
    indices: np.ndarray, classes: np.ndarray, class_names: Sequence[str]
) -> str:
    """The label budget as JSON: class name → indices, given the class of each, int [num_labels]."""
    by_class = {name: indices[classes == k].tolist() for k, name in enumerate(class_names)}
    return json.dumps(by_class, indent=1) + "\n"


def read_labeled_indices(
    path: pathlib.Path, class_names: Sequence[str], unused: Collection[int] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Reads what `labeled_indices_to_json` wrote: indices and their classes, int32 [num_labels].

    The classes that are `unused` need not be listed. Raises a UserError if the file is damaged or
    lists images of other classes.
    """
    try:
        by_class = read_json(path)
        by_class = {class_names[k]: [] for k in unused} | by_class
        listed = [_to_indices(by_class[name]) for name in class_names]
        if other := sorted({name for name in by_class if by_class[name]} - set(class_names)):
            raise ValueError(f"{other[0]!r:.100} is not one of them")
        indices = np.concatenate(listed)
        if not len(indices):
            raise ValueError("it lists none")
        classes = np.repeat(np.arange(len(listed), dtype=np.int32), [len(rows) for rows in listed])
        return indices, classes
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError) as error:
        raise UserError(
            f"{path} does not list labeled images of this dataset's classes "
            f"({describe_error(error)}): choose another --workdir."
        ) from error


def _to_indices(values: object) -> np.ndarray:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise ValueError("a class is not a list of integers")
    return np.asarray(values, np.int32)


def find_labeled_rows(
    path: pathlib.Path,
    class_names: Sequence[str],
    labels: np.ndarray,
    numbers: np.ndarray,
    num_images: int,
) -> np.ndarray:
    """The training images that a stored label budget lists, int32 [num_labels].

    The labels are the classes of all training images, int [n], -1 where unknown. The file lists
    them by their sorted numbers, int [n]. Other numbers below `num_images` are of images that are
    held out. Raises a UserError if an image is repeated, does not exist, is held out, or is not of
    the class under which it is listed, or if the file is damaged. A class without training images
    need not be listed, as one that was added with test images.
    """
    unused = set(range(len(class_names))) - set(labels.tolist())
    listed, classes = read_labeled_indices(path, class_names, unused)
    is_known = (listed >= 0) & (listed < num_images)
    if len(np.unique(listed)) != len(listed) or not is_known.all():
        raise UserError(
            f"{path} lists an image twice, or an image outside the {num_images:,} "
            "training images: correct it or delete it."
        )
    rows = np.minimum(np.searchsorted(numbers, listed), len(numbers) - 1).astype(np.int32)
    if len(held_out := listed[numbers[rows] != listed]):
        raise UserError(
            f"{path} lists {write_count(len(held_out), 'image', 'images')} that data.validation "
            f"holds out, such as {held_out[0]}: list others, or set --config.data.validation=0."
        )
    wrong = np.flatnonzero(labels[rows] != classes)
    if len(wrong):
        k = labels[rows[wrong[0]]]
        truth = f"its class is {class_names[k]!r:.100}" if k >= 0 else "its class is unknown"
        raise UserError(
            f"{path} lists {write_count(len(wrong), 'image', 'images')} under a wrong class, such "
            f"as {listed[wrong[0]]} under {class_names[classes[wrong[0]]]!r:.100}, but {truth}: "
            "correct it or delete it."
        )
    return rows
