"""ConvNeXt (Liu et al., CVPR 2022), of timm's size "nano", with the layers of timm.

Shape suffixes: B images, H rows, W columns, C channels, K classes.
"""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from cls_jax.models.convolutions import DepthwiseConv, convolve_pointwise
from cls_jax.models.layers import Architecture, create_layer_norm, gelu, pool_mean, transformer_init

_EXPANSION = 4  # Channels inside a block over its inputs.
_LAYER_SCALE = 1e-6


def _create_patch_conv(features: int, size: int, dtype: DTypeLike, name: str) -> nn.Conv:
    """A convolution of patches that do not overlap. Rows and columns that fill none are cut."""
    patch = (size, size)
    return nn.Conv(
        features,
        patch,
        patch,
        padding="VALID",
        dtype=dtype,
        kernel_init=transformer_init,
        name=name,
    )


class Downsample(nn.Module):
    """LayerNorm, and a 2x2 convolution with stride 2."""

    features: int  # Output channels.
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x_BHWC: jax.Array) -> jax.Array:
        """Returns `dtype` [B, ⌊H / 2⌋, ⌊W / 2⌋, features]."""
        x_BHWC = create_layer_norm(self.dtype, "down_norm")(x_BHWC)
        return _create_patch_conv(self.features, 2, self.dtype, "down")(x_BHWC)


class ConvMlp(nn.Module):
    """1x1 convolution, GELU, dropout, 1x1 convolution: `vit.Mlp` with kernels [1, 1, C, F]."""

    dropout_rate: float
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x_BHWC: jax.Array, dropout: bool) -> jax.Array:
        """Returns `dtype` [B, H, W, C]."""

        def pointwise(features: int, name: str) -> nn.Conv:
            return nn.Conv(
                features,
                (1, 1),
                dtype=self.dtype,
                kernel_init=transformer_init,
                conv_general_dilated=convolve_pointwise,
                name=name,
            )

        width = x_BHWC.shape[-1]
        y = gelu(pointwise(_EXPANSION * width, "fc1")(x_BHWC))
        y = nn.Dropout(self.dropout_rate, deterministic=not dropout)(y)
        return pointwise(width, "fc2")(y)


class Block(nn.Module):
    """Depthwise 7x7, LayerNorm and MLP, scaled per channel, in parallel to a shortcut."""

    dropout_rate: float
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x_BHWC: jax.Array, dropout: bool) -> jax.Array:
        """Returns `dtype` [B, H, W, C]."""
        y = DepthwiseConv(7, dtype=self.dtype, use_bias=True, name="conv_dw")(x_BHWC)
        y = create_layer_norm(self.dtype, "norm")(y)
        y = ConvMlp(self.dropout_rate, self.dtype, name="mlp")(y, dropout)
        gamma = self.param("gamma", nn.initializers.constant(_LAYER_SCALE), y.shape[-1:])
        return x_BHWC + y * gamma.astype(y.dtype)


class ConvNeXt(Architecture):
    """4x4 patches, stages of blocks, mean pool, LayerNorm, dense.

    Without BatchNorm, nothing depends on other images of the batch.
    """

    stem_names: ClassVar[tuple[str, ...]] = ("stem", "stem_norm")

    widths: tuple[int, ...] = (80, 160, 320, 640)
    depths: tuple[int, ...] = (2, 2, 8, 2)

    @nn.compact
    def __call__(
        self, x_BHWC: jax.Array, train: bool = False, dropout: bool = False, head: str = "head"
    ) -> jax.Array:
        """See `Architecture`."""
        block = self.block_layer(Block, train)
        x = _create_patch_conv(self.widths[0], 4, self.dtype, "stem")(x_BHWC)
        x = create_layer_norm(self.dtype, "stem_norm")(x)
        stages = []
        for i, (width, depth) in enumerate(zip(self.widths, self.depths, strict=True), start=1):
            if i > 1:
                x = Downsample(width, self.dtype, name=f"stage{i}_block0")(x)
            for j in range(1, depth + 1):
                name = f"stage{i}_block{j}"
                x = block(dropout_rate=self.dropout_rate, dtype=self.dtype, name=name)(x, dropout)
            stages.append(x)
        # The last activations have both signs, so the generalized means of `pool_descriptor`, for
        # which negative ones are 0, do not suit them: the features are the descriptors, too.
        x_BC = create_layer_norm(jnp.float32, "top_norm")(pool_mean(x))
        return self.apply_heads(x_BC, head, stages)
