"""MixUp (Zhang et al., 2018) in the form of MixMatch: the first image always dominates."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp


def mixup(
    key: jax.Array, groups: Sequence[tuple[jax.Array, jax.Array]], alpha: float
) -> list[tuple[jax.Array, jax.Array]]:
    """Mixes all images of all groups with one another, each with λ' = max(λ, 1 - λ) ≥ ½ of itself.

    λ ~ Beta(α, α) for each image (Google's MixMatch). The partner is another image of this
    device's part of the batch.

    Args:
        key: random key.
        groups: images float32 [B_i, H, W, C] with targets float32 [N, B_i, K], probabilities
            as each of N networks sees them.
        alpha: of the Beta distribution.

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
    starts = [sum(len(group[0]) for group in groups[:i]) for i in range(1, len(groups))]
    return list(zip(jnp.split(images, starts), jnp.split(targets, starts, axis=1), strict=True))


def sample_lambda(key: jax.Array, num_images: int, alpha: float) -> jax.Array:
    """λ' = max(λ, 1 - λ) of λ ~ Beta(α, α), float32 [num_images] in [½, 1]."""
    share = jax.random.beta(key, alpha, alpha, (num_images,))
    return jnp.maximum(share, 1 - share)


def sharpen(probabilities: jax.Array, temperature: float) -> jax.Array:
    """p^(1/T) / Σ p^(1/T) over the last axis; lower T, surer labels."""
    # In logarithms: a power of a small probability would underflow.
    return jax.nn.softmax(jnp.log(jnp.maximum(probabilities, 1e-30)) / temperature)


def _mix(share: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    return share * a + (1 - share) * b
