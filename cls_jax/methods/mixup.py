"""MixUp across groups of images and the interleaved forward, for MixMatch and ReMixMatch.

MixUp (Zhang et al., 2018) is used in MixMatch's form, in which an image keeps at least half of
itself. N networks, K classes, n groups of B_i images.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cls_jax.models.ensemble import Ensemble

PyTree = Any


def mixup(
    key: jax.Array, groups: Sequence[tuple[jax.Array, jax.Array]], alpha: float
) -> list[tuple[jax.Array, jax.Array]]:
    """Mixes all images of all groups with one another: λ' · image + (1 - λ') · partner.

    λ' = max(λ, 1 - λ) with λ ~ Beta(α, α) for each image (Google's MixMatch). On several devices
    the partner comes from this device's shard of the batch.

    Args:
        key: random key.
        groups: images float32 [B_i, H, W, C] with targets float32 [N, B_i, K], probabilities
            as each of N networks sees them.
        alpha: α.

    Returns:
        The groups, mixed: images [B_i, H, W, C] and targets [N, B_i, K].
    """
    images = jnp.concatenate([group[0] for group in groups])
    targets = jnp.concatenate([group[1] for group in groups], axis=1)
    key_lambda, key_order = jax.random.split(key)
    share = sample_lambda(key_lambda, len(images), alpha)
    order = jax.random.permutation(key_order, len(images))
    images = _mix(share[:, None, None, None], images, images[order])
    targets = _mix(share[:, None], targets, targets[:, order])
    starts = np.cumsum([len(group[0]) for group in groups[:-1]])
    return list(zip(jnp.split(images, starts), jnp.split(targets, starts, axis=1), strict=True))


def label_rows(labels: jax.Array, guess: jax.Array) -> jax.Array:
    """True labels int [B] as every network's targets float32 [N, B, K], like a guess [N, U, K]."""
    truth = jax.nn.one_hot(labels, guess.shape[-1])
    return jnp.broadcast_to(truth, (len(guess), *truth.shape))


def sample_lambda(key: jax.Array, num_images: int, alpha: float) -> jax.Array:
    """λ' = max(λ, 1 - λ) of λ ~ Beta(α, α), float32 [num_images] in [½, 1]."""
    share = jax.random.beta(key, alpha, alpha, (num_images,))
    return jnp.maximum(share, 1 - share)


def sharpen(probabilities: jax.Array, temperature: float) -> jax.Array:
    """p^(1/T) / Σ p^(1/T) over the last axis. T < 1 makes labels more confident."""
    # In logarithms: a power of a small probability would underflow.
    return jax.nn.softmax(jnp.log(jnp.maximum(probabilities, 1e-30)) / temperature)


def forward_interleaved(
    ensemble: Ensemble,
    params: PyTree,
    batch_stats: PyTree,
    groups: Sequence[jax.Array],
    stats_from: int,
) -> tuple[list[jax.Array], PyTree]:
    """One training pass per interleaved chunk of the groups.

    Args:
        ensemble: the networks.
        params: stacked, each leaf [N, ...].
        batch_stats: stacked likewise.
        groups: each float32 [B_i, H, W, C], the labeled images first.
        stats_from: index of the only chunk that updates BatchNorm's running statistics.

    Returns:
        Logits of each group, float32 [N, B_i, K], and the BatchNorm statistics after the pass.
    """
    passes = [
        ensemble.forward(params, batch_stats, chunk, train=True) for chunk in interleave(groups)
    ]
    logits = deinterleave([logits for logits, _ in passes], [len(g) for g in groups], axis=1)
    return logits, passes[stats_from][1]


def interleave(groups: Sequence[jax.Array]) -> list[jax.Array]:
    """Exchanges slices between the first of n groups and all others (Google's `interleave`).

    Every group is cut into n slices. Slice i of the first group and slice i of group i change
    places. So the first chunk holds a slice of every group, and every other chunk holds a slice of
    the first group: with BatchNorm, no chunk's statistics are those of labeled or of unlabeled
    images alone. Google's groups have equal sizes. Ours are [B, ...] and [μB, ...].

    Args:
        groups: each [B_i, ...].

    Returns:
        n chunks, which together hold the rows of the groups.
    """
    return _swap_slices(groups, [_slice_lengths(len(g), len(groups)) for g in groups], axis=0)


def deinterleave(chunks: Sequence[jax.Array], sizes: Sequence[int], axis: int) -> list[jax.Array]:
    """Undoes `interleave` for arrays that were computed from its chunks.

    Args:
        chunks: n arrays, whose `axis` runs over the rows of the chunks.
        sizes: B_i of the n groups.
        axis: which axis that is.
    """
    lengths = _swap_with_first([_slice_lengths(size, len(sizes)) for size in sizes])
    return _swap_slices(chunks, lengths, axis)


def _slice_lengths(size: int, num_slices: int) -> list[int]:
    """As equal as possible, the longer ones last, as in Google's `interleave_offsets`."""
    return [(size + i) // num_slices for i in range(num_slices)]


def _swap_slices(
    arrays: Sequence[jax.Array], lengths: Sequence[Sequence[int]], axis: int
) -> list[jax.Array]:
    slices = [
        jnp.split(array, np.cumsum(lengths_of_array[:-1]), axis)
        for array, lengths_of_array in zip(arrays, lengths, strict=True)
    ]
    return [jnp.concatenate(chunk, axis) for chunk in _swap_with_first(slices)]


def _swap_with_first(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    swapped = [list(row) for row in rows]
    for i in range(1, len(swapped)):
        swapped[0][i], swapped[i][i] = swapped[i][i], swapped[0][i]
    return swapped


def _mix(share: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    return share * a + (1 - share) * b
