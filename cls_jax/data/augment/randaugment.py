"""The RandAugment operations as one table of numbers, shared by every input pipeline.

The pool and its strengths are those of RandAugment (Cubuk et al., 2020) as the PyTorch code of
FixMatch and CLS uses it: 14 operations of the Python Imaging Library (PIL, Pillow), each at an
integer level of which `PARAMETER_MAX` is the strongest. Whatever PIL derives from the operation
and its level alone is worked out here once, with PIL's own arithmetic; a pipeline then looks up
`OpTable.kinds` for each image and applies one of a few kinds of transform.
"""

import dataclasses
import enum
import math
from collections.abc import Callable, Sequence

import numpy as np

PARAMETER_MAX = 10
CUTOUT_VALUE = 127  # Grey.

# Random numbers in [0, 1) that a view takes for each image.
WEAK_UNIFORMS = 3  # Flip, vertical shift, horizontal shift.
UNIFORMS_PER_OP = 4  # Operation, level, whether it is applied, sign.
CUTOUT_UNIFORMS = 2  # Row and column of the centre.

Matrix = tuple[float, float, float, float, float, float]


class OpKind(enum.IntEnum):
    """How an operation turns an image into another one."""

    KEEP = 0  # The image itself.
    LOOKUP = 1  # `OpTable.lookups`, the same for every channel.
    AUTOCONTRAST = 2  # Each channel's range stretched to 0..255.
    EQUALIZE = 3  # Each channel's histogram made flat.
    CONTRAST = 4  # Blend with the mean of the grey image, by `OpTable.factors`.
    COLOR = 5  # Blend with the grey image, by `OpTable.factors`.
    SHARPNESS = 6  # Blend with the smoothed image, by `OpTable.factors`.
    AFFINE = 7  # Nearest sample at `OpTable.affines`, black outside.


@dataclasses.dataclass(frozen=True, eq=False)
class OpTable:
    """A pool of operations for images of one size; row 0 of each level axis leaves them alone.

    Attributes:
        pool: the names of the operations, in the order of the `ops` axes.
        kinds: int32 [ops, levels], the `OpKind` of each operation, `KEEP` at level 0.
        factors: float32 [levels], the image's weight in a blend.
        lookups: uint8 [ops, levels, 256], the new value of each old one.
        affines: int32 [ops, levels, 2, 6], for the negative and the positive sign. With a row
            (a, b, c, d, e, f), output pixel (x, y) shows input pixel ((a x + b y + c) >> 16,
            (d x + e y + f) >> 16).
    """

    pool: tuple[str, ...]
    kinds: np.ndarray
    factors: np.ndarray
    lookups: np.ndarray
    affines: np.ndarray


def create_table(
    pool: Sequence[str], height: int, width: int, levels: int = PARAMETER_MAX
) -> OpTable:
    """Returns the `OpTable` of the named operations for images of `height` x `width` pixels.

    Levels 1 to `levels` - 1 are drawn, so `levels` is the exclusive bound of the authors' code.

    Raises:
        ValueError: the pool is empty or names an unknown operation, or `levels` is out of range.
    """
    _check(pool, levels)
    ops = [OPS[name] for name in pool]
    kinds = np.repeat(np.array([[op.kind] for op in ops], np.int32), levels, axis=1)
    kinds[:, 0] = OpKind.KEEP
    factors = np.array([1.0, *map(_factor, range(1, levels))], np.float32)
    lookups = np.array([[op.lookup(v) for v in range(levels)] for op in ops], np.uint8)
    lookups[:, 0] = _same_values(0)
    affines = [
        [[_fixed_point(op.matrix(s * v, height, width)) for s in (-1, 1)] for v in range(levels)]
        for op in ops
    ]
    return OpTable(tuple(pool), kinds, factors, lookups, np.array(affines, np.int32))


def count_strong_uniforms(num_ops: int) -> int:
    """Returns how many uniforms per image a strong view with `num_ops` operations takes."""
    return WEAK_UNIFORMS + UNIFORMS_PER_OP * num_ops + CUTOUT_UNIFORMS


def sample_ops(uniforms, table: OpTable) -> tuple:
    """Decodes the draws of one round: (operation, level, sign), each [n], whole numbers.

    Level 0 stands for "not applied", which has probability one half; sign is an index into
    `OpTable.affines`. Plain arithmetic, so NumPy, JAX and TensorFlow arrays all work.

    Args:
        uniforms: float32 [n, UNIFORMS_PER_OP] in [0, 1): operation, level, application, sign.
        table: the pool that is drawn from.
    """
    ops, levels = table.kinds.shape
    op = uniforms[:, 0] * ops // 1
    level = 1 + uniforms[:, 1] * (levels - 1) // 1
    applied = 1 - uniforms[:, 2] * 2 // 1
    sign = uniforms[:, 3] * 2 // 1
    return op, level * applied, sign


