"""Convolution, normalization, stem and heads, shared by the architectures.

Shape suffixes: B images, H rows, W columns, C channels, K classes.
"""

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from cls_jax.batch import PyTree
from cls_jax.models.convolutions import DEPTHWISE
from cls_jax.models.neighbor_head import NeighborHead, multiply_heads

# N(0, sqrt(2 / fan_out)), as `kaiming_normal_(mode='fan_out')` in the authors' code. Not
# truncated: a truncated normal of the same variance is another distribution.
conv_init = nn.initializers.variance_scaling(2.0, "fan_out", "normal")
dense_init = nn.initializers.glorot_normal()
# Of all kernels and embeddings of transformers and ConvNeXt, as in timm and the authors' code.
transformer_init = nn.initializers.truncated_normal(0.02)
FEATURES = "features"
WITH_FEATURES = "head and features"
ALL_FEATURES = "features, descriptors and stages"
ALL_HEADS = "all heads"
# Names of their parameters.
STAGE_HEAD = "stage_head"
NEIGHBOR_HEAD = "neighbor_head"
# Standard deviation of the weights in `pool_descriptor`, as a share of the image.
_CENTER_WIDTH = 0.35


# Stem of an architecture: height and width of the first convolution, its stride, and whether 3x3
# max pooling with stride 2 follows.
STEMS = {
    "cifar": (3, 1, False),  # For 32 pixels.
    "small": (3, 2, False),  # For 64: the rest of the network sees 32.
    "imagenet": (7, 2, True),  # From 96: 224 becomes 56.
}


def _is_convolution(primitive: Any, *_: Any, **__: Any) -> bool:
    # Pointwise convolutions can be products of matrices, see `convolve_pointwise`.
    return primitive in (jax.lax.conv_general_dilated_p, jax.lax.dot_general_p)


# What a rematerialized block keeps. Depthwise convolutions can be sums of products.
_KEEP_CONVOLUTIONS = jax.checkpoint_policies.save_from_both_policies(
    _is_convolution, jax.checkpoint_policies.save_only_these_names(DEPTHWISE)
)


