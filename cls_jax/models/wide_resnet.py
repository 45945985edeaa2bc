"""Wide ResNet (Zagoruyko & Komodakis, 2016) as in the CLS authors' released code.

Shape suffixes: B images, H rows, W columns, C channels, K classes.
"""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax

from cls_jax.models.layers import Architecture, BatchNorm, create_stem_conv, pool_mean, pool_stem

_STAGES = ((16, 1), (32, 2), (64, 2))  # Channels at width 1, stride.


class Block(nn.Module):
    """Pre-activation residual block: BN, act, conv, BN, act, conv, plus the shortcut."""

    features: int  # Output channels.
    stride: int  # Of the first convolution and the projection.
    # In a block with a projection, whether both branches take the activated input (stage 1) or the
    # raw one (stages 2 and 3).
    activate_before_residual: bool
    conv: Callable[..., nn.Conv]
    norm: Callable[..., BatchNorm]
    activation: Callable[[jax.Array], jax.Array]
    dropout_rate: float  # Share of activations dropped between the convolutions.

    @nn.compact
    def __call__(self, x: jax.Array, train: bool, dropout: bool) -> jax.Array:
        """Returns float32 or bfloat16 [B, H / stride, W / stride, features]."""
        projects = x.shape[-1] != self.features
        norm1 = self.norm(name="norm1")
        shortcut = x
        if projects and not self.activate_before_residual:
            # The authors' code computes this BatchNorm and drops the result. Its parameters are
            # part of the paper's parameter count, so they exist here too, but cost nothing: with
            # running averages there are no statistics to update and XLA removes the rest.
            norm1(x, use_running_average=True)
            y = x
        else:
            y = self.activation(norm1(x, use_running_average=not train))
            shortcut = y if projects else x
        strides = (self.stride, self.stride)
        y = self.conv(self.features, (3, 3), strides=strides, name="conv1")(y)
        y = self.activation(self.norm(name="norm2")(y, use_running_average=not train))
        y = nn.Dropout(self.dropout_rate, deterministic=not dropout)(y)
        y = self.conv(self.features, (3, 3), name="conv2")(y)
        if projects:
            projection = self.conv(self.features, (1, 1), strides=strides, name="projection")
            shortcut = projection(shortcut)
        return shortcut + y


class WideResNet(Architecture):
    """WRN-depth-width: stem, three stages of residual blocks, mean pool, dense."""

    depth: int = 28  # 6n + 4 for n blocks per stage.
    width: int = 2  # Factor on the stages' 16, 32 and 64 channels.
    stem: str = "cifar"  # A key of `STEMS`.

    @nn.compact
    def __call__(
        self, x_BHWC: jax.Array, train: bool = False, dropout: bool = False, head: str = "head"
    ) -> jax.Array:
        """See `Architecture`."""
        blocks_per_stage, remainder = divmod(self.depth - 4, 6)
        if remainder or blocks_per_stage < 1:
            raise ValueError(f"A Wide ResNet's depth is 6n + 4 (10, 16, …), not {self.depth}")
        conv = self.conv_layer()
        norm = self.norm_layer()
        block = self.block_layer(Block, train)
        activation = functools.partial(nn.leaky_relu, negative_slope=0.1)
        x = create_stem_conv(self.stem, 16, self.dtype)(x_BHWC.astype(self.dtype))
        x = pool_stem(self.stem, x)
        stages = []
        for stage, (features, stride) in enumerate(_STAGES, start=1):
            for i in range(blocks_per_stage):
                x = block(
                    features=features * self.width,
                    stride=stride if i == 0 else 1,
                    activate_before_residual=stage == 1,
                    conv=conv,
                    norm=norm,
                    activation=activation,
                    dropout_rate=self.dropout_rate,
                    name=f"stage{stage}_block{i + 1}",
                )(x, train, dropout)
            stages.append(x)
        x = activation(norm(name="norm")(x, use_running_average=not train))
        return self.apply_heads(pool_mean(x), head, stages, unpooled_BHWC=x)
