"""ResNet-18 and ResNet-50 (He et al., 2016) with the blocks of torchvision.

Shape suffixes: B images, H rows, W columns, C channels, K classes.
"""

from typing import Any, ClassVar

import flax.linen as nn
import jax

from cls_jax.models.layers import Architecture, apply_heads, create_stem_conv, pool_mean, pool_stem

_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # Channels, stride.
_EXPANSION = 4  # Channels that leave a bottleneck over those inside.


class BasicBlock(nn.Module):
    """Conv, BN, ReLU, conv, BN, plus the shortcut, ReLU.

    Attributes:
        features: channels that leave the block.
        stride: of the first convolution and of the projection.
        dropout_rate: share of activations dropped between the convolutions.
    """

    features: int
    stride: int
    conv: Any
    norm: Any
    dropout_rate: float

    @nn.compact
    def __call__(self, x: jax.Array, train: bool, dropout: bool) -> jax.Array:
        """Returns float32 or bfloat16 [B, H / stride, W / stride, features]."""
        strides = (self.stride, self.stride)
        y = self.conv(self.features, (3, 3), strides=strides, name="conv1")(x)
        y = nn.relu(self.norm(name="norm1")(y, use_running_average=not train))
        y = nn.Dropout(self.dropout_rate, deterministic=not dropout)(y)
        y = self.conv(self.features, (3, 3), name="conv2")(y)
        # 0, so that every block starts as its shortcut, like torchvision's `zero_init_residual`.
        # With 1, gradients are large at first, and losses rise before they fall.
        scale_init = nn.initializers.zeros
        y = self.norm(name="norm2", scale_init=scale_init)(y, use_running_average=not train)
        if x.shape[-1] != self.features:
            x = self.conv(self.features, (1, 1), strides=strides, name="projection")(x)
            x = self.norm(name="projection_norm")(x, use_running_average=not train)
        return nn.relu(x + y)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolution, each with BN, plus the shortcut, ReLU.

    The stride is the second convolution's, as in torchvision ("ResNet v1.5"), not the first's.
    Attributes as in `BasicBlock`; inside the block there are a quarter of the channels.
    """

    features: int
    stride: int
    conv: Any
    norm: Any
    dropout_rate: float

    @nn.compact
    def __call__(self, x: jax.Array, train: bool, dropout: bool) -> jax.Array:
        """Returns float32 or bfloat16 [B, H / stride, W / stride, features]."""
        inner, strides = self.features // _EXPANSION, (self.stride, self.stride)
        y = self.conv(inner, (1, 1), name="conv1")(x)
        y = nn.relu(self.norm(name="norm1")(y, use_running_average=not train))
        y = self.conv(inner, (3, 3), strides=strides, name="conv2")(y)
        y = nn.relu(self.norm(name="norm2")(y, use_running_average=not train))
        y = nn.Dropout(self.dropout_rate, deterministic=not dropout)(y)
        y = self.conv(self.features, (1, 1), name="conv3")(y)
        scale_init = nn.initializers.zeros  # As in `BasicBlock`.
        y = self.norm(name="norm3", scale_init=scale_init)(y, use_running_average=not train)
        if x.shape[-1] != self.features:
            x = self.conv(self.features, (1, 1), strides=strides, name="projection")(x)
            x = self.norm(name="projection_norm")(x, use_running_average=not train)
        return nn.relu(x + y)


class ResNet18(Architecture):
    """Stem, four stages of residual blocks, mean pool, dense.

    Attributes:
        stem: a key of `STEMS`.
        blocks_per_stage: how many residual blocks each stage has.
        has_bottlenecks: whether they are `Bottleneck` and not `BasicBlock`.
    """

    stem_names: ClassVar[tuple[str, ...]] = ("stem", "norm")

    stem: str = "imagenet"
    blocks_per_stage: tuple[int, ...] = (2, 2, 2, 2)
    has_bottlenecks: bool = False

    @nn.compact
    def __call__(
        self, x_BHWC: jax.Array, train: bool = False, dropout: bool = False, head: str = "head"
    ) -> jax.Array:
        """See `Architecture`."""
        conv, norm = self.conv_layer(), self.norm_layer()
        block, expansion = (Bottleneck, _EXPANSION) if self.has_bottlenecks else (BasicBlock, 1)
        x = create_stem_conv(self.stem, _STAGES[0][0], self.dtype)(x_BHWC.astype(self.dtype))
        x = nn.relu(norm(name="norm")(x, use_running_average=not train))
        x = pool_stem(self.stem, x)
        for stage, (features, stride) in enumerate(_STAGES, start=1):
            for i in range(self.blocks_per_stage[stage - 1]):
                x = block(
                    features * expansion,
                    stride if i == 0 else 1,
                    conv=conv,
                    norm=norm,
                    dropout_rate=self.dropout_rate,
                    name=f"stage{stage}_block{i + 1}",
                )(x, train, dropout)
        return apply_heads(pool_mean(x), (("head", self.num_classes), *self.extra_heads), head)


class ResNet50(ResNet18):
    """The same with 3, 4, 6 and 3 bottlenecks."""

    blocks_per_stage: tuple[int, ...] = (3, 4, 6, 3)
    has_bottlenecks: bool = True
