"""ResNet-18 (He et al., 2016) with the blocks of torchvision.

Shape suffixes: B images, H rows, W columns, C channels, K classes.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from cls_jax.models.layers import apply_heads, create_conv, create_stem_conv, pool_stem

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
        # From 0: every block begins as its shortcut, as torchvision's `zero_init_residual` has it.
        # From 1 gradients are long at first, and losses rise before they fall.
        scale_init = nn.initializers.zeros
        y = self.norm(name="norm2", scale_init=scale_init)(y, use_running_average=not train)
        if x.shape[-1] != self.features:
            x = self.conv(self.features, (1, 1), strides=strides, name="projection")(x)
            x = self.norm(name="projection_norm")(x, use_running_average=not train)
        return nn.relu(x + y)


class ResNet18(nn.Module):
    """Stem, four stages of two residual blocks, mean pool, dense.

    Attributes:
        num_classes: K.
        stem: a key of `layers.STEMS`.
        dtype: of convolutions and activations; parameters, BatchNorm statistics and logits stay
            float32.
        bn_momentum: of the running statistics, in Flax's sense (1 - PyTorch's).
        bn_epsilon: added to the variance.
        dropout_rate: share of activations dropped in every block when dropout is asked for.
        extra_heads: name and size of further outputs beside the classes'.
        data_axis: mesh axis over which BatchNorm statistics are averaged, or None.
    """

    num_classes: int
    stem: str = "imagenet"
    dtype: Any = jnp.float32
    bn_momentum: float = 0.999
    bn_epsilon: float = 1e-5
    dropout_rate: float = 0.0
    extra_heads: tuple[tuple[str, int], ...] = ()
    data_axis: str | None = None

    @nn.compact
    def __call__(
        self, x_BHWC: jax.Array, train: bool = False, dropout: bool = False, head: str = "head"
    ) -> jax.Array:
        """Returns logits float32 [B, K] for normalised images [B, H, W, C].

        Args:
            x_BHWC: the images.
            train: whether BatchNorm uses the statistics of these images.
            dropout: whether activations are dropped; needs a key named "dropout".
            head: "head" for the classes, or one of `extra_heads` for its logits instead.
        """
        conv = functools.partial(create_conv, dtype=self.dtype)
        norm = functools.partial(
            nn.BatchNorm,
            momentum=self.bn_momentum,
            epsilon=self.bn_epsilon,
            dtype=self.dtype,
            axis_name=self.data_axis,
        )
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
        return apply_heads(x, (("head", self.num_classes), *self.extra_heads), head)
