"""CPU seconds of the classifier that the labeling page fits after every ten answers.

python -m experiments.benchmarks.page_fit [--photos 3000,8000] [--labels 60] [--networks 1]

Features are made up, of ten overlapping classes, as many as EfficientNet-Lite0 has. "Read" is what
the page does once, before the first answer: neighbors and graph. Of the photos without a label, one
in a hundred is of no class.
"""

import argparse
import pathlib
import time

import numpy as np

from cls_jax.photos.features.backbones import DEFAULT_BACKBONES
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.features.relations import LAST, Relations
from cls_jax.photos.folder.options import AUTOMATIC
from cls_jax.photos.labeling.classes import Classes
from cls_jax.photos.labeling.fitting import fit
from cls_jax.photos.labeling.known import Known

_NUM_CLASSES, _NUM_FITS = 10, 4
_NUM_POOLED, _NUM_STAGES = 1_280, 1_568  # Of EfficientNet-Lite0.


def make_features(num_photos: int, num_networks: int) -> tuple[FrozenFeatures, np.ndarray]:
    """Features, and the class of each photo."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, _NUM_CLASSES, num_photos)

    def see(num_features: int) -> np.ndarray:
        inner = 1.5 * rng.normal(size=(_NUM_CLASSES, 40))[truth] + rng.normal(size=(num_photos, 40))
        rows = inner @ rng.normal(size=(40, num_features))
        return (rows + 3 * rng.normal(size=rows.shape)).astype(np.float16)

    networks = []
    for _ in range(num_networks):
        pooled = see(_NUM_POOLED)
        networks.append(FrozenFeatures(pooled, pooled, see(_NUM_STAGES)))
    return networks[0]._replace(others=tuple(networks[1:])), truth


def measure(num_photos: int, num_labels: int, num_networks: int) -> str:
    """A line with CPU seconds."""
    features, truth = make_features(num_photos, num_networks)
    times = [time.process_time()]
    relations = Relations(features)
    _ = relations.connect(0, LAST), relations.copies
    times.append(time.process_time())
    for i in range(_NUM_FITS):
        num_known = num_labels + 10 * i
        labels = np.where(np.arange(num_photos) < num_known, truth, -1)
        known = Known(
            pathlib.Path(),
            AUTOMATIC,
            DEFAULT_BACKBONES,
            sources={},
            pending=(),
            progress=(num_photos, num_photos),
            files=tuple(f"{i:06}.jpg" for i in range(num_photos)),
            classes=Classes(tuple(str(k) for k in range(_NUM_CLASSES))),
            relations=relations,
            labels=labels,
            left_out=frozenset(
                np.flatnonzero((labels < 0) & (np.arange(num_photos) % 100 == 0)).tolist()
            ),
        )
        fit(known)
        times.append(time.process_time())
    read, *fits = np.diff(times)
    each = ", ".join(f"{seconds:.2f}" for seconds in fits)
    return f"{num_photos:,} photos: read {read:.2f}, fits {each}"


def main() -> None:
    """Prints a line for each number of photos."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", default="3000,8000")
    parser.add_argument("--labels", type=int, default=60)
    parser.add_argument("--networks", type=int, default=1)
    arguments = parser.parse_args()
    for count in arguments.photos.split(","):
        print(measure(int(count), arguments.labels, arguments.networks), flush=True)


if __name__ == "__main__":
    main()
