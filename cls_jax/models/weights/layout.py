"""Between the variables of one network here and a flat file with PyTorch's names and layout.

A family of architectures says only how PyTorch calls each of its modules; both directions, reading
and writing, follow from that.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

PyTree = Any
Arrays = Mapping[str, np.ndarray]
Path = tuple[str, ...]

# Leaf here → name in PyTorch; other leaves have the same name in both.
_LEAVES = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var"}
# HWIO → OIHW for a convolution, IO → OI for a dense layer.
_KERNEL_AXES = {4: (3, 2, 0, 1), 2: (1, 0)}
_COUNTER = "num_batches_tracked"  # Of PyTorch's BatchNorm, which uses it only without a momentum.

# Means and standard deviations, one per channel, on the scale from 0 to 1.
Normalization = tuple[tuple[float, ...], tuple[float, ...]]
IMAGENET: Normalization = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class WeightsError(ValueError):
    """Why weights do not fit an architecture."""


class Weights(NamedTuple):
    """The content of a file.

    Attributes:
        arrays: by PyTorch's names.
        normalization: of the images that the weights expect; None if the file has none.
    """

    arrays: Arrays
    normalization: Normalization | None = None


class Layout(NamedTuple):
    """How files with weights of an architecture are written.

    Attributes:
        to_torch_module: name of a module here → its name in the file, often of several parts.
        normalization: of the images that such weights expect, where nothing else is known.
        unused: beginnings of names in the file that have no counterpart here.
        adapt: (arrays, shape of each of our leaves by the file's names) → arrays that fit.
    """

    to_torch_module: Callable[[str], str]
    normalization: Normalization = IMAGENET
    unused: tuple[str, ...] = ()
    adapt: Callable[[Arrays, Mapping[str, tuple[int, ...]]], Arrays] = lambda arrays, shapes: arrays

    def to_torch_name(self, path: Sequence[str]) -> str:
        """("stage2_block1", "projection") → "layer2.0.downsample.0", as torchvision has it."""
        return ".".join(map(self.to_torch_module, path))


OWN = Layout(str)  # Of architectures that PyTorch's libraries do not have.


def to_torch(variables: PyTree, layout: Layout) -> dict[str, np.ndarray]:
    """One network's parameters and statistics as arrays by PyTorch's names.

    Args:
        variables: "params" and "batch_stats", as of `Module.init`.
        layout: of the architecture.
    """
    leaves = jax.tree_util.tree_leaves_with_path(variables)
    return {
        _name(path, layout): _transpose(np.asarray(leaf), _is_kernel(path)) for path, leaf in leaves
    }


def from_torch(arrays: Arrays, variables: PyTree, layout: Layout, heads: Path = ()) -> PyTree:
    """The same variables with the values of a file, float32.

    Args:
        arrays: by PyTorch's names.
        variables: arrays or shapes of one network.
        layout: of the architecture.
        heads: modules that keep their values, whatever the file has for them.

    Raises:
        WeightsError: if a leaf is missing in the file or has another shape there, or the file has
            a leaf that is missing here.
    """
    leaves = jax.tree_util.tree_leaves_with_path(variables)
    ours = {_name(path, layout): path for path, _ in leaves}
    shapes = {_name(path, layout): _torch_shape(path, leaf) for path, leaf in leaves}
    kept = tuple(layout.to_torch_name((head,)) + "." for head in heads)
    arrays = layout.adapt(arrays, shapes)
    ignored = (*kept, *layout.unused)
    for name in arrays:
        if name not in ours and not name.startswith(ignored) and not name.endswith(_COUNTER):
            raise WeightsError(f"{name} has no place in it")

    def choose(path: Any, leaf: Any) -> Any:
        name = _name(path, layout)
        if name.startswith(kept):
            return leaf
        if name not in arrays:
            raise WeightsError(f"{name} is missing")
        if arrays[name].shape != shapes[name]:
            raise WeightsError(f"{name} is {arrays[name].shape} and not {shapes[name]}")
        return _transpose(arrays[name], _is_kernel(path), inverse=True).astype(np.float32)

    return jax.tree_util.tree_map_with_path(choose, variables)


def _name(path: Any, layout: Layout) -> str:
    _, *modules, leaf = (entry.key for entry in path)  # Without "params" or "batch_stats".
    prefix = layout.to_torch_name(modules) + "." if modules else ""
    return prefix + _LEAVES.get(leaf, leaf)


def _is_kernel(path: Any) -> bool:
    return path[-1].key == "kernel"


def _torch_shape(path: Any, leaf: Any) -> tuple[int, ...]:
    axes = _KERNEL_AXES[len(leaf.shape)] if _is_kernel(path) else range(len(leaf.shape))
    return tuple(leaf.shape[axis] for axis in axes)


def _transpose(array: np.ndarray, is_kernel: bool, inverse: bool = False) -> np.ndarray:
    if not is_kernel:
        return array
    axes = _KERNEL_AXES[array.ndim]
    return array.transpose(np.argsort(axes) if inverse else axes)
