"""The order of samples and the choice of pipeline: step → batch.

The batch of step t is a pure function of (seed, t). Nothing about the stream is ever saved: a
resumed run asks for the step it needs.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from cls_jax.batch import RawBatch
from cls_jax.data.datasets import Dataset
from cls_jax.methods import Method

# Rounds of the swap-or-not shuffle. Its order is hard to tell from a random one from about
# 6 log2(n) rounds (Hoang, Morris & Rogaway, 2012): 96 for 50,000 images.
_NUM_ROUNDS = 96
# Tags that keep the streams of random numbers apart.
LABELED, UNLABELED = 1, 2


@dataclasses.dataclass(frozen=True)
class StreamSpec:
    """What a pipeline needs to know to make the batch of any step.

    Attributes:
        seed: of everything random in the stream.
        batch_size: B, labelled images.
        unlabeled_batch_size: U = μB.
        labeled_view: "weak" or "strong".
        unlabeled_views: each "weak" or "strong".
        labeled_indices: int32, training images that count as labelled.
        unlabeled_indices: int32, training images of the unlabelled set.
        data: `config.data`, for the augmentation.
    """

    seed: int
    batch_size: int
    unlabeled_batch_size: int
    labeled_view: str
    unlabeled_views: tuple[str, ...]
    labeled_indices: np.ndarray
    unlabeled_indices: np.ndarray
    data: Any


def create_stream_spec(
    config, method: Method, labeled_indices: np.ndarray, unlabeled_indices: np.ndarray
) -> StreamSpec:
    """Collects the specification from the configuration and the label budget."""
    return StreamSpec(
        seed=config.seed,
        batch_size=config.batch_size,
        unlabeled_batch_size=config.mu * config.batch_size if method.unlabeled_views else 0,
        labeled_view=method.labeled_view,
        unlabeled_views=method.unlabeled_views,
        labeled_indices=labeled_indices,
        unlabeled_indices=unlabeled_indices,
        data=config.data,
    )


def create_stream(
    spec: StreamSpec, dataset: Dataset, first_step: int, num_steps: int
) -> Iterator[RawBatch]:
    """Iterates over the batches of steps first_step, first_step + 1, …, num_steps - 1."""
    from cls_jax.data import tf_pipeline

    return tf_pipeline.create_stream(spec, dataset, first_step, num_steps)


def sample_indices(
    indices: np.ndarray, step: int, batch_size: int, seed: int, tag: int
) -> np.ndarray:
    """The samples of one step: a new permutation every epoch, each image once in each.

    Epochs follow each other without a gap, so a batch may hold the end of one and the start of
    the next, and a set smaller than the batch repeats.

    Args:
        indices: int32 [n], what to sample from.
        step: from 0.
        batch_size: how many.
        seed: of the run.
        tag: keeps the labelled and the unlabelled stream apart.

    Returns:
        int32 [batch_size].
    """
    n = len(indices)
    position = np.int64(step) * batch_size + np.arange(batch_size)
    epoch, offset = np.divmod(position, n)
    key = _mix(_mix(np.uint32(seed) ^ _mix(np.uint32(tag))) + epoch.astype(np.uint32))
    return indices[shuffle_index(offset, n, key)]


def shuffle_index(index: np.ndarray, n: int, key: np.ndarray) -> np.ndarray:
    """Where a keyed permutation of 0 … n - 1 sends an index, without making the permutation.

    The swap-or-not shuffle (Hoang, Morris & Rogaway, CRYPTO 2012): every round pairs x with
    k - x mod n and a hash of the pair says whether to swap them. Costs no memory, whatever n.

    Args:
        index: integers [...] in [0, n).
        n: size of the permuted range, below 2^31.
        key: uint32, broadcast against `index`.

    Returns:
        int64 [...].
    """
    x = index.astype(np.int64)
    for i in range(_NUM_ROUNDS):
        round_key = _mix(key + np.uint32((i * 0x9E3779B9) & 0xFFFFFFFF))
        partner = (round_key.astype(np.int64) % n - x) % n
        pair = np.maximum(x, partner).astype(np.uint32)
        swap = _mix(pair ^ _mix(round_key + np.uint32(1))) & np.uint32(1)
        x = np.where(swap == 1, partner, x)
    return x


def _mix(x: np.ndarray) -> np.ndarray:
    """A 32-bit finaliser (lowbias32, by Chris Wellons): every input bit reaches every output."""
    with np.errstate(over="ignore"):
        x = np.asarray(x, np.uint32)
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
        x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
        return x ^ (x >> np.uint32(16))
