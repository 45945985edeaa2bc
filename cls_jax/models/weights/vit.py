"""Vision transformers with timm's names."""

import math
import re
from collections.abc import Mapping

import jax
import numpy as np

from cls_jax.models.weights.layout import IMAGENET, Arrays, Layout

HALF = (0.5,) * 3, (0.5,) * 3  # Of Google's ViTs ("augreg"); others bring their own.


def to_torch_module(name: str) -> str:
    """`block1` → `blocks.0`, `patch_embed` → `patch_embed.proj`."""
    if match := re.fullmatch(r"block(\d+)", name):
        return f"blocks.{int(match[1]) - 1}"
    return "patch_embed.proj" if name == "patch_embed" else name


def resize_positions(arrays: Arrays, shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    """Interpolates "pos_embed" [1, tokens, D] to the number of patches that the images have.

    Bicubic with antialiasing, as `resample_abs_pos_embed` of timm; both grids are squares. What
    remains of the tokens beside a square are those of class and registers.
    """
    positions, (_, tokens, width) = arrays.get("pos_embed"), shapes["pos_embed"]
    if positions is None or positions.ndim != 3 or positions.shape[1:] == (tokens, width):
        return arrays
    side, new_side = math.isqrt(positions.shape[1]), math.isqrt(tokens)
    num_extra = tokens - new_side**2
    if positions.shape[1] != side**2 + num_extra:
        return arrays  # To be refused for its shape.
    extra, grid = np.split(positions.astype(np.float32), [num_extra], axis=1)
    grid = grid.reshape(side, side, -1)
    resized = jax.image.resize(grid, (new_side, new_side, grid.shape[-1]), "cubic", antialias=True)
    resized = np.asarray(resized).reshape(1, new_side**2, -1)
    return {**arrays, "pos_embed": np.concatenate([extra, resized], axis=1)}


LAYOUT = Layout(to_torch_module, HALF, adapt=resize_positions)
DINOV2 = Layout(to_torch_module, IMAGENET, unused=("mask_token",), adapt=resize_positions)
