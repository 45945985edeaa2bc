"""What MixMatch and ReMixMatch are made of: draws, interleaving, rotations.

Their losses, with given draws, are compared in `test_oracles.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.methods.mixmatch import mixup, sharpen


@pytest.mark.parametrize("alpha", [0.1, 0.75, 5.0])
def test_images_and_targets_are_mixed_alike_across_groups(alpha):
    """With one-hot images the mixture can be read off, at least half of which is the image."""
    images = jnp.eye(1000).reshape(1000, 20, 50, 1)
    split = [images[:300], images[300:]]
    targets = [group.reshape(1, len(group), 1000) for group in split]
    mixed, mixed_targets = mixup(jax.random.key(3), split, targets, alpha)
    assert [len(group) for group in mixed] == [300, 700]
    rows = np.concatenate(mixed).reshape(1000, 1000)
    np.testing.assert_allclose(rows, np.concatenate(mixed_targets, axis=1)[0], atol=1e-6)
    np.testing.assert_allclose(rows.sum(axis=1), 1, atol=1e-6)
    assert rows[:300, 300:].sum() > 0  # Labeled images meet unlabeled ones.
    own = np.diag(rows)
    assert own.min() >= 0.5
    # λ ~ Beta(α, α) has the variance 1 / (4 (2α + 1)), as has λ' around ½.
    np.testing.assert_allclose(np.mean((own - 0.5) ** 2), 1 / (8 * alpha + 4), rtol=0.1)
    other, _ = mixup(jax.random.key(4), split, targets, alpha)
    assert np.any(other[0] != mixed[0])


def test_sharpening_survives_zero():
    p = np.array([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0]])
    expected = p**2 / (p**2).sum(-1, keepdims=True)
    np.testing.assert_allclose(sharpen(jnp.asarray(p), 0.5), expected, atol=1e-6)