def _check(pool: Sequence[str], levels: int) -> None:
    known = ", ".join(OPS)
    if not pool:
        raise ValueError(f"The RandAugment pool is empty; name at least one of: {known}.")
    for name in pool:
        if name not in OPS:
            raise ValueError(f"Unknown RandAugment operation {name!r}; choose from: {known}.")
    if not 2 <= levels <= PARAMETER_MAX:
        raise ValueError(f"levels is {levels}; choose from 2 to {PARAMETER_MAX}.")


# Values. Each takes a level and returns the new value of each of the 256 old ones.


def _same_values(level: int) -> np.ndarray:
    return np.arange(256)


def _brightness(level: int) -> np.ndarray:
    # PIL blends with a black image in single precision and truncates.
    return (np.float32(_factor(level)) * np.arange(256, dtype=np.float32)).astype(np.uint8)


def _posterize(level: int) -> np.ndarray:
    bits = int(level * 4 / PARAMETER_MAX) + 4
    return np.arange(256) & ~(2 ** (8 - bits) - 1)


def _solarize(level: int) -> np.ndarray:
    values = np.arange(256)
    threshold = 256 - int(level * 256 / PARAMETER_MAX)
    return np.where(values < threshold, values, 255 - values)


def _factor(level: int) -> float:
    return level * 0.9 / PARAMETER_MAX + 0.05


# Geometry. Each takes a signed level and the image's size, and returns the matrix that PIL's
# Image.transform takes: from output to input coordinates.


def _same_place(level: int, height: int, width: int) -> Matrix:
    return 1, 0, 0, 0, 1, 0


def _rotate(level: int, height: int, width: int) -> Matrix:
    angle = -math.radians(int(level * 30 / PARAMETER_MAX) % 360)
    cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
    x, y = width / 2, height / 2
    return cos, sin, cos * -x + sin * -y + x, -sin, cos, -sin * -x + cos * -y + y


def _shear_x(level: int, height: int, width: int) -> Matrix:
    return 1, level * 0.3 / PARAMETER_MAX, 0, 0, 1, 0


def _shear_y(level: int, height: int, width: int) -> Matrix:
    return 1, 0, 0, level * 0.3 / PARAMETER_MAX, 1, 0


def _translate_x(level: int, height: int, width: int) -> Matrix:
    return 1, 0, int(level * 0.3 / PARAMETER_MAX * width), 0, 1, 0


def _translate_y(level: int, height: int, width: int) -> Matrix:
    return 1, 0, 0, 0, 1, int(level * 0.3 / PARAMETER_MAX * height)


def _fixed_point(matrix: Matrix) -> list[int]:
    """Returns `matrix` as PIL applies it: to pixel centres, in 16.16 fixed point."""
    a, b, c, d, e, f = matrix
    centred = (a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5)
    return [math.floor(value * 65536 + 0.5) for value in centred]


@dataclasses.dataclass(frozen=True)
class Op:
    """One operation of the pool: its kind, and what its level means to that kind."""

    kind: OpKind
    lookup: Callable[[int], np.ndarray] = _same_values
    matrix: Callable[[int, int, int], Matrix] = _same_place


OPS = {
    "autocontrast": Op(OpKind.AUTOCONTRAST),
    "brightness": Op(OpKind.LOOKUP, lookup=_brightness),
    "color": Op(OpKind.COLOR),
    "contrast": Op(OpKind.CONTRAST),
    "equalize": Op(OpKind.EQUALIZE),
    "identity": Op(OpKind.KEEP),
    "posterize": Op(OpKind.LOOKUP, lookup=_posterize),
    "rotate": Op(OpKind.AFFINE, matrix=_rotate),
    "sharpness": Op(OpKind.SHARPNESS),
    "shear_x": Op(OpKind.AFFINE, matrix=_shear_x),
    "shear_y": Op(OpKind.AFFINE, matrix=_shear_y),
    "solarize": Op(OpKind.LOOKUP, lookup=_solarize),
    "translate_x": Op(OpKind.AFFINE, matrix=_translate_x),
    "translate_y": Op(OpKind.AFFINE, matrix=_translate_y),
}
