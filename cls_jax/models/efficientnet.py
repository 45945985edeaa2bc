"""EfficientNet-Lite (Google, 2020): EfficientNet without squeeze-and-excitation, with ReLU6.

The layers follow github.com/tensorflow/tpu, models/official/efficientnet/lite.

Shape suffixes: B images, H rows, W columns, C channels, K classes.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import flax.linen as nn
import jax
from jax.typing import DTypeLike

from cls_jax.models.convolutions import DepthwiseConv, convolve_pointwise
from cls_jax.models.layers import Architecture, BatchNorm, pool_mean

NUM_FEATURES = 1280
_STEM_FEATURES = 32


class Stage(NamedTuple):
    """Blocks that follow each other at one resolution."""

    blocks: int
    kernel: int  # Height and width of the depthwise convolutions.
    stride: int  # Of the first block.
    expansion: int  # Channels inside a block over its inputs.
    features: int  # Output channels.


LITE0 = (
    Stage(blocks=1, kernel=3, stride=1, expansion=1, features=16),
    Stage(blocks=2, kernel=3, stride=2, expansion=6, features=24),
    Stage(blocks=2, kernel=5, stride=2, expansion=6, features=40),
    Stage(blocks=3, kernel=3, stride=2, expansion=6, features=80),
    Stage(blocks=3, kernel=5, stride=1, expansion=6, features=112),
    Stage(blocks=4, kernel=5, stride=2, expansion=6, features=192),
    Stage(blocks=1, kernel=3, stride=1, expansion=6, features=320),
)


def _scale(blocks: Sequence[int], features: Sequence[int]) -> tuple[Stage, ...]:
    """LITE0 with other numbers of blocks and channels."""
    scaled = zip(LITE0, blocks, features, strict=True)
    return tuple(stage._replace(blocks=n, features=c) for stage, n, c in scaled)


LITE1 = _scale((1, 3, 3, 4, 4, 5, 1), (16, 24, 40, 80, 112, 192, 320))
LITE2 = _scale((1, 3, 3, 4, 4, 5, 1), (16, 24, 48, 88, 120, 208, 352))


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


class EfficientNetLite(Architecture):
    """Stem, stages of inverted residual blocks, 1x1 convolution, mean pool, dense.

    Dropout is between pool and dense, as in the original. Stochastic depth is left out.
    """

    bn_epsilon: float = 1e-3
    table: tuple[Stage, ...] = LITE0

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
        for i, stage in enumerate(self.table, start=1):
            for j in range(stage.blocks):
                x = block(
                    kernel=stage.kernel,
                    stride=stage.stride if j == 0 else 1,
                    expansion=stage.expansion,
                    features=stage.features,
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
