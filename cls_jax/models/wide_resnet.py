"""Wide ResNet (Zagoruyko & Komodakis, 2016) as in the CLS authors' released code.

Shape suffixes: B images, H rows, W columns, C channels, K classes.
"""

import functools
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from cls_jax.models.layers import apply_heads, create_conv, create_stem_conv, pool_stem


class Block(nn.Module):
    """Pre-activation residual block: BN, act, conv, BN, act, conv, plus the shortcut.

    Attributes:
        features: channels that leave the block.
        stride: of the first convolution and of the projection.
        dropout_rate: share of activations dropped between the convolutions.
        activate_before_residual: in a projecting block, whether both branches take the activated
            input (stage 1) or the raw one (stages 2 and 3).
    """

    features: int
    stride: int
    activate_before_residual: bool
    conv: Any
    norm: Any
    activation: Any
    dropout_rate: float

    @nn.compact
    def __call__(self, x: jax.Array, train: bool, dropout: bool) -> jax.Array:
        """Returns float32 or bfloat16 [B, H / stride, W / stride, features]."""
        projects = x.shape[-1] != self.features
        if not projects:
            shortcut = x
            y = self.activation(self.norm(name="norm1")(x, use_running_average=not train))
        elif self.activate_before_residual:
            shortcut = y = self.activation(
                self.norm(name="norm1")(x, use_running_average=not train)
            )
        else:
            # The authors' code computes this BatchNorm and drops the result. Its parameters are
            # part of the paper's parameter count, so they exist here too, but cost nothing: with
            # running averages there are no statistics to update and XLA removes the rest.
            self.norm(name="norm1")(x, use_running_average=True)
            shortcut = y = x
        strides = (self.stride, self.stride)
        y = self.conv(self.features, (3, 3), strides=strides, name="conv1")(y)
        y = self.activation(self.norm(name="norm2")(y, use_running_average=not train))
        y = nn.Dropout(self.dropout_rate, deterministic=not dropout)(y)
        y = self.conv(self.features, (3, 3), name="conv2")(y)
        if projects:
            projection = self.conv(self.features, (1, 1), strides=strides, name="projection")
            shortcut = projection(shortcut)
        return shortcut + y


class WideResNet(nn.Module):
    """WRN-depth-width: stem, three stages of residual blocks, mean pool, dense.

    Attributes:
        num_classes: K.
        depth: 6n + 4 for n blocks a stage.
        width: factor on the stages' 16, 32 and 64 channels.
        stem: a key of `layers.STEMS`.
        dtype: of convolutions and activations; parameters, BatchNorm statistics and logits stay
            float32.
        bn_momentum: of the running statistics, in Flax's sense (1 - PyTorch's).
        bn_epsilon: added to the variance.
        leaky_slope: of LeakyReLU.
        dropout_rate: share of activations dropped in every block when dropout is asked for.
        extra_heads: name and size of further outputs beside the classes'.
        data_axis: mesh axis over which BatchNorm statistics are averaged, or None.
    """

    num_classes: int
    depth: int = 28
    width: int = 2
    stem: str = "cifar"
    dtype: Any = jnp.float32
    bn_momentum: float = 0.999
    bn_epsilon: float = 1e-5
    leaky_slope: float = 0.1
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

        Raises:
            ValueError: if `depth` is not 6n + 4.
        """
        blocks_per_stage, remainder = divmod(self.depth - 4, 6)
        if remainder or blocks_per_stage < 1:
            raise ValueError(f"A Wide ResNet's depth is 6n + 4 (10, 16, …), not {self.depth}")
        conv = functools.partial(create_conv, dtype=self.dtype)
        norm = functools.partial(
            nn.BatchNorm,
            momentum=self.bn_momentum,
            epsilon=self.bn_epsilon,
            dtype=self.dtype,
            axis_name=self.data_axis,
        )
        activation = functools.partial(nn.leaky_relu, negative_slope=self.leaky_slope)
        x = create_stem_conv(self.stem, 16, self.dtype)(x_BHWC.astype(self.dtype))
        x = pool_stem(self.stem, x)
        for stage, (features, stride) in enumerate(_stages(self.width), start=1):
            for i in range(blocks_per_stage):
                x = Block(
                    features,
                    stride if i == 0 else 1,
                    activate_before_residual=stage == 1,
                    conv=conv,
                    norm=norm,
                    activation=activation,
                    dropout_rate=self.dropout_rate,
                    name=f"stage{stage}_block{i + 1}",
                )(x, train, dropout)
        x = activation(norm(name="norm")(x, use_running_average=not train))
        return apply_heads(x, (("head", self.num_classes), *self.extra_heads), head)


def _stages(width: int) -> Sequence[tuple[int, int]]:
    return [(16 * width, 1), (32 * width, 2), (64 * width, 2)]
