"""A head that is not trained: a new image's classes are those of similar known images.

Shape suffixes: B images, M known images, C features, R components, K classes.
"""

import functools
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

_Array = TypeVar("_Array", jax.Array, np.ndarray)

# How fast the weight of a known image falls with its distance, and the power of the product with
# another head: two heads that use the same labels are right together, and their plain product would
# be too sure. Chosen on photos (experiments/results/any_folder.md).
_SHARPNESS = 12.0
_POWER = 0.7
_MIN_PROBABILITY = 1e-6
_MIN_NORM = 1e-6


class NeighborHead(nn.Module):
    """The mean class probabilities of known images, weighted by exp(12 cosine).

    Cosines are those of R linear components of the features, so an image is placed among the known
    ones by a product of matrices, as by a layer of attention. The parameters are "kernel" [C, R],
    "bias" [R], the components "known" [M, R] of unit length, and their "probabilities" [M, K].
    """

    num_known: int  # M.
    num_components: int  # R.
    num_classes: int  # K.

    @nn.compact
    def __call__(self, x_BC: jax.Array) -> jax.Array:
        """Log probabilities, float32 [B, K], of images with features float32 [B, C]."""
        zeros = nn.initializers.zeros
        kernel = self.param("kernel", zeros, (x_BC.shape[-1], self.num_components))
        bias = self.param("bias", zeros, (self.num_components,))
        known = self.param("known", zeros, (self.num_known, self.num_components))
        probabilities = self.param("probabilities", zeros, (self.num_known, self.num_classes))
        log_p_BK: jax.Array = _compare(
            x_BC, kernel, bias, known, probabilities, jnp, jax.nn.softmax
        )
        return log_p_BK


def compare_in_numpy(
    x_BC: np.ndarray,
    kernel: np.ndarray,
    bias: np.ndarray,
    known: np.ndarray,
    probabilities: np.ndarray,
) -> np.ndarray:
    """What a `NeighborHead` with these parameters returns, without compiling anything."""
    softmax = functools.partial(scipy.special.softmax, axis=-1)
    log_p_BK: np.ndarray = _compare(x_BC, kernel, bias, known, probabilities, np, softmax)
    return log_p_BK


def _compare(
    x_BC: Any, kernel: Any, bias: Any, known: Any, probabilities: Any, xp: Any, softmax: Any
) -> Any:
    """Log probabilities, where `xp` is `jax.numpy` or NumPy."""
    components = x_BC @ kernel + bias
    norms = xp.linalg.norm(components, axis=-1, keepdims=True)
    cosines = components / xp.maximum(norms, _MIN_NORM) @ known.astype(xp.float32).T
    p_BK = softmax(_SHARPNESS * cosines) @ probabilities.astype(xp.float32)
    return xp.log(xp.maximum(p_BK, _MIN_PROBABILITY))


def multiply_heads(logits: _Array, log_p: _Array) -> _Array:
    """Logits of the product of a head's probabilities and a `NeighborHead`'s, all [B, K]."""
    product: _Array = _POWER * (logits + log_p)
    return product
