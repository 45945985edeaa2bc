"""The instant classifier beside a linear probe, on a folder with a folder of photographs per class.

    python -m experiments.studies.instant FOLDER 1 5 10

Of the photographs, 300 are for testing. For each number of labels per class it prints, for the
seeds 100 to 103, the accuracies in percent of the probe, of the propagated labels on the training
images, and of the instant classifier.
"""

import pathlib
import sys
from typing import NamedTuple

import numpy as np

from cls_jax.cli.process import prepare_process
from cls_jax.features.extract import extract_features, open_network
from cls_jax.features.instant import INSTANT_C, PROBE_C, fit_head, spread_labels

_NUM_TEST = 300
_SEEDS = range(100, 104)


class Photographs(NamedTuple):
    """Photographs of a folder, of which 300 are for testing."""

    features: np.ndarray  # float16 [B, C]
    truth: np.ndarray  # int [B]
    train: np.ndarray  # Rows of the training images.
    test: np.ndarray


def open_photographs(folder: str) -> Photographs:
    """Reads a folder with a folder per class; features are computed once."""
    files = sorted(path for path in pathlib.Path(folder).glob("*/*") if path.is_file())
    _, truth = np.unique([file.parent.name for file in files], return_inverse=True)
    features = extract_features(files, open_network())
    order = np.random.default_rng(0).permutation(len(files))
    return Photographs(features, truth, np.sort(order[_NUM_TEST:]), order[:_NUM_TEST])


def draw_labels(rng: np.random.Generator, truth: np.ndarray, number: int) -> np.ndarray:
    """Labels of `number` images of each class, -1 for all others; classes below 0 are unknown."""
    labels = np.full(len(truth), -1)
    for k in range(truth.max() + 1):
        chosen = rng.choice(np.flatnonzero(truth == k), number, replace=False)
        labels[chosen] = k
    return labels


def main(folder: str, *numbers: str) -> None:
    """Prints the table."""
    photographs = open_photographs(folder)
    truth = photographs.truth[photographs.train]
    for number in map(int, numbers):
        rows = []
        for seed in _SEEDS:
            labels = draw_labels(np.random.default_rng(seed), truth, number)
            rows.append(_measure(photographs, labels))
            print(number, seed, np.round(rows[-1], 1), flush=True)
        error = np.std(rows, axis=0, ddof=1) / np.sqrt(len(rows))
        print(number, "mean", np.mean(rows, axis=0).round(1), "±", error.round(1), flush=True)


def _measure(photographs: Photographs, labels: np.ndarray) -> list[float]:
    features, truth, train, test = photographs
    num_classes, labeled = truth.max() + 1, np.flatnonzero(labels >= 0)
    spread = spread_labels(features[train], labels, num_classes)
    probe = fit_head(features[train[labeled]], labels[labeled], num_classes, PROBE_C)
    instant = fit_head(
        features[train], spread.labels, num_classes, INSTANT_C, spread.sample_weights
    )
    pairs = [
        (probe.predict(features[test]), truth[test]),
        (spread.labels, truth[train]),
        (instant.predict(features[test]), truth[test]),
    ]
    return [100.0 * float(np.mean(predicted == true)) for predicted, true in pairs]


if __name__ == "__main__":
    prepare_process()
    main(*sys.argv[1:])
