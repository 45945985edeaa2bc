"""The registry of datasets."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping

import numpy as np
from ml_collections import ConfigDict

from cls_jax.data.label_split import choose_validation_indices
from cls_jax.data.sources.benchmarks import NPZ, load_arrays, load_digits
from cls_jax.data.sources.records import load_records
from cls_jax.data.types import Dataset, ImageSource
from cls_jax.errors import UserError

Loader = Callable[[ConfigDict], Dataset]  # Of `config.data`.
# Moves validation images out of the training images, as `hold_out_validation` does.
HoldOut = Callable[[ConfigDict, Dataset], Dataset]
# By name.
LOADERS: Mapping[str, Loader] = {
    "cifar10": load_arrays,
    "cifar100": load_arrays,
    "digits": load_digits,
    "imagenet2012": load_records,
    NPZ: load_arrays,
    "stl10": load_arrays,
    "svhn": load_arrays,
}

# Training images from which mean and standard deviation are computed.
_NUM_SAMPLED = 5000


def group_copies(images: ImageSource) -> np.ndarray:
    """The first image with the same content as each, int [n].

    Only arrays, and files whose digests are known, are compared. Others take too long to read.
    """
    contents: list[bytes] | None = getattr(images, "digests", None)
    if isinstance(images, np.ndarray):
        contents = [hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in images]
    if contents is None:
        return np.arange(len(images))
    firsts: dict[bytes, int] = {}
    return np.array([firsts.setdefault(content, i) for i, content in enumerate(contents)], int)


def hold_out_validation(
    config: ConfigDict, dataset: Dataset, groups: np.ndarray | None = None
) -> Dataset:
    """Moves a share of the training images with a known class to the validation images.

    The share is `data.validation`. Images of a group, int [n], are moved together. By default,
    groups are copies. Raises a UserError if there are validation images already, or too few images
    to hold any out.
    """
    share = config.data.validation
    check_no_validation(dataset)
    labels, num_classes = dataset.train.labels, dataset.num_classes
    if groups is None:
        groups = group_copies(dataset.train.images)
    return dataset.hold_out(
        choose_validation_indices(labels, num_classes, share, config.seed, groups)
    )


def check_no_validation(dataset: Dataset) -> None:
    """Raises a UserError if there are validation images already."""
    if len(dataset.validation):
        raise UserError(
            f"{dataset.name} has {len(dataset.validation):,} validation images already: "
            "remove --config.data.validation, or their folder."
        )


def load_dataset(
    config: ConfigDict,
    loaders: Mapping[str, Loader] = LOADERS,
    hold_out: HoldOut = hold_out_validation,
) -> Dataset:
    """Loads the dataset that `config.data` names, by one of the loaders.

    `hold_out` moves the share `data.validation` of the training images to the validation images.
    Raises a UserError if the dataset is unknown, cannot be loaded or has a single class, or too few
    images are left to hold out.
    """
    name = config.data.name
    if name not in loaders:
        raise UserError(f"Unknown dataset {name!r:.100}: choose one of {', '.join(loaders)}.")
    dataset = loaders[name](config.data)
    if dataset.num_classes < 2:
        raise UserError(f"{dataset.name} has images of a single class: add those of another.")
    if config.data.validation:
        dataset = hold_out(config, dataset)
    return add_mean_and_std(config, dataset)


def add_mean_and_std(config: ConfigDict, dataset: Dataset) -> Dataset:
    """The dataset with the mean and deviation of the configuration, or of its training images."""
    mean, std = tuple(config.data.mean), tuple(config.data.std)
    if not mean and not config.model.init:  # Pretrained weights have their own.
        mean, std = compute_mean_and_std(dataset.train.images)
    return dataclasses.replace(dataset, mean=mean, std=std)


def compute_mean_and_std(
    images: ImageSource, limit: int = _NUM_SAMPLED
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The C means and standard deviations of the channels, on the scale from 0 to 1.

    Of at most `limit` images, evenly spaced: exact for smaller datasets, and always the same.
    """
    num_sampled = min(len(images), limit)
    rows = np.linspace(0, len(images) - 1, num_sampled).round().astype(np.int64)
    counts = np.zeros(1)  # Per byte value. Sums of counts are exact.
    for part in np.array_split(rows, -(-num_sampled // 100)):
        channels = np.moveaxis(images[part], -1, 0).reshape(images[part[:1]].shape[-1], -1)
        counts = counts + np.stack([np.bincount(channel, minlength=256) for channel in channels])
    shares = counts / counts.sum(axis=1, keepdims=True)
    levels = np.arange(256) / 255
    mean = shares @ levels
    variance = shares @ levels**2 - mean**2
    # At least one gray level, since images are divided by it.
    std = np.sqrt(np.maximum(variance, levels[1] ** 2))
    return tuple(map(float, mean)), tuple(map(float, std))
