"""Depthwise and pointwise convolutions, and how they are lowered.

Shape suffixes: B images, H rows, W columns, C channels.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

DEPTHWISE = "depthwise"  # Of results that need not be computed again for the gradient.
_purpose = contextvars.ContextVar("purpose", default="untuned")  # See `traced_for`.


class DepthwiseConv(nn.Module):
    """One k x k filter per channel, with TensorFlow's SAME padding or PyTorch's.

    The stride applies to both axes. The result has the type `dtype`.
    """

    kernel_size: int
    stride: int = 1
    dtype: DTypeLike = jnp.float32
    use_bias: bool = False
    is_centered: bool = False  # Whether both sides are padded equally, as PyTorch does.

    @nn.compact
    def __call__(self, x_BHWC: jax.Array) -> jax.Array:
        """Returns `dtype` [B, ⌈H / stride⌉, ⌈W / stride⌉, C]."""
        k = self.kernel_size
        # sqrt(2 / fan_out), as for other convolutions. The fan of one channel is its filter.
        init = nn.initializers.normal((2 / k**2) ** 0.5)
        kernel = self.param("kernel", init, (k, k, 1, x_BHWC.shape[-1]))
        x_BHWC, kernel = x_BHWC.astype(self.dtype), kernel.astype(self.dtype)
        y_BHWC = depthwise_conv(x_BHWC, kernel, self.stride, self.is_centered)
        if not self.use_bias:
            return y_BHWC
        bias = self.param("bias", nn.initializers.zeros, y_BHWC.shape[-1:])
        return y_BHWC + bias.astype(self.dtype)


def depthwise_conv(
    x_BHWC: jax.Array, kernel: jax.Array, stride: int, is_centered: bool = False
) -> jax.Array:
    """Convolves every channel with its own filter, with SAME or with PyTorch's padding.

    `LOWERINGS` says how. The kernel is [k, k, 1, C] of the images' dtype. The stride applies to
    both axes. Centered, both sides are padded equally, which differs for a strided convolution of
    an even size. Only reverse-mode differentiation is supported. Raises a ValueError for a centered
    kernel of even size, whose result would have another size.
    """
    if is_centered and kernel.shape[0] % 2 == 0:
        raise ValueError(f"a centered kernel has an odd size, and not {kernel.shape[0]}")
    purpose = _purpose.get()
    if purpose == "shapes":
        return convolve_grouped(x_BHWC, kernel, stride, is_centered)
    y_BHWC = convolve(x_BHWC, kernel, stride, is_centered, _BY_PLATFORM[purpose])
    named: jax.Array = checkpoint_name(y_BHWC, DEPTHWISE)
    return named


def convolve_pointwise(x_BHWC: jax.Array, kernel: jax.Array, *_: Any, **__: Any) -> jax.Array:
    """Convolves with a kernel [1, 1, C, F] and stride 1: a product of matrices.

    For `nn.Conv.conv_general_dilated`, whose other arguments are irrelevant for such a kernel. As a
    convolution, the kernel's gradient takes three times as long on a CPU, because XLA transposes
    the images. Returns [B, H, W, F] of the images' dtype.
    """
    rows = x_BHWC.reshape(-1, x_BHWC.shape[-1]) @ kernel[0, 0]
    return rows.reshape((*x_BHWC.shape[:-1], -1))


@contextlib.contextmanager
def traced_for(purpose: str) -> Iterator[None]:
    """Traces depthwise convolutions for a purpose.

    For a program that a GPU's compiler will tune, "tuned", or will not, "untuned", the default. Or
    for "shapes" and ONNX: as grouped convolutions, on any platform.
    """
    token = _purpose.set(purpose)
    try:
        yield
    finally:
        _purpose.reset(token)


def convolve_grouped(
    x_BHWC: jax.Array, kernel: jax.Array, stride: int, is_centered: bool = False
) -> jax.Array:
    """`depthwise_conv` as a convolution with a group per channel, with XLA's own gradient."""
    return jax.lax.conv_general_dilated(
        x_BHWC,
        kernel,
        (stride, stride),
        _pads(x_BHWC, kernel, stride, is_centered),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=x_BHWC.shape[-1],
    )


def convolve(
    x_BHWC: jax.Array, kernel: jax.Array, stride: int, is_centered: bool, lowering: "Lowering"
) -> jax.Array:
    """`depthwise_conv` by one of `LOWERINGS`, on any platform, also within `shard_map`."""
    # There both must vary over the same axes of the mesh, since a gradient written by hand has the
    # type of its argument. The gradient of `pcast` sums over the axes that it adds.
    axes = _varying_axes(x_BHWC) | _varying_axes(kernel)
    images, filters = _vary(x_BHWC, axes), _vary(kernel, axes)
    y_BHWC: jax.Array = _convolve(images, filters, stride, is_centered, lowering)
    return y_BHWC


