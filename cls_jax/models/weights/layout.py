"""Converts the variables of one network to and from a flat file with PyTorch's names and layout.

A family of architectures defines only PyTorch's names of its modules, from which reading and
writing follow.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from cls_jax.batch import Leaf, PyTree
from cls_jax.models.efficientnet import LITE0, LITE1, LITE2, Stage
from cls_jax.models.layers import STEMS

KeyPath = tuple[Any, ...]  # Of a leaf in a tree of dictionaries: `jax.tree_util.DictKey`s.
Arrays = Mapping[str, np.ndarray]
Path = tuple[str, ...]

# Leaf here → name in PyTorch. Other leaves have the same name.
_LEAVES = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var"}
# HWIO → OIHW for a convolution, IO → OI for a dense layer.
_KERNEL_AXES = {4: (3, 2, 0, 1), 2: (1, 0)}
_COUNTER = "num_batches_tracked"  # In PyTorch's BatchNorm, which uses it only without a momentum.

# Means and standard deviations, one per channel, on the scale from 0 to 1.
Normalization = tuple[tuple[float, ...], tuple[float, ...]]
IMAGENET: Normalization = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF: Normalization = (0.5,) * 3, (0.5,) * 3  # Of Google's ViTs ("augreg"). Others have their own.
_FIRST_LAYERS = ("stem", "patch_embed")


class WeightsError(ValueError):
    """Why weights do not fit an architecture."""


class Weights(NamedTuple):
    """The content of a file."""

    arrays: Arrays  # By PyTorch's names.
    normalization: Normalization | None = None  # That the weights expect, if in the file.


class WeightsLayout(NamedTuple):
    """The names and normalization of files with weights of an architecture."""

    to_torch_module: Callable[[str], str]  # Name of a module here → in the file, often with dots.
    normalization: Normalization = IMAGENET  # The default if a file does not name its own.
    unused: tuple[str, ...] = ()  # Prefixes of names in the file without a counterpart here.
    # (arrays, shape of each of our leaves by the file's names) → arrays that fit.
    adapt: Callable[[Arrays, Mapping[str, tuple[int, ...]]], Arrays] = lambda arrays, shapes: arrays

    def to_torch_name(self, path: Sequence[str]) -> str:
        """("stage2_block1", "projection") → "layer2.0.downsample.0", as torchvision has it."""
        return ".".join(map(self.to_torch_module, path))


def to_torch(variables: PyTree, layout: WeightsLayout) -> dict[str, np.ndarray]:
    """One network's "params" and "batch_stats" as arrays by the names of a layout."""
    leaves = jax.tree_util.tree_leaves_with_path(variables)
    return {
        _name(path, layout): np.asarray(leaf).transpose(_axes(path, leaf)) for path, leaf in leaves
    }


