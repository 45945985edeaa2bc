"""What the oracles of `oracles.py` compute with: a step's inputs, a toy network, and losses.

Everything is analytic, so that pixels may be complex: see there.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

SIZE, K = 3, 4
PIXELS = SIZE * SIZE
CENTERING = 0.3  # Share of the batch mean that a pass subtracts: 1 in BatchNorm.
STATS_MOMENTUM = 0.9
DROPOUT_MASK = np.where(np.arange(PIXELS) % 5 == 1, 0.0, 1.25)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What a step is given. N networks, B labeled images, U unlabeled ones under V views.

    Attributes:
        x: [B, PIXELS].
        y: int [B].
        u: [V, U, PIXELS].
        weights: [N, PIXELS, K].
        rotation_weights: [N, PIXELS, 4].
        ema_weights: [N, PIXELS, K].
        stats: [N, PIXELS], the running mean.
        draws: uniform in (0, 1), one per image; see `draw_lambda`.
        order: permutation of all images, which gives each its MixUp partner.
        u_index: int [U], rows of the UPS table.
        state: the method's state.
        progress: step / num_steps.
        settings: hyperparameters.
    """

    x: np.ndarray
    y: np.ndarray
    u: np.ndarray
    weights: np.ndarray
    rotation_weights: np.ndarray
    ema_weights: np.ndarray
    stats: np.ndarray
    draws: np.ndarray
    order: np.ndarray
    u_index: np.ndarray
    state: Any
    progress: float
    settings: Mapping[str, Any]


class Expected(NamedTuple):
    """What one network should get: loss, parts by name, and the rest."""

    loss: complex
    parts: dict[str, complex]
    stats: np.ndarray
    pseudo_labels: list[int] | None = None
    state: Any = ()


def draw_lambda(uniform, a, b):
    """Stands in for Beta(a, b) draws: any function of both parameters serves."""
    return uniform**a / (uniform**a + (1 - uniform) ** b)


# Building blocks.


def forward(weights, stats, pixels):
    """Logits of images that pass together, and the running mean after the pass."""
    mean = pixels.mean(axis=0)
    stats = STATS_MOMENTUM * stats + (1 - STATS_MOMENTUM) * constant(mean)
    return (pixels - CENTERING * mean) @ weights, stats


def constant(values):
    return np.real(values)


def log_softmax(logits):
    shifted = logits - constant(logits).max()
    return shifted - np.log(np.exp(shifted).sum())


def softmax(logits):
    return np.exp(log_softmax(logits))


def cross_entropy(logits, label):
    return -log_softmax(logits)[label]


def soft_cross_entropy(logits, target):
    return -(target * log_softmax(logits)).sum()


def negative_cross_entropy(logits, label):
    rest = 1 - softmax(logits)[label]
    return -np.log(rest) if constant(rest) > 1e-7 else -np.log(1e-7)


def certainty(p):
    """w = 1 - H(p) / log K, where 0 log 0 = 0."""
    entropy = -sum(q * np.log(q) for q in p if q > 0)
    return 1 - entropy / np.log(K)


def sharpen(p, temperature):
    return p ** (1 / temperature) / (p ** (1 / temperature)).sum()


def ramp(progress, length):
    return min(progress / length, 1.0)


def mean(values):
    return sum(values) / len(values)


# Methods: (inputs, index of the network) → Expected.