def _vary(array: jax.Array, axes: frozenset[str]) -> jax.Array:
    missing = tuple(sorted(axes - _varying_axes(array)))
    return jax.lax.pcast(array, missing, to="varying") if missing else array


def _varying_axes(array: jax.Array) -> frozenset[str]:
    return frozenset(jax.typeof(array).manual_axis_type.varying)


class Lowering(NamedTuple):
    """The two passes of a depthwise convolution."""

    # (images, kernel, stride=, is_centered=) → convolved images.
    forward: Callable[..., jax.Array]
    # (images, kernel, gradient of the result, stride=, is_centered=) → gradients of the first two.
    backward: Callable[..., tuple[jax.Array, jax.Array]]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _convolve(
    x_BHWC: jax.Array, kernel: jax.Array, stride: int, is_centered: bool, lowering: Lowering
) -> jax.Array:
    return lowering.forward(x_BHWC, kernel, stride=stride, is_centered=is_centered)


def _convolve_forward(
    x_BHWC: jax.Array, kernel: jax.Array, *static: Any
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _convolve(x_BHWC, kernel, *static), (x_BHWC, kernel)


def _convolve_backward(
    stride: int,
    is_centered: bool,
    lowering: Lowering,
    saved: tuple[jax.Array, jax.Array],
    y_bar: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    x_BHWC, kernel = saved
    return lowering.backward(x_BHWC, kernel, y_bar, stride=stride, is_centered=is_centered)


_convolve.defvjp(_convolve_forward, _convolve_backward)


def _sum_shifted(x_BHWC: jax.Array, kernel: jax.Array, stride: int, is_centered: bool) -> jax.Array:
    size = tuple(-(-length // stride) for length in x_BHWC.shape[1:3])
    padded = jnp.pad(x_BHWC, ((0, 0), *_pads(x_BHWC, kernel, stride, is_centered), (0, 0)))
    y_BHWC: jax.Array = _sum_products(padded, kernel, stride, size)
    return y_BHWC


def _pull_at_once(
    x_BHWC: jax.Array, kernel: jax.Array, y_bar: jax.Array, stride: int, is_centered: bool
) -> tuple[jax.Array, jax.Array]:
    """The gradients of `_sum_shifted`.

    On a CPU, XLA's own take five times as long: for each entry of the filters they read all images,
    which fit into no cache.
    """
    return (
        _pull_to_images(x_BHWC, kernel, stride, is_centered, y_bar),
        _pull_to_kernel(x_BHWC, kernel, stride, is_centered, y_bar),
    )


def _pull_by_entry(
    x_BHWC: jax.Array, kernel: jax.Array, y_bar: jax.Array, stride: int, is_centered: bool
) -> tuple[jax.Array, jax.Array]:
    """The same gradients, with one sum for each entry of the filters.

    For a GPU, XLA writes all shifted images to memory before it sums them at once, and for some
    sizes the sum needs more shared memory than there is, so that the program does not compile.
    """
    images, rows = jax.lax.optimization_barrier((x_BHWC, y_bar))
    padded = jnp.pad(images, ((0, 0), *_pads(x_BHWC, kernel, stride, is_centered), (0, 0)))
    sums = [
        jnp.sum(shift.astype(jnp.float32) * rows.astype(jnp.float32), axis=(0, 1, 2))
        for shift in _shifts(padded, kernel.shape[0], stride, y_bar.shape[1:3])
    ]
    kernel_bar = jnp.stack(sums).reshape(kernel.shape).astype(kernel.dtype)
    return _pull_to_images(x_BHWC, kernel, stride, is_centered, y_bar), kernel_bar


# XLA has no depthwise kernel for CPUs: 3 x 3 filters on 32 images of 24 x 24 pixels and 144
# channels take 81 ms as a grouped convolution and 4 ms as a sum of shifted products (2 cores).
# On an H200, a grouped convolution that is not tuned takes 4 to 16 times as long forward, and its
# gradients 3 to 22 times. With a tuned one forward, a step takes 29.6 ms, and 33.3 ms with shifted
# products (experiments/results/gpu.md). TPUs, which were not measured, do as GPUs.
LOWERINGS = {
    "cpu": Lowering(_sum_shifted, _pull_at_once),
    "gpu": Lowering(_sum_shifted, _pull_by_entry),
    "tuned gpu": Lowering(convolve_grouped, _pull_by_entry),
}


def _choose(*arrays: jax.Array, pass_name: str, gpu: str, **options: Any) -> Any:
    """A pass by the lowering of the platform. What all platforms share is traced once."""
    cpu, other = (getattr(LOWERINGS[name], pass_name) for name in ("cpu", gpu))
    if cpu is other:
        return cpu(*arrays, **options)
    return jax.lax.platform_dependent(
        *arrays,
        cpu=functools.partial(cpu, **options),
        default=functools.partial(other, **options),  # CUDA, ROCm and TPUs.
    )


# The platform is chosen when a program is lowered, not when it is traced, so that an exported file
# has all.
_BY_PLATFORM = {
    purpose: Lowering(
        functools.partial(_choose, pass_name="forward", gpu=gpu),
        functools.partial(_choose, pass_name="backward", gpu=gpu),
    )
    for purpose, gpu in (("untuned", "gpu"), ("tuned", "tuned gpu"))
}


def _pull_to_images(
    x_BHWC: jax.Array, kernel: jax.Array, stride: int, is_centered: bool, y_bar: jax.Array
) -> jax.Array:
    """The gradient of the images: `y_bar`, spread by the stride, convolved with turned filters."""
    k = kernel.shape[0]
    size = x_BHWC.shape[1:3]
    spread = [
        (k - 1 - low, length + low - stride * (count - 1) - 1, stride - 1)
        for (low, _), length, count in zip(
            _pads(x_BHWC, kernel, stride, is_centered), size, y_bar.shape[1:3], strict=True
        )
    ]
    zero = jnp.zeros((), y_bar.dtype)
    padded = jax.lax.pad(y_bar, zero, ((0, 0, 0), *spread, (0, 0, 0)))
    x_bar: jax.Array = _sum_products(padded, kernel[::-1, ::-1], 1, size)
    return x_bar


def _pull_to_kernel(
    x_BHWC: jax.Array, kernel: jax.Array, stride: int, is_centered: bool, y_bar: jax.Array
) -> jax.Array:
    """The gradient of the filters, in float32: all entries in one pass over each image."""
    x_BHWC = x_BHWC.astype(jnp.float32)
    y_bar = y_bar.astype(jnp.float32)
    padded = jnp.pad(x_BHWC, ((0, 0), *_pads(x_BHWC, kernel, stride, is_centered), (0, 0)))
    # Otherwise XLA would compute `y_bar` again for each of the k² products.
    padded, y_bar = jax.lax.optimization_barrier((padded, y_bar))
    shifts = _shifts(padded, kernel.shape[0], stride, y_bar.shape[1:3])
    zero = _vary(jnp.zeros(()), _varying_axes(y_bar))
    # One reduction of k² arrays. k² reductions of one array each would read the images k² times.
    sums = jax.lax.reduce(
        [shift * y_bar for shift in shifts],
        [zero] * len(shifts),
        functools.partial(jax.tree.map, jnp.add),
        dimensions=(1, 2),
    )
    return jnp.stack(sums).sum(axis=1).reshape(kernel.shape).astype(kernel.dtype)


def _pads(
    x_BHWC: jax.Array, kernel: jax.Array, stride: int, is_centered: bool
) -> Sequence[tuple[int, int]]:
    """Rows and columns of zeros before and after the images."""
    if is_centered:
        return [(size // 2, size // 2) for size in kernel.shape[:2]]
    return jax.lax.padtype_to_pads(x_BHWC.shape[1:3], kernel.shape[:2], (stride, stride), "SAME")


# Jitted only to be traced once for equal shapes: networks repeat their blocks, and programs their
# networks. No call remains in the program.
@functools.partial(jax.jit, static_argnames=("stride", "size"), inline=True)
def _sum_products(
    padded: jax.Array, kernel: jax.Array, stride: int, size: tuple[int, ...]
) -> jax.Array:
    """The convolution of padded images to `size` rows and columns, summed in float32."""
    entries = kernel.reshape(-1, kernel.shape[-1]).astype(jnp.float32)
    shifts = _shifts(padded, kernel.shape[0], stride, size)
    products = [shift * entry for shift, entry in zip(shifts, entries, strict=True)]
    total: jax.Array = sum(products[1:], start=products[0])
    return total.astype(padded.dtype)


def _shifts(padded: jax.Array, k: int, stride: int, size: Sequence[int]) -> list[jax.Array]:
    """The slices of padded images, `size` rows and columns, for each of a filter's k² entries."""
    rows, columns = (stride * (length - 1) + 1 for length in size)
    return [
        padded[:, i : i + rows : stride, j : j + columns : stride]
        for i in range(k)
        for j in range(k)
    ]
