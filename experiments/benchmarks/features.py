"""Frozen features and the search for neighbors on this device: speed, and what TF32 changes.

python -m experiments.benchmarks.features --images 512 --vectors 1000000

Features are of random images of each network's own size, without decoding, for every backbone
whose weights are installed or downloaded. Neighbors are searched among random vectors.
"""

import argparse
import time

import jax
import numpy as np

from cls_jax.errors import UserError
from cls_jax.models import MODELS
from cls_jax.models.weights.backbones import BACKBONES
from cls_jax.photos.features.backbones import has_weights
from cls_jax.photos.features.extract import read_backbone
from cls_jax.photos.features.graph import NUM_NEIGHBORS
from cls_jax.photos.features.neighbors import find_neighbors
from cls_jax.photos.features.network import open_network
from experiments.paper import grid

LENGTH = 1_280  # The features of EfficientNet-Lite0.


def measure_features(init: str, num_images: int) -> str:
    """Features per second of a backbone and their relative difference from full precision.

    Or why there are none.
    """
    try:
        network = read_backbone(init)
    except UserError as error:
        return str(error)
    size = network.image_size
    images = np.random.default_rng(0).integers(0, 256, (num_images, size, size, 3), dtype=np.uint8)
    rates, pooled = [], []
    for precision in ("default", "highest"):
        times: list[tuple[int, float]] = []
        with jax.default_matmul_precision(precision):
            found = open_network(network).extract(
                images, lambda done, _, t=times: t.append((done, time.perf_counter()))
            )
        # The first batch compiles.
        (first, started), (last, ended) = next(t for t in times if t[0]), times[-1]
        rates.append((last - first) / (ended - started))
        pooled.append(found.pooled.astype(np.float32))
    difference = np.linalg.norm(pooled[0] - pooled[1], axis=1) / np.linalg.norm(pooled[1], axis=1)
    return (
        f"{MODELS[network.name].title} at {size} pixels: {rates[0]:,.0f} features per second, "
        f"{rates[1]:,.0f} with full-precision products, from which the former differ by "
        f"{difference.mean():.1e} of their norm, at most {difference.max():.1e}"
    )


def measure_neighbors(num_vectors: int) -> str:
    """Seconds of a search among random vectors."""
    vectors = np.random.default_rng(0).normal(size=(num_vectors, LENGTH)).astype(np.float32)
    started = time.perf_counter()
    find_neighbors(vectors, NUM_NEIGHBORS)
    seconds = time.perf_counter() - started
    return (
        f"{NUM_NEIGHBORS} neighbors of each of {num_vectors:,} random vectors of {LENGTH} numbers: "
        f"{seconds:.1f} s on {jax.devices()[0].device_kind}"
    )


def main() -> None:
    """Times both. The results are saved after each measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=4_096, help="random images to compute")
    parser.add_argument("--vectors", type=int, default=1_000_000, help="to search neighbors among")
    parser.add_argument("--output", default="runs/features.md")
    arguments = parser.parse_args()
    lines = [measure_neighbors(arguments.vectors)]
    for init in filter(has_weights, BACKBONES):
        grid.write_page(arguments.output, "Features", "\n\n".join(lines))
        lines.append(measure_features(init, arguments.images))
    grid.write_page(arguments.output, "Features", "\n\n".join(lines))


if __name__ == "__main__":
    grid.run_main(main)
