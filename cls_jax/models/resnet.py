"""ResNet-18 and ResNet-50 (He et al., 2016) with the blocks of torchvision.

Shape suffixes: B images, H rows, W columns, C channels, K classes.
"""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax

from cls_jax.models.layers import Architecture, BatchNorm, create_stem_conv, pool_mean, pool_stem

_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # Channels, stride.
_EXPANSION = 4  # Output channels of a bottleneck over those inside.


class ResidualBlock(nn.Module):
    """ReLU of a branch of convolutions plus the shortcut.

    The branch's last BatchNorm starts with scale 0, so that every block starts as its shortcut,
    like torchvision's `zero_init_residual`. With 1, gradients are large at first, and the loss
    rises before it falls.
    """

    features: int  # Output channels.
    stride: int
    is_bottleneck: bool
    conv: Callable[..., nn.Conv]
    norm: Callable[..., BatchNorm]
    dropout_rate: float  # Share of activations dropped before the last convolution.

    @nn.compact
    def __call__(self, x: jax.Array, train: bool, dropout: bool) -> jax.Array:
        """Returns float32 or bfloat16 [B, H / stride, W / stride, features]."""

        def normalize(y: jax.Array, name: str, **settings: Any) -> jax.Array:
            return self.norm(name=name, **settings)(y, use_running_average=not train)

        drop = nn.Dropout(self.dropout_rate, deterministic=not dropout)
        features = self.features
        strides = (self.stride, self.stride)
        if self.is_bottleneck:
            inner = features // _EXPANSION
            y = nn.relu(normalize(self.conv(inner, (1, 1), name="conv1")(x), "norm1"))
            # The stride is here, as in torchvision ("ResNet v1.5"), not in the first convolution.
            y = self.conv(inner, (3, 3), strides=strides, name="conv2")(y)
            y = drop(nn.relu(normalize(y, "norm2")))
            y = self.conv(features, (1, 1), name="conv3")(y)
            y = normalize(y, "norm3", scale_init=nn.initializers.zeros)
        else:
            y = self.conv(features, (3, 3), strides=strides, name="conv1")(x)
            y = drop(nn.relu(normalize(y, "norm1")))
            y = self.conv(features, (3, 3), name="conv2")(y)
            y = normalize(y, "norm2", scale_init=nn.initializers.zeros)
        if x.shape[-1] != features:
            x = self.conv(features, (1, 1), strides=strides, name="projection")(x)
            x = normalize(x, "projection_norm")
        return nn.relu(x + y)


class ResNet18(Architecture):
    """Stem, four stages of residual blocks, mean pool, dense."""

    stem_names: ClassVar[tuple[str, ...]] = ("stem", "norm")

    stem: str = "imagenet"  # A key of `STEMS`.
    blocks_per_stage: tuple[int, ...] = (2, 2, 2, 2)
    has_bottlenecks: bool = False

    @nn.compact
    def __call__(
        self, x_BHWC: jax.Array, train: bool = False, dropout: bool = False, head: str = "head"
    ) -> jax.Array:
        """See `Architecture`."""
        conv = self.conv_layer()
        norm = self.norm_layer()
        block = self.block_layer(ResidualBlock, train)
        expansion = _EXPANSION if self.has_bottlenecks else 1
        x = create_stem_conv(self.stem, _STAGES[0][0], self.dtype)(x_BHWC.astype(self.dtype))
        x = nn.relu(norm(name="norm")(x, use_running_average=not train))
        x = pool_stem(self.stem, x)
        stages = []
        for stage, (features, stride) in enumerate(_STAGES, start=1):
            for i in range(self.blocks_per_stage[stage - 1]):
                x = block(
                    features=features * expansion,
                    stride=stride if i == 0 else 1,
                    is_bottleneck=self.has_bottlenecks,
                    conv=conv,
                    norm=norm,
                    dropout_rate=self.dropout_rate,
                    name=f"stage{stage}_block{i + 1}",
                )(x, train, dropout)
            stages.append(x)
        return self.apply_heads(pool_mean(x), head, stages, unpooled_BHWC=x)


ResNet50 = functools.partial(ResNet18, blocks_per_stage=(3, 4, 6, 3), has_bottlenecks=True)