def from_torch(
    arrays: Arrays, variables: PyTree, layout: WeightsLayout, heads: Path = ()
) -> PyTree:
    """The same variables of one network, arrays or shapes, with the values of a file, float32.

    `heads` are modules that keep their values, whatever the file has for them. Raises a
    WeightsError if a leaf is missing in the file, has another shape there, or is only in the file.
    """
    shapes = {
        _name(path, layout): tuple(leaf.shape[axis] for axis in _axes(path, leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(variables)
    }
    kept = tuple(layout.to_torch_name((head,)) + "." for head in heads)
    arrays = layout.adapt(arrays, shapes)
    ignored = (*kept, *layout.unused)
    for name in arrays:
        if name not in shapes and not name.startswith(ignored) and not name.endswith(_COUNTER):
            raise WeightsError(f"{name} is not part of this architecture")

    def choose(path: KeyPath, leaf: Leaf) -> Leaf:
        name = _name(path, layout)
        if name.startswith(kept):
            return leaf
        if name not in arrays:
            raise WeightsError(f"{name} is missing")
        if arrays[name].shape != shapes[name]:
            raise WeightsError(f"{name} is {arrays[name].shape} and not {shapes[name]}")
        return arrays[name].transpose(np.argsort(_axes(path, leaf))).astype(np.float32)

    return jax.tree_util.tree_map_with_path(choose, variables)


def _name(path: KeyPath, layout: WeightsLayout) -> str:
    keys: Iterator[str] = (entry.key for entry in path)
    _, *modules, leaf = keys  # Without "params" or "batch_stats".
    prefix = layout.to_torch_name(modules) + "." if modules else ""
    return prefix + _LEAVES.get(leaf, leaf)


def _axes(path: KeyPath, leaf: Leaf) -> tuple[int, ...]:
    """The order of a leaf's axes in PyTorch."""
    axes = tuple(range(len(leaf.shape)))
    return _KERNEL_AXES[len(axes)] if path[-1].key == "kernel" else axes


def resize_positions(arrays: Arrays, shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    """Interpolates "pos_embed" [1, tokens, D] to the number of patches that the images have.

    Bicubic with antialiasing, as timm's `resample_abs_pos_embed`. Both grids are squares. The other
    tokens are the class token and the registers.
    """
    positions = arrays.get("pos_embed")
    _, tokens, width = shapes["pos_embed"]
    if positions is None or positions.ndim != 3 or positions.shape[1:] == (tokens, width):
        return arrays
    side = math.isqrt(positions.shape[1])
    new_side = math.isqrt(tokens)
    num_extra = tokens - new_side**2
    if positions.shape[1] != side**2 + num_extra:
        return arrays  # The shape will be refused.
    extra, grid = np.split(positions.astype(np.float32), [num_extra], axis=1)
    grid = grid.reshape(side, side, -1)
    resized = jax.image.resize(grid, (new_side, new_side, grid.shape[-1]), "cubic", antialias=True)
    resized = np.asarray(resized).reshape(1, new_side**2, -1)
    return {**arrays, "pos_embed": np.concatenate([extra, resized], axis=1)}


def _rename(
    modules: Mapping[str, str], to_block: Callable[[int, int], str]
) -> Callable[[str], str]:
    """A `WeightsLayout.to_torch_module`: modules by name, and blocks by stage, or 0, and number."""

    def to_torch_module(name: str) -> str:
        if match := re.fullmatch(r"(?:stage(\d+)_)?block(\d+)", name):
            return to_block(int(match[1] or 0), int(match[2]))
        return modules.get(name, name)

    return to_torch_module


OWN = WeightsLayout(str)  # For architectures that are not in PyTorch's libraries.

# The names of torchvision and timm.
_RESNET_MODULES = {
    "stem": "conv1",
    "norm": "bn1",
    "norm1": "bn1",
    "norm2": "bn2",
    "norm3": "bn3",
    "projection": "downsample.0",
    "projection_norm": "downsample.1",
    "head": "fc",
}
RESNET = WeightsLayout(_rename(_RESNET_MODULES, lambda stage, block: f"layer{stage}.{block - 1}"))

# The names of the package `efficientnet-lite-pytorch`, which numbers blocks consecutively.
_EFFICIENTNET_MODULES = {
    "stem": "_conv_stem",
    "stem_norm": "_bn0",
    "top": "_conv_head",
    "top_norm": "_bn1",
    "head": "_fc",
    "expand": "_expand_conv",
    "expand_norm": "_bn0",
    "depthwise": "_depthwise_conv",
    "depthwise_norm": "_bn1",
    "project": "_project_conv",
    "project_norm": "_bn2",
}


def _to_efficientnet(table: Sequence[Stage]) -> WeightsLayout:
    def to_block(stage: int, block: int) -> str:
        return f"_blocks.{sum(each.blocks for each in table[: stage - 1]) + block - 1}"

    return WeightsLayout(
        _rename(_EFFICIENTNET_MODULES, to_block),
        normalization=((127 / 255,) * 3, (128 / 255,) * 3),
    )


EFFICIENTNET_LITE0, EFFICIENTNET_LITE1, EFFICIENTNET_LITE2 = map(
    _to_efficientnet, (LITE0, LITE1, LITE2)
)

# The names of timm.
_to_vit = _rename({"patch_embed": "patch_embed.proj"}, lambda _, block: f"blocks.{block - 1}")
VIT = WeightsLayout(_to_vit, HALF, adapt=resize_positions)
DINOV2 = WeightsLayout(_to_vit, unused=("mask_token",), adapt=resize_positions)

_MOBILENETV4_MODULES = {
    "stem": "conv_stem",
    "stem_norm": "bn1",
    "top": "conv_head",
    "top_norm": "norm_head",
    "head": "classifier",
}
MOBILENETV4 = WeightsLayout(
    _rename(_MOBILENETV4_MODULES, lambda stage, block: f"blocks.{stage - 1}.{block - 1}")
)
_CONVNEXT_MODULES = {
    "stem": "stem.0",
    "stem_norm": "stem.1",
    "down_norm": "0",
    "down": "1",
    "top_norm": "head.norm",
    "head": "head.fc",
}


def _to_convnext_block(stage: int, block: int) -> str:
    """Block 0 of a stage reduces the resolution."""
    return f"stages.{stage - 1}." + (f"blocks.{block - 1}" if block else "downsample")


CONVNEXT = WeightsLayout(_rename(_CONVNEXT_MODULES, _to_convnext_block))


def explain_mismatch(arrays: Arrays, layout: WeightsLayout, params: PyTree) -> str:
    """What to change if weights do not fit, as the end of a sentence.

    The first layer of a file reveals most mistakes. `params` are stacked, each leaf [N, ...].
    """
    for name in _FIRST_LAYERS:
        theirs = arrays.get(layout.to_torch_name((name,)) + ".weight")
        if name not in params or theirs is None or theirs.ndim != 4:
            continue
        _, *kernel, channels, _ = params[name]["kernel"].shape
        if theirs.shape[1] != channels:
            return (
                f"these weights are for {theirs.shape[1]} color channels and the images have "
                f"{channels}, so choose other weights, or none with model.init="
            )
        stems = [stem for stem, (kernel, *_) in STEMS.items() if kernel == theirs.shape[2]]
        if name == "stem" and theirs.shape[2] != kernel[0] and stems:
            return f"set model.stem={' or '.join(stems)}, which these weights have"
    return "set model.name, and model.stem, to the architecture of these weights"