class BatchNorm(nn.Module):
    """`flax.linen.BatchNorm` with the same variables, as one multiplication and one addition.

    In training, the variables become the statistics of the batch, as with Flax's momentum of 0. The
    step moves the running ones toward these, see `move_means`.

    x · m + (bias - mean · m) with m = scale / sqrt(var + epsilon), instead of Flax's
    (x - mean) · m + bias. Its gradient sums the incoming one twice over the images (as it is, and
    times x), where Flax's form sums it three times and keeps an intermediate in memory. On a GPU,
    where a step mostly waits for memory, CLS's step moves 7% fewer bytes
    (experiments/results/gpu_forecast.md).
    """

    epsilon: float  # Added to the variance.
    dtype: DTypeLike = jnp.float32  # Of the result. Statistics and arithmetic are float32.
    axis_name: str | None = None  # Mesh axis over which training averages batch statistics.
    frozen: bool = False  # Training also normalizes by the running statistics, and keeps them.
    scale_init: Callable[..., jax.Array] = nn.initializers.ones  # The bias starts at 0.

    @nn.compact
    def __call__(self, x: jax.Array, use_running_average: bool) -> jax.Array:
        """Returns `dtype` [..., C], normalized by the batch's or by the running statistics."""
        shape = x.shape[-1:]
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, shape)
        running_var = self.variable("batch_stats", "var", jnp.ones, shape)
        scale = self.param("scale", self.scale_init, shape)
        bias = self.param("bias", nn.initializers.zeros, shape)
        x = x.astype(jnp.float32)
        if use_running_average or self.frozen:
            mean = running_mean.value
            var = running_var.value
        else:
            mean, var = self._compute_moments(x)
            if not self.is_initializing():
                running_mean.value, running_var.value = mean, var
        multiplier = scale * jax.lax.rsqrt(var + self.epsilon)
        return (x * multiplier + (bias - mean * multiplier)).astype(self.dtype)

    def _compute_moments(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean and biased variance of all images of all devices, float32 [C] each."""
        axes = tuple(range(x.ndim - 1))
        # E[x²] - E[x]² and not E[(x - E[x])²]: both sums take one pass and one all-reduce.
        moments = jnp.stack([jnp.mean(x, axes), jnp.mean(jnp.square(x), axes)])
        # `model.init` runs outside `shard_map`, where there is no such axis. Training runs inside.
        if self.axis_name is not None and not self.is_initializing():
            moments = jax.lax.pmean(moments, self.axis_name)
        mean, mean_of_squares = moments
        # Rounding can put the variance of a constant channel just below 0.
        return mean, jnp.maximum(mean_of_squares - jnp.square(mean), 0.0)


class Architecture(nn.Module):
    """The fields of every architecture, and the signature of its call.

    `__call__(images, train=False, dropout=False, head="head")` returns logits float32 [B, K] for
    normalized images float32 [B, H, W, C]. `train`: whether BatchNorm uses the statistics of these
    images. `dropout`: whether activations are dropped, which needs a key named "dropout". `head`:
    "head" for the logits of the classes, the name of one of `extra_heads` for its own logits,
    `ALL_HEADS` for all logits side by side, `FEATURES` for the pooled features, float32 [B, C],
    `WITH_FEATURES` for the logits of the classes and these, or `ALL_FEATURES` for these and those
    of `pool_descriptor` and `pool_stages`, concatenated, float32 [B, 2C + S].
    """

    # Names of the parameters that come before the first block, for `order_layers`.
    stem_names: ClassVar[tuple[str, ...]] = ("stem", "stem_norm")

    num_classes: int  # K.
    # Of convolutions and activations. Parameters, BatchNorm statistics and logits stay float32.
    dtype: DTypeLike = jnp.float32
    bn_epsilon: float = 1e-5
    bn_frozen: bool = False
    dropout_rate: float = 0.0  # Share of activations dropped in every block, if requested.
    extra_heads: tuple[tuple[str, int], ...] = ()  # Names and sizes of further dense layers.
    # Whether the logits of the classes also depend on the features of `pool_stages`.
    has_stage_head: bool = False
    # Known images and components of a `NeighborHead`, which takes part in the logits of the classes
    # and depends on the pooled features and those of `pool_stages`. None without it.
    neighbors: tuple[int, int] | None = None
    data_axis: str | None = None  # `BatchNorm.axis_name`.
    # Whether training recomputes activations for the gradient, to save memory. It keeps only the
    # inputs of the blocks and, in a convolutional network, the results of convolutions, which take
    # most of the time.
    remat: bool = False

    @property
    def head_names(self) -> tuple[str, ...]:
        """Names of the parameters that compute the logits, for `order_layers`."""
        names = ("head", *(name for name, _ in self.extra_heads))
        names += (STAGE_HEAD,) if self.has_stage_head else ()
        return names + ((NEIGHBOR_HEAD,) if self.neighbors else ())

    def block_layer(self, block: type[nn.Module], train: bool) -> Callable[..., nn.Module]:
        """The block, rematerialized in training if `remat` is set, with the same parameters.

        Call it with the activations and any number of bools.
        """
        if not (self.remat and train):
            return block
        num_arguments = len(inspect.signature(block.__call__).parameters)
        flags = tuple(range(2, num_arguments))  # After `self` and the activations.
        return nn.remat(block, policy=_KEEP_CONVOLUTIONS, static_argnums=flags)

    def conv_layer(self, **kwargs: Any) -> Callable[..., nn.Conv]:
        """`create_conv` of this dtype."""
        return functools.partial(create_conv, dtype=self.dtype, **kwargs)

    def norm_layer(self) -> Callable[..., BatchNorm]:
        """`BatchNorm` with these attributes."""
        return functools.partial(
            BatchNorm,
            epsilon=self.bn_epsilon,
            dtype=self.dtype,
            axis_name=self.data_axis,
            frozen=self.bn_frozen,
        )

    def apply_heads(
        self,
        x_BC: jax.Array,
        wanted: str,
        stages: Sequence[jax.Array],
        unpooled_BHWC: jax.Array | None = None,
        init: nn.initializers.Initializer = dense_init,
    ) -> jax.Array:
        """Adds the layers of all heads. Returns float32 [B, size of `wanted`], or the input.

        All heads get parameters, and XLA removes unused ones. `stages` are the outputs of all
        stages. An architecture that does not pool has no `unpooled_BHWC`: its features are also its
        descriptors.
        """
        dense = functools.partial(nn.Dense, kernel_init=init)
        logits = {
            name: dense(size, name=name)(x_BC)
            for name, size in (("head", self.num_classes), *self.extra_heads)
        }
        if self.has_stage_head:
            stage_head = dense(self.num_classes, use_bias=False, name=STAGE_HEAD)
            logits["head"] += stage_head(pool_stages(stages))
        if self.neighbors:
            num_known, num_components = self.neighbors
            neighbor_head = NeighborHead(
                num_known, num_components, self.num_classes, name=NEIGHBOR_HEAD
            )
            inputs = jnp.concatenate([x_BC, pool_stages(stages)], axis=-1)
            logits["head"] = multiply_heads(logits["head"], neighbor_head(inputs))
        if wanted == ALL_FEATURES:
            beside = x_BC if unpooled_BHWC is None else pool_descriptor(unpooled_BHWC)
            return jnp.concatenate([x_BC, beside, pool_stages(stages)], axis=-1)
        if wanted in (ALL_HEADS, WITH_FEATURES):
            parts = [*logits.values()] if wanted == ALL_HEADS else [logits["head"], x_BC]
            return jnp.concatenate(parts, axis=-1)
        return x_BC if wanted == FEATURES else logits[wanted]


def resolve_stem(name: str, image_size: int) -> str:
    """The name of the stem to use. "auto" chooses by `image_size`."""
    if name != "auto":
        return name
    if image_size < 48:
        return "cifar"
    return "small" if image_size < 96 else "imagenet"


def create_conv(
    features: int, kernel_size: tuple[int, int], padding: str | None = None, **kwargs: Any
) -> nn.Conv:
    """A convolution without bias, with PyTorch's padding unless another is given.

    TensorFlow's "SAME" pads a strided convolution of an even size on one side only.
    """
    return nn.Conv(
        features,
        kernel_size,
        padding=(kernel_size[0] - 1) // 2 if padding is None else padding,
        use_bias=False,
        kernel_init=conv_init,
        **kwargs,
    )


def create_layer_norm(dtype: DTypeLike, name: str) -> nn.LayerNorm:
    """LayerNorm of transformers and ConvNeXt, with timm's epsilon."""
    return nn.LayerNorm(1e-6, dtype, use_fast_variance=False, name=name)


def create_stem_conv(stem: str, features: int, dtype: DTypeLike) -> nn.Conv:
    """The first convolution, named "stem"."""
    kernel, stride, _ = STEMS[stem]
    return create_conv(
        features, (kernel, kernel), strides=(stride, stride), dtype=dtype, name="stem"
    )


def pool_stem(stem: str, x_BHWC: jax.Array) -> jax.Array:
    """3x3 max pooling with stride 2, if the stem has it."""
    _, _, pools = STEMS[stem]
    if not pools:
        return x_BHWC
    # One axis after the other: on a CPU, XLA computes the gradient of a 3x3 `nn.max_pool` with four
    # indices per pixel.
    for axis in (1, 2):
        size = x_BHWC.shape[axis]
        widths = [(1, 1) if i == axis else (0, 0) for i in range(x_BHWC.ndim)]
        padded = jnp.pad(x_BHWC, widths, constant_values=-jnp.inf)
        parts = [jax.lax.slice_in_dim(padded, k, k + size, stride=2, axis=axis) for k in range(3)]
        x_BHWC = jnp.maximum(jnp.maximum(parts[0], parts[1]), parts[2])
    return x_BHWC


@jax.custom_jvp
def gelu(x: jax.Array) -> jax.Array:
    """The exact GELU, x Φ(x), of transformers and ConvNeXt, in the dtype of x.

    JAX 0.12 cannot differentiate its own in `shard_map`: the derivative of `erfc` is a
    `lax.polynomial`, whose coefficients do not vary over the mesh as x does. This derivative is the
    one of JAX 0.10 and 0.11, operation by operation and in their order, which decides what XLA
    fuses: runs train as before, bit by bit.
    """
    return nn.gelu(x, approximate=False)


@gelu.defjvp
def _differentiate_gelu(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """GELU as x/2 · erfc(-x/√2), and its change."""
    (x,), (dx,) = primals, tangents
    scaled, dscaled = 0.5 * x, 0.5 * dx
    argument, dargument = -x * math.sqrt(0.5), -dx * math.sqrt(0.5)
    tail = jax.lax.erfc(argument)
    dtail = -2 / math.sqrt(math.pi) * (dargument * jnp.exp(-jnp.square(argument)))
    return scaled * tail, dscaled * tail + scaled * dtail


def pool_mean(x_BHWC: jax.Array) -> jax.Array:
    """Means over the pixels, float32 [B, C]."""
    return jnp.mean(x_BHWC.astype(jnp.float32), axis=(1, 2))


def pool_descriptor(x_BHWC: jax.Array) -> jax.Array:
    """Generalized means (Σ w x³)^⅓ over the pixels, most of the weight in the middle.

    Generalized means (GeM: Radenović et al., "Fine-tuning CNN Image Retrieval with No Human
    Annotation", TPAMI 2019) let what an image shows count more than its background. Subjects
    are usually in the middle, so a Gaussian weighs the pixels. On photos of clothing, labels
    propagated along neighbors found by these are 2 points more accurate than by plain means
    (experiments/results/photos.md). Activations below 0 count as 0. Returns float32 [B, C].
    """
    offsets = [(jnp.arange(size) - (size - 1) / 2) / size for size in x_BHWC.shape[1:3]]
    weights_H, weights_W = (
        jax.nn.softmax(-((offset / _CENTER_WIDTH) ** 2) / 2) for offset in offsets
    )
    cubes = jnp.maximum(x_BHWC.astype(jnp.float32), 0) ** 3
    return jnp.cbrt(jnp.einsum("bhwc,h,w->bc", cubes, weights_H, weights_W))


def pool_stages(stages: Sequence[jax.Array]) -> jax.Array:
    """Mean and deviation over the positions of each stage's output, float32 [B, S].

    The outputs are [B, H, W, C] or [B, tokens, C]. S is twice the number of their channels.
    """
    moments = []
    for x in stages:
        x_BPC = x.astype(jnp.float32).reshape(x.shape[0], -1, x.shape[-1])
        # The gradient of a root is infinite at 0, the variance of a channel that is constant.
        variance_BC = jnp.maximum(x_BPC.var(axis=1), jnp.finfo(jnp.float32).tiny)
        moments += [x_BPC.mean(axis=1), jnp.sqrt(variance_BC)]
    return jnp.concatenate(moments, axis=1)


def count_parameters(params: PyTree) -> int:
    """Number of scalars in a parameter pytree."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
