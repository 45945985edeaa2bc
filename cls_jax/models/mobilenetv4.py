"""MobileNetV4 without attention (Qin et al., ECCV 2024), medium size, with the layers of timm.

Shape suffixes: B images, H rows, W columns, C channels, K classes.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax

from cls_jax.models.convolutions import DepthwiseConv, convolve_pointwise
from cls_jax.models.layers import Architecture, BatchNorm, create_conv, pool_mean

NUM_FEATURES = 1280
_STEM_FEATURES = 32
_FUSED_FEATURES, _FUSED_EXPANSION = 48, 4  # Of the only block of the first stage.
_LAST_FEATURES = 960  # Before pooling.


class Block(NamedTuple):
    """A universal inverted bottleneck. A kernel of 0 is a depthwise convolution left out."""

    start: int  # Kernel before the expansion.
    middle: int  # Kernel after the expansion.
    expansion: int  # Channels inside a block over its inputs.
    stride: int = 1


Stage = tuple[int, tuple[Block, ...]]  # Output channels, and the blocks.

# The stages between the first and the last.
MEDIUM: tuple[Stage, ...] = (
    (80, (Block(3, 5, 4, 2), Block(3, 3, 2))),
    (
        160,
        (
            *(Block(3, 5, 6, 2), Block(3, 3, 4), Block(3, 3, 4), Block(3, 5, 4), Block(3, 3, 4)),
            *(Block(3, 0, 4), Block(0, 0, 2), Block(3, 0, 4)),
        ),
    ),
    (
        256,
        (
            *(Block(5, 5, 6, 2), Block(5, 5, 4), Block(3, 5, 4), Block(3, 5, 4), Block(0, 0, 4)),
            *(Block(3, 0, 4), Block(3, 5, 2), Block(5, 5, 4), Block(0, 0, 4), Block(0, 0, 4)),
            Block(5, 0, 2),
        ),
    ),
)


class ConvNorm(nn.Module):
    """A convolution and BatchNorm, then ReLU if `has_relu`."""

    kernel: int  # Height and width.
    features: int  # Output channels. 0 for a depthwise convolution, which keeps its number.
    stride: int
    has_relu: bool
    norm: Callable[..., BatchNorm]
    norm_name: str = "bn"

    @nn.compact
    def __call__(self, x_BHWC: jax.Array, train: bool) -> jax.Array:
        """Returns float32 or bfloat16 [B, ⌈H / stride⌉, ⌈W / stride⌉, C or features]."""
        dtype = x_BHWC.dtype
        if self.features:
            pointwise: dict[str, Any] = {"conv_general_dilated": convolve_pointwise}
            x_BHWC = create_conv(
                self.features,
                (self.kernel, self.kernel),
                strides=(self.stride, self.stride),
                dtype=dtype,
                name="conv",
                **(pointwise if self.kernel == 1 else {}),
            )(x_BHWC)
        else:
            x_BHWC = DepthwiseConv(self.kernel, self.stride, dtype, is_centered=True, name="conv")(
                x_BHWC
            )
        x_BHWC = self.norm(name=self.norm_name)(x_BHWC, use_running_average=not train)
        return nn.relu(x_BHWC) if self.has_relu else x_BHWC


class FusedBottleneck(nn.Module):
    """A strided 3x3 convolution that expands, and a 1x1 convolution that projects."""

    features: int  # Output channels.
    norm: Callable[..., BatchNorm]

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """Returns float32 or bfloat16 [B, ⌈H / 2⌉, ⌈W / 2⌉, features]."""
        inner = x.shape[-1] * _FUSED_EXPANSION
        x = create_conv(inner, (3, 3), strides=(2, 2), dtype=x.dtype, name="conv_exp")(x)
        x = nn.relu(self.norm(name="bn1")(x, use_running_average=not train))
        x = create_conv(self.features, (1, 1), dtype=x.dtype, name="conv_pwl")(x)
        return self.norm(name="bn2")(x, use_running_average=not train)


class UniversalBottleneck(nn.Module):
    """Depthwise, expand (1x1), depthwise, project (1x1), and a shortcut where shapes agree.

    The stride is that of the second depthwise convolution.
    """

    block: Block
    features: int  # Output channels.
    norm: Callable[..., BatchNorm]

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """Returns float32 or bfloat16 [B, ⌈H / stride⌉, ⌈W / stride⌉, features]."""
        inner = x.shape[-1] * self.block.expansion

        def apply(
            y: jax.Array, name: str, kernel: int, features: int, stride: int, has_relu: bool
        ) -> jax.Array:
            layer = ConvNorm(kernel, features, stride, has_relu, norm=self.norm, name=name)
            output = layer(y, train)
            assert isinstance(output, jax.Array)  # Nothing is mutable.
            return output

        y = x
        if self.block.start:
            y = apply(y, "dw_start", self.block.start, 0, 1, has_relu=False)
        y = apply(y, "pw_exp", 1, inner, 1, has_relu=True)
        if self.block.middle:
            y = apply(y, "dw_mid", self.block.middle, 0, self.block.stride, has_relu=True)
        y = apply(y, "pw_proj", 1, self.features, 1, has_relu=False)
        return x + y if x.shape == y.shape else y


class MobileNetV4(Architecture):
    """Stem, stages, mean pool, 1x1 convolution, dense.

    The features are those after the 1x1 convolution, which sees pooled activations. Dropout is
    between it and dense, as in timm. Stochastic depth is left out.
    """

    stem_names: ClassVar[tuple[str, ...]] = ("stem", "stem_norm")

    table: tuple[Stage, ...] = MEDIUM

    @nn.compact
    def __call__(
        self, x_BHWC: jax.Array, train: bool = False, dropout: bool = False, head: str = "head"
    ) -> jax.Array:
        """See `Architecture`."""
        norm = self.norm_layer()
        x = x_BHWC.astype(self.dtype)
        x = create_conv(_STEM_FEATURES, (3, 3), strides=(2, 2), dtype=self.dtype, name="stem")(x)
        x = nn.relu(norm(name="stem_norm")(x, use_running_average=not train))
        fused = self.block_layer(FusedBottleneck, train)
        x = fused(_FUSED_FEATURES, norm=norm, name="stage1_block1")(x, train)
        stages = [x]
        block_layer = self.block_layer(UniversalBottleneck, train)
        for i, (features, blocks) in enumerate(self.table, start=2):
            for j, block in enumerate(blocks, start=1):
                layer = block_layer(
                    block=block, features=features, norm=norm, name=f"stage{i}_block{j}"
                )
                x = layer(x, train)
            stages.append(x)
        last = self.block_layer(ConvNorm, train)
        x = last(
            kernel=1,
            features=_LAST_FEATURES,
            stride=1,
            has_relu=True,
            norm=norm,
            norm_name="bn1",
            name=f"stage{len(self.table) + 2}_block1",
        )(x, train)
        stages.append(x)
        x = pool_mean(x)[:, None, None].astype(self.dtype)
        x = create_conv(NUM_FEATURES, (1, 1), dtype=self.dtype, name="top")(x)
        x = nn.relu(norm(name="top_norm")(x, use_running_average=not train))
        x_BC = nn.Dropout(self.dropout_rate, deterministic=not dropout)(pool_mean(x))
        return self.apply_heads(x_BC, head, stages)
