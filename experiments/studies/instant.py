"""The instant classifier against a linear probe, on class folders of photos.

    python -m experiments.studies.instant FOLDER 1 5 10

FOLDER/test/<class>/ is for testing. Without it, each seed draws 300 photos for testing, with all
of their near-copies. For each number of labels per class it prints, over the seeds 700 to 711, mean
and standard error in percent: the accuracies of the probe, of the inferred labels on the unlabeled
images and of the instant classifier, the latter two also without the partner of the default
network, what comparing new photos with the folder's own adds, and the weights of graph, earlier
layers and partner.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from cls_jax.data.datasets import load_dataset
from cls_jax.models.weights.backbones import BACKBONES
from cls_jax.photos.features.backbones import DEFAULT_BACKBONE
from cls_jax.photos.features.extract import extract_features, read_backbone
from cls_jax.photos.features.infer import infer
from cls_jax.photos.features.instant import fit_classifier
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.features.relations import Relations
from cls_jax.process import prepare_process
from experiments.paper import grid

_NUM_TEST = 300
# These draws were used for no choice.
_SEEDS = range(700, 712)


class Photos(NamedTuple):
    """Photos of a folder."""

    frozen: FrozenFeatures
    truth: np.ndarray  # int [B]
    train: np.ndarray  # Rows of the training images.
    test: np.ndarray  # May be empty, see `split`.
    groups: np.ndarray  # The near-copies, int [B].


def open_photos(folder: str, has_partner: bool = True) -> Photos:
    """Reads a folder of class folders, or "digits", whose features are pixels.

    Photos are seen by the default network and, on request, by its partner.
    """
    if folder == "digits":
        digits = load_dataset(grid.load_config("configs/digits.py", "40"))
        images = np.concatenate([digits.train.images, digits.test.images])
        truth = np.concatenate([digits.train.labels, digits.test.labels])
        rows = np.split(np.arange(len(truth)), [len(digits.train.labels)])
        pixels = images.reshape(len(images), -1).astype(np.float16)
        frozen = FrozenFeatures(pixels, pixels, pixels[:, :0])
        return Photos(frozen, truth, *rows, Relations(frozen).copies)
    root = pathlib.Path(folder)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    _, truth = np.unique([file.parent.name for file in files], return_inverse=True)
    network = read_backbone()
    features = extract_features(files, network)
    if has_partner:
        partner = read_backbone(BACKBONES[DEFAULT_BACKBONE].partner)
        partner = dataclasses.replace(partner, image_size=network.image_size)
        features = features._replace(others=(extract_features(files, partner),))
    test = np.flatnonzero(["test" in file.relative_to(root).parts for file in files])
    train = np.setdiff1d(np.arange(len(files)), test)
    return Photos(features, truth, train, test, Relations(features).copies)


def split(photos: Photos, seed: int) -> Photos:
    """Moves 300 training images to testing, unless there are test images, in whole groups."""
    if len(photos.test):
        return photos
    order = np.random.default_rng((seed, 1)).permutation(photos.train)
    is_test = np.isin(photos.groups[order], photos.groups[order[:_NUM_TEST]])
    return photos._replace(test=order[is_test], train=np.sort(order[~is_test]))


def draw_labels(rng: np.random.Generator, truth: np.ndarray, number: int) -> np.ndarray:
    """Labels of `number` images of each class, -1 for all others. Classes below 0 are unknown."""
    labels = np.full(len(truth), -1)
    for k in range(truth.max() + 1):
        chosen = rng.choice(np.flatnonzero(truth == k), number, replace=False)
        labels[chosen] = k
    return labels


def run_study(
    measure: Callable[[Photos, int, int], dict[str, float | None]],
    seeds: Iterable[int],
    arguments: Sequence[str],
) -> None:
    """Prints the mean and standard error over seeds of everything measured, in percent.

    `measure` takes the photos, the number of labels per class and the seed, and returns shares
    by name, None where there is no value.
    """
    prepare_process()
    folder, *numbers = arguments
    photos = open_photos(folder)
    for number in map(int, numbers):
        rows = [measure(split(photos, seed), number, seed) for seed in seeds]
        for name in rows[0]:
            values = [100 * row[name] for row in rows if row[name] is not None]
            if values:
                error = np.std(values, ddof=1) / np.sqrt(len(values))
                print(f"{number:3}  {name:45} {np.mean(values):5.1f} ± {error:.1f}", flush=True)


def _measure(photos: Photos, number: int, seed: int) -> dict[str, float | None]:
    frozen, truth, train, test, _ = photos
    labels = draw_labels(np.random.default_rng(seed), truth[train], number)
    known = frozen.convert(lambda rows: rows[train])
    other = frozen.convert(lambda rows: rows[test])
    found: dict[str, float | None] = {}
    for what, features in {"": known, ", one network": known._replace(others=())}.items():
        relations = Relations(features)
        inferred = infer(relations, labels, truth.max() + 1)
        classifier = fit_classifier(None, relations, inferred)
        alone = classifier._replace(neighbors=None)
        is_right, is_right_alone = (
            each.predict_with_features(other)[0][0].argmax(1) == truth[test]
            for each in (classifier, alone)
        )
        found["linear probe"] = np.mean(inferred.probe.predict(other.pooled) == truth[test])
        found[f"inferred labels{what}"] = np.mean((inferred.labels == truth[train])[labels < 0])
        found[f"instant classifier{what}"] = np.mean(is_right)
        found[f"gain by the neighbors{what}"] = np.mean(is_right) - np.mean(is_right_alone)
        for part in ("graph", "stages", "others"):
            weight = inferred.figures.get(f"weight_{part}")
            found[f"weight of {part}{what}"] = None if weight is None else weight / 100
    return found


if __name__ == "__main__":
    run_study(_measure, _SEEDS, sys.argv[1:])
