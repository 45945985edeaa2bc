"""EfficientNet-Lite0 (Google, 2020): EfficientNet-B0 without squeeze-and-excitation, with ReLU6.

The layers follow github.com/tensorflow/tpu, models/official/efficientnet/lite.

Shape suffixes: B images, H rows, W columns, C channels, K classes.
"""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
from jax.typing import DTypeLike

from cls_jax.models.convolutions import DepthwiseConv, convolve_pointwise
from cls_jax.models.layers import Architecture, BatchNorm, pool_mean

NUM_FEATURES = 1280
_STEM_FEATURES = 32


# Per stage: blocks, height and width of the depthwise convolutions, the first block's stride,
# expansion (channels inside a block over its inputs), and output channels.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


class InvertedResidual(nn.Module):
    """Expand (1x1), depthwise, project (1x1), each with BN, and ReLU6 after the first two."""

    kernel: int  # Height and width of the depthwise convolution.
    stride: int
    expansion: int  # Channels inside over input channels.
    features: int  # Output channels.
    pointwise: Callable[..., nn.Conv]  # Makes a 1x1 convolution, given its number of channels.
    norm: Callable[..., BatchNorm]
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """Returns float32 or bfloat16 [B, ⌈H / stride⌉, ⌈W / stride⌉, features]."""
        y = x
        if self.expansion > 1:
            y = self.pointwise(x.shape[-1] * self.expansion, name="expand")(y)
            y = nn.relu6(self.norm(name="expand_norm")(y, use_running_average=not train))
        y = DepthwiseConv(self.kernel, self.stride, self.dtype, name="depthwise")(y)
        y = nn.relu6(self.norm(name="depthwise_norm")(y, use_running_average=not train))
        y = self.pointwise(self.features, name="project")(y)
        y = self.norm(name="project_norm")(y, use_running_average=not train)
        return x + y if x.shape == y.shape else y


class EfficientNetLite0(Architecture):
    """Stem, seven stages of inverted residual blocks, 1x1 convolution, mean pool, dense.

    Dropout is between pool and dense, as in the original. Stochastic depth is left out.
    """

    bn_epsilon: float = 1e-3

    @nn.compact
    def __call__(
        self, x_BHWC: jax.Array, train: bool = False, dropout: bool = False, head: str = "head"
    ) -> jax.Array:
        """See `Architecture`."""
        conv = self.conv_layer(padding="SAME")
        norm = self.norm_layer()
        pointwise = functools.partial(
            conv, kernel_size=(1, 1), conv_general_dilated=convolve_pointwise
        )
        block = self.block_layer(InvertedResidual, train)
        x = conv(_STEM_FEATURES, (3, 3), strides=(2, 2), name="stem")(x_BHWC.astype(self.dtype))
        x = nn.relu6(norm(name="stem_norm")(x, use_running_average=not train))
        stages = []
        for i, (blocks, kernel, stride, expansion, features) in enumerate(STAGES, start=1):
            for j in range(blocks):
                x = block(
                    kernel=kernel,
                    stride=stride if j == 0 else 1,
                    expansion=expansion,
                    features=features,
                    pointwise=pointwise,
                    norm=norm,
                    dtype=self.dtype,
                    name=f"stage{i}_block{j + 1}",
                )(x, train)
            stages.append(x)
        x = pointwise(NUM_FEATURES, name="top")(x)
        x = nn.relu6(norm(name="top_norm")(x, use_running_average=not train))
        x_BC = nn.Dropout(self.dropout_rate, deterministic=not dropout)(pool_mean(x))
        return self.apply_heads(x_BC, head, stages, unpooled_BHWC=x)
