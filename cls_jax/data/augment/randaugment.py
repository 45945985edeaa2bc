"""The RandAugment operations as one table of numbers, shared by every input pipeline.

The pool and its strengths come from RandAugment (Cubuk et al., 2020) as the PyTorch code of
FixMatch, CLS and TorchSSL uses it: 14 operations of the Python Imaging Library (PIL, Pillow), each
at a level up to `PARAMETER_MAX`. Whatever depends only on the operation and its level is computed
here once. A pipeline then looks up `OpTable.kinds` for each image and applies one of a few kinds of
transform.
"""

import dataclasses
import enum
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

PARAMETER_MAX = 10

# Random numbers in [0, 1) per image and operation: operation, level, whether it is applied, sign.
UNIFORMS_PER_OP = 4

Matrix = tuple[float, float, float, float, float, float]
_RAMP = Image.fromarray(np.arange(256, dtype=np.uint8)[None])


class OpKind(enum.IntEnum):
    """How an operation turns an image into another one."""

    KEEP = 0  # The image itself.
    LOOKUP = 1  # `OpTable.lookups`, the same for every channel.
    AUTOCONTRAST = 2  # Each channel's range stretched to 0..255.
    EQUALIZE = 3  # Each channel's histogram made flat.
    # Unless there are 3 channels, each is its own gray image, and COLOR changes nothing.
    CONTRAST = 4  # Blend with the mean of the gray image, by `OpTable.factors`.
    COLOR = 5  # Blend with the gray image, by `OpTable.factors`.
    SHARPNESS = 6  # Blend with the smoothed image, by `OpTable.factors`.
    AFFINE = 7  # Nearest sample at `OpTable.affines`, black outside.


@dataclasses.dataclass(frozen=True, eq=False)
class OpTable:
    """A pool of operations for images of one size. Row 0 of each level axis changes nothing."""

    kinds: np.ndarray  # int32 [ops, levels], the `OpKind` of each operation, `KEEP` in row 0.
    factors: np.ndarray  # float32 [levels], the image's weight in a blend.
    lookups: np.ndarray  # uint8 [ops, levels, 256], the new value of each old one.
    # int32 [ops, levels, 2, 6], for the negative and the positive sign. With a row
    # (a, b, c, d, e, f), output pixel (x, y) shows input pixel ((a x + b y + c) >> 16,
    # (d x + e y + f) >> 16).
    affines: np.ndarray
    # Whether every drawn operation is applied, or only half of them on average.
    is_always_applied: bool


def create_table(
    pool: Sequence[str], height: int, width: int, levels: Sequence[float], is_torchssl: bool = False
) -> OpTable:
    """Returns the `OpTable` of some `OPS` for images of `height` x `width` pixels.

    Levels are above 0 and at most `PARAMETER_MAX`. In the authors' code, rotations are by whole
    degrees and translations by whole pixels, toward 0. In TorchSSL, operations are always applied.
    """
    ops = [OPS[name] for name in pool]
    rows = [0, *levels]
    kinds = np.repeat(np.array([[op.kind] for op in ops], np.int32), len(rows), axis=1)
    kinds[:, 0] = OpKind.KEEP
    factors = np.array([1.0, *map(_factor, levels)], np.float32)
    lookups = np.array(
        [[_RAMP, *(op.lookup(_RAMP, level) for level in levels)] for op in ops], np.uint8
    )
    to_number = float if is_torchssl else int
    affines = [
        [
            [_fixed_point(op.matrix(sign * level, height, width, to_number)) for sign in (-1, 1)]
            for level in rows
        ]
        for op in ops
    ]
    return OpTable(
        kinds=kinds,
        factors=factors,
        lookups=lookups[:, :, 0],
        affines=np.array(affines, np.int32),
        is_always_applied=is_torchssl,
    )


def sample_ops(uniforms: Any, table: OpTable) -> tuple[Any, Any, Any]:
    """Turns the draws of one round into (operation, level, sign), integers, each [n].

    The draws are float32 [n, UNIFORMS_PER_OP] in [0, 1): operation, level, application, sign. The
    results index the axes of the table, and level 0 stands for "not applied". Plain arithmetic, so
    NumPy, JAX and TensorFlow arrays all work.
    """
    ops, rows = table.kinds.shape
    op = uniforms[:, 0] * ops // 1
    level = 1 + uniforms[:, 1] * (rows - 1) // 1
    if not table.is_always_applied:
        level *= 1 - uniforms[:, 2] * 2 // 1
    sign = uniforms[:, 3] * 2 // 1
    return op, level, sign


def _share(level: float, largest: float) -> float:
    return level * largest / PARAMETER_MAX


def _factor(level: float) -> float:
    return _share(level, 0.9) + 0.05


def _rotate(level: float, height: int, width: int, to_number: type) -> Matrix:
    # Image.rotate computes this matrix but does not return it.
    angle = -math.radians(to_number(_share(level, 30)) % 360)
    cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
    x, y = width / 2, height / 2
    return cos, sin, cos * -x + sin * -y + x, -sin, cos, -sin * -x + cos * -y + y


def _fixed_point(matrix: Matrix) -> list[int]:
    """Returns `matrix` as PIL applies it: to pixel centers, in 16.16 fixed point."""
    a, b, c, d, e, f = matrix
    centered = (a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5)
    return [math.floor(value * 65536 + 0.5) for value in centered]


@dataclasses.dataclass(frozen=True)
class Op:
    """One operation of the pool: its kind, and the meaning of its level."""

    kind: OpKind
    # (Image with one pixel of each value from 0 to 255, level) → PIL's result.
    lookup: Callable[[Image.Image, float], Image.Image] = lambda ramp, level: ramp
    # (Signed level, height, width, type of degrees and pixels) → the matrix from output to input
    # coordinates that PIL's Image.transform takes.
    matrix: Callable[[float, int, int, type], Matrix] = lambda *_: (1, 0, 0, 0, 1, 0)


OPS = {
    "autocontrast": Op(OpKind.AUTOCONTRAST),
    "brightness": Op(
        OpKind.LOOKUP, lambda ramp, level: ImageEnhance.Brightness(ramp).enhance(_factor(level))
    ),
    "color": Op(OpKind.COLOR),
    "contrast": Op(OpKind.CONTRAST),
    "equalize": Op(OpKind.EQUALIZE),
    "identity": Op(OpKind.KEEP),
    "posterize": Op(
        OpKind.LOOKUP, lambda ramp, level: ImageOps.posterize(ramp, 4 + int(_share(level, 4)))
    ),
    "rotate": Op(OpKind.AFFINE, matrix=_rotate),
    "sharpness": Op(OpKind.SHARPNESS),
    "shear_x": Op(OpKind.AFFINE, matrix=lambda level, *_: (1, _share(level, 0.3), 0, 0, 1, 0)),
    "shear_y": Op(OpKind.AFFINE, matrix=lambda level, *_: (1, 0, 0, _share(level, 0.3), 1, 0)),
    "solarize": Op(
        OpKind.LOOKUP, lambda ramp, level: ImageOps.solarize(ramp, 256 - int(_share(level, 256)))
    ),
    "translate_x": Op(
        OpKind.AFFINE,
        matrix=lambda level, h, w, to_number: (1, 0, to_number(_share(level, 0.3) * w), 0, 1, 0),
    ),
    "translate_y": Op(
        OpKind.AFFINE,
        matrix=lambda level, h, w, to_number: (1, 0, 0, 0, 1, to_number(_share(level, 0.3) * h)),
    ),
}
