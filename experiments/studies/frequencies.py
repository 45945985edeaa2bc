"""Class frequencies for label propagation: unknown, true, and estimated by the propagation itself.

    python -m experiments.studies.frequencies FOLDER 1 5 25

For each number of labels per class it prints, for the seeds 100 to 107, the share of the training
photographs that get the right label, mean and standard error in percent, and how far the estimated
frequencies are from the true ones, as the sum of absolute differences in percent.
"""

import sys

import numpy as np

from cls_jax.features.graph import build_graph, propagate_labels
from experiments.studies.instant import Photographs, draw_labels, run_study

_SEEDS = range(100, 108)


def _measure(photographs: Photographs, number: int, seed: int) -> dict[str, float | None]:
    truth = photographs.truth[photographs.train]
    graph = build_graph(photographs.features[photographs.train])
    labels = draw_labels(np.random.default_rng(seed), truth, number)
    num_classes, true = truth.max() + 1, np.bincount(truth) / len(truth)
    unknown = propagate_labels(graph, labels, num_classes)
    estimated = estimate_frequencies(unknown)
    probabilities = {
        "unknown": unknown,
        "true": propagate_labels(graph, labels, num_classes, class_frequencies=true),
        "estimated, Sinkhorn": propagate_labels(
            graph, labels, num_classes, class_frequencies=estimated
        ),
        "estimated, Bayes": unknown * estimated,
    }
    shares = {name: float(np.mean(p.argmax(axis=1) == truth)) for name, p in probabilities.items()}
    return shares | {"distance": float(np.abs(estimated - true).sum())}


def estimate_frequencies(p_BK: np.ndarray) -> np.ndarray:
    """Expectation maximization (Saerens et al., 2002), float64 [K].

    Args:
        p_BK: float [B, K], probabilities for equally frequent classes.
    """
    frequencies = np.full(p_BK.shape[1], 1 / p_BK.shape[1])
    for _ in range(50):
        joint = p_BK * frequencies
        frequencies = np.maximum((joint / joint.sum(axis=1, keepdims=True)).mean(axis=0), 1e-9)
    return frequencies


if __name__ == "__main__":
    run_study(_measure, _SEEDS, sys.argv[1:])
