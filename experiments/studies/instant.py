"""The instant classifier beside a linear probe, on a folder with a folder of photographs per class.

    python -m experiments.studies.instant FOLDER 1 5 10

Of the photographs, 300 are for testing. For each number of labels per class it prints, for the
seeds 100 to 103, the accuracies in percent of the probe, of the propagated labels on the training
images, and of the instant classifier.
"""

import pathlib
import sys

import numpy as np

from cls_jax.cli.process import prepare_process
from cls_jax.features.extract import extract_features, open_network
from cls_jax.features.instant import INSTANT_C, PROBE_C, fit_head, spread_labels

_NUM_TEST = 300
_SEEDS = range(100, 104)


def main(folder: str, *numbers: str) -> None:
    """Prints the table."""
    files = sorted(path for path in pathlib.Path(folder).glob("*/*") if path.is_file())
    classes, truth = np.unique([file.parent.name for file in files], return_inverse=True)
    features = extract_features(files, open_network())
    order = np.random.default_rng(0).permutation(len(files))
    test, train = order[:_NUM_TEST], np.sort(order[_NUM_TEST:])
    for number in map(int, numbers):
        rows = []
        for seed in _SEEDS:
            rng = np.random.default_rng(seed)
            labeled = np.concatenate(
                [
                    rng.choice(np.flatnonzero(truth[train] == k), number, replace=False)
                    for k in range(len(classes))
                ]
            )
            rows.append(_measure(features, truth, train, test, labeled))
            print(number, seed, np.round(rows[-1], 1), flush=True)
        error = np.std(rows, axis=0, ddof=1) / np.sqrt(len(rows))
        print(number, "mean", np.mean(rows, axis=0).round(1), "±", error.round(1), flush=True)


def _measure(features, truth, train, test, labeled) -> list[float]:
    num_classes = truth.max() + 1
    labels = np.full(len(train), -1)
    labels[labeled] = truth[train[labeled]]
    spread = spread_labels(features[train], labels, num_classes)
    probe = fit_head(features[train[labeled]], labels[labeled], num_classes, PROBE_C)
    instant = fit_head(features[train], spread.labels, num_classes, INSTANT_C, spread.weights)
    pairs = [
        (probe.predict(features[test]), truth[test]),
        (spread.labels, truth[train]),
        (instant.predict(features[test]), truth[test]),
    ]
    return [100.0 * float(np.mean(predicted == true)) for predicted, true in pairs]


if __name__ == "__main__":
    prepare_process()
    main(*sys.argv[1:])
