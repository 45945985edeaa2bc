"""The specification of a stream of batches, and the order of its samples.

The batch of step t is a pure function of (seed, t), so the stream has no state to save.
"""

import dataclasses
import zlib
from collections.abc import Callable, Generator, Sequence
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from cls_jax.batch import PyTree, RawBatch

T = TypeVar("T")
Array = Any  # NumPy's or JAX's.

# Rounds of the swap-or-not shuffle. Three times log2 of 50,000: enough that statistical tests
# cannot tell its order from a random one. (Cryptography asks for twice as many.)
_NUM_ROUNDS = 48
# Tags of the two sample orders.
LABELED_STREAM = 1
UNLABELED_STREAM = 2


def stream_key(root: jax.Array, stream: str, *counters: int | jax.Array) -> jax.Array:
    """The random key of one use in a run: every stream of random numbers has its own branch.

    The stream is "init", "data", "method" or "rounds". The counters, int32 scalars such as the
    step, distinguish its uses. Without the name, streams would share keys, since `split(key)[i]`
    is `fold_in(key, i)`.
    """
    key = jax.random.fold_in(root, zlib.crc32(stream.encode()))
    for counter in counters:
        key = jax.random.fold_in(key, counter)
    return key


@dataclasses.dataclass(frozen=True)
class StreamSpec:
    """Everything that determines the batch of any step, except for the images."""

    config: ConfigDict  # The run's: seed, sizes, and "data" for the augmentation.
    labeled_view: str  # "weak" or "strong".
    unlabeled_views: tuple[str, ...]
    labeled_indices: np.ndarray  # int32, training images that count as labeled.
    unlabeled_indices: np.ndarray  # int32, training images of the unlabeled set.

    @property
    def unlabeled_batch_size(self) -> int:
        """U = μB, 0 without unlabeled views."""
        size: int = self.config.mu * self.config.batch_size
        return size if self.unlabeled_views else 0

    def hide_labeled(self, labels: np.ndarray) -> np.ndarray:
        """The classes to compare pseudo-labels with: -1 for images whose label is used in training.

        The unlabeled stream includes labeled images, whose pseudo-labels are trivially right.
        """
        hidden = np.array(labels)
        hidden[self.labeled_indices] = -1
        return hidden

    @property
    def images_per_step(self) -> int:
        """The images of a batch, counting each view of the unlabeled ones."""
        labeled: int = self.config.batch_size
        return labeled + len(self.unlabeled_views) * self.unlabeled_batch_size


class StateWithStep(Protocol):
    """The train state, as far as a pipeline knows it."""

    @property
    def step(self) -> jax.Array:
        """int32 scalar."""


class InputPipeline(NamedTuple):
    """The input of the compiled step, and what the step makes of it."""

    inputs: Generator[PyTree, None, None]  # On their devices. To be closed at the end.
    specs: PyTree  # Their partition specs.
    # A function inside the step, (state, input) → this device's part of a `RawBatch`.
    create_batch: Callable[[StateWithStep, PyTree], RawBatch]


def get_batch_shapes(spec: StreamSpec, image_shape: tuple[int, int, int]) -> RawBatch:
    """The shapes of a whole batch's fields."""
    labeled = spec.config.batch_size
    unlabeled = spec.unlabeled_batch_size
    return RawBatch(
        x=(labeled, *image_shape),
        y=(labeled,),
        u=(len(spec.unlabeled_views), unlabeled, *image_shape),
        u_index=(unlabeled,),
        u_truth=(unlabeled,),
    )


@np.errstate(over="ignore")  # Hashes wrap around, positions after 2^32 images.
def sample_indices(
    indices: Array,
    step: Array,
    batch_size: int,
    seed: int,
    tag: int,
    xp: ModuleType = np,
    rows: slice = slice(None),
) -> Array:
    """The samples of one step, int32 [..., batch_size]: every epoch shows each image once.

    Every epoch has its own permutation of `indices`, int32 [n]. Epochs follow each other without a
    gap, so a batch may contain the end of one and the start of the next, and a set smaller than the
    batch repeats. `step` is a scalar, or an array [...] of several steps. The seed is below 2^31,
    and the tag distinguishes the labeled and the unlabeled stream. `xp` is `numpy` or `jax.numpy`,
    which give the same samples. `rows` are the samples to draw, by default all.
    """
    n = xp.uint32(len(indices))
    first = xp.asarray(step).astype(xp.uint32) * xp.uint32(batch_size)
    position = first[..., None] + xp.arange(batch_size, dtype=xp.uint32)[rows]
    stream_key = _mix(xp.asarray(seed).astype(xp.uint32) ^ _mix(xp.uint32(tag)))
    key = _mix(stream_key + position // n)
    return indices[shuffle_index(position % n, n, key, xp)]


@np.errstate(over="ignore")
def shuffle_index(index: Array, n: Array, key: Array, xp: ModuleType = np) -> Array:
    """The image of an index under a keyed permutation of 0 … n - 1, which is never stored.

    The swap-or-not shuffle (Hoang, Morris & Rogaway, CRYPTO 2012): every round pairs x with
    k - x mod n and a hash of the pair says whether to swap them. Needs no memory. n is below
    2^31. The index, uint32 [...], is below n, and the key broadcasts against it.
    """

    def swap_or_not(i: Array, x: Array) -> Array:
        round_key = _mix(key + xp.asarray(i).astype(xp.uint32) * xp.uint32(0x9E3779B9))
        partner = (round_key % n + n - x) % n
        pair = xp.maximum(x, partner)
        swaps = _mix(pair ^ _mix(round_key + xp.uint32(1))) & xp.uint32(1)
        return xp.where(swaps == 1, partner, x)

    if xp is jnp:
        # An iteration is a few kernels, which take a GPU longer to start than to run, so each has
        # eight rounds. All 48 in one would take a CPU seconds to compile.
        return jax.lax.fori_loop(0, _NUM_ROUNDS, swap_or_not, index, unroll=8)
    for i in range(_NUM_ROUNDS):
        index = swap_or_not(i, index)
    return index


def _mix(x: Array) -> Array:
    """A 32-bit finalizer (lowbias32, by Chris Wellons): every input bit reaches every output."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def take_rows(indices: np.ndarray, limit: int) -> np.ndarray:
    """At most `limit` of the indices, int [n], evenly spaced."""
    count = min(len(indices), limit)
    taken: np.ndarray = indices[np.linspace(0, len(indices) - 1, count).astype(int)]
    return taken


def take_evenly(rows: Sequence[T], limit: int) -> list[T]:
    """At most `limit` of the rows, evenly spaced."""
    return [rows[i] for i in take_rows(np.arange(len(rows)), limit)]
