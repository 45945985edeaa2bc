"""ResNet-18 (He et al., 2016) with the blocks of torchvision.

Shape suffixes: B images, H rows, W columns, C channels, K classes.
"""

from typing import Any, ClassVar

import flax.linen as nn
import jax

from cls_jax.models.layers import Architecture, apply_heads, create_stem_conv, pool_mean, pool_stem

_BLOCKS_PER_STAGE = 2
_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # Channels, stride.


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


class ResNet18(Architecture):
    """Stem, four stages of two residual blocks, mean pool, dense."""

    stem_names: ClassVar[tuple[str, ...]] = ("stem", "norm")

    stem: str = "imagenet"

    @nn.compact
    def __call__(
        self, x_BHWC: jax.Array, train: bool = False, dropout: bool = False, head: str = "head"
    ) -> jax.Array:
        """See `Architecture`."""
        conv, norm = self.conv_layer(), self.norm_layer()
        x = create_stem_conv(self.stem, _STAGES[0][0], self.dtype)(x_BHWC.astype(self.dtype))
        x = nn.relu(norm(name="norm")(x, use_running_average=not train))
        x = pool_stem(self.stem, x)
        for stage, (features, stride) in enumerate(_STAGES, start=1):
            for i in range(_BLOCKS_PER_STAGE):
                x = BasicBlock(
                    features,
                    stride if i == 0 else 1,
                    conv=conv,
                    norm=norm,
                    dropout_rate=self.dropout_rate,
                    name=f"stage{stage}_block{i + 1}",
                )(x, train, dropout)
        return apply_heads(pool_mean(x), (("head", self.num_classes), *self.extra_heads), head)
