"""The frozen network that a run begins with, and features of the run's images."""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from cls_jax.data.resize import get_decode_options
from cls_jax.data.sampling import take_rows
from cls_jax.data.types import Dataset, Split
from cls_jax.models import MODELS, ModelSpec
from cls_jax.models.layers import resolve_stem
from cls_jax.models.weights.layout import Weights
from cls_jax.models.weights.sources import find_architecture
from cls_jax.photos.features.backbones import Backbones
from cls_jax.photos.features.extract import extract_all_features, read_backbones
from cls_jax.photos.features.instant import INSTANT_FILE, read_instant
from cls_jax.photos.features.network import FrozenFeatures, FrozenNetwork, open_network
from cls_jax.photos.folder.instant_config import is_instant, read_instant_config
from cls_jax.runs.folder import CONFIG
from cls_jax.training.prepare import WEIGHT_READERS, read_weights, resolve_model
from cls_jax.training.setup import get_model_settings


def read_instant_weights(init: str) -> Weights | None:
    """The weights of the frozen network of an instant classifier. A `WeightReader`."""
    path = pathlib.Path(init).expanduser()
    return read_instant(path / INSTANT_FILE).frozen.weights if is_instant(path) else None


PHOTO_WEIGHT_READERS = (read_instant_weights, *WEIGHT_READERS)


def get_model_spec(config: ConfigDict) -> ModelSpec:
    """The architecture, implied by weights of the table of backbones.

    Raises a UserError if there are no such weights.
    """
    return MODELS[find_architecture(config.model.init) or config.model.name]


def find_native_size(config: ConfigDict) -> int:
    """Height and width of the images that the weights of `model.init` were trained on.

    Raises a UserError if these are of a run whose configuration cannot be read.
    """
    init = config.model.init
    run = pathlib.Path(init).expanduser()
    if init and (run / CONFIG).exists():
        return int(read_instant_config(run).data.image_size)
    spec = get_model_spec(config)
    stem = resolve_stem(config.model.stem, config.data.image_size)
    is_small = "stem" in spec.keys and stem != "imagenet"
    return config.data.image_size if is_small else spec.image_size


def create_frozen_network(
    config: ConfigDict, weights: Weights, image_size: int, channels: int
) -> FrozenNetwork:
    """Weights as the network of `config.model`, at a resolution of its own.

    The normalization is the configuration's, or else the one that the weights expect.
    """
    data, normalization = config.data, weights.normalization
    if data.mean:
        normalization = tuple(data.mean), tuple(data.std)
    normalization = normalization or MODELS[config.model.name].layout.normalization
    return FrozenNetwork(
        name=config.model.name,
        weights=weights._replace(normalization=normalization),
        image_size=image_size,
        settings=tuple(get_model_settings(config).items()),
        decoding=get_decode_options(data),
        channels=channels,
    )


def read_native_network(config: ConfigDict, channels: int) -> FrozenNetwork:
    """The frozen network that a run begins with, at its native resolution.

    Raises a UserError if its weights cannot be read.
    """
    config = resolve_model(config)
    weights = read_weights(config.model.init, PHOTO_WEIGHT_READERS)
    return create_frozen_network(config, weights, find_native_size(config), channels)


def read_networks(
    config: ConfigDict, weights: Weights, image_size: int, channels: int
) -> tuple[FrozenNetwork, ...]:
    """The frozen network of a run, see `create_frozen_network`, and those of `model.inferred_by`.

    All see images of the same resolution, so that these are decoded once. Raises a UserError if
    weights of `model.inferred_by` cannot be read.
    """
    network = create_frozen_network(config, weights, image_size, channels)
    return network, *read_other_networks(config, network)


def read_other_networks(config: ConfigDict, network: FrozenNetwork) -> tuple[FrozenNetwork, ...]:
    """The networks of `model.inferred_by`, for the images of the run's frozen network.

    Raises a UserError if their weights cannot be read.
    """
    how = {"decoding": network.decoding, "channels": network.channels}
    return read_backbones(Backbones.of(config.model).others, network.image_size, **how)


def compute_frozen(
    dataset: Dataset, split: Split, data_dir: str, networks: Sequence[FrozenNetwork]
) -> FrozenFeatures:
    """Features of the images of a part of a dataset, or their pixels without a network.

    Those of all networks after the first are the features' `others`. Files are read in the folder
    `data_dir`, unless their features are in the store.
    """
    if not networks:
        pixels = np.asarray(split.images[:], np.float32)
        pixels = pixels.reshape(len(pixels), -1) / np.float32(255)
        return FrozenFeatures(pixels, pixels, pixels[:, :0])
    if not split.files:
        first, *others = (open_network(network).extract(split.images) for network in networks)
        return first._replace(others=tuple(others))
    root = pathlib.Path(data_dir).expanduser()
    is_decoded = all(dataset.image_shape == network.image_shape for network in networks)
    files = [root / file for file in split.files]
    return extract_all_features(files, networks, images=split.images if is_decoded else None)


class RunFeatures(NamedTuple):
    """Features of a run's images."""

    network: FrozenNetwork | None  # The first one. None if the features are pixels.
    rows: np.ndarray  # The training images that the run uses, int [B], sorted.
    train: FrozenFeatures  # Of these B images, by all networks.
    # Of the validation and test images, where there are any, by the first network.
    held_out: dict[str, FrozenFeatures]


def compute_run_features(
    config: ConfigDict,
    dataset: Dataset,
    labeled: np.ndarray,
    unlabeled: np.ndarray,
    networks: Sequence[FrozenNetwork],
) -> RunFeatures:
    """Features of all images that a run uses, or their pixels without a network.

    `labeled` and `unlabeled` are training images, int. Of the latter, at most
    `model.inferred_images` are used, evenly spaced, and all if that is 0. Raises a UserError if the
    weights do not fit a network, or a feature is not finite.
    """
    others, most = np.setdiff1d(unlabeled, labeled), config.model.inferred_images
    rows = np.union1d(labeled, take_rows(others, most or len(others)))
    data_dir = config.data.data_dir
    return RunFeatures(
        networks[0] if networks else None,
        rows,
        compute_frozen(dataset, dataset.train.take(rows), data_dir, networks),
        {
            part: compute_frozen(dataset, split, data_dir, networks[:1])
            for part, split in dataset.held_out.items()
            if len(split)
        },
    )
